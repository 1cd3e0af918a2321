"""Conditions that single out the extremum itself: ``x == max x``, ``x >= max x``, ``l == argmax x``, and their opposites.

Comparing an element with a result of the whole row moves with that result, with one exception: whether it *is* the
extremum. When a running extremum changes, no element absorbed so far is the extremum any more; while it stays, all that
were are. So what is accumulated where the condition holds is kept or dropped whole::

    A(new) = select(m old == m, A(old), 0)         where x == m
    B(new) = B(old) + select(m old == m, 0, A(old))    where x != m
"""

from __future__ import annotations

from fractions import Fraction

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.derive.bounds import under
from redfuser.acrf.derive.decomposition import Conds, Decomposition
from redfuser.acrf.derive.derivation import Derivation
from redfuser.acrf.expr import FLOATS, Const, Expr, Index, Op, Ref, op
from redfuser.acrf.facts.normal import add, scale, to_poly
from redfuser.acrf.state import refuse_condition


def extremum_of(d: Decomposition, cond: Expr, known: Conds = ()) -> tuple[str, bool] | None:
    """(the result, whether the condition holds at its extremum) for a condition of this kind, else None. ``known``: other
    conditions that hold for the element."""
    if not isinstance(cond, Op) or len(cond.args) != 2 or any(a.dtype == "bool" for a in cond.args):
        return None
    for x, y in (cond.args, cond.args[::-1]):
        r = _reduction(d, y)
        if isinstance(x, Index) and x.axis == d.scope.raxis and r is not None and cond.name in ("eq", "ne"):
            name = _name(d, y)
            if r.reducer.kind in ("argmax", "argmin") or (r.reducer.kind == "topk" and r.reducer.k == 1 and name != r.name):
                return name, cond.name == "eq"
    return _ordered(d, cond, known)


def strict(d: Decomposition, cond: Expr, known: Conds) -> tuple[Expr, Expr] | None:
    """``x < max x`` as (``x == max x``, is the maximum NaN?): not so where it is NaN, else the opposite of equality."""
    if not isinstance(cond, Op) or cond.name not in ("lt", "gt"):
        return None
    equal = Op("eq", cond.args, "bool")
    found = extremum_of(d, equal, known)
    if found is None or _ordered(d, cond, known) is None:
        return None
    r = d.ranges.reductions[found[0]]
    return equal, Op("isnan", (Ref(found[0], r.dtype),), "bool") if r.dtype in FLOATS else Const(False, "bool")


def _ordered(d: Decomposition, cond: Op, known: Conds) -> tuple[str, bool] | None:
    """``P op 0`` with ``P = +-(x - m)`` for the extremum m of x."""
    difference = add(to_poly(d.scope.inline(cond.args[0])), to_poly(d.scope.inline(cond.args[1])), -1)
    for mono, c in difference.items():
        r = _reduction(d, mono[0][0]) if len(mono) == 1 and mono[0][1] == 1 and abs(c) == 1 else None
        if r is None or r.reducer.kind not in ("max", "min"):
            continue
        gap = add(to_poly(under(known, d.scope.inline(r.expr))), {mono: abs(c)}, -1)
        if scale(gap, -c) != difference:
            continue
        below: Fraction = -c if r.reducer.kind == "max" else c  # +1: the difference is at most 0
        holds = ("eq", "ge") if below > 0 else ("eq", "le")
        fails = ("ne", "lt") if below > 0 else ("ne", "gt")
        if cond.name in (*holds, *fails):
            return r.name, cond.name in holds
    return None


def _name(d: Decomposition, e: Expr) -> str:
    """The name that an expression reads, through maps that rename it; empty where it is no plain name."""
    while isinstance(e, Ref) and not e.indices and e.name in d.scope.definitions:
        e = d.scope.definitions[e.name]
    return e.name if isinstance(e, Ref) and not e.indices else ""


def _reduction(d: Decomposition, e: Expr) -> Reduce | None:
    """The reduction over the row whose result (or places) an expression names."""
    name = _name(d, e)
    return next((r for r in d.ranges.reductions.values() if name in r.names), None)


def moving(d: Decomposition | Derivation, conds: Conds) -> Conds:
    """Those of a term's conditions that move with a result."""
    return tuple(c for c in conds if d.scope.kind(c[0]) == "M")


def data_only(d: Decomposition | Derivation, conds: Conds) -> None:
    """Raise Refuse RF204 where a condition moves with a result."""
    for cond, _ in moving(d, conds):
        refuse_condition(cond)


def placed(work: Derivation, cond: Expr) -> Expr:
    """The condition at the running results, as they are (no guard: an extremum of nothing equals no element)."""
    return work.scope.replaced(work.scope.resolve(work.scope.inline(cond)), work.refs.values)


def _unmoved(work: Derivation, result: str) -> Expr:
    """Is the extremum the one it was before this segment? Not where it is NaN: no element equals that."""
    now = work.refs.values[result]
    return Op("eq", (work.refs.old(now), now), "bool")


def kept(work: Derivation, conds: Conds, value: Expr, opposite: Expr | None, nothing: Expr, joined: str) -> Expr:
    """An old value after the extremum of the (single) moving condition moved. ``opposite``: the old value where the
    condition has its other truth, needed where elements may join; ``joined``: how they do (add, max, min)."""
    for cond, side in moving(work, conds):
        found = extremum_of(work.decomposer(), cond, conds)
        assert found is not None
        same = _unmoved(work, found[0])
        if found[1] == side:
            value = Op("select", (same, value, nothing), value.dtype)
        else:
            assert opposite is not None
            value = op(joined, value, Op("select", (same, nothing, opposite), value.dtype))
    return value


def needs_opposite(work: Derivation, conds: Conds) -> Conds | None:
    """The conditions with the moving one reversed, where elements may join; None where they only leave. Raises Refuse
    where two conditions move."""
    found = moving(work, conds)
    if len(found) > 1:
        refuse_condition(found[1][0])
    for cond, side in found:
        e = extremum_of(work.decomposer(), cond, conds)
        if e is None:
            refuse_condition(cond)
        elif e[1] != side:
            return tuple((c, not s) if c == cond else (c, s) for c, s in conds)
    return None
