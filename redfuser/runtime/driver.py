"""Launching through ctypes, for machines without a C++ compiler: the same interface as the native launcher, slower.

Only the driver is used (``libcuda.so.1``, ``libamdhip64.so``), through entry points with fixed signatures. HIP's calls and
numbers are CUDA's by other names (:data:`HIP`); what AMD's GPUs have no use for, tensor maps and asking for shared memory, is
not asked of it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from redfuser.artifact import KernelSpec, LaunchSpec, TmaSpec
from redfuser.errors import InputError
from redfuser.runtime.check import TORCH_DTYPE, binding_of, check_tensors, inputs_of, outputs_of
from redfuser.sizes import Binding, numbers

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NO_BINARY = 209  # CUDA_ERROR_NO_BINARY_FOR_GPU
_WORKSPACE_ALIGN = 256
HIP = {"cuInit": "hipInit", "cuDeviceGet": "hipDeviceGet", "cuDevicePrimaryCtxRetain": "hipDevicePrimaryCtxRetain",
       "cuCtxPushCurrent_v2": "hipCtxPushCurrent", "cuCtxPopCurrent_v2": "hipCtxPopCurrent",
       "cuModuleLoadData": "hipModuleLoadData", "cuModuleGetFunction": "hipModuleGetFunction",
       "cuThreadExchangeStreamCaptureMode": "hipThreadExchangeStreamCaptureMode",
       "cuGetErrorName": "hipDrvGetErrorName", "cuLaunchKernel": "hipModuleLaunchKernel"}
"""What the launcher asks of a driver, as HIP calls it."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint)]


_EARLY_SINCE = 12030
_EARLY = _Attribute(6, 0, (ctypes.c_int * 16)(1))  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class Driver:
    """A driver's calls, by CUDA's names, with a check on every status."""

    def __init__(self, path: str, kind: str = "cuda") -> None:
        self.names = HIP if kind == "hip" else {}
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise InputError("RF509", "no GPU driver", why=str(error), help="run on a machine with a GPU of the kernels' kind, "
                             "or compile with target='cpu'") from error
        self("cuInit", 0)
        self.early = kind == "cuda" and self._version() >= _EARLY_SINCE
        """May a launch begin before the one before it has ended? Graphs know such since CUDA 12.3."""

    def _version(self) -> int:
        found = ctypes.c_int()
        call = getattr(self._library, "cuDriverGetVersion", None)
        return found.value if call is not None and call(ctypes.byref(found)) == 0 else 0

    def status(self, name: str, *args: Any) -> int:
        try:
            return int(getattr(self._library, own := self.names.get(name, name))(*args))
        except AttributeError as error:
            raise InputError("RF509", f"the GPU driver lacks {own}", help="update the GPU driver") from error

    def __call__(self, name: str, *args: Any) -> None:
        status = self.status(name, *args)
        if status:
            text = ctypes.c_char_p()
            self.status("cuGetErrorName", status, ctypes.byref(text))
            said = (text.value or b"an unknown error").decode()
            raise InputError("RF508", f"{self.names.get(name, name)} returned {said} ({status})")


@functools.lru_cache(maxsize=4)
def _driver(path: str, kind: str) -> Driver:
    return Driver(path, kind)


class _Context:
    """A device's primary context, current for a scope."""

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver, ordinal, self._context = driver, ctypes.c_int(), ctypes.c_void_p()
        driver("cuDeviceGet", ctypes.byref(ordinal), device)
        driver("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)

    def __enter__(self) -> None:
        self._driver("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *_: object) -> None:
        self._driver("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _encode(driver: Driver, tma: TmaSpec, address: int) -> Any:
    """A 64-byte aligned CUtensorMap; the buffer is returned with the address inside it."""
    buffer = ctypes.create_string_buffer(128 + 64)
    start = (ctypes.addressof(buffer) + 63) // 64 * 64
    driver("cuTensorMapEncodeTiled", ctypes.c_void_p(start), tma.dtype, ctypes.c_uint32(tma.rank),
           ctypes.c_void_p(address), (ctypes.c_uint64 * 5)(*tma.dims), (ctypes.c_uint64 * 5)(*tma.strides),
           (ctypes.c_uint32 * 5)(*tma.box), (ctypes.c_uint32 * 5)(*tma.element_strides), tma.interleave, tma.swizzle,
           tma.l2, tma.oob)
    return buffer, start


class _Plan:
    """A kernel whose sizes are numbers: what is launched, with what scratch memory."""

    def __init__(self, spec: KernelSpec, binding: Binding) -> None:
        self.spec, self.binding, self.key = spec, binding, tuple(binding.items())
        self.args = inputs_of(spec) + outputs_of(spec)
        self.workspaces: dict[str, int] = {}
        self.bytes = 0
        for arg in spec.args:
            if arg.role == "workspace":
                align = max(arg.align, _WORKSPACE_ALIGN)
                start = -(-self.bytes // align) * align
                self.workspaces[arg.name] = start
                self.bytes = start + TORCH_DTYPE[arg.dtype].itemsize * math.prod(numbers(arg.shape, binding))


class CtypesKernel:
    """One kernel on all devices it is called for."""

    def __init__(self, spec: KernelSpec, driver_path: str) -> None:
        self._spec, self._path = spec, driver_path
        self._loaded: dict[int, tuple[_Context, list[ctypes.c_void_p]]] = {}
        self._maps: dict[tuple[Any, int, int, int], Any] = {}
        self._lock = threading.Lock()
        self._known: dict[Any, _Plan] = {}
        self._static = None if spec.symbols else _Plan(spec, {})

    def _plan(self, tensors: tuple[torch.Tensor, ...]) -> _Plan:
        """What is launched for tensors of these shapes."""
        if self._static is not None:
            return self._static
        shapes = tuple(getattr(t, "shape", None) for t in tensors)
        plan = self._known.get(shapes)
        if plan is None:
            if len(self._known) > 1024:
                self._known.clear()
                self._maps.clear()
            binding = binding_of(self._spec, tensors)
            plan = self._known[shapes] = _Plan(self._spec.at(binding), binding)
        return plan  # whatever another thread has cleared

    def prepare(self, device: int) -> tuple[_Context, list[ctypes.c_void_p]]:
        with self._lock:
            if device not in self._loaded:
                self._loaded[device] = self._load(device)
            return self._loaded[device]

    def _load(self, device: int) -> tuple[_Context, list[ctypes.c_void_p]]:
        driver = _driver(self._path, self._spec.kind)
        context = _Context(driver, device)
        with context:
            mode = ctypes.c_int(_RELAXED)
            driver("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                modules, functions = [], []
                for binary in self._spec.binaries:
                    module = ctypes.c_void_p()
                    status = driver.status("cuModuleLoadData", ctypes.byref(module), binary)
                    if status == _NO_BINARY:
                        raise InputError("RF510", f"kernel {self._spec.name} was built for {self._spec.arch}, which "
                                         f"cuda:{device} cannot run", help="compile the model for this GPU")
                    if status:
                        raise InputError("RF508", f"loading kernel {self._spec.name} returned {status}")
                    modules.append(module)
                for launch in self._spec.launches:
                    function = ctypes.c_void_p()
                    driver("cuModuleGetFunction", ctypes.byref(function), modules[launch.binary], launch.entry.encode())
                    # static shared memory counts towards the 48 KB that need no asking on CUDA, so always ask
                    if launch.shared_bytes and self._spec.kind == "cuda":
                        driver("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, launch.shared_bytes)
                    functions.append(function)
            finally:
                driver("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        return context, functions

    def __call__(self, *tensors: torch.Tensor) -> None:
        plan = self._plan(tensors)
        device = check_tensors(plan.spec, tensors, plan.args)
        index = device.index or 0
        addresses = {arg.name: tensor.data_ptr() for arg, tensor in zip(plan.args, tensors, strict=True)}
        workspace = torch.empty(plan.bytes, dtype=torch.uint8, device=device) if plan.workspaces else None
        for name, start in plan.workspaces.items():
            assert workspace is not None
            addresses[name] = workspace.data_ptr() + start
        context, functions = self.prepare(index)
        stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
        with context:
            for number, (launch, function) in enumerate(zip(plan.spec.launches, functions, strict=True)):
                self._launch(plan, number, launch, function, stream, addresses)

    def _launch(self, plan: _Plan, number: int, launch: LaunchSpec, function: ctypes.c_void_p, stream: ctypes.c_void_p,
                addresses: dict[str, int]) -> None:
        driver = _driver(self._path, self._spec.kind)
        keep: list[Any] = []
        values: list[int] = []
        for position, param in enumerate(launch.params):
            if param.kind == "int":
                whole = ctypes.c_int32(plan.binding[param.arg])
                keep.append(whole)
                values.append(ctypes.addressof(whole))
                continue
            address = addresses[param.arg]
            if param.tma is None:
                cell = ctypes.c_void_p(address)
                keep.append(cell)
                values.append(ctypes.addressof(cell))
            else:
                key = (plan.key, number, position, address)  # where the shapes are fixed, the address alone
                made = self._maps.get(key)
                if made is None:
                    if len(self._maps) > 4096:
                        self._maps.clear()
                    made = self._maps[key] = _encode(driver, param.tma, address)
                keep.append(made)
                values.append(made[1])
        given = (ctypes.c_void_p * len(values))(*values)
        if launch.waits and driver.early:
            config = _Config((ctypes.c_uint * 3)(*launch.grid), (ctypes.c_uint * 3)(*launch.block), launch.shared_bytes, stream,
                             ctypes.pointer(_EARLY), 1)
            driver("cuLaunchKernelEx", ctypes.byref(config), function, given, None)
        else:
            driver("cuLaunchKernel", function, *launch.grid, *launch.block, launch.shared_bytes, stream, given, None)


def make_kernel(spec: KernelSpec, driver_path: str) -> tuple[Callable[..., None], Callable[[int], Any]]:
    """``(call(in..., out...), prepare(device index))``, as the native launcher gives."""
    kernel = CtypesKernel(spec, driver_path)
    return kernel, kernel.prepare
