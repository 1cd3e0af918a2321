"""Which pointwise units cost nothing to read through, and what else a unit is."""

from __future__ import annotations

from math import prod

from redfuser.acrf.affine import Indices
from redfuser.acrf.cascade import Reduce, Stmt
from redfuser.acrf.expr import BYTES, Expr, Load, Op, walk
from redfuser.acrf.lift_expr import data_dependent
from redfuser.partition.graph import Unit
from redfuser.partition.positions import slides

CHAIN = 64
"""Maps in a row that cost nothing to read through; a longer chain is cut by one that does."""


def classify(u: Unit) -> None:
    """Which pointwise units cost nothing to read through.

    * no data: index arithmetic and constants only (an ``arange`` mask);
    * view: one load at a rearranged index, and widening casts of it;
    * cheap: at most eight operations on one tensor no larger than the result (a broadcast scale, an ALiBi slope), or on
      several that have half its elements together (two document numbers compared): recomputing reads no more.
    """
    u.slides = any(convolves(n.stmt, u.extents) for n in u.nodes)
    producers = {id(n): n for n in u.args}
    u.has_data = bool(u.gap) or any(n.unit is None or n.unit.has_data for n in producers.values())
    u.gathers = any(data_dependent(n.stmt.expr) for n in u.nodes if n.stmt is not None and loads_by_data(u))
    for n in u.nodes:
        n.weight = all(a.weight for a in u.args)
    u.piecewise = any(_joins(x) for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr))
    if not u.pointwise or u.gathers:
        return
    data = [n for n in producers.values() if n.unit is None or n.unit.has_data]
    ops = sum(1 for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr) if _computes(x))
    out = max((n.bytes for n in u.results), default=0)
    loads = [x for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr) if isinstance(x, Load)]
    elements = max((prod(n.shape) for n in u.results), default=0)
    small = len(u.results) == 1 and (
        all(min(n.bytes, elements * BYTES.get(n.dtype, 8)) <= out for n in data) if len(data) <= 1
        else 2 * sum(prod(n.shape) for n in data) <= elements)
    u.is_view = small and ops == 0 and len(loads) == len(u.nodes) == len(data) and _no_narrowing(u)
    u.is_view = u.is_view or (len(data) == 1 and ops == 0 and len(u.results) > 1)  # a split
    u.is_cheap = u.is_view or not u.has_data or (small and ops <= 8 and len(loads) <= 8)
    u.chain = 1 + max((p.chain for p in u.producers if p.is_cheap), default=0)
    if u.chain > CHAIN:
        u.is_cheap = u.is_view = False
        u.chain = 0


def convolves(s: Stmt | None, extents: dict[str, int]) -> bool:
    """Does a sum take its operand through a window that slides?"""
    return isinstance(s, Reduce) and s.reducer.kind == "sum" and any(
        slides(Indices(extents), e, s.over) for x in walk(s.expr) if isinstance(x, Load) for e in x.indices)


def loads_by_data(u: Unit) -> bool:
    """Some argument of the unit is integer data, so a position may depend on it."""
    return any(n.dtype in ("i64", "i32") and (n.unit is None or n.unit.has_data) for n in u.args)


def _joins(e: Expr) -> bool:
    """A choice between tensors by position (a concatenation): cheaper as a copy than inside a loop."""
    if not (isinstance(e, Op) and e.name == "select"):
        return False
    cond, x, y = ([n for n in walk(a) if isinstance(n, Load)] for a in e.args)
    return not cond and bool(x) and bool(y)


def _computes(e: Expr) -> bool:
    """An arithmetic node on values (index arithmetic, casts and loads are free)."""
    return isinstance(e, Op) and not (e.dtype in ("i64", "i32") and all(not isinstance(x, Load) for x in walk(e)))


def _no_narrowing(u: Unit) -> bool:
    return all(BYTES[n.dtype] <= BYTES[u.results[0].dtype] for n in u.args)
