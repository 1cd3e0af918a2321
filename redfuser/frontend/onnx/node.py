"""What an ONNX operator's torch implementation works with, and the table of implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np
import torch

Value = Union[torch.Tensor, np.ndarray, None]
Implementation = Callable[..., Any]
OPS: dict[str, Implementation] = {}
"""``Softmax`` (default domain) or ``com.microsoft::FastGelu`` to its implementation."""


class Unsupported(Exception):
    """The node has no implementation for these attributes or operands."""


class Call:
    """One node: its attributes, the opset it is written in, and how many results somebody uses, of those that are written."""

    def __init__(self, attributes: dict[str, Any], opset: int, outputs: int, written: int) -> None:
        self.attributes, self.opset, self.outputs, self.written = attributes, opset, outputs, written
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return self.attributes.get(name, default)


def implements(*names: str) -> Callable[[Implementation], Implementation]:
    """Register ``f(call, *operands)``; operands are tensors (absent ones ``None``) unless :func:`takes_known` says so."""

    def register(f: Implementation) -> Implementation:
        for name in names:
            OPS[name] = f
        return f

    return register


KNOWN_OPERANDS: dict[str, Sequence[int]] = {}
"""Operands that must be known when the model is imported (shapes, axes, sizes), by operator: they stay numpy arrays."""


def takes_known(positions: dict[str, Sequence[int]]) -> None:
    KNOWN_OPERANDS.update(positions)


def tensor(value: Any) -> Any:
    """A torch tensor of an operand, sharing memory with a numpy array."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "O":
        raise Unsupported("text")
    if value.dtype.name in WIDER:
        return torch.from_numpy(value.astype(WIDER[value.dtype.name]))
    if value.dtype.kind == "V" or value.dtype.name in EXTRA:
        size = {1: np.uint8, 2: np.uint16}[value.dtype.itemsize]
        return torch.from_numpy(np.ascontiguousarray(value).view(size)).view(getattr(torch, value.dtype.name))
    value = value if value.flags.writeable else value.copy()
    return torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))


EXTRA = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
"""Dtypes that NumPy has from a package that onnx brings along."""


WIDER = {"int2": np.int8, "int4": np.int8, "uint2": np.uint8, "uint4": np.uint8, "float4_e2m1fn": np.float16}
"""Dtypes of less than a byte, which torch has no tensors of, and what holds the same numbers."""


def array(value: Any) -> Any:
    """The inverse of :func:`tensor`."""
    name = str(value.dtype).removeprefix("torch.")
    if name not in EXTRA:
        return value.numpy()
    import ml_dtypes

    return value.view({1: torch.uint8, 2: torch.uint16}[value.itemsize]).numpy().view(getattr(ml_dtypes, name))


def ints(value: Value) -> list[int]:
    """A known operand as integers."""
    if value is None:
        raise Unsupported("an operand is missing")
    if isinstance(value, torch.Tensor):
        raise Unsupported("a shape, axis or size depends on data")
    return [int(v) for v in np.asarray(value).reshape(-1)]


ONNX_DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 4: torch.uint16, 5: torch.int16, 6: torch.int32, 7: torch.int64,
    9: torch.bool, 10: torch.float16, 11: torch.float64, 12: torch.uint32, 13: torch.uint64, 16: torch.bfloat16,
    17: torch.float8_e4m3fn, 18: torch.float8_e4m3fnuz, 19: torch.float8_e5m2, 20: torch.float8_e5m2fnuz,
}
"""TensorProto.DataType to torch."""


def onnx_dtype(code: int) -> torch.dtype:
    if code not in ONNX_DTYPES:
        raise Unsupported(f"element type {code}")
    return ONNX_DTYPES[code]
