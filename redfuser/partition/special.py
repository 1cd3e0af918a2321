"""Special functions of float32, as arithmetic and the functions that expressions have: the complementary error function, the
inverse of the error function, the logarithm of the gamma function and its derivative, and angles and lengths of two numbers.

NaN, infinities and the sign of zero are where torch puts them; elsewhere errors are a few units in the last place
(``tests/numeric/test_written_functions.py``). The polynomials are minimax, of relative errors below 2^-27.
"""

from __future__ import annotations

import math

from redfuser.acrf.expr import Expr, f32, op
from redfuser.partition.curves import atan_of_fraction

_ERFCX = (5.23431736e-3, -1.66301254e-2, 3.69880855e-2, -6.62407079e-2, 9.37729447e-2, -1.0104698e-1, 6.80939243e-2,
          1.53799228e-2, -1.39621053e-1, 1.23299512)
"""Of ``exp(x^2) erfc(x) (1 + 2 x)`` in (x - 4) / (x + 4), for x from 0.45 to 10.2."""
_NEAR, _GONE = 0.45, 10.2
"""Where erfc is one less erf, and from where on it is below the least number."""
_ERFINV_NEAR = (-8.7910043e-9, 2.3232631e-8, 4.66169968e-7, -3.4627045e-6, -4.9633448e-6, 2.18344438e-4, -1.25274188e-3,
                -4.17738678e-3, 2.46640286e-1, 1.50140936)
"""Of erfinv(x) / x in w - 2.5, with w = -log(1 - x^2) below 5."""
_ERFINV_FAR = (1.27445486e-4, -3.17901882e-4, -7.43263029e-5, 1.49493399e-3, -3.58818021e-3, 5.68347829e-3, -7.63917489e-3,
               9.44565498e-3, 1.00167507, 2.8329768)
"""The same in sqrt(w) - 3, up to the last number before 1."""
_LGAMMA = (1.38120266e-5, -2.1210164e-5, -6.26047268e-7, -2.68221569e-5, 1.2106844e-4, -2.3578077e-4, 4.98309964e-4,
           -1.18844348e-3, 2.89352366e-3, -7.38622319e-3, 2.05804575e-2, -6.73522637e-2, 3.22467045e-1, 4.22784335e-1)
"""Of lgamma(2 + u) / u, for |u| <= 1."""
_LGAMMA_5 = (-1.93022568e-9, 8.00262737e-9, -1.74287358e-8, 1.87972982e-7, -1.50154532e-6, 1.0226745e-5, -7.72674594e-5,
             6.53703024e-4, -6.60168356e-3, 9.96712173e-2, 1.6110932, 3.95781397)
"""Of lgamma(5.5 + u), for |u| <= 2.5."""
_STIRLING = (1 / 1260, -1 / 360, 1 / 12)
_DIGAMMA = (-1 / 240, 1 / 252, -1 / 120, 1 / 12)
"""The asymptotic series, in 1 / x^2; that of lgamma times x."""


def erfc(x: Expr) -> Expr:
    """``exp(-x^2)`` times what is smooth, beyond ``_NEAR``. The square is of what has few digits and is exact, and the rest a
    second exponential: of a rounded square a hundred units in the last place would be the exponential's."""
    a = op("min", op("abs", x), f32(_GONE))
    t = op("div", op("sub", a, f32(4.0)), op("add", a, f32(4.0)))
    few = op("mul", op("floor", op("mul", a, f32(16.0))), f32(1 / 16))
    rest = op("mul", op("sub", a, few), op("add", a, few))
    gone = op("mul", op("exp", op("neg", op("mul", few, few))), op("exp", op("neg", rest)))
    tail = op("div", op("mul", gone, _poly(_ERFCX, t)), op("add", op("mul", a, f32(2.0)), f32(1.0)))
    far = op("select", op("lt", a, f32(_GONE)), tail, f32(0.0))
    near = op("sub", f32(1.0), op("erf", x))
    return op("select", op("lt", f32(_NEAR), x), far, op("select", op("lt", x, f32(-_NEAR)), op("sub", f32(2.0), far), near))


def erfinv(x: Expr) -> Expr:
    """By Giles' variable, the logarithm of ``1 - x^2`` ("Approximating the erfinv function", 2010)."""
    w = op("neg", op("log", op("mul", op("sub", f32(1.0), x), op("add", f32(1.0), x))))
    near = _poly(_ERFINV_NEAR, op("sub", w, f32(2.5)))
    far = _poly(_ERFINV_FAR, op("sub", op("sqrt", op("max", w, f32(0.0))), f32(3.0)))
    inside = op("mul", op("select", op("lt", w, f32(5.0)), near, far), x)
    return op("select", op("eq", op("abs", x), f32(1.0)), op("mul", x, f32(math.inf)), inside)


def lgamma(x: Expr) -> Expr:
    """Below 0 by reflection, with the sine of what is left of a whole number."""
    a = op("abs", x)
    log = op("log", a)
    small = op("lt", a, f32(1.5))
    u = op("sub", a, op("select", small, f32(1.0), f32(2.0)))
    low = op("sub", op("mul", _poly(_LGAMMA, u), u), op("select", small, log, f32(0.0)))
    middle = _poly(_LGAMMA_5, op("sub", op("min", a, f32(8.0)), f32(5.5)))
    turned = op("div", f32(1.0), a)
    series = op("mul", _poly(_STIRLING, op("mul", turned, turned)), turned)
    grown = op("mul", op("sub", a, f32(0.5)), op("sub", log, f32(1.0)))
    high = op("add", op("add", grown, f32(0.5 * math.log(2 * math.pi) - 0.5)), series)
    above = op("select", op("lt", a, f32(3.0)), low, op("select", op("lt", a, f32(8.0)), middle, high))
    share = op("mul", op("abs", op("sin", op("mul", _left(x), f32(math.pi)))), f32(1 / math.pi))
    below = op("neg", op("add", op("log", share), op("add", log, above)))
    finite = op("select", op("lt", x, f32(0.0)), below, above)
    return op("select", op("eq", a, f32(math.inf)), a, finite)


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
    series = op("add", op("mul", turned, f32(0.5)), op("mul", _poly(_DIGAMMA, square), square))
    above = op("sub", op("sub", op("log", z), series), op("select", small, steps, f32(0.0)))
    angle = op("mul", _left(x), f32(math.pi))
    below = op("sub", above, op("div", op("mul", op("cos", angle), f32(math.pi)), op("sin", angle)))
    pole = op("select", op("eq", _left(x), f32(0.0)), f32(math.nan), below)
    return op("select", op("eq", x, f32(0.0)), op("div", f32(-1.0), x), op("select", under, pole, above))


def atan2(y: Expr, x: Expr) -> Expr:
    """Of the lesser by the greater, from 0 to 1, and turned into its quadrant."""
    a, b = op("abs", x), op("abs", y)
    less, more = op("min", a, b), op("max", a, b)
    alike = op("select", op("eq", more, f32(0.0)), f32(0.0), f32(1.0))
    slope = op("select", op("eq", less, more), alike, op("div", less, more))
    angle = atan_of_fraction(slope)
    steep = op("select", op("lt", a, b), op("sub", f32(math.pi / 2), angle), angle)
    whole = op("select", _negative(x), op("sub", f32(math.pi), steep), steep)
    seen = op("select", op("or", op("isnan", x), op("isnan", y)), f32(math.nan), whole)
    return op("select", _negative(y), op("neg", seen), seen)


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


def _poly(terms: tuple[float, ...], t: Expr) -> Expr:
    total: Expr = f32(terms[0])
    for c in terms[1:]:
        total = op("add", op("mul", total, t), f32(c))
    return total
