"""Bounds on the finite values of an expression: what a rewrite may scale, and where a running maximum may start.

An infinity or a NaN is not bounded by any of this: a rule that uses a bound must be right for those by itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from redfuser.acrf.algebra import LARGEST
from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, Ref, walk

if TYPE_CHECKING:
    from redfuser.tensorize.prepare import Preparation

LEAST = -1e30
"""Where a running maximum starts that is known to be above it or -inf; finite after the scales that scores are given."""

_INTEGERS = {"i8": 128.0, "u8": 255.0, "bool": 1.0, "i32": 2.0**31, "i64": 2.0**63}


def largest(work: Preparation, e: Expr) -> float:
    """A bound on ``abs(e)`` wherever e is finite."""
    limit = LARGEST.get(e.dtype, _INTEGERS.get(e.dtype, math.inf))
    return min(_bound(work, e, limit), limit)


def _bound(work: Preparation, e: Expr, limit: float) -> float:
    match e:
        case Const(value=v):
            return abs(float(v)) if math.isfinite(v) else 0.0
        case Index(axis=a):
            return float(work.roles.extents.get(a, limit))
        case Ref(name=n):
            return _of_name(work, n.partition("@")[0], limit)
        case Load():
            return limit
        case Cast(arg=x) | Op(name="neg" | "abs", args=(x,)):
            return largest(work, x)
        case Op(name="add" | "sub", args=(x, y)):
            return largest(work, x) + largest(work, y)
        case Op(name="mul", args=(x, y)):
            return largest(work, x) * largest(work, y)
        case Op(name="div", args=(x, Const(value=k))) if k and math.isfinite(k):
            return largest(work, x) / abs(k)
        case Op(name="div", args=(x, Op(name="add", args=(Const(value=k), Op(name="exp" | "exp2"))))) if k > 0:
            return largest(work, x) / k
        case Op(name="max" | "min", args=(x, y)) | Op(name="select", args=(_, x, y)):
            return max(largest(work, x), largest(work, y))
        case Op(name="tanh" | "sigmoid" | "erf" | "sin" | "cos"):
            return 1.0
        case Op(name="exp" | "exp2", args=(x,)):
            return 2.0 ** min(1.5 * largest(work, x), 1000.0)
    return limit


def _of_name(work: Preparation, name: str, limit: float) -> float:
    if name in work.contractions:
        product, terms = work.contractions[name]
        return largest(work, product) * terms
    if name in work.maxima:
        return largest(work, work.maxima[name])
    return largest(work, work.lets[name]) if name in work.lets else limit


def startable(work: Preparation, e: Expr) -> bool:
    """May a maximum of ``e`` start at :data:`LEAST`? Not where ``e`` holds another that does: it is no value of e then."""
    low = any(isinstance(x, Ref) and x.name.partition("@")[0] in work.lifted for x in walk(e))
    return not low and largest(work, e) < -LEAST
