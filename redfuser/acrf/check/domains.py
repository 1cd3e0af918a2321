"""Number systems in which a cascade can be evaluated.

A domain says how *floats* are stored and computed; integers and bools are NumPy arrays of their own dtype everywhere.

* :class:`Arrays` with ``program=True``: every operation rounds to its own dtype (fp32, fp16, bf16, fp8), as the source
  program does; sums of narrow floats accumulate in fp32. With ``program=False``: fp64 throughout, only explicit casts
  to a narrower dtype than fp32 round.
* :class:`Exact`: rationals, with ``inf`` and ``nan``; raises :class:`Inexact` where a value is irrational.
* :class:`Digits`: 50-digit binary floats (mpmath); raises :class:`OutOfRange` for exp(1e60) and beyond.

Edge values follow IEEE 754, except that the last two have one zero: ``1/0 = inf`` whatever the zero's sign.
NaN propagates through ``max`` and ``min``; in ``argmax`` and ``topk`` NaN counts as the largest value, as in torch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import mpmath
import numpy as np

from redfuser.acrf.expr import FLOATS

Array = np.ndarray[Any, Any]

NUMPY: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "i64": np.int64, "i32": np.int32, "i8": np.int8,
    "u8": np.uint8, "bool": np.bool_}
"""The NumPy dtype of each of the IR's dtypes."""

_FORMATS = {"f64": (53, -1022, None), "f32": (24, -126, Fraction(2) ** 128 - Fraction(2) ** 104),
            "f16": (11, -14, Fraction(65504)), "bf16": (8, -126, Fraction(2) ** 128 - Fraction(2) ** 120),
            "e4m3": (4, -6, Fraction(448)), "e5m2": (3, -14, Fraction(57344))}
"""Significand bits, least normal exponent, largest finite value."""


class Inexact(ArithmeticError):
    """A value has no exact rational form."""


def unit_roundoff(dtype: str) -> float:
    """Half the distance from 1 to the next value: the relative error bound of one rounding to nearest."""
    return 2.0 ** -_FORMATS[dtype][0]


def smallest_normal(dtype: str) -> float:
    return 2.0 ** _FORMATS[dtype][1]


def narrows(source: str, target: str) -> bool:
    """Does a cast from ``source`` to ``target``, both floats, lose bits?"""
    (p, e, _), (q, f, _) = _FORMATS[source], _FORMATS[target]
    return q < p or f > e


class OutOfRange(ArithmeticError):
    """An exponential is too large, or too close to zero, even for unbounded exponents."""


class Domain:
    """How floats are stored and computed. ``round_casts=False`` treats every float-to-float cast as exact."""

    def __init__(self, round_casts: bool = True) -> None:
        self.round_casts = round_casts

    def enter(self, x: Array, dtype: str) -> Array:
        """An input, or an integer array, as stored floats of the dtype."""
        raise NotImplementedError

    def const(self, value: float, dtype: str) -> Array:
        return self.enter(np.asarray(value), dtype)

    def op(self, name: str, args: list[Array], dtype: str) -> Array:
        """A pointwise operation on floats of one dtype; comparisons and isnan give bools."""
        raise NotImplementedError

    def round(self, x: Array, source: str, target: str) -> Array:
        """A float-to-float cast."""
        raise NotImplementedError

    def truncate(self, x: Array, dtype: str) -> Array:
        """Float to integer or bool; what has no integer value becomes 0."""
        flat = [0 if math.isnan(v) or math.isinf(v) else int(v) for v in x.ravel()]
        if dtype == "bool":
            flat = [bool(v != 0) for v in x.ravel()]
        return np.array(flat, dtype=NUMPY[dtype]).reshape(x.shape)

    def total(self, kind: str, x: Array, dtype: str) -> Array:
        """``sum prod max min`` of stored floats over the last dimension, which may be empty."""
        raise NotImplementedError


class Arrays(Domain):
    """NumPy arrays: the program's own dtypes, or fp64."""

    def __init__(self, program: bool, round_casts: bool = True) -> None:
        super().__init__(round_casts)
        self.program = program

    def _fit(self, x: Array, dtype: str) -> Array:
        if not self.program:
            return np.asarray(x, np.float64)
        if dtype in ("f64", "f32"):
            return np.asarray(x, NUMPY[dtype])
        return np.asarray(x).astype(NUMPY[dtype]).astype(np.float32)

    def enter(self, x: Array, dtype: str) -> Array:
        narrow = x if x.dtype.kind in "iub" else x.astype(NUMPY[dtype])
        return self._fit(narrow, dtype)

    def const(self, value: float, dtype: str) -> Array:
        return self._fit(np.asarray(value, np.float64), dtype)

    def op(self, name: str, args: list[Array], dtype: str) -> Array:
        with np.errstate(all="ignore"):
            out = _UFUNCS[name](*args)
        return out if out.dtype == np.bool_ else self._fit(out, dtype)

    def round(self, x: Array, source: str, target: str) -> Array:
        if self.program:
            return self._fit(x, target)
        if not self.round_casts or target in ("f64", "f32"):
            return x
        with np.errstate(all="ignore"):
            return x.astype(NUMPY[target]).astype(np.float64)

    def truncate(self, x: Array, dtype: str) -> Array:
        with np.errstate(all="ignore"):
            return (x != 0) if dtype == "bool" else np.where(np.isfinite(x), np.trunc(x), 0).astype(NUMPY[dtype])

    def total(self, kind: str, x: Array, dtype: str) -> Array:
        with np.errstate(all="ignore"):
            match kind:
                case "sum":
                    out = np.sum(x, axis=-1)
                case "prod":
                    out = np.prod(x, axis=-1)
                case "max":
                    out = np.max(x, axis=-1, initial=-np.inf)
                case _:
                    out = np.min(x, axis=-1, initial=np.inf)
        return self._fit(out, dtype)


def _elementwise(f: Callable[[float], float]) -> Callable[[Array], Array]:
    g = np.frompyfunc(f, 1, 1)
    return lambda x: np.asarray(g(x)).astype(x.dtype)


_UFUNCS: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.mod, "pow": np.power, "min": np.minimum, "max": np.maximum, "neg": np.negative, "abs": np.abs,
    "sqrt": np.sqrt, "rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x), "exp": np.exp, "exp2": np.exp2, "log": np.log,
    "log2": np.log2, "tanh": np.tanh, "sigmoid": lambda x: x.dtype.type(1) / (x.dtype.type(1) + np.exp(-x)),
    "erf": _elementwise(math.erf), "floor": np.floor, "ceil": np.ceil, "round": np.rint, "sin": np.sin, "cos": np.cos,
    "isnan": np.isnan, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal}


class Objects(Domain):
    """Arrays of Python numbers. Subclasses give the scalar operations."""

    def __init__(self, round_casts: bool = True) -> None:
        super().__init__(round_casts)
        self.ufuncs: dict[str, Any] = {}

    def number(self, x: Any) -> Any:
        raise NotImplementedError

    def scalar(self, name: str) -> Callable[..., Any]:
        raise NotImplementedError

    def as_fraction(self, x: Any) -> Fraction:
        raise NotImplementedError

    def enter(self, x: Array, dtype: str) -> Array:
        out: Array = np.empty(x.shape, object)
        out.ravel()[:] = [self.number(v) for v in x.ravel()]
        return out

    def op(self, name: str, args: list[Array], dtype: str) -> Array:
        if name not in self.ufuncs:
            self.ufuncs[name] = np.frompyfunc(self.scalar(name), len(args), 1)
        out = np.asarray(self.ufuncs[name](*args), object)  # Python's numbers: no floating-point state to guard
        return out.astype(np.bool_) if name in _BOOLEAN else out

    def round(self, x: Array, source: str, target: str) -> Array:
        if not self.round_casts or not narrows(source, target):
            return x
        with np.errstate(all="ignore"):
            return np.asarray(np.frompyfunc(lambda v: self._nearest(v, target), 1, 1)(x), object)

    def _nearest(self, v: Any, dtype: str) -> Any:
        if math.isnan(v) or math.isinf(v):
            return self.number(math.nan) if dtype == "e4m3" else v
        return self.number(nearest(self.as_fraction(v), dtype))

    def total(self, kind: str, x: Array, dtype: str) -> Array:
        start: dict[str, Any] = {"sum": 0, "prod": 1, "max": -math.inf, "min": math.inf}
        f = self.scalar({"sum": "add", "prod": "mul"}.get(kind, kind))
        out = np.empty(x.shape[:-1], object)
        rows = x.reshape(-1, x.shape[-1]) if x.size else np.empty((out.size, 0), object)
        for i, row in enumerate(rows):
            value = self.number(start[kind])
            for v in row:
                value = f(value, v)
            out.ravel()[i] = value
        return out


_BOOLEAN = frozenset({"isnan", "lt", "le", "gt", "ge", "eq", "ne"})
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne}


def nearest(v: Fraction, dtype: str) -> Fraction | float:
    """Round to the nearest value of a float format, ties to even; beyond its range inf (e4m3: NaN)."""
    if v == 0:
        return v
    bits, least, largest = _FORMATS[dtype]
    length, shift = v.numerator.bit_length(), v.denominator.bit_length() - 1
    if length <= bits and v.denominator == 1 << shift and least <= length - shift - 1 and length - shift <= 8:
        return v  # a value of the format, far from its limits
    a = abs(v)
    exponent = a.numerator.bit_length() - a.denominator.bit_length()
    if Fraction(2) ** exponent > a:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, least) - bits + 1)
    out = round(v / quantum) * quantum
    if largest is not None and abs(out) > largest:
        return math.nan if dtype == "e4m3" else math.copysign(math.inf, v)
    return out


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


def _pick(better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def pick(a: Any, b: Any) -> Any:
        if a != a or b != b:
            return a if a != a else b
        return b if better(b, a) else a

    return pick


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
    return math.nan


_INF = math.inf
_exact_sigmoid = _exact_at({Fraction(0): Fraction(1, 2), _INF: Fraction(1), -_INF: Fraction(0)})
_EXACT: dict[str, Callable[..., Any]] = {
    "add": _exact_add, "sub": lambda a, b: _exact_add(a, -b), "mul": _exact_mul, "div": _exact_div,
    "floordiv": _exact_floordiv, "mod": _exact_mod, "pow": _exact_pow, "neg": _exact_neg, "abs": abs,
    "max": _pick(lambda b, a: b > a), "min": _pick(lambda b, a: b < a),
    "sqrt": _exact_root, "rsqrt": lambda a: _exact_div(Fraction(1), _exact_root(a)),
    "exp": _exact_at({Fraction(0): Fraction(1), _INF: _INF, -_INF: Fraction(0)}),
    "exp2": lambda a: (Fraction(2) ** a.numerator if isinstance(a, Fraction) and a.denominator == 1 and abs(a) < 9999
                       else _exact_at({_INF: _INF, -_INF: Fraction(0)})(a)),
    "log": _exact_at({Fraction(1): Fraction(0), Fraction(0): -_INF, _INF: _INF}),
    "log2": _exact_at({Fraction(1): Fraction(0), Fraction(2): Fraction(1), Fraction(0): -_INF, _INF: _INF}),
    "tanh": _exact_at({Fraction(0): Fraction(0), _INF: Fraction(1), -_INF: Fraction(-1)}), "sigmoid": _exact_sigmoid,
    "erf": _exact_at({Fraction(0): Fraction(0), _INF: Fraction(1), -_INF: Fraction(-1)}),
    "sin": _exact_at({Fraction(0): Fraction(0)}), "cos": _exact_at({Fraction(0): Fraction(1)}),
    "floor": _whole(math.floor), "ceil": _whole(math.ceil), "round": _whole(round),
    "isnan": lambda a: a != a, **_COMPARE}


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


_EXP_LIMIT = 1e60
"""Exponents have any size here, so the clamps of masked rows (exp(-3.4e38)) are no edge; exp of an exp would be."""


@cache
def _digits() -> Any:
    context = mpmath.MPContext()
    context.dps = 50
    return context


@contextmanager
def more_digits(digits: int = 12000) -> Iterator[None]:
    """A longer :class:`Digits` while it lasts: ``1 + exp(-2e4)`` is more than 1 only beyond 8700 digits. What would need
    still more is out of range."""
    context, before = _digits(), _digits().dps
    context.dps = digits
    try:
        yield
    finally:
        context.dps = before


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
        if abs(a) > (_EXP_LIMIT if c.dps <= 50 else 2 * c.dps):
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
        return a - b * c.floor(a / b) if c.isfinite(a) and c.isfinite(b) and b != 0 else nan

    root = real(c.sqrt, c.zero)
    return {
        "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": div, "pow": power,
        "floordiv": lambda a, b: whole(c.floor)(div(a, b)), "mod": mod, "neg": operator.neg, "abs": abs,
        "max": _pick(lambda b, a: b > a), "min": _pick(lambda b, a: b < a), "sqrt": root,
        "rsqrt": lambda a: div(c.one, root(a)), "exp": exp, "exp2": lambda a: exp(a * c.ln2),
        "log": real(c.log, c.zero), "log2": real(lambda a: c.log(a) / c.ln2, c.zero), "tanh": c.tanh,
        "sigmoid": lambda a: div(c.one, c.one + exp(-a)), "erf": c.erf, "floor": whole(c.floor),
        "ceil": whole(c.ceil), "round": whole(c.nint), "sin": lambda a: c.sin(a) if c.isfinite(a) else nan,
        "cos": lambda a: c.cos(a) if c.isfinite(a) else nan, "isnan": lambda a: a != a, **_COMPARE}


def domain(precision: str, round_casts: bool = True) -> Domain:
    """``f64``, ``program``, ``exact`` (rationals) or ``digits`` (50 digits)."""
    match precision:
        case "f64":
            return Arrays(program=False, round_casts=round_casts)
        case "program":
            return Arrays(program=True, round_casts=round_casts)
        case "exact":
            return Exact(round_casts)
        case "digits":
            return Digits(round_casts)
    raise ValueError(f"precision is f64, program, exact or digits, not {precision!r}")


assert set(_FORMATS) == FLOATS
