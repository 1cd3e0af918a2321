"""What a converter works with: the builder, the dtypes of the call, and a few casts everyone needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch

from redfuser.frontend.builder import Builder
from redfuser.frontend.dtypes import relax_dtype
from redfuser.frontend.imported import OpaqueCall
from redfuser.frontend.static import Statics
from redfuser.tvm_compat import call_dps_packed, dtype_of, relax, shape_of, tensor_info

Converter = Callable[..., Any]
CONVERTERS: dict[str, Converter] = {}
"""Overload name (``aten.softmax.int``) to converter."""

HALF = ("float16", "bfloat16")
FLOATS = ("float16", "bfloat16", "float32", "float64")


FUNCTION = "a library's operator"
"""Why a function among torch's operators is a torch call, where no kernel has it."""


class Decline(Exception):
    """This form of the arguments is not converted; the call stays a torch call."""


def converts(*targets: str) -> Callable[[Converter], Converter]:
    """Register a converter for ATen overloads, named as in ``str(node.target)``."""

    def register(f: Converter) -> Converter:
        for target in targets:
            CONVERTERS[target] = f
        return f

    return register


class Context:
    """One call being converted. ``val`` is the fake result of the export, ``raw`` the unconverted arguments by name,
    ``statics`` the values of graph nodes that depend on no input, ``symbol`` names a torch call."""

    def __init__(self, builder: Builder, node: Any, raw: dict[str, Any], statics: Statics,
                 symbol: Callable[[OpaqueCall], str]) -> None:
        self.builder, self.node, self.raw, self.statics, self.symbol = builder, node, raw, statics, symbol
        self.val = node.meta["val"]

    def emit(self, expr: Any, suffix: str = "") -> Any:
        return self.builder.emit(expr, suffix)

    def call(self, target: str, operands: Sequence[Any], *rest: Any, shape: Sequence[int], dtype: str, suffix: str = "") -> Any:
        """A function among torch's operators that stays a torch call, of variables and behind them ``rest``: twice the same is
        one call."""
        key = (target, *(x.name_hint for x in operands), *rest)
        if key not in self.builder.called:
            tensors = tuple({"tensor": i} for i in range(len(operands)))
            symbol = self.symbol(OpaqueCall(target, (*tensors, *rest), {}, 1, True, provenance=self.builder.origin,
                                            why=FUNCTION))
            self.builder.called[key] = self.emit(call_dps_packed(symbol, list(operands), tensor_info(shape, dtype)), suffix)
        return self.builder.called[key]

    @property
    def dtype(self) -> str:
        """The dtype of the (first) result."""
        val = self.val[0] if isinstance(self.val, (list, tuple)) else self.val
        return relax_dtype(val.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result."""
        val = self.val[0] if isinstance(self.val, (list, tuple)) else self.val
        return tuple(int(s) for s in val.shape)

    def static(self, name: str) -> torch.Tensor | None:
        """The value of a tensor argument that depends on no input of the model."""
        return self.statics.get(self.raw[name])

    def const(self, value: Any, dtype: str) -> Any:
        """A scalar constant; declines where ``dtype`` has no way to be written."""
        return scalar_const(value, dtype)

    def cast(self, x: Any, dtype: str, suffix: str = "cast") -> Any:
        """``x`` in another dtype. A float becomes an unsigned byte by way of a whole number, as torch has it: -1 is 255, which
        an instruction that saturates has as 0."""
        if dtype_of(x) == dtype:
            return x
        number = isinstance(x, relax.Constant) and not shape_of(x)
        if dtype == "uint8" and dtype_of(x).startswith(("float", "bfloat")) and not number:
            x = self.cast(x, "int64", "whole")
        if dtype.startswith("float8") and not dtype_of(x).startswith(("float", "bfloat")):
            raise Decline(f"cast from {dtype_of(x)} to {dtype}")
        if dtype == "bool":
            return self.emit(relax.op.not_equal(x, self.const(0, dtype_of(x))), suffix)
        if number:
            return self.const(x.data.numpy().item(), dtype)
        return self.emit(relax.op.astype(x, dtype), suffix)

    def wide(self, x: Any, suffix: str = "wide") -> Any:
        """``x`` in the dtype that torch computes in: float32 for the half dtypes and float8."""
        return self.cast(x, accumulator(dtype_of(x)), suffix)

    def narrow(self, x: Any) -> Any:
        """``x`` rounded to the result's dtype."""
        return self.cast(x, self.dtype, "")

    def in_wide(self, f: Callable[[Any], Any], x: Any) -> Any:
        """``f`` applied in the accumulator dtype, the result rounded to the call's dtype."""
        acc = accumulator(dtype_of(x))
        if acc == self.dtype == dtype_of(x):
            return self.emit(f(x))
        return self.narrow(self.emit(f(self.wide(x)), "f32" if acc == "float32" else "acc"))


def accumulator(dtype: str) -> str:
    """The dtype in which torch accumulates and computes transcendental functions of ``dtype``."""
    return "float32" if dtype in HALF or dtype.startswith("float8") else dtype


def scalar_const(value: Any, dtype: str) -> Any:
    """A 0-d Relax constant."""
    if dtype == "bool":
        return relax.const(bool(value), dtype)
    if dtype.startswith("float8"):
        raise Decline(f"a literal of dtype {dtype}")
    if dtype.startswith(("int", "uint")):
        if isinstance(value, float) and not value.is_integer():
            raise Decline(f"{value} as {dtype}")
        return relax.const(int(value), dtype)
    with np.errstate(over="ignore"):  # what is beyond the range is an infinity, as torch has it
        return relax.const(float(value), dtype)


def representable(value: Any, dtype: str) -> bool:
    """Whether a Python number is exactly a value of ``dtype`` (infinities and NaN are, of floats)."""
    if dtype not in FLOATS or not isinstance(value, Real) or not math.isfinite(value):
        return True
    return torch.tensor(float(value), dtype=getattr(torch, dtype), device="cpu").to(torch.float64).item() == value


def axis_of(dim: int, rank: int) -> int:
    """A non-negative axis."""
    return int(dim) % rank if rank else 0


def axes_of(dim: Any, rank: int) -> list[int]:
    """Sorted non-negative axes; ``None`` and ``[]`` mean all of them."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    dims: Sequence[int] = dim if isinstance(dim, (list, tuple)) else [dim]
    return sorted({axis_of(d, rank) for d in dims})
