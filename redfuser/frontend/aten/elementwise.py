"""Pointwise operators of two operands and more: arithmetic in the promoted dtype, choices."""

from __future__ import annotations

import math
from typing import Any

import torch

from redfuser.frontend.aten.attention import softmax_guard
from redfuser.frontend.aten.context import FLOATS, HALF, Context, Decline, accumulator, converts, representable
from redfuser.frontend.aten.weights import chosen
from redfuser.frontend.dtypes import relax_dtype, torch_dtype
from redfuser.tvm_compat import dtype_of, relax, shape_of

op = relax.op


def promoted(*operands: Any) -> str:
    """torch's promotion of Relax expressions and Python numbers."""
    samples = [_sample(x) for x in operands]
    result = samples[0]
    for s in samples[1:]:
        result = torch.empty([1], dtype=torch.result_type(result, s), device="meta")
    return relax_dtype(result.dtype if isinstance(result, torch.Tensor) else torch.result_type(result, result))


def _sample(x: Any) -> Any:
    """A tensor without data that promotes like ``x`` (0-d tensors and numbers do so weakly)."""
    if not isinstance(x, relax.Expr):
        return x
    return torch.empty([1] if shape_of(x) else [], dtype=torch_dtype(dtype_of(x)), device="meta")


def operand(c: Context, x: Any, dtype: str) -> Any:
    return c.cast(x, dtype) if isinstance(x, relax.Expr) else c.const(x, dtype)


def beyond(x: Any, dtype: str) -> bool:
    """May ``x`` be a number that ``dtype`` does not hold? A tensor without dimensions is a number too, in its own dtype: torch
    computes with it unrounded on a CPU."""
    if isinstance(x, relax.Expr):
        return not shape_of(x) and dtype_of(x) not in (dtype, "bool")
    return not representable(x, dtype)


def arithmetic(c: Context, f: Any, left: Any, right: Any) -> Any:
    """``f`` in the result's dtype, or in float32 where a half operand meets a number it cannot hold."""
    dtype = c.dtype
    if dtype == "bool" or dtype.startswith("float8"):
        raise Decline(f"arithmetic on {dtype}")
    if dtype in HALF and any(beyond(x, dtype) for x in (left, right)):
        wide = c.emit(f(operand(c, left, "float32"), operand(c, right, "float32")), "f32")
        return c.narrow(wide)
    return c.emit(f(operand(c, left, dtype), operand(c, right, dtype)))


def with_alpha(c: Context, f: Any, left: Any, right: Any, alpha: Any) -> Any:
    """``f(left, alpha * right)`` of add and sub, halves in float32 and rounded once."""
    if alpha == 1 or not isinstance(right, relax.Expr):
        return arithmetic(c, f, left, right if alpha == 1 else right * alpha)
    wide = accumulator(c.dtype)
    right = right if beyond(right, c.dtype) else operand(c, right, c.dtype)
    product = c.emit(op.multiply(operand(c, right, wide), c.const(alpha, wide)), "scaled")
    if wide == c.dtype:
        return arithmetic(c, f, left, product)
    return c.narrow(c.emit(f(operand(c, left, wide), product), "f32"))


@converts("aten.add.Tensor", "aten.add.Scalar")
def add(c: Context, self: Any, other: Any, alpha: Any = 1) -> Any:
    if c.dtype == "bool" and alpha == 1:
        return c.emit(op.logical_or(operand(c, self, "bool"), operand(c, other, "bool")))
    return with_alpha(c, op.add, self, other, alpha)


@converts("aten.sub.Tensor", "aten.sub.Scalar")
def sub(c: Context, self: Any, other: Any, alpha: Any = 1) -> Any:
    return with_alpha(c, op.subtract, self, other, alpha)


@converts("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(c: Context, self: Any, other: Any, alpha: Any = 1) -> Any:
    return with_alpha(c, op.subtract, other, self, alpha)


@converts("aten.mul.Tensor", "aten.mul.Scalar")
def mul(c: Context, self: Any, other: Any) -> Any:
    if c.dtype == "bool":
        return c.emit(op.logical_and(operand(c, self, "bool"), operand(c, other, "bool")))
    return arithmetic(c, op.multiply, self, other)


for _f, _names in ((op.divide, ("div.Tensor", "div.Scalar")), (op.maximum, ("maximum.default", "max.other")),
                   (op.minimum, ("minimum.default", "min.other"))):
    converts(*(f"aten.{n}" for n in _names))(lambda c, self, other, f=_f: arithmetic(c, f, self, other))


@converts("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(c: Context, self: Any, other: Any, rounding_mode: str | None) -> Any:
    if rounding_mode is None:
        return arithmetic(c, op.divide, self, other)
    if rounding_mode == "floor":
        return floor_divide(c, self, other)
    raise Decline("div with rounding_mode='trunc'")


@converts("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(c: Context, self: Any, other: Any) -> Any:
    if c.dtype in FLOATS:
        if not _whole(other):
            wide = "float32" if c.dtype in HALF and beyond(other, c.dtype) else ""  # this number alone torch does not round
            return _torch_of_two(c, "aten.floor_divide.default", self, other, wide)
        return c.in_wide(lambda x: _floored(c, x, other), operand(c, self, c.dtype))
    return arithmetic(c, op.floor_divide, self, other)


@converts("aten.remainder.Scalar", "aten.remainder.Tensor")
def remainder(c: Context, self: Any, other: Any) -> Any:
    if c.dtype not in FLOATS:
        return arithmetic(c, op.floor_mod, self, other)
    if _whole(other):
        return c.in_wide(lambda x: _left(c, x, other), operand(c, self, c.dtype))
    return _torch_of_two(c, "aten.remainder.Tensor", self, other)


@converts("aten.fmod.Scalar", "aten.fmod.Tensor")
def fmod(c: Context, self: Any, other: Any) -> Any:
    if c.dtype not in FLOATS:
        raise Decline("an integer's remainder with the dividend's sign")
    return _torch_of_two(c, "aten.fmod.Tensor", self, other)


def _torch_of_two(c: Context, target: str, self: Any, other: Any, wide: str = "") -> Any:
    """torch's function of two tensors, which a kernel may compute (:mod:`redfuser.partition.calls`). wide: the dtype that it
    is computed in, where that is not the result's."""
    dtype = wide or c.dtype
    operands = [operand(c, x, dtype) for x in (self, other)]
    tensors = [x if isinstance(x, relax.Var) else c.emit(op.full((), x)) for x in operands]
    out = c.call(target, tensors, shape=c.shape, dtype=dtype)
    return c.narrow(out) if wide else out


def _whole(by: Any) -> bool:
    """A divisor of which a floating quotient is no step: a power of two, so that it is exact (but for subnormal numbers), and
    what torch makes of its own remainder is what ``floor`` makes of it. Of another number the quotient is rounded, over a
    step or not, and of a fraction it may be out of range."""
    return isinstance(by, int | float) and 1 <= by <= 2.0 ** 15 and math.frexp(by)[0] == 0.5


def _floored(c: Context, x: Any, by: float) -> Any:
    turns = x if by == 1 else c.emit(op.multiply(x, c.const(1 / by, dtype_of(x))), "turns")
    return c.emit(op.floor(turns), "floored")


def _left(c: Context, x: Any, by: float) -> Any:
    whole = c.emit(op.multiply(_floored(c, x, by), c.const(by, dtype_of(x))), "whole")
    return op.subtract(x, whole)


@converts("aten.frac.default")
def frac(c: Context, self: Any) -> Any:
    if c.dtype not in FLOATS:
        raise Decline("a fraction of no float")
    x = operand(c, self, c.dtype)
    return c.emit(op.subtract(x, c.emit(truncated(c, x), "whole")))


def truncated(c: Context, x: Any) -> Any:
    """As a choice of two roundings: TVM's own ``trunc`` has no counterpart in a kernel's mathematics."""
    down = c.emit(op.less(x, c.const(0.0, dtype_of(x))), "negative")
    return op.where(down, c.emit(op.ceil(x), "up"), c.emit(op.floor(x), "down"))


@converts("aten.trunc.default", "aten.fix.default")
def trunc(c: Context, self: Any) -> Any:
    if c.dtype not in FLOATS:
        return self  # whole numbers are their whole parts
    return c.emit(truncated(c, operand(c, self, c.dtype)))


@converts("aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default", "aten.clamp.Tensor",
          "aten.clamp_min.Tensor", "aten.clamp_max.Tensor")
def clamp(c: Context, self: Any, min: Any = None, max: Any = None) -> Any:
    x = operand(c, self, c.dtype)
    if c.dtype.startswith(("int", "uint", "float8", "bool")) and any(isinstance(b, float) for b in (min, max)):
        raise Decline("clamp of integers by a float")
    if min is not None:
        x = c.emit(op.maximum(x, operand(c, min, c.dtype)), "" if max is None else "low")
    if max is not None:
        x = c.emit(op.minimum(x, operand(c, max, c.dtype)))
    return x


@converts("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor")
def power(c: Context, self: Any, exponent: Any) -> Any:
    if c.dtype not in FLOATS:
        if exponent not in (2, 3, 4) or c.dtype != dtype_of(self):
            raise Decline("integer power")
        return c.emit(op.multiply(self, self) if exponent == 2 else _third_or_fourth(c, self, exponent))
    x = operand(c, self, c.dtype)
    if isinstance(exponent, relax.Expr):
        return c.in_wide(lambda w: op.power(w, c.cast(exponent, dtype_of(w))), x)
    if exponent == 1:
        return x
    if exponent == 2:
        return c.emit(op.multiply(x, x))
    if exponent in (3, 4):
        return c.in_wide(lambda w: _third_or_fourth(c, w, exponent), x)
    if exponent == 0.5:
        return c.in_wide(op.sqrt, x)
    if exponent == -0.5:
        return c.in_wide(op.rsqrt, x)
    return c.in_wide(lambda w: op.power(w, c.const(exponent, dtype_of(w))), x)


def _third_or_fourth(c: Context, w: Any, exponent: int) -> Any:
    """As products: TVM's ``pow`` is undefined for a negative base from the third power on."""
    square = c.emit(op.multiply(w, w), "square")
    return op.multiply(square, w if exponent == 3 else square)


@converts("aten.pow.Scalar")
def power_of(c: Context, self: Any, exponent: Any) -> Any:
    if c.dtype not in FLOATS or self <= 0 or not representable(float(self), c.dtype):
        raise Decline("a power of a number that is not positive, or not of the dtype")
    return c.in_wide(lambda w: op.power(c.const(self, dtype_of(w)), w), operand(c, exponent, c.dtype))


@converts("aten.round.decimals")
def round_to(c: Context, self: Any, decimals: int = 0) -> Any:
    if c.dtype not in ("float32", "float64") or not 0 < decimals <= 10:
        raise Decline("rounding to such decimals")
    by = c.const(10.0 ** decimals, c.dtype)
    return c.emit(op.divide(c.emit(op.round(c.emit(op.multiply(self, by), "scaled")), "whole"), by))


@converts("aten.reciprocal.default")
def reciprocal(c: Context, self: Any) -> Any:
    x = operand(c, self, c.dtype)
    return c.emit(op.divide(c.const(1.0, c.dtype), x))


@converts("aten.hardtanh.default")
def hardtanh(c: Context, self: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    return clamp(c, self, min_val, max_val)


@converts("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self")
def xlogy(c: Context, self: Any, other: Any) -> Any:
    """``x * log(y)``, 0 where x is 0 (NaN where y is NaN)."""
    if c.dtype not in ("float32", "float64"):
        raise Decline(f"xlogy of {c.dtype}")
    x, y = operand(c, self, c.dtype), operand(c, other, c.dtype)
    if not isinstance(self, relax.Expr) and self != 0:
        return c.emit(op.multiply(x, c.emit(op.log(y), "log")))
    product = c.emit(op.multiply(x, c.emit(op.log(y), "log")), "product")
    zero = c.emit(op.logical_and(c.emit(op.equal(x, c.const(0.0, c.dtype)), "zero"),
                                 c.emit(op.logical_not(c.emit(op.isnan(y), "nan")), "known")), "void")
    return c.emit(op.where(zero, c.const(0.0, c.dtype), product))


@converts("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(c: Context, condition: Any, self: Any, other: Any) -> Any:
    if (taken := _taken(c, {"self": self, "other": other}, "condition", "self", "other")) is not None:
        return taken
    if dtype_of(condition) != "bool":
        raise Decline("where on a mask that is not boolean")
    return c.emit(op.where(condition, operand(c, self, c.dtype), operand(c, other, c.dtype)))


@converts("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(c: Context, self: Any, mask: Any, value: Any) -> Any:
    if (taken := _taken(c, {"self": self, "value": value}, "mask", "value", "self")) is not None:
        return taken
    return c.emit(op.where(mask, operand(c, value, c.dtype), self))


@converts("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other",
          "aten.type_as.default")
def to_copy(c: Context, self: Any, **_: Any) -> Any:
    """To whatever dtype the export recorded; where the tensor lives is the runtime's business."""
    return c.cast(self, c.dtype, "")


@converts("prims.convert_element_type.default")
def convert_element_type(c: Context, a: Any, dtype: Any) -> Any:
    return c.cast(a, c.dtype, "")


@converts("aten.clone.default", "aten.contiguous.default", "aten.alias.default", "aten.detach.default", "aten.detach_.default",
          "aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.dropout.default",
          "aten._assert_tensor_metadata.default")
def identity(c: Context, self: Any = None, **rest: Any) -> Any:
    if rest.get("train") and rest.get("p"):
        raise Decline("dropout in training mode")
    return self if self is not None else rest["input"]


def _taken(c: Context, sides: dict[str, Any], condition: str, yes: str, no: str) -> Any:
    """A choice between two arguments that a softmax's weights decide, where it is none or a guard of them; else None."""
    found = chosen(c.statics, c.raw[condition], c.raw[yes], c.raw[no])
    if found is None:
        return None
    side = sides[yes if found[0] is c.raw[yes] else no]
    x = softmax_guard(c, side) if found[1] else operand(c, side, c.dtype)
    return x if x is None or shape_of(x) == c.shape else c.emit(op.broadcast_to(x, c.shape))
