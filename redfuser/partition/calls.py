"""Pointwise functions that expressions have no operation for, written out so that they keep the digits torch's keep.

``log(1 + x)`` of an ``x`` below a float's spacing at 1 is 0, and ``exp(x) - 1`` too; torch's ``log1p`` and ``expm1`` are not.
Where nothing fuses them they stay the torch calls that they were. Errors on the CPU, by octaves of their arguments, are at most
half of what the numerics rule allows (``tests/numeric/test_written_functions.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redfuser.acrf.expr import FLOATS, Cast, Expr, f32, op
from redfuser.acrf.lift_expr import Unliftable
from redfuser.partition import curves

NEAR = (-0.25, 0.5)
"""Where ``log(1 + x)`` is a series: beyond, the rounding of the sum is no more than a few of the logarithm's own."""
TERMS = 5
"""Of the series of atanh: for ``s = x / (2 + x)``, |s| <= 0.2, what is left out is below 1e-8 of the result."""

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


def log1p(x: Expr) -> Expr:
    """``2 * atanh(x / (2 + x))`` by its series near 0, the logarithm elsewhere."""
    s = op("div", x, op("add", x, f32(2.0)))
    q = op("mul", s, s)
    tail: Expr = f32(1.0 / (2 * TERMS - 1))
    for n in reversed(range(TERMS - 1)):
        tail = op("add", op("mul", q, tail), f32(1.0 / (2 * n + 1)))
    near = op("mul", op("mul", s, tail), f32(2.0))
    small = op("and", op("lt", f32(NEAR[0]), x), op("lt", x, f32(NEAR[1])))
    return op("select", small, near, op("log", op("add", x, f32(1.0))))


def expm1(x: Expr) -> Expr:
    """``x * (1 + x * P(x))`` near 0, which keeps the sign of zero; the difference elsewhere."""
    tail: Expr = f32(_EXPM1[0])
    for c in (*_EXPM1[1:], 1.0):
        tail = op("add", op("mul", tail, x), f32(c))
    small = op("and", op("lt", f32(SMALL[0]), x), op("lt", x, f32(SMALL[1])))
    return op("select", small, op("mul", tail, x), op("sub", op("exp", x), f32(1.0)))


def softplus(x: Expr, beta: float, threshold: float) -> Expr:
    """Of ``x`` in its own dtype (float32 or wider: halves are cast before)."""
    if x.dtype != "f32":
        raise Unliftable(f"softplus of {x.dtype}")
    z = x if beta == 1 else op("mul", x, f32(beta))
    soft = log1p(op("exp", z))
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
    **{f"relax.{f.__name__}": Meaning(1, f) for f in (
        curves.tan, curves.sinh, curves.cosh, curves.atan, curves.asin, curves.acos)},
}
"""By torch's overload or Relax's operator; all arguments are tensors."""
