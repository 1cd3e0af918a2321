"""Masks that put a number in the place of what they hide: which positions, and when that comes to nothing.

::

    p = select(l <= i, s, -1e4);  m = max[l] p;  t = sum[l] exp(p - m);  o = sum[l] exp(p - m) * v

Where ``l <= i`` does not hold, ``p`` is -1e4. If ``m``, over any part of the row, is 104 above that, each such term of ``t`` is
``exp(-104)`` at most, which is 0 in float32, so is its product with a finite number, and ``m`` is the maximum of the whole row.
So it is a question about the state at the end of a row that has left those positions out (docs/decisions/0030); NaN and -inf
are not above anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref
from redfuser.acrf.fold import is_const
from redfuser.strategies.alive import TRUE, alive_where, both, conjuncts, positional
from redfuser.strategies.program import Block

Lets = Mapping[str, Expr]
NOTHING = {"exp": 104.0, "exp2": 150.0}
"""An exponential of so much below zero is less than half of float32's least number."""
ROUNDED = 2.0 ** -20
"""Of a hidden number, by which its maximum is to be further above: sums of both are rounded."""
NARROW = {"f16": 2.0 ** -10, "bf16": 2.0 ** -7}
"""What a conversion may change of a number."""
FAR = -1000.0
"""A maximum that is to be above more than this is often below it: scores of a trained model have a few hundreds at most, and a
tile with a row below is walked twice."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Outside of ``where``, a condition on positions, nothing counts in a row whose accumulator ``maximum`` is ``enough`` or
    more once it has seen all the others."""

    where: Expr
    maximum: str
    enough: float


@dataclass(frozen=True, slots=True)
class _Below:
    """Without ``where`` a value is ``most`` or less."""

    where: Expr
    most: float


def filled(body: Iterable[Block], lets: Lets, hidden: Expr = TRUE) -> Filled | str:
    """What a kernel's accumulators say together; or why there is nothing of the kind. hidden: what is left out of the walk
    whatever the data are."""
    reduces = [b for b in body if b.role == "reduce" and b.reducer is not None]
    maxima = [b.name for b in reduces if b.reducer is not None and b.reducer.kind == "max" and len(b.names) == 1]
    if len(maxima) != 1:
        return "its accumulators are not those of one maximum"
    found: list[_Below] = []
    for b in reduces:
        kind, e = b.reducer.kind if b.reducer is not None else "", b.exprs[0]
        if kind not in ("max", "sum") or len(b.names) > 1:
            return f"{b.name} is no maximum and no sum"
        below = _most(lets, e) if kind == "max" else _nothing(lets, e, maxima[0])
        neutral = alive_where(lets, b.reducer, e)
        below = below or (_Below(neutral, -inf) if neutral != TRUE else None)
        if below is None:
            return f"{b.name} takes what is hidden for more than nothing"
        found.append(below)
    where, enough = TRUE, max(x.most for x in found)
    for c in conjuncts(found[0].where):
        if positional(c) and all(c in conjuncts(x.where) for x in found):
            where = both(where, c)
    if where == TRUE or set(conjuncts(where)) <= set(conjuncts(hidden)):
        return "no position hides anything to a number"
    if not enough <= FAR:
        return f"rows whose maximum is less than {enough:g} are no exception"
    return Filled(where, maxima[0], float(np.nextafter(np.float32(enough), np.float32(inf))))


def _most(lets: Lets, e: Expr) -> _Below | None:
    """A condition without which ``e`` is no more than a number."""
    match e:
        case Op(name="select", args=(c, x, Const(value=k) as const)) if is_const(const) and float(k) < inf:
            inner = _most(lets, x)
            return _Below(c, float(k)) if inner is None else _Below(both(c, inner.where), max(float(k), inner.most))
        case Op(name="mul", args=(x, Const(value=k) as const) | (Const(value=k) as const, x), dtype="f32") if (
                is_const(const) and 0 < float(k) < inf):
            below = _most(lets, x)
            return None if below is None else _Below(below.where, below.most * float(k))
        case Ref(name=n) if n in lets:
            return _most(lets, lets[n])
        case Cast(arg=x, dtype=d) if {d, x.dtype} <= {"f32", *NARROW}:
            below = _most(lets, x)
            return None if below is None else _Below(below.where, below.most + abs(below.most) * NARROW.get(d, 0.0)
                                                     if below.most > -inf else -inf)
    return None


def _nothing(lets: Lets, e: Expr, maximum: str) -> _Below | None:
    """A condition without which ``e`` is 0 where a maximum is no less than a number."""
    match e:
        case Op(name="exp" | "exp2" as name, args=(x,)):
            return _exponential(lets, x, maximum, NOTHING[name])
        case Op(name="mul", args=(x, y)):
            each = [b for b in (_nothing(lets, x, maximum), _nothing(lets, y, maximum)) if b is not None]
            return each[0] if each else None
        case Op(name="div", args=(x, _)) | Op(name="neg", args=(x,)) | Cast(arg=x):
            return _nothing(lets, x, maximum)
        case Op(name="select", args=(_, x, y)) if is_const(x, 0.0) or is_const(y, 0.0):
            return _nothing(lets, x if is_const(y, 0.0) else y, maximum)
        case Ref(name=n) if n in lets:
            return _nothing(lets, lets[n], maximum)
    return None


def _exponential(lets: Lets, e: Expr, maximum: str, least: float) -> _Below | None:
    """Of something less a maximum, times a number."""
    match e:
        case Op(name="mul", args=(x, Const(value=k) as const) | (Const(value=k) as const, x)) if (
                is_const(const) and 0 < float(k) < inf):
            return _exponential(lets, x, maximum, least / float(k))
        case Op(name="sub", args=(x, y)) if _is(lets, y, maximum):
            below = _most(lets, x)
            if below is None or below.most == -inf:
                return below
            return _Below(below.where, below.most + max(least, ROUNDED * abs(below.most)))
    return None


def _is(lets: Lets, e: Expr, maximum: str) -> bool:
    """Is it a maximum, or no less where that is enough: not below a number, or not above one that is itself enough, or 0 in the
    place of -inf?"""
    match e:
        case Ref(name=n) if n in lets:
            return _is(lets, lets[n], maximum)
        case Ref(name=n):
            return n == maximum
        case Op(name="max", args=(m, Const())):
            return _is(lets, m, maximum)
        case Op(name="min", args=(m, Const(value=k) as const)) if is_const(const) and float(k) >= 0:
            return _is(lets, m, maximum)
        case Op(name="select", args=(Op(name="eq", args=(x, y)), z, m)):
            return is_const(y, -inf) and is_const(z, 0.0) and _is(lets, x, maximum) and _is(lets, m, maximum)
    return False
