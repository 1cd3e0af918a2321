"""Number systems in which a cascade can be evaluated: what one is, NumPy's, and what those of Python numbers share.

A domain says how *floats* are stored and computed; integers and bools are NumPy arrays of their own dtype everywhere.

* :class:`Arrays` with ``program=True``: every operation rounds to its own dtype (fp32, fp16, bf16, fp8), as the source
  program does; sums of narrow floats accumulate in fp32. With ``program=False``: fp64 throughout, only explicit casts
  to a narrower dtype than fp32 round.
* :class:`redfuser.acrf.check.exact.Exact`: rationals, with ``inf`` and ``nan``; raises Inexact where a value is irrational.
* :class:`redfuser.acrf.check.digits.Digits`: 50-digit binary floats (mpmath); raises OutOfRange for exp(1e310) and beyond.

Edge values follow IEEE 754, except that the last two have one zero: ``1/0 = inf`` whatever the zero's sign.
NaN propagates through ``max`` and ``min``; in ``argmax`` and ``topk`` NaN counts as the largest value, as in torch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes  # noqa: F401 (names bfloat16 and the 8-bit floats to NumPy)
import numpy as np

from redfuser.dtypes import FLOATS, LARGEST, TABLE

Array = np.ndarray[Any, Any]

NUMPY: dict[str, Any] = {name: np.dtype(d.long).type for name, d in TABLE.items()}
"""The NumPy dtype of each of the IR's dtypes."""

_LARGEST = {name: Fraction(LARGEST[name]) for name in FLOATS - {"f64"}}


def narrows(source: str, target: str) -> bool:
    """Does a cast from ``source`` to ``target``, both floats, lose bits?"""
    a, b = TABLE[source], TABLE[target]
    return b.significand < a.significand or b.exponent > a.exponent


def _whole(dtype: str) -> Any:
    """What a float is converted to on its way to an integer of ``dtype``."""
    return np.int64 if dtype == "i64" else np.int32


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
        """Float to integer or bool; what has no integer value becomes 0, one beyond 64 bits (i64) or 32 (the others) the lowest
        of them, and of one with more bits than the dtype its last ones are left, as processors have it."""
        if dtype == "bool":
            return np.array([bool(v != 0) for v in x.ravel()], dtype=np.bool_).reshape(x.shape)
        flat = [0 if math.isnan(v) or math.isinf(v) else int(v) for v in x.ravel()]
        lowest = int(np.iinfo(_whole(dtype)).min)
        flat = [v if lowest <= v < -lowest else lowest for v in flat]
        return np.array(flat, dtype=np.int64).reshape(x.shape).astype(NUMPY[dtype])

    def total(self, kind: str, x: Array, dtype: str) -> Array:
        """``sum prod max min`` of stored floats over the last dimension, which may be empty."""
        raise NotImplementedError


class Arrays(Domain):
    """NumPy arrays: the program's own dtypes, or fp64. contracts: a library may add a contraction in its order."""

    contracts = True

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
            out = UFUNCS[name](*args)
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
            if dtype == "bool":
                return x != 0
            return np.where(np.isfinite(x), np.trunc(x), 0).astype(_whole(dtype)).astype(NUMPY[dtype])

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


def _one(x: Array) -> Any:
    return np.asarray(x).dtype.type(1)


def _elementwise(f: Callable[[float], float]) -> Callable[[Array], Array]:
    g = np.frompyfunc(f, 1, 1)
    return lambda x: np.asarray(g(x)).astype(np.asarray(x).dtype)


def _lgamma(x: float) -> float:
    """torch's: infinite at the poles and beyond the largest number."""
    return math.inf if abs(x) > 1e300 or (x <= 0 and x == math.floor(x)) else math.lgamma(x)


UFUNCS: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.mod, "pow": np.power, "min": np.minimum, "max": np.maximum, "neg": np.negative, "abs": np.abs,
    "sqrt": np.sqrt, "rsqrt": lambda x: _one(x) / np.sqrt(x), "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2,
    "tanh": np.tanh, "sigmoid": lambda x: _one(x) / (_one(x) + np.exp(-x)), "sin": np.sin, "cos": np.cos,
    "atan2": np.arctan2, "erf": _elementwise(math.erf), "erfc": _elementwise(math.erfc), "lgamma": _elementwise(_lgamma),
    "floor": np.floor, "ceil": np.ceil, "round": np.rint,
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
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne}


def pick(better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """The better of two, or a NaN."""
    def of(a: Any, b: Any) -> Any:
        if a != a or b != b:
            return a if a != a else b
        return b if better(b, a) else a

    return of


def nearest(v: Fraction, dtype: str) -> Fraction | float:
    """Round to the nearest value of a float format, ties to even; beyond its range inf (e4m3: NaN)."""
    if v == 0:
        return v
    bits, least = TABLE[dtype].significand, TABLE[dtype].exponent
    length, shift = v.numerator.bit_length(), v.denominator.bit_length() - 1
    if length <= bits and v.denominator == 1 << shift and least <= length - shift - 1 and length - shift <= 8:
        return v  # a value of the format, far from its limits
    a = abs(v)
    exponent = a.numerator.bit_length() - a.denominator.bit_length()
    if Fraction(2) ** exponent > a:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, least) - bits + 1)
    out = round(v / quantum) * quantum
    if dtype in _LARGEST and abs(out) > _LARGEST[dtype]:
        return math.nan if dtype == "e4m3" else math.copysign(math.inf, v)
    return out

