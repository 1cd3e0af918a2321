"""Circular and hyperbolic functions and their inverses, of float32, as arithmetic and the functions that expressions have.

NaN, infinities and the sign of zero are where torch puts them; elsewhere errors are a few units in the last place
(``tests/partition/test_curves.py``). The polynomials of atan and asin, and where their arguments are reduced, are those of
Cephes (Moshier, ``atanf.c`` and ``asinf.c``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from redfuser.acrf.expr import Expr, f32, op

_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
"""Of atan(t) / t - 1 in t^2, times t^2, for |t| <= tan(pi / 8)."""
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
"""Of asin(s) / s - 1 in s^2, times s^2, for |s| <= 1/2."""
_EIGHTH, _THREE = math.tan(math.pi / 8), math.tan(3 * math.pi / 8)
_TINY, _HUGE = 1e-4, 1e9
"""Below the first asinh and atanh are their argument; above the second ``x * x + 1`` is ``x * x``."""


def tan(x: Expr) -> Expr:
    return op("div", op("sin", x), op("cos", x))


def cosh(x: Expr) -> Expr:
    """Of the square root of ``exp(|x|)``: that itself overflows first."""
    h = op("exp", op("mul", op("abs", x), f32(0.5)))
    return op("add", op("mul", op("mul", h, f32(0.5)), h), op("div", f32(0.5), op("mul", h, h)))


def sinh(x: Expr) -> Expr:
    return op("mul", op("tanh", x), cosh(x))


def atan(x: Expr) -> Expr:
    a = op("abs", x)
    steep, over = op("lt", f32(_THREE), a), op("lt", f32(_EIGHTH), a)
    t = op("select", steep, op("div", f32(-1.0), a), op("select", over, _turned(a), x))
    far = op("add", op("select", steep, f32(math.pi / 2), f32(math.pi / 4)), _odd(_ATAN, t))
    return op("select", over, _signed(far, x), _odd(_ATAN, x))


def asin(x: Expr) -> Expr:
    far, p = _arc(x)
    return op("select", far, _signed(op("sub", f32(math.pi / 2), op("mul", p, f32(2.0))), x), p)


def acos(x: Expr) -> Expr:
    far, p = _arc(x)
    twice = op("mul", p, f32(2.0))
    return op("select", far, op("select", op("lt", x, f32(0.0)), op("sub", f32(math.pi), twice), twice),
              op("sub", f32(math.pi / 2), p))


def inverses(log1p: Callable[[Expr], Expr]) -> dict[str, Callable[[Expr], Expr]]:
    """asinh, acosh and atanh, by a logarithm of what is added to 1."""

    def asinh(x: Expr) -> Expr:
        a = op("abs", x)
        square = op("mul", a, a)
        more = op("div", square, op("add", op("sqrt", op("add", square, f32(1.0))), f32(1.0)))
        return _odd_of(x, op("select", op("lt", f32(_HUGE), a), _doubled(a), log1p(op("add", a, more))))

    def acosh(x: Expr) -> Expr:
        t = op("sub", x, f32(1.0))
        near = log1p(op("add", t, op("sqrt", op("mul", t, op("add", t, f32(2.0))))))
        far = op("select", op("lt", f32(_HUGE), x), _doubled(x), near)
        return op("select", op("lt", x, f32(1.0)), f32(math.nan), far)

    def atanh(x: Expr) -> Expr:
        a = op("abs", x)
        grown = log1p(op("div", op("mul", a, f32(2.0)), op("sub", f32(1.0), a)))
        return _odd_of(x, op("mul", grown, f32(0.5)))

    return {"asinh": asinh, "acosh": acosh, "atanh": atanh}


def _odd(terms: tuple[float, ...], t: Expr) -> Expr:
    """``t`` times 1 and ``t^2`` times the polynomial in ``t^2``, highest power first (a product keeps the sign of zero)."""
    return op("mul", op("add", _series(terms, op("mul", t, t)), f32(1.0)), t)


def polynomial(terms: tuple[float, ...], t: Expr) -> Expr:
    """Highest power first, by Horner's rule."""
    total: Expr = f32(terms[0])
    for c in terms[1:]:
        total = op("add", op("mul", total, t), f32(c))
    return total


def _series(terms: tuple[float, ...], z: Expr) -> Expr:
    return op("mul", polynomial(terms, z), z)


def _turned(a: Expr) -> Expr:
    """The tangent of an angle less pi / 4."""
    return op("div", op("sub", a, f32(1.0)), op("add", a, f32(1.0)))


def _arc(x: Expr) -> tuple[Expr, Expr]:
    """Is it beyond 1/2, and the arc sine of it, or else of the sine of half of what is left to a right angle."""
    a = op("abs", x)
    far = op("lt", f32(0.5), a)
    z = op("select", far, op("mul", op("sub", f32(1.0), a), f32(0.5)), op("mul", x, x))
    s = op("select", far, op("sqrt", z), x)
    return far, op("add", op("mul", _series(_ASIN, z), s), s)


def _doubled(x: Expr) -> Expr:
    return op("add", op("log", x), f32(math.log(2.0)))


def _odd_of(x: Expr, positive: Expr) -> Expr:
    return op("select", op("lt", op("abs", x), f32(_TINY)), x, _signed(positive, x))


def _signed(positive: Expr, x: Expr) -> Expr:
    """With the sign of an ``x`` that is not 0."""
    return op("select", op("lt", x, f32(0.0)), op("neg", positive), positive)
