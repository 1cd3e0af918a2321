"""From a :class:`~redfuser.artifact.KernelSpec` to something one calls with torch tensors.

The call path is short on purpose (architecture.md section 9: at most 2 microseconds of host time are ours): allocate the
outputs, enter the native launcher, which checks the tensors and launches on torch's current stream. Python looks at the
arguments again only when that failed, to say why.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import torch

from redfuser.artifact import KernelSpec
from redfuser.errors import ArtifactError, InputError, InternalError, RedFuserError
from redfuser.runtime import driver, native
from redfuser.runtime.check import TORCH_DTYPE, binding_of, check_tensors, inputs_of, outputs_of

logger = logging.getLogger("redfuser.runtime")

DRIVERS = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}

_CODED = re.compile(r"\b(RF[569]\d\d) (.*)", re.DOTALL)


class Kernel:
    """A loaded kernel.

    ``kernel(*inputs)`` takes the ``in`` tensors in order and returns the output, or a tuple of outputs, freshly
    allocated; ``kernel.call`` is the same as a plain function. ``kernel.into(*inputs, *outputs)`` writes into tensors
    the caller gives. Both raise :class:`InputError` RF501 to RF510. ``kernel.tolerant`` is ``call`` for the inside of a
    graph: an operand that a view left strided or misaligned is copied, and said once. The check is the launcher's own,
    so a call that is fine costs nothing more. ``route`` is ``native``, ``ctypes`` or ``cpu``.
    """

    __slots__ = ("_prepare", "call", "into", "route", "spec", "tolerant")

    def __init__(self, spec: KernelSpec, run: Callable[..., Any], prepare: Callable[[int], Any], route: str) -> None:
        self.spec, self.route, self._prepare = spec, route, prepare
        self.into: Callable[..., None] = _into(spec, run)
        self.call: Callable[..., Any] = _allocating(spec, run, tolerant=False)
        self.tolerant: Callable[..., Any] = _allocating(spec, run, tolerant=True)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return self.call(*inputs)

    def prepare(self, device: torch.device | int) -> None:
        """Load the binaries on ``device`` now rather than at the first call."""
        if self.spec.kind != "cpu":
            index = device if isinstance(device, int) else (device.index if device.index is not None else
                                                            torch.cuda.current_device())
            try:
                self._prepare(index)
            except Exception as error:
                raise explain(self.spec, None, error) from error

    def __repr__(self) -> str:
        return f"<kernel {self.spec.name} for {self.spec.arch}, {self.route}>"


def launcher(spec: KernelSpec, *, native_route: bool = True, driver_path: str = "") -> Kernel:
    """Make ``spec`` callable. ``native_route=False`` forces ctypes, which a kernel with symbols always takes. Binaries
    load on the first call on each device.

    Raises :class:`ArtifactError` RF513 when a CPU kernel's shared object cannot be loaded, RF601 for a damaged spec and
    :class:`InputError` RF521 for a kernel that is text yet.
    """
    if spec.kind == "cpu":
        return _cpu_kernel(spec)
    if not spec.finished:
        raise InputError("RF521", f"kernel {spec.name} for {spec.arch} is HIP text",
                         why="no ROCm toolchain has compiled it yet",
                         help="`redfuser build FILE` on a machine with ROCm, and load that")
    driver_path = driver_path or DRIVERS[spec.kind]
    if not inputs_of(spec):
        raise InputError("RF501", f"kernel {spec.name} takes no tensors, so it has no device to run on")
    make = native.make_kernel() if native_route and not spec.symbols else None
    if make is None:
        run, prepare = driver.make_kernel(spec, driver_path)
        return Kernel(spec, run, prepare, "ctypes")
    try:
        call, prepare = make(json.dumps(spec.to_json()), list(spec.binaries), driver_path)
    except Exception as error:
        raise explain(spec, None, error) from error
    return Kernel(spec, call, prepare, "native")


def _cpu_kernel(spec: KernelSpec) -> Kernel:
    """A shared object whose tvm-ffi function takes the arguments in declaration order, workspaces last."""
    if not spec.binaries or len(spec.launches) != 1:
        raise ArtifactError("RF601", f"CPU kernel {spec.name} needs one shared object and one entry")
    try:
        function = native.load_module(spec.binaries[0])[spec.launches[0].entry]
    except RedFuserError:  # a setting, say
        raise
    except Exception as error:
        raise ArtifactError("RF513", f"the shared object of CPU kernel {spec.name} cannot be loaded",
                            why=str(error).strip()[-500:], help="it may be for another processor; compile again") from error
    given = inputs_of(spec) + outputs_of(spec)
    declared = [arg for arg in spec.args if arg.role != "workspace"]
    order = [given.index(arg) for arg in declared]

    def scratch_of(spec: KernelSpec) -> list[tuple[Any, torch.dtype]]:
        return [(arg.shape, TORCH_DTYPE[arg.dtype]) for arg in spec.args if arg.role == "workspace"]

    workspaces = scratch_of(spec)

    def run(*tensors: torch.Tensor) -> None:
        check_tensors(spec, tensors, given)
        known = scratch_of(spec.at(binding_of(spec, tensors))) if spec.symbols and workspaces else workspaces
        scratch = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in known]
        function(*[tensors[i].detach() for i in order], *scratch)

    return Kernel(spec, run, lambda _device: None, "cpu")


def _into(spec: KernelSpec, run: Callable[..., Any]) -> Callable[..., None]:
    def into(*tensors: torch.Tensor) -> None:
        try:
            run(*tensors)
        except Exception as error:
            raise explain(spec, tensors, error, [*inputs_of(spec), *outputs_of(spec)]) from error

    return into


def _allocating(spec: KernelSpec, run: Callable[..., Any], tolerant: bool) -> Callable[..., Any]:
    """The kernel as a function from inputs to fresh outputs.

    Outputs are true torch tensors, so that record_stream and graph pools know them. On CUDA they come from the
    allocation that torch's own compiled graphs use, which costs a third of ``torch.empty`` and takes the current device;
    when the inputs are on another one the launcher says so, and the call is made again with outputs over there.
    """
    if spec.symbols:
        return _of_sizes(spec, run, tolerant)
    outputs = [(arg.shape, TORCH_DTYPE[arg.dtype]) for arg in outputs_of(spec)]
    recover = _Recovery(spec, run, tolerant)
    fast = getattr(getattr(torch._C, "_dynamo", None) and torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if spec.kind == "cpu" or fast is None or not torch.cuda.is_available():

        def call(*inputs: torch.Tensor) -> Any:
            try:
                return recover.plain(inputs)
            except Exception as error:
                return recover(inputs, error)

        return call

    strided = [(shape, _contiguous(shape), dtype) for shape, dtype in outputs]
    if len(outputs) == 1:
        (shape, strides, dtype), = strided

        def call_one(*inputs: torch.Tensor) -> Any:
            try:
                out = fast(shape, strides, dtype)
                run(*inputs, out)
                return out
            except Exception as error:
                return recover(inputs, error)

        return call_one

    def call_many(*inputs: torch.Tensor) -> Any:
        try:
            made = tuple([fast(shape, strides, dtype) for shape, strides, dtype in strided])
            run(*inputs, *made)
            return made
        except Exception as error:
            return recover(inputs, error)

    return call_many


def _of_sizes(spec: KernelSpec, run: Callable[..., Any], tolerant: bool) -> Callable[..., Any]:
    """A function for each size that it is called with."""
    known: dict[Any, Callable[..., Any]] = {}

    def call(*inputs: torch.Tensor) -> Any:
        shapes = tuple([getattr(t, "shape", None) for t in inputs])
        found = known.get(shapes)
        if found is None:
            if len(known) > 1024:
                known.clear()
            found = known[shapes] = _allocating(spec.at(binding_of(spec, inputs)), run, tolerant)
        return found(*inputs)

    return call


class _Recovery:
    """What happens after a call failed: another device, operands to copy, or an error to explain."""

    def __init__(self, spec: KernelSpec, run: Callable[..., Any], tolerant: bool) -> None:
        self._spec, self._run, self._tolerant, self._told = spec, run, tolerant, False
        self._outputs = [(arg.shape, TORCH_DTYPE[arg.dtype]) for arg in outputs_of(spec)]

    def plain(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        """The call with outputs on the inputs' device."""
        device = inputs[0].device
        made = tuple([torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self._outputs])
        self._run(*inputs, *made)
        return made[0] if len(made) == 1 else made

    def __call__(self, inputs: tuple[Any, ...], error: Exception) -> Any:
        first = inputs[0] if inputs else None
        if isinstance(first, torch.Tensor) and first.is_cuda and first.device.index != torch.cuda.current_device():
            try:
                return self.plain(inputs)
            except Exception as second:
                error = second
        coded = explain(self._spec, inputs, error)
        if not self._tolerant or getattr(coded, "code", "") not in ("RF506", "RF507"):
            raise coded from error
        if not self._told:
            self._told = True
            logger.warning("%s; copying the operand on every call", getattr(coded, "what", coded))
        return self.plain(tuple([_clean(tensor, arg.align) for tensor, arg in
                                 zip(inputs, inputs_of(self._spec), strict=True)]))


def _clean(tensor: torch.Tensor, align: int) -> torch.Tensor:
    if tensor.is_contiguous() and tensor.data_ptr() % max(align, 1) == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= max(extent, 1)
    return tuple(strides)


def explain(spec: KernelSpec, tensors: tuple[Any, ...] | None, error: Exception, args: Any = None) -> Exception:
    """The coded error for a failed call. An allocator's own out-of-memory error is returned as it is."""
    if isinstance(error, (RedFuserError, torch.OutOfMemoryError)):
        return error
    if tensors is not None:
        try:
            check_tensors(spec, tensors, args)  # names types, shapes and the remedy better than native code can
        except RedFuserError as better:
            return better
    coded = _CODED.search(str(error))
    if coded is None:
        return InternalError("RF508", f"launching kernel {spec.name} failed", why=f"{type(error).__name__}: {error}")
    code, text = coded.group(1), coded.group(2).strip()
    return (ArtifactError if code.startswith("RF6") else InputError)(code, text)
