"""Where along the row a contribution matters: conditions without which it is its reducer's neutral element. ``lets``: what the
names of a kernel stand for."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from redfuser.acrf.cascade import Reducer
from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, Ref, op, walk
from redfuser.acrf.fold import TRUE, is_const

Lets = Mapping[str, Expr]
_UNBOUNDED = frozenset({"f64", "f32", "f16", "bf16"})
"""Floats that have an infinity."""


def both(a: Expr, b: Expr) -> Expr:
    return b if a == TRUE else a if b == TRUE else op("and", a, b)


def conjuncts(c: Expr) -> tuple[Expr, ...]:
    match c:
        case Op(name="and", args=(x, y)):
            return conjuncts(x) + conjuncts(y)
        case Const(value=True):
            return ()
    return (c,)


def positional(c: Expr) -> bool:
    """Decided by positions alone: no data, no reduced value."""
    return not any(isinstance(x, (Load, Ref)) for x in walk(c))


def alive_where(lets: Lets, reducer: Reducer | None, e: Expr) -> Expr:
    """A condition without which a contribution is the reducer's neutral element."""
    kind = reducer.kind if reducer else ""
    if kind in ("max", "topk", "argmax"):
        return _lowest_without(lets, e)
    return _zero_without(lets, e) if kind == "sum" else TRUE


def common(alive: tuple[Expr, ...]) -> Expr:
    """Positions outside which no accumulator changes: the conditions that all contributions share."""
    total = TRUE
    for c in conjuncts(alive[0]) if alive else ():
        if positional(c) and all(c in conjuncts(other) for other in alive):
            total = both(total, c)
    return total


def _lowest_without(lets: Lets, e: Expr) -> Expr:
    """A condition without which ``e`` is -inf."""
    match e:
        case Op(name="select", args=(c, x, y)) if is_const(y, -inf):
            return both(c, _lowest_without(lets, x))
        case Op(name="mul", args=(x, Const(value=k) as c)) if is_const(c) and 0 < float(k) < inf:
            return _lowest_without(lets, x)
        case Op(name="sub", args=(x, _)):
            return _lowest_without(lets, x)
        case Op(name="add", args=(x, y)):
            return both(_lowest_without(lets, x), _lowest_without(lets, y))
        case Ref(name=n) if n in lets:
            return _lowest_without(lets, lets[n])
        case Cast(arg=x, dtype=d) if {d, x.dtype} <= _UNBOUNDED:
            return _lowest_without(lets, x)
    return TRUE


def _zero_without(lets: Lets, e: Expr) -> Expr:
    """A condition without which ``e`` is 0 (a masked value times a finite one)."""
    match e:
        case Op(name="exp" | "exp2", args=(x,)):
            return _lowest_without(lets, x)
        case Op(name="mul", args=(x, y)):
            return both(_zero_without(lets, x), _zero_without(lets, y))
        case Op(name="div", args=(x, _)) | Op(name="neg", args=(x,)):
            return _zero_without(lets, x)
        case Op(name="select", args=(c, x, y)) if is_const(y, 0.0):
            return both(c, _zero_without(lets, x))
        case Op(name="select", args=(_, y, x)) if is_const(y, 0.0):
            return _zero_without(lets, x)
        case Ref(name=n) if n in lets:
            return _zero_without(lets, lets[n])
        case Cast(arg=x):
            return _zero_without(lets, x)
    return TRUE
