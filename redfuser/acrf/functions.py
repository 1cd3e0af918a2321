"""The functions of numbers that expressions have beyond arithmetic and roundings, a row each. Whatever knows functions by name
asks here which there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Function:
    """array: NumPy's, in the type of its arguments. bounded: numbers of moderate size, of any. branches: a GPU's takes several
    ways, by its arguments."""

    array: Callable[..., Array]
    arity: int = 1
    bounded: bool = False
    branches: bool = False


def _one(x: Array) -> Any:
    return np.asarray(x).dtype.type(1)


def _elementwise(f: Callable[[float], float]) -> Callable[[Array], Array]:
    g = np.frompyfunc(f, 1, 1)
    return lambda x: np.asarray(g(x)).astype(np.asarray(x).dtype)


def _lgamma(x: float) -> float:
    """torch's: infinite at the poles and beyond the largest number."""
    return math.inf if abs(x) > 1e300 or (x <= 0 and x == math.floor(x)) else math.lgamma(x)


TABLE = {
    "sqrt": Function(np.sqrt), "rsqrt": Function(lambda x: _one(x) / np.sqrt(x)),
    "exp": Function(np.exp, bounded=True), "exp2": Function(np.exp2, bounded=True),
    "log": Function(np.log), "log2": Function(np.log2), "tanh": Function(np.tanh, bounded=True),
    "sigmoid": Function(lambda x: _one(x) / (_one(x) + np.exp(-x)), bounded=True),
    "sin": Function(np.sin), "cos": Function(np.cos), "atan2": Function(np.arctan2, 2, bounded=True, branches=True),
    "erf": Function(_elementwise(math.erf), bounded=True),
    "erfc": Function(_elementwise(math.erfc), bounded=True, branches=True),
    "lgamma": Function(_elementwise(_lgamma), branches=True),
}
DEAR = frozenset(TABLE) | {"pow", "div"}
"""What is not computed again for every reader, and is kept where it is one value per row."""
