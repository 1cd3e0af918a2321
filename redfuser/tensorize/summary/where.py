"""Where an element of the row counts for nothing: the condition that all accumulators of a kernel share, in terms of the
tensors it was given and of positions."""

from __future__ import annotations

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import COMPARISONS, Const, Expr, Load, Op, Ref, map_children, walk
from redfuser.strategies.alive import TRUE, alive_where, both, conjuncts
from redfuser.tensorize.geometry import Geometry

KINDS = ("max", "sum")
"""Reducers for which a neutral element more or less is no difference."""


def counts_where(at: Geometry) -> Expr:
    """A condition without which an element is neutral to every accumulator; TRUE where there is none. Each conjunct of it is
    one of every accumulator's."""
    inside = Indices(at.extents)
    per: list[set[Expr]] = []
    first: tuple[Expr, ...] = ()
    for b in at.kernel.body:
        if b.role != "reduce":
            continue
        if b.reducer is None or b.reducer.kind not in KINDS or at.facts.counted(b):
            return TRUE
        own = conjuncts(resolved(at, alive_where(at.facts.lets, b.reducer, b.exprs[0])))
        first = first if per else own
        per.append(set(own))
    shared = TRUE
    for c in first:
        if all(c in own for own in per) and not any(isinstance(x, Ref) for x in walk(c)) and not _settled(c, inside):
            shared = both(shared, c)
    return shared


def _settled(c: Expr, inside: Indices) -> bool:
    """Does it hold of every position of the row, as that of no padding does?"""
    match c:
        case Op(name=n, args=(x, y)) if n in COMPARISONS and {x.dtype, y.dtype} == {"i64"} and not any(
                isinstance(k, Load) for k in walk(c)):
            return inside.compare(n, x, y) == Const(True, "bool")
    return False


def resolved(at: Geometry, e: Expr) -> Expr:
    """A condition with what its names stand for in their place, as far as that is no reduction."""
    if isinstance(e, Ref) and not e.indices and e.name in at.facts.lets:
        return resolved(at, at.facts.lets[e.name])
    return map_children(e, lambda x: resolved(at, x))
