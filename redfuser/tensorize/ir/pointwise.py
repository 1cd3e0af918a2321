"""The pointwise operations of the tile IR as NumPy functions, and the types that hold its values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from redfuser.acrf.check.domains import NUMPY

NUMPY_DTYPES: dict[str, np.dtype] = {name: np.dtype(kind) for name, kind in NUMPY.items()}
HALVES_AND_SINGLES = ("f32", "f16", "bf16")
EIGHT_BITS = ("e4m3", "e5m2")


def storage(wide: bool = False, steps: bool = True) -> dict[str, np.dtype]:
    """The NumPy type that holds each dtype."""
    widened = (*HALVES_AND_SINGLES, *(() if steps else EIGHT_BITS)) if wide else ()
    return {**NUMPY_DTYPES, **{d: NUMPY_DTYPES["f64"] for d in widened}}


def apply(name: str, args: list, dtype: str) -> np.ndarray | int:
    """One pointwise operation in the precision of its dtype."""
    if dtype == "i64" and all(isinstance(a, (int, np.integer)) for a in args):
        x = [int(a) for a in args]
        return int(_INTEGER[name](*x))
    return ARRAY[name](*args)


_INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b, "min": min, "max": max, "neg": lambda a: -a, "select": lambda c, a, b: a if c else b,
}


def converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``x`` as another type. What no integer stands for is 0, as the cascade's evaluators have it: a conversion of it is
    undefined."""
    return (np.where(np.isfinite(x), x, 0) if dtype.kind in "iu" and x.dtype.kind in "fV" else x).astype(dtype)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _one(x: np.ndarray) -> np.generic:
    return np.asarray(x).dtype.type(1)


ARRAY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floordiv": np.floor_divide,
    "mod": np.mod, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "neg": np.negative,
    "abs": np.abs, "sqrt": np.sqrt, "rsqrt": lambda x: _one(x) / np.sqrt(x), "exp": np.exp, "exp2": np.exp2,
    "log": np.log, "log2": np.log2, "tanh": np.tanh, "sigmoid": lambda x: _one(x) / (_one(x) + np.exp(-x)),
    "erf": _erf, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "sin": np.sin, "cos": np.cos,
    "pow": np.power, "min": np.minimum, "max": np.maximum, "select": np.where, "isnan": np.isnan,
}
"""Each operation on arrays, in the type they have."""
