"""Divisions of half precision by a constant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from redfuser.acrf.expr import Cast, Const, Expr, Op, f32, op
from redfuser.strategies.program import Kernel
from redfuser.tensorize.algebra import rewrite_bottom_up
from redfuser.tensorize.ir.pointwise import NUMPY_DTYPES
from redfuser.tensorize.rewrite.facts import Setting, each_value

_HALF = {d: NUMPY_DTYPES[d] for d in ("f16", "bf16")}


@dataclass(frozen=True, slots=True)
class Quotients:
    """A division in half precision by a constant is a product, where the two are the same number for every dividend::

        p = bf16(s) / bf16(24.0)    -->    p = bf16(f32(bf16(s)) * 0.0417)

    A quotient as IEEE has it is a subroutine (of attention over 512 columns a quarter of the time with the relay, a sixth
    without, on one H200). There are 65536 dividends: all are tried, once per constant. No rounding changes."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        return each_value(kernel, lambda e: rewrite_bottom_up(e, _product))


def _product(e: Expr) -> Expr:
    match e:
        case Op(name="div", args=(x, Const(value=c)), dtype=d) if d in _HALF and x.dtype == d and same(d, float(c)):
            return Cast(op("mul", Cast(x, "f32"), f32(1.0 / float(c))), d)
    return e


@lru_cache(maxsize=256)
def same(dtype: str, c: float) -> bool:
    """Is every number of the type, divided by ``c`` and rounded, the same as multiplied by the reciprocal and rounded?"""
    half = _HALF[dtype]
    if not math.isfinite(c) or c == 0 or float(half.type(c)) != c:
        return False
    with np.errstate(all="ignore"):
        every: np.ndarray = np.arange(1 << 16, dtype=np.uint16).view(half).astype(np.float32)
        quotient, product = every / np.float32(c), every * np.float32(1.0 / c)
        left, right = quotient.astype(half), product.astype(half)
    known = np.isnan(left.astype(np.float32)) & np.isnan(right.astype(np.float32))
    return bool(np.all(known | (left.view(np.uint16) == right.view(np.uint16))))
