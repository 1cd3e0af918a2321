"""Special functions of float32, as arithmetic and the functions that expressions have: the inverse of the error function, the
derivative of the gamma function's logarithm, the length of two numbers, and what a quotient leaves.

NaN, infinities and the sign of zero are where torch puts them; elsewhere errors are a few units in the last place
(``tests/numeric/test_written_functions.py``). The polynomials are minimax, of relative errors below 2^-27.
"""

from __future__ import annotations

import math

from redfuser.acrf.expr import Expr, f32, op
from redfuser.partition.curves import polynomial

_ERFINV_NEAR = (-8.7910043e-9, 2.3232631e-8, 4.66169968e-7, -3.4627045e-6, -4.9633448e-6, 2.18344438e-4, -1.25274188e-3,
                -4.17738678e-3, 2.46640286e-1, 1.50140936)
"""Of erfinv(x) / x in w - 2.5, with w = -log(1 - x^2) below 5."""
_ERFINV_FAR = (1.27445486e-4, -3.17901882e-4, -7.43263029e-5, 1.49493399e-3, -3.58818021e-3, 5.68347829e-3, -7.63917489e-3,
               9.44565498e-3, 1.00167507, 2.8329768)
"""The same in sqrt(w) - 3, up to the last number before 1."""
_DIGAMMA = (-1 / 240, 1 / 252, -1 / 120, 1 / 12)
"""The asymptotic series, in 1 / x^2."""


def erfinv(x: Expr) -> Expr:
    """By Giles' variable, the logarithm of ``1 - x^2`` ("Approximating the erfinv function", 2010)."""
    w = op("neg", op("log", op("mul", op("sub", f32(1.0), x), op("add", f32(1.0), x))))
    near = polynomial(_ERFINV_NEAR, op("sub", w, f32(2.5)))
    far = polynomial(_ERFINV_FAR, op("sub", op("sqrt", op("max", w, f32(0.0))), f32(3.0)))
    inside = op("mul", op("select", op("lt", w, f32(5.0)), near, far), x)
    return op("select", op("eq", op("abs", x), f32(1.0)), op("mul", x, f32(math.inf)), inside)


def digamma(x: Expr) -> Expr:
    """Six steps up, two to a quotient, and the series; below 0 by reflection."""
    under = op("lt", x, f32(0.0))
    y = op("select", under, op("sub", f32(1.0), x), x)
    small = op("lt", y, f32(6.0))
    q = op("mul", y, op("add", y, f32(5.0)))
    quotients = op("add", op("div", f32(1.0), op("add", q, f32(4.0))), op("div", f32(1.0), op("add", q, f32(6.0))))
    first = op("add", op("div", f32(1.0), y), op("div", f32(1.0), op("add", y, f32(5.0))))
    steps = op("add", first, op("mul", op("add", op("mul", y, f32(2.0)), f32(5.0)), quotients))
    z = op("select", small, op("add", y, f32(6.0)), y)
    turned = op("div", f32(1.0), z)
    square = op("mul", turned, turned)
    series = op("add", op("mul", turned, f32(0.5)), op("mul", polynomial(_DIGAMMA, square), square))
    above = op("sub", op("sub", op("log", z), series), op("select", small, steps, f32(0.0)))
    angle = op("mul", _left(x), f32(math.pi))
    below = op("sub", above, op("div", op("mul", op("cos", angle), f32(math.pi)), op("sin", angle)))
    pole = op("select", op("eq", _left(x), f32(0.0)), f32(math.nan), below)
    return op("select", op("eq", x, f32(0.0)), op("div", f32(-1.0), x), op("select", under, pole, above))


def hypot(x: Expr, y: Expr) -> Expr:
    """In units of the greater: the squares' sum is between 1 and 2. Infinite beside NaN too."""
    a, b = op("abs", x), op("abs", y)
    more = op("max", a, b)
    share = op("div", op("min", a, b), more)
    length = op("mul", op("sqrt", op("add", op("mul", share, share), f32(1.0))), more)
    inside = op("select", op("eq", more, f32(0.0)), f32(0.0), length)
    endless = op("or", op("eq", a, f32(math.inf)), op("eq", b, f32(math.inf)))
    return op("select", endless, f32(math.inf), inside)


def remainder(x: Expr, by: Expr) -> Expr:
    return op("mod", x, by)


def fmod(x: Expr, by: Expr) -> Expr:
    """Of the sign of ``x``."""
    left = op("mod", op("abs", x), op("abs", by))
    return op("select", _negative(x), op("neg", left), left)


def floor_divide(x: Expr, by: Expr) -> Expr:
    """A whole number, whatever the quotient is rounded to; below one the sign is the quotient's."""
    quotient, left = op("div", x, by), op("mod", x, by)
    whole = op("round", op("div", op("sub", x, left), by))
    signed = op("select", op("eq", whole, f32(0.0)), op("mul", quotient, f32(0.0)), whole)
    by_endless = op("select", op("eq", left, x), quotient, op("sub", quotient, f32(1.0)))
    number = op("select", op("eq", op("abs", by), f32(math.inf)), by_endless, signed)
    return op("select", op("eq", by, f32(0.0)), quotient, number)


def _left(x: Expr) -> Expr:
    """What is left of the nearest whole number."""
    return op("sub", x, op("round", x))


def _negative(x: Expr) -> Expr:
    """Its sign; of a zero too."""
    return op("or", op("lt", x, f32(0.0)), op("and", op("eq", x, f32(0.0)), op("lt", op("div", f32(1.0), x), f32(0.0))))
