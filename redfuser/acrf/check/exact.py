"""Rationals: a number system in which every digit is right, and what has no rational value is no value."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from redfuser.acrf.check.domains import COMPARE, Objects, pick


class Inexact(ArithmeticError):
    """A value has no exact rational form."""


class Exact(Objects):
    """Rationals; finite values are Fractions, the rest the floats inf, -inf, nan."""

    def number(self, x: Any) -> Any:
        if isinstance(x, Fraction):
            return x
        x = x.item() if hasattr(x, "item") else x
        return Fraction(x) if math.isfinite(x) else x

    def as_fraction(self, x: Any) -> Fraction:
        return Fraction(x)

    def scalar(self, name: str) -> Callable[..., Any]:
        return _EXACT[name]


def _sign(x: Any) -> float:
    return float((x > 0) - (x < 0)) if isinstance(x, Fraction) else x


def _exact_add(a: Any, b: Any) -> Any:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a + b
    return (0.0 if isinstance(a, Fraction) else a) + (0.0 if isinstance(b, Fraction) else b)


def _exact_mul(a: Any, b: Any) -> Any:
    return a * b if isinstance(a, Fraction) and isinstance(b, Fraction) else _sign(a) * _sign(b)


def _exact_div(a: Any, b: Any) -> Any:
    if isinstance(b, Fraction):
        if b == 0:
            return math.nan if a == 0 or a != a else math.copysign(math.inf, a)
        return a / b if isinstance(a, Fraction) else _sign(a) * _sign(b)
    return Fraction(0) if isinstance(a, Fraction) and not math.isnan(b) else math.nan


def _exact_neg(a: Any) -> Any:
    return -a


def _exact_root(a: Any) -> Any:
    if not isinstance(a, Fraction):
        return a if a > 0 else math.nan
    if a < 0:
        return math.nan
    p, q = math.isqrt(a.numerator), math.isqrt(a.denominator)
    if p * p != a.numerator or q * q != a.denominator:
        raise Inexact(f"sqrt({a})")
    return Fraction(p, q)


def _exact_at(points: dict[Any, Any]) -> Callable[[Any], Any]:
    def f(a: Any) -> Any:
        if a != a:
            return a
        if a in points:
            return points[a]
        raise Inexact(str(a))

    return f


def _exact_pow(a: Any, b: Any) -> Any:
    if isinstance(a, Fraction) and isinstance(b, Fraction) and b.denominator == 1 and abs(b) <= 64 and (a or b >= 0):
        return Fraction(a ** b.numerator)
    if isinstance(a, Fraction) and isinstance(b, Fraction) and b == Fraction(1, 2):
        return _exact_root(a)
    raise Inexact(f"pow({a}, {b})")


def _whole(f: Callable[[Any], int]) -> Callable[[Any], Any]:
    return lambda a: Fraction(f(a)) if isinstance(a, Fraction) else a


def _exact_floordiv(a: Any, b: Any) -> Any:
    q = _exact_div(a, b)
    return Fraction(math.floor(q)) if isinstance(q, Fraction) else q


def _exact_mod(a: Any, b: Any) -> Any:
    if isinstance(a, Fraction) and isinstance(b, Fraction) and b != 0:
        return a - b * math.floor(a / b)
    if isinstance(a, Fraction) and b in (math.inf, -math.inf):
        return a if a == 0 or (a > 0) == (b > 0) else b
    return math.nan


def _exact_atan2(y: Any, x: Any) -> Any:
    if y != y or x != x:
        return math.nan
    if (y == 0 and x >= 0) or (x == _INF and abs(y) != _INF):
        return Fraction(0)
    raise Inexact(f"atan2({y}, {x})")


_INF = math.inf
_exact_sigmoid = _exact_at({Fraction(0): Fraction(1, 2), _INF: Fraction(1), -_INF: Fraction(0)})
_EXACT: dict[str, Callable[..., Any]] = {
    "add": _exact_add, "sub": lambda a, b: _exact_add(a, -b), "mul": _exact_mul, "div": _exact_div,
    "floordiv": _exact_floordiv, "mod": _exact_mod, "pow": _exact_pow, "neg": _exact_neg, "abs": abs,
    "max": pick(lambda b, a: b > a), "min": pick(lambda b, a: b < a),
    "sqrt": _exact_root, "rsqrt": lambda a: _exact_div(Fraction(1), _exact_root(a)),
    "exp": _exact_at({Fraction(0): Fraction(1), _INF: _INF, -_INF: Fraction(0)}),
    "exp2": lambda a: (Fraction(2) ** a.numerator if isinstance(a, Fraction) and a.denominator == 1 and abs(a) < 9999
                       else _exact_at({_INF: _INF, -_INF: Fraction(0)})(a)),
    "log": _exact_at({Fraction(1): Fraction(0), Fraction(0): -_INF, _INF: _INF}),
    "log2": _exact_at({Fraction(1): Fraction(0), Fraction(2): Fraction(1), Fraction(0): -_INF, _INF: _INF}),
    "tanh": _exact_at({Fraction(0): Fraction(0), _INF: Fraction(1), -_INF: Fraction(-1)}), "sigmoid": _exact_sigmoid,
    "erf": _exact_at({Fraction(0): Fraction(0), _INF: Fraction(1), -_INF: Fraction(-1)}),
    "erfc": _exact_at({Fraction(0): Fraction(1), _INF: Fraction(0), -_INF: Fraction(2)}),
    "lgamma": _exact_at({Fraction(1): Fraction(0), Fraction(2): Fraction(0), Fraction(0): _INF, _INF: _INF, -_INF: _INF}),
    "atan2": _exact_atan2,
    "sin": _exact_at({Fraction(0): Fraction(0)}), "cos": _exact_at({Fraction(0): Fraction(1)}),
    "floor": _whole(math.floor), "ceil": _whole(math.ceil), "round": _whole(round),
    "isnan": lambda a: a != a, **COMPARE}
