"""What NumPy has not: operators and running reductions of integers as torch has them, the k best of a row with their places."""

from __future__ import annotations

from typing import Any

import numpy as np

from redfuser.acrf.check.domains import NUMPY, Array, Domain
from redfuser.acrf.expr import FLOATS


def accumulated(kind: str, x: Array, dtype: str, numbers: Domain) -> Array:
    """``x`` with every element along the last dimension joined to those before it."""
    name = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(kind, kind)
    out = x.astype(NUMPY[dtype]) if dtype not in FLOATS else np.array(x)
    for i in range(1, out.shape[-1]):
        pair = [out[..., i - 1], out[..., i]]
        out[..., i] = numbers.op(name, pair, dtype) if dtype in FLOATS else integer_op(name, pair)
    return out


def k_best(x: Array, places: Array, k: int, smallest: bool, dtype: str, numbers: Domain) -> tuple[Array, Array]:
    """The k best along the last dimension, best first: NaN, then by value, then by lower place. Short rows are padded
    with the value no element is worse than, and place 2**63 - 1."""
    n = x.shape[-1]
    if n < k:
        worst = _worst(dtype, smallest, numbers)
        pad = [(0, 0)] * (x.ndim - 1) + [(0, k - n)]
        x = np.concatenate([x, np.broadcast_to(worst, (*x.shape[:-1], k - n))], -1)
        places = np.pad(places, pad, constant_values=np.iinfo(np.int64).max)
    if x.dtype == object:
        order = np.empty((*x.shape[:-1], k), np.int64)
        for row in np.ndindex(x.shape[:-1]):
            def rank(i: int, values: Any = x[row], at: Any = places[row]) -> Any:
                v = values[i]
                return (v == v, 0 if v != v else (v if smallest else -v), at[i])

            order[row] = sorted(range(x.shape[-1]), key=rank)[:k]
    else:
        nan = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
        # the least integer has no negative of its own
        turned: Array = x if smallest else ~x.astype(np.int64) if x.dtype.kind in "iub" else -x
        key = np.where(nan, 0, turned)
        order = np.lexsort((places, key, ~nan), axis=-1)[..., :k]
    return np.take_along_axis(x, order, -1), np.take_along_axis(places, order, -1)


def _worst(dtype: str, smallest: bool, numbers: Domain) -> Array:
    if dtype in FLOATS:
        return numbers.const(float("inf") if smallest else float("-inf"), dtype)
    return np.asarray(highest(dtype) if smallest else lowest(dtype), NUMPY[dtype])


def lowest(dtype: str) -> int:
    return 0 if dtype == "bool" else int(np.iinfo(NUMPY[dtype]).min)


def highest(dtype: str) -> int:
    return 1 if dtype == "bool" else int(np.iinfo(NUMPY[dtype]).max)


def integer_op(name: str, args: list[Array]) -> Array:
    f: Any = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.mod,
              "min": np.minimum, "max": np.maximum, "neg": np.negative, "abs": np.abs, "and": np.logical_and,
              "or": np.logical_or, "not": np.logical_not, "lt": np.less, "le": np.less_equal, "gt": np.greater,
              "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}[name]
    with np.errstate(all="ignore"):
        return np.asarray(f(*args))
