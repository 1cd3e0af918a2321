"""Half precision as CUDA has it cheaply: quotients by a constant."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from redfuser.acrf.expr import Const, Expr
from redfuser.tensorize.ir.pointwise import NUMPY_DTYPES

HALF = {d: NUMPY_DTYPES[d] for d in ("f16", "bf16")}


@lru_cache(maxsize=256)
def reciprocal(dtype: str, c: float) -> tuple[float, float] | None:
    """``1 / c``, c of single precision, as two numbers ``(y, z)`` of it: ``fma(x, y, x * z)`` rounded to half precision is the
    same number as ``x / c`` for each ``x`` of the type; None where there are none. All 65536 dividends are tried. Both have
    the sign of ``c``, so that an infinite ``x`` stays infinite."""
    half = HALF[dtype]
    with np.errstate(all="ignore"):
        if not math.isfinite(c) or c == 0 or float(np.float32(c)) != c:
            return None
        high = np.float32(1.0 / c)
        if abs(float(high)) > abs(1.0 / c):
            high = np.nextafter(high, np.float32(0.0))
        low = np.float32(1.0 / c - float(high))
        x: np.ndarray = np.arange(1 << 16, dtype=np.uint16).view(half).astype(np.float32)
        exact = x.astype(np.float64) * float(high) + (x * low).astype(np.float64)  # 48 bits at most: no rounding but the last
        got, want = exact.astype(np.float32).astype(half), (x / np.float32(c)).astype(half)
    nan = np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32))
    same = bool(np.all(nan | (got.view(np.uint16) == want.view(np.uint16))))
    return (float(high), float(low)) if same else None


def power_of_two(e: Expr) -> bool:
    return isinstance(e, Const) and e.value != 0 and math.isfinite(float(e.value)) and abs(math.frexp(float(e.value))[0]) == 0.5
