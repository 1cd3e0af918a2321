"""Functions of one tensor: exact ones in its own dtype, transcendental ones of half values through float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from redfuser.frontend.aten.context import FLOATS, Context, Decline, converts
from redfuser.frontend.aten.elementwise import operand
from redfuser.tvm_compat import dtype_of, relax

op = relax.op


def _exact(f: Any) -> Any:
    """A function whose value is exact in the operand's own dtype."""

    def convert(c: Context, self: Any) -> Any:
        if dtype_of(self) != c.dtype and c.dtype != "bool":
            raise Decline("mixed dtypes")
        if dtype_of(self).startswith(("float8", "bool")):
            raise Decline(f"dtype {dtype_of(self)}")
        return c.emit(f(c.cast(self, "float32") if c.dtype == "bool" and dtype_of(self) == "bfloat16" else self))

    return convert


def _negative(x: Any) -> Any:
    """TVM's are a product with -1 and a choice of -1, which 8 bits without a sign do not hold."""
    return op.subtract(relax.const(0, "uint8"), x) if dtype_of(x) == "uint8" else op.negative(x)


def _sign(x: Any) -> Any:
    return op.minimum(x, relax.const(1, "uint8")) if dtype_of(x) == "uint8" else op.sign(x)


for _name, _f in {"abs": op.abs, "neg": _negative, "floor": op.floor, "ceil": op.ceil,
                  "round": op.round, "sign": _sign, "isnan": op.isnan, "isinf": op.isinf, "isfinite": op.isfinite,
                  "relu": op.nn.relu}.items():
    converts(f"aten.{_name}.default")(_exact(_f))


def _function(f: Callable[[Context, Any], Any]) -> Any:
    """A function that torch computes in float32 for half operands, and in float32 for integers."""

    def convert(c: Context, self: Any) -> Any:
        x = self if dtype_of(self) in FLOATS else operand(c, self, c.dtype)
        return c.in_wide(lambda w: f(c, w), x)

    return convert


def _plain(f: Callable[[Any], Any]) -> Any:
    return _function(lambda c, w: f(w))


def _log10(c: Context, w: Any) -> Any:
    """A quotient of natural logarithms: Relax has no operator for other bases. (Base two is a torch call with a meaning,
    :mod:`redfuser.partition.calls`: a quotient misses powers of two, and ``floor`` shows it.)"""
    return op.divide(c.emit(op.log(w), "ln"), c.const(math.log(10.0), dtype_of(w)))


for _name, _f in {"exp": op.exp, "log": op.log, "sqrt": op.sqrt, "rsqrt": op.rsqrt, "sigmoid": op.sigmoid,
                  "tanh": op.tanh, "erf": op.erf, "sin": op.sin, "cos": op.cos, "tan": op.tan, "sinh": op.sinh,
                  "cosh": op.cosh, "atan": op.atan, "asin": op.asin, "acos": op.acos, "silu": op.nn.silu}.items():
    converts(f"aten.{_name}.default")(_plain(_f))

converts("aten.exp2.default")(_function(lambda c, w: op.power(c.const(2.0, dtype_of(w)), w)))

converts("aten.log10.default")(_function(_log10))


@converts("aten.gelu.default")
def gelu(c: Context, self: Any, approximate: str = "none") -> Any:
    f = {"none": op.nn.gelu, "tanh": op.nn.gelu_tanh}.get(approximate)
    if f is None:
        raise Decline(f"gelu approximate={approximate!r}")
    return c.in_wide(f, self)


@converts("aten.softplus.default")
def softplus(c: Context, self: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    return c.in_wide(lambda w: op.nn.softplus(w, float(beta), float(threshold)), self)


@converts("aten.log_sigmoid.default")
def log_sigmoid(c: Context, self: Any) -> Any:
    """``-softplus(-x)``, which is x from -40 on in float64 too, and exp(40) is no infinity in float32."""
    return c.in_wide(lambda w: op.subtract(c.const(0.0, dtype_of(w)), c.emit(
        op.nn.softplus(c.emit(op.negative(w), "negated"), 1.0, 40.0), "soft")), self)


@converts("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(c: Context, self: Any) -> Any:
    return log_sigmoid(c, self), None


@converts("aten.leaky_relu.default")
def leaky_relu(c: Context, self: Any, negative_slope: Any = 0.01) -> Any:
    return c.in_wide(lambda w: op.where(
        c.emit(op.greater(w, c.const(0.0, dtype_of(w))), "above"), w,
        c.emit(op.multiply(w, c.const(negative_slope, dtype_of(w))), "below")), self)
