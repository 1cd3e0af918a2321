"""Pointwise functions that expressions have no operation for, written out so that they keep the digits torch's keep.

``log(1 + x)`` of an ``x`` below a float's spacing at 1 is 0, and ``exp(x) - 1`` too; torch's ``log1p`` and ``expm1`` are not.
Where nothing fuses them they stay the torch calls that they were. Errors on the CPU, by octaves of their arguments, are at most
half of what the numerics rule allows (``tests/numeric/test_written_functions.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from redfuser.acrf.expr import FLOATS, Cast, Expr, f32, op
from redfuser.acrf.functions import TABLE
from redfuser.acrf.lift_expr import Unliftable
from redfuser.partition import curves, special

NEAR = (-0.25, 0.5)
"""Where ``log(1 + x)`` is a polynomial: beyond, the rounding of the sum is no more than a few of the logarithm's own."""
_LOG1P = (-0.0446000705, 0.104434492, -0.131891014, 0.144937764, -0.166458051, 0.199892582, -0.250000759, 0.333335015, -0.5,
          1.0)
"""Of log1p(x) / x there, highest power first: minimax, relative error 4e-9."""
_UP_TO_ONE = (-0.00324402339, 0.0198514543, -0.0569595191, 0.106036533, -0.153055917, 0.196759389, -0.249541336, 0.333299624,
              -0.499999024, 1.0)
"""The same of x from 0 to 1, 5e-9."""

SMALL = (-0.7, 1.1)
"""Where ``exp(x) - 1`` is a polynomial: beyond, the exponential's roundings are no more than two of the difference."""
_EXPM1 = (3.287335e-06, 2.4955663e-05, 1.9787245e-04, 1.3888954e-03, 8.3335098e-03, 4.1666657e-02, 1.6666666e-01, 0.5)
"""Of (expm1(x) / x - 1) / x there, highest power first: minimax, relative error of expm1 2^-30."""


@dataclass(frozen=True)
class Meaning:
    """``f`` of ``arity`` operands in the dtype that torch computes in; the result is rounded to its own."""

    arity: int
    f: Callable[..., Expr]
    exact: bool = False
    """Nothing is computed: in the operands' own dtype."""

    def __call__(self, *operands: Expr, dtype: str) -> Expr:
        if dtype not in FLOATS or dtype == "f64" or any(x.dtype == "f64" for x in operands):
            raise Unliftable(f"a function of {dtype}")
        wide = dtype if self.exact else "f32"
        out = self.f(*(x if x.dtype == wide else Cast(x, wide) for x in operands))
        return out if out.dtype == dtype else Cast(out, dtype)


def _times(x: Expr, powers: tuple[float, ...]) -> Expr:
    """``x * P(x)``, which keeps the sign of zero."""
    return op("mul", curves.polynomial(powers, x), x)


def _within(x: Expr, ends: tuple[float, float]) -> Expr:
    return op("and", op("lt", f32(ends[0]), x), op("lt", x, f32(ends[1])))


def log1p(x: Expr) -> Expr:
    return op("select", _within(x, NEAR), _times(x, _LOG1P), op("log", op("add", x, f32(1.0))))


def expm1(x: Expr) -> Expr:
    return op("select", _within(x, SMALL), _times(x, (*_EXPM1, 1.0)), op("sub", op("exp", x), f32(1.0)))


def softplus(x: Expr, beta: float, threshold: float) -> Expr:
    """``max(x, 0) + log1p(exp(-|x|))``: of a number from 0 to 1, whatever x is. In its own dtype (halves are cast before)."""
    if x.dtype != "f32":
        raise Unliftable(f"softplus of {x.dtype}")
    z = x if beta == 1 else op("mul", x, f32(beta))
    soft = op("add", op("max", z, f32(0.0)), _times(op("exp", op("neg", op("abs", z))), _UP_TO_ONE))
    return op("select", op("lt", f32(threshold), z), x, soft if beta == 1 else op("div", soft, f32(beta)))


def _one_that_is_a_f32(name: str) -> Callable[[Expr, Expr], Expr]:
    def f(a: Expr, b: Expr) -> Expr:
        return op("select", op("isnan", a), b, op("select", op("isnan", b), a, op(name, a, b)))

    return f


MEANINGS = {
    "aten.log1p.default": Meaning(1, log1p), "aten.expm1.default": Meaning(1, expm1),
    "aten.log2.default": Meaning(1, lambda x: op("log2", x)),
    "aten.fmax.default": Meaning(2, _one_that_is_a_f32("max"), exact=True),
    "aten.fmin.default": Meaning(2, _one_that_is_a_f32("min"), exact=True),
    **{f"aten.{name}.default": Meaning(1, f) for name, f in curves.inverses(log1p).items()},
    **{f"aten.{name}.default": Meaning(TABLE[name].arity, partial(op, name)) for name in ("erfc", "lgamma", "atan2")},
    **{f"aten.{f.__name__}.default": Meaning(1, f) for f in (special.erfinv, special.digamma)},
    **{f"aten.{f.__name__}.default": Meaning(2, f) for f in (special.hypot, special.floor_divide)},
    **{f"aten.{f.__name__}.Tensor": Meaning(2, f) for f in (special.remainder, special.fmod)},
    **{f"relax.{f.__name__}": Meaning(1, f) for f in (
        curves.tan, curves.sinh, curves.cosh, curves.atan, curves.asin, curves.acos)},
}
"""By torch's overload or Relax's operator; all arguments are tensors."""
