"""Binary floats of 50 decimal digits: a number system for what is irrational."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from typing import Any

import mpmath

from redfuser.acrf.check.domains import COMPARE, Objects, pick


class OutOfRange(ArithmeticError):
    """An exponential is too large, or too close to zero, even for unbounded exponents."""


class Digits(Objects):
    """Binary floats of 50 significant decimal digits and unbounded exponent."""

    def number(self, x: Any) -> Any:
        context = _digits()
        if isinstance(x, Fraction):
            return context.mpf(x.numerator) / x.denominator
        return context.mpf(x.item() if hasattr(x, "item") else x)

    def as_fraction(self, x: Any) -> Fraction:
        sign, mantissa, exponent, bits = x._mpf_
        if abs(exponent + bits) > 4096:  # 0, or too large, in every dtype: no need to write it out
            return Fraction(0) if exponent < 0 else Fraction(-1 if sign else 1) * 2**4096
        return Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** exponent

    def scalar(self, name: str) -> Callable[..., Any]:
        return _digit_ops()[name]


_EXP_LIMIT = 10**310
"""Exponents have any size here, so the clamps of masked rows (exp(-1.8e308) in f64) are no edge; exp of an exp would be."""


@cache
def _digits() -> Any:
    context = mpmath.MPContext()
    context.dps = 50
    return context


MANY, MOST = 400, 12000
"""Digits where 50 do not agree: of ``exp(x - (log(t) + m))``, with x and m float32's lowest, 12 of 50 are left. And where
places do not, which smaller differences decide: ``1 + exp(-2e4)`` is more than 1 only beyond 8700 digits. What would need still
more is out of range."""


@contextmanager
def more_digits(digits: int) -> Iterator[None]:
    """A longer :class:`Digits` while it lasts."""
    context, before = _digits(), _digits().dps
    context.dps = digits
    try:
        yield
    finally:
        context.dps = before


_GAMMA = 100
"""Where the gamma function itself is looked at: its logarithm has none of a negative number's."""
_KNOWN = 1 << 14
"""Exponentials that are remembered."""


@cache
def _digit_ops() -> dict[str, Callable[..., Any]]:
    c = _digits()
    nan, inf = c.nan, c.inf

    def real(f: Callable[[Any], Any], low: Any = -inf) -> Callable[[Any], Any]:
        return lambda a: f(a) if a >= low else nan

    def div(a: Any, b: Any) -> Any:
        if b == 0:
            return nan if a == 0 or a != a else (inf if a > 0 else -inf)
        return nan if c.isinf(a) and c.isinf(b) else a / b

    known: dict[Any, Any] = {}
    """Exponentials in 50 digits: every segmentation of a row takes those of the same differences."""

    def exp(a: Any) -> Any:
        if c.dps == 50 and (found := known.get(a._mpf_)) is not None:
            return found
        if abs(a) > (_EXP_LIMIT if c.dps < MOST else 2 * c.dps):
            if c.isfinite(a):
                raise OutOfRange(f"exp({float(a):.2g})")
            return inf if a > 0 else c.zero
        out = c.exp(a)
        if c.dps == 50:
            if len(known) >= _KNOWN:
                known.clear()
            known[a._mpf_] = out
        return out

    def power(a: Any, b: Any) -> Any:
        if b == 0:
            return c.one
        if a == 0:
            return inf if b < 0 else c.zero
        if a < 0 and c.isfinite(b) and not c.isint(b):
            return nan
        out = a ** b
        return nan if isinstance(out, c.mpc) else out

    def whole(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda a: f(a) if c.isfinite(a) else a

    def mod(a: Any, b: Any) -> Any:
        if c.isinf(b) and c.isfinite(a):
            return a if a == 0 or (a > 0) == (b > 0) else b
        return a - b * c.floor(a / b) if c.isfinite(a) and c.isfinite(b) and b != 0 else nan

    def lgamma(a: Any) -> Any:
        if a != a or c.isinf(a):
            return abs(a)
        return inf if a <= 0 and c.isint(a) else c.log(abs(c.gamma(a))) if abs(a) < _GAMMA else c.loggamma(a).real

    def atan2(y: Any, x: Any) -> Any:
        if c.isinf(x) and c.isinf(y):
            x, y = (c.one if v > 0 else -c.one for v in (x, y))
        return nan if x != x or y != y else c.zero if y == 0 and x == 0 else c.atan2(y, x)

    root = real(c.sqrt, c.zero)
    return {
        "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": div, "pow": power,
        "floordiv": lambda a, b: whole(c.floor)(div(a, b)), "mod": mod, "neg": operator.neg, "abs": abs,
        "max": pick(lambda b, a: b > a), "min": pick(lambda b, a: b < a), "sqrt": root,
        "rsqrt": lambda a: div(c.one, root(a)), "exp": exp, "exp2": lambda a: exp(a * c.ln2),
        "log": real(c.log, c.zero), "log2": real(lambda a: c.log(a) / c.ln2, c.zero), "tanh": c.tanh,
        "sigmoid": lambda a: div(c.one, c.one + exp(-a)), "erf": c.erf, "erfc": c.erfc, "lgamma": lgamma,
        "atan2": atan2, "floor": whole(c.floor),
        "ceil": whole(c.ceil), "round": whole(c.nint), "sin": lambda a: c.sin(a) if c.isfinite(a) else nan,
        "cos": lambda a: c.cos(a) if c.isfinite(a) else nan, "isnan": lambda a: a != a, **COMPARE}
