"""The compiled model: the outer graph as torch code, its constants, and the kernels it calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from redfuser.artifact import KernelSpec
from redfuser.casting import casts, uncast
from redfuser.errors import ArtifactError, InputError, InternalError
from redfuser.report import Report
from redfuser.runtime import archive, ops, trial, watched
from redfuser.runtime.guard import is_name
from redfuser.runtime.launcher import launcher
from redfuser.runtime.parts import Graph, Parts, whole
from redfuser.runtime.reference import reference
from redfuser.runtime.signature import Signature, of_imported, torch_dtype
from redfuser.runtime.watched import casting, derivatives, modes, tracing, transforms


@dataclass(frozen=True, slots=True)
class _Bound:
    """What eager calls need on one device."""

    device: torch.device
    run: Callable[..., Any]
    constants: tuple[torch.Tensor, ...]


class CompiledModel(torch.nn.Module):
    """Called like the model it was compiled from; inference only.

    Every call checks count, structure, device, dtype and shape of its inputs and raises :class:`InputError` RF502 to
    RF505, RF511, RF514 or RF515. Work is enqueued on torch's current stream and a call can be captured in a CUDA graph
    (:meth:`cuda_graph` does that). Under torch.compile and torch.export the kernels appear as operators.

    Constants are buffers: the model is where they are, and ``model.to(device)`` moves them. A model for GPUs whose constants
    are on the CPU moves them to the inputs of its first call.
    """

    def __init__(self, graph: Graph, constants: Mapping[str, torch.Tensor], kernels: Mapping[str, KernelSpec],
                 signature: Signature, report: Report | None = None,
                 stages: Mapping[str, Mapping[str, str]] | None = None) -> None:
        super().__init__()
        self._followed: dict[str, tuple[torch.Tensor, int]] = {}
        for name, tensor in constants.items():
            if not is_name(name):
                raise InternalError("RF900", f"constant {name!r} is not an identifier")
            given, here = tensor.detach(), f"c_{name}"
            self.register_buffer(here, _aligned(given))
            if getattr(self, here) is not given and not given.is_inference():
                self._followed[here] = given, given._version
        self._graph, self._signature, self._kernels = graph, signature, dict(kernels)
        self._constants = tuple(constants)
        self._report = report if report is not None else Report("model", "")
        self._stages = {name: dict(dumps) for name, dumps in (stages or {}).items()}
        self._expected = [(torch.Size(s.shape), torch_dtype(s.dtype)) for s in signature.inputs]
        self._names = [s.name for s in signature.inputs]
        self._positional = signature.positional
        self._as_is = signature.result_is_outputs and len(signature.out_leaves) == graph.outputs
        self._eager: _Bound | None = None
        self._traced = self._compile({name: ops.register(self._kernels[k]) for name, k in graph.kernels.items()})
        self.eval()

    @classmethod
    def from_compilation(cls, done: Any) -> CompiledModel:
        """From :class:`redfuser.pipeline.Compilation`."""
        outputs = len(done.graph.outputs)
        used = set(done.graph.kernels.values())
        references = {k: text for k, text in done.references.items() if k in used}
        graph = Graph(done.graph.source, tuple(done.graph.inputs), outputs, dict(done.graph.kernels), references)
        made = {p.name: p for p in done.produced.values() if p.spec is not None and p.name in used}
        return cls(graph, done.graph.constants, {name: p.spec for name, p in made.items()},
                   of_imported(done.imported, outputs), done.report, {name: p.stages for name, p in made.items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, arch: str | None = None,
             device: torch.device | str | None = None) -> CompiledModel:
        """From a file that :meth:`save` wrote; see :func:`redfuser.runtime.archive.read`."""
        parts = archive.read(path, arch=arch, device=device)
        with archive.blaming(path):
            model = cls(parts.graph, parts.constants, parts.kernels, parts.signature, parts.report, parts.stages)
            for name in parts.constants:
                model.own(f"c_{name}", parts.constants[name])
            return model

    def own(self, buffer: str, tensor: torch.Tensor) -> None:
        """Put ``tensor`` in a constant's place. It is this model's alone, so it lies as the library wants it."""
        setattr(self, buffer, self._graph.laid(buffer.removeprefix("c_"), _aligned(tensor)))
        self._eager = None
        self._followed.pop(buffer, None)

    # -- calling -------------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors: Any = args
        if kwargs or not self._positional or len(args) != len(self._expected):
            tensors = self._signature.bind(args, kwargs)
        if torch.compiler.is_compiling():  # a tracer: kernels as operators, and nothing that asks for data
            return self._as_operators(tensors)
        if casting() and casts():  # dtypes are fixed
            with uncast():
                return self.forward(*args, **kwargs)
        if (modes() or tracing() is not None or transforms() is not None or derivatives._current_level >= 0) \
                and watched.by_operators(tensors):
            self._signature.check(tensors, self._device_for(tensors))
            return self._as_operators(tensors)
        if self._followed:
            self._follow()
        bound = self._eager
        if bound is None:
            bound = self._check(tensors)
        grad = torch.is_grad_enabled()
        for i, (shape, dtype) in enumerate(self._expected):
            tensor = tensors[i]
            try:
                if tensor.shape != shape or tensor.dtype is not dtype or tensor.device != bound.device or (
                        grad and tensor.requires_grad):
                    bound = self._check(tensors)
                if tensor.is_neg() or not whole(tensor):  # a negated view has the other sign in memory
                    tensors = [*tensors[:i], tensor.resolve_neg().contiguous(), *tensors[i + 1:]]
            except (AttributeError, RuntimeError, ValueError):
                bound = self._check(tensors)
        try:
            outputs = bound.run(bound.device, *tensors, *bound.constants)
        except Exception:
            watched.plain(tensors, self._names)
            raise
        return outputs if self._as_is else self._signature.unbind(outputs)

    def _follow(self) -> None:
        """Constants that were copied, for the way they lie, take over what was written into the originals since."""
        for name, (given, version) in self._followed.items():
            if given._version != version:
                getattr(self, name).copy_(given)
                self._followed[name] = given, given._version

    def _as_operators(self, tensors: Any) -> Any:
        """The call with the kernels as torch operators, which tracers and dispatch modes see."""
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                with torch.autocast(kind, enabled=False):
                    return self._as_operators(tensors)
        constants = [getattr(self, f"c_{name}") for name in self._constants]
        device = constants[0].device if constants else tensors[0].device
        return self._signature.unbind(self._traced(device, *[t.contiguous() for t in tensors], *constants))

    def __prepare_scriptable__(self) -> Any:
        raise watched.scripting()

    def _check(self, tensors: Any) -> _Bound:
        """The model bound to the device it is to run on, after every input was found to be as compiled for."""
        watched.plain(tensors, self._names)
        device = self._device_for(tensors)
        self._signature.check(tensors, device)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise InputError("RF515", "an input requires a gradient", why="compiled models compute no gradients",
                             help="call under torch.no_grad(), or detach the input")
        if self._eager is None or self._eager.device != device:
            self._eager = self._bind(device)
        return self._eager

    def _device_for(self, tensors: Any) -> torch.device:
        """Where a call runs: where the constants are, else where its inputs are. Constants that lie where the kernels cannot
        run (a model for GPUs that was loaded on the CPU) move to the inputs, once, as ``model.to(device)`` would do it."""
        given = next((t.device for t in tensors if isinstance(t, torch.Tensor)), None)
        if not self._constants:
            device = given if given is not None else torch.device(self._kind())
        else:
            device = getattr(self, f"c_{self._constants[0]}").device
            if not self._runs_on(device) and device.type != "meta":
                wanted = given if given is not None or not torch.cuda.is_available() else torch.device(self._kind())
                if wanted is not None and self._runs_on(wanted):
                    self.to(wanted)
                    device = getattr(self, f"c_{self._constants[0]}").device
        if not self._runs_on(device):
            arch = next(iter(self._kernels.values())).arch
            raise InputError("RF503", f"the model is on {device}, its kernels are for {self._kind()} ({arch})",
                             help=f"move the model and its inputs to {self._kind()}"
                             + (f", or compile for target='{device.type}'" if device.type in ("cpu", "cuda") else ""))
        return device

    def _runs_on(self, device: torch.device) -> bool:
        return not self._kernels or device.type == self._kind()

    def _kind(self) -> str:
        return "cpu" if all(spec.kind == "cpu" for spec in self._kernels.values()) else "cuda"

    def prepare(self, device: torch.device | str | None = None) -> CompiledModel:
        """Load every kernel now rather than at the first call; returns the model."""
        try:
            where = torch.device(device) if device is not None else self._device_for(())
            if where.type == "cuda" and where.index is None:
                where = torch.device("cuda", torch.cuda.current_device())
        except (RuntimeError, TypeError, AssertionError) as error:  # the last of a torch without CUDA
            raise InputError("RF503", f"there is no device {device!r}", why=str(error).strip().splitlines()[0]) from error
        self._eager = self._bind(where)
        return self

    def _bind(self, device: torch.device) -> _Bound:
        """Load the kernels and gather the constants for eager calls."""
        with uncast():
            return self._loaded(device)

    def _loaded(self, device: torch.device) -> _Bound:
        loaded = {kernel: launcher(self._kernels[kernel]) for kernel in sorted(set(self._graph.kernels.values()))}
        for kernel in loaded.values():
            kernel.prepare(device)
        tried = trial.each(loaded, self.parts(), device)
        self._report = self._report.without({name: t.why for name, t in tried.items() if t.why})
        run = self._compile({name: tried[kernel].call for name, kernel in self._graph.kernels.items()})
        return _Bound(device, run, tuple(getattr(self, f"c_{name}") for name in self._constants))

    def _compile(self, kernels: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
        """The graph, with constants as parameters: moving the model needs no new function, and tracers see the module's own
        buffers."""
        return trial.function(self._graph.source, self._constants, kernels, "graph")

    def cuda_graph(self, *args: Any, copy_outputs: bool = True, **kwargs: Any) -> Any:
        """Capture one call on inputs like these; see :class:`redfuser.runtime.cuda_graph.Captured`."""
        from redfuser.runtime.cuda_graph import Captured

        return Captured(self, args, kwargs, copy_outputs=copy_outputs)

    # -- moving and copying --------------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> CompiledModel:
        for dtype in {torch.float16, *(getattr(self, f"c_{name}").dtype for name in self._constants)}:
            found = fn(torch.zeros((), dtype=dtype, device="cpu")).dtype
            if found != dtype:
                raise InputError("RF504", "a compiled model has fixed dtypes", why=f"{dtype} would become {found}",
                                 help="convert the original model and compile again")
        super()._apply(fn, recurse)
        self._eager, self._followed = None, {}
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_eager", "_traced", "_followed")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._eager, self._followed = None, {}
        self._traced = self._compile({n: ops.register(self._kernels[k]) for n, k in self._graph.kernels.items()})

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def report(self) -> Report:
        """What was found, fused and refused (:class:`redfuser.report.Report`), with the stages of the kernels."""
        return self._report if self._report.texts else replace(self._report, texts=self._stages)

    @property
    def kernels(self) -> dict[str, KernelSpec]:
        """The kernels by name."""
        return dict(self._kernels)

    def reference_of(self, kernel: str) -> str | None:
        """The torch code that a kernel stands for, where it is known."""
        return self._graph.references.get(kernel)

    def source(self, kernel: str | None = None) -> str:
        """The outer graph's code, or the source of the kernel of that name. KeyError names the kernels there are."""
        if kernel is None:
            return self._graph.source
        if kernel not in self._kernels:
            raise KeyError(f"no kernel {kernel!r}; there are {', '.join(self._kernels) or 'none'}")
        return self._kernels[kernel].source

    def stages(self, kernel: str | None = None) -> dict[str, str]:
        """The dump of every stage: of one kernel by stage name, or of all as ``kernel/stage``, with ``graph`` first."""
        if kernel is not None:
            self.source(kernel)
            return dict(self._stages.get(kernel, {}))
        dumps = {"graph": self._graph.source}
        for name, stages in self._stages.items():
            dumps.update({f"{name}/{stage}": text for stage, text in stages.items()})
        return dumps

    def extra_repr(self) -> str:
        fused = sum(c.fused for c in self._report.cascades)
        return f"{self._report.model}, {self._report.target}, {fused} of {len(self._report.cascades)} cascades fused, " \
               f"{len(self._report.maps)} map kernels, {len(self._kernels)} kernels"

    def check(self, model: Any, args: Any = None, kwargs: Any = None) -> list[Any]:
        """Hold this model to the numerics rule against the original on example inputs, store the worst result in
        ``report`` and return every check. Raises NumericsError RF801, and InputError RF516 for a model that torch cannot
        run as the reference."""
        from redfuser import numerics

        model, args, kwargs = reference(model, args, kwargs)
        checks = numerics.check(self, model, args, kwargs)
        self._report = replace(self._report, numerics=numerics.worst(checks))
        numerics.require(checks, self._report.model)
        return checks

    def save(self, path: str | Path, others: Iterable[CompiledModel] = ()) -> None:
        """Write the model as one file that loads without TVM, TileLang or a compiler (:mod:`redfuser.runtime.archive`).
        ``others`` are the same model compiled for further architectures: loading picks."""
        models = (self, *others) if isinstance(others, Iterable) else (self, others)
        if odd := [type(m).__name__ for m in models if not isinstance(m, CompiledModel)]:
            raise ArtifactError("RF607", f"a {odd[0]} cannot be saved beside a compiled model",
                                help="save(path, [other]), with the same model compiled for further architectures")
        archive.write(path, [model.parts() for model in models])

    def parts(self) -> Parts:
        """What a file of it holds."""
        constants = {name: getattr(self, f"c_{name}") for name in self._constants}
        return Parts(self._graph, constants, self._kernels, self._signature, self._report, self._stages)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A constant as kernels want it; one that lies oddly in memory (mapped from a file) is copied, once."""
    tensor = tensor.resolve_neg()
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()
