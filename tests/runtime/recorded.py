"""A recorded GPU driver and tensors that claim to be on a GPU: the launcher's tests need no device."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from redfuser.artifact import ArgSpec, KernelSpec, LaunchSpec, ParamSpec, TmaSpec

DLPACK = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16), "e4m3": (10, 8), "i64": (0, 64), "bool": (6, 8)}


class StubDriver:
    """The recording driver: ``path`` for the launcher, ``lines()`` of what it was asked."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)
        self.library.stub_log.restype = ctypes.c_char_p

    def lines(self, prefix: str = "") -> list[str]:
        text = self.library.stub_log().decode()
        return [line for line in text.splitlines() if line.startswith(prefix)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_KEEP: list[Any] = []


class FakeTensor:
    """Claims an address on a device through DLPack; nothing dereferences it."""

    def __init__(self, shape: tuple[int, ...], dtype: str = "f16", address: int = 0x10000, device: int = 0,
                 device_type: int = 2, strides: tuple[int, ...] | None = None) -> None:
        if strides is None:
            strides, step = (), 1
            for extent in reversed(shape):
                strides, step = (step, *strides), step * extent
        self.device = (device_type, device)
        code, bits = DLPACK[dtype]
        count = max(1, len(shape))
        self._shape, self._strides = (ctypes.c_int64 * count)(*shape), (ctypes.c_int64 * count)(*strides)
        tensor = _DLTensor(address, device_type, device, len(shape), code, bits, 1, self._shape, self._strides, 0)
        self._managed = _Managed(tensor, None, None)
        _KEEP.append(self)

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def fake(*args: Any, **kwargs: Any) -> Any:
    import tvm_ffi

    return tvm_ffi.from_dlpack(FakeTensor(*args, **kwargs))


def split_spec(workspace: bool = False) -> KernelSpec:
    """Two launches (one through a tensor-map, one plain) over q, k -> o."""
    tma = TmaSpec(arg="k", dtype=6, rank=2, dims=(64, 128), strides=(128,), box=(64, 32), element_strides=(1, 1),
                  interleave=0, swizzle=3, l2=2, oob=0)
    args = [ArgSpec("q", "f16", (4, 64), "in"), ArgSpec("o", "f32", (4, 64), "out"),
            ArgSpec("k", "f16", (128, 64), "in")]
    second = [ParamSpec("ptr", "o")]
    if workspace:
        args.append(ArgSpec("partial", "f32", (2, 4, 64), "workspace"))
        second.append(ParamSpec("ptr", "partial"))
    return KernelSpec(
        name="split", kind="cuda", arch="sm_90a", args=tuple(args), binaries=(b"A0 cubin\0", b"B1 cubin\0"),
        launches=(LaunchSpec("part", 0, (2, 3, 1), (128, 1, 1), 100_000,
                             (ParamSpec("tma", "k", tma), ParamSpec("ptr", "q"))),
                  LaunchSpec("combine", 1, (4, 1, 1), (64, 1, 1), 0, tuple(second))),
        source="def make(): ...", config={"splits": 2}, resources=({"registers": 64, "spill_bytes": 0}, {}))
