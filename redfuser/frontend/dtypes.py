"""Torch dtypes and their Relax names."""

from __future__ import annotations

import torch

_DTYPES = {
    torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2", torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz", torch.int64: "int64", torch.int32: "int32", torch.int16: "int16",
    torch.int8: "int8", torch.uint8: "uint8", torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64",
    torch.bool: "bool",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}


UNCALLED = frozenset({"uint16", "uint32", "uint64"})
"""What a model may compute in between and is neither called with nor holds: torch has next to no operators on them."""


def supported(dtype: torch.dtype) -> bool:
    """Whether Relax has the dtype (it has no complex numbers and no quantised tensors)."""
    return dtype in _DTYPES


def relax_dtype(dtype: torch.dtype) -> str:
    """``torch.float16`` as ``float16``; raises ``KeyError`` for what Relax has not."""
    return _DTYPES[dtype]


def torch_dtype(name: str) -> torch.dtype:
    """``float16`` as ``torch.float16``."""
    return _NAMES[name]
