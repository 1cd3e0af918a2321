"""The pointwise operations of the tile IR as NumPy functions, and the types that hold its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from redfuser.acrf.check.domains import NUMPY, UFUNCS

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


ARRAY: dict[str, Callable[..., Any]] = {
    **UFUNCS, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "select": np.where}
"""Each operation on arrays, in the type they have."""
