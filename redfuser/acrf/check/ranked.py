"""Which places of a row an argmax, argmin or top-k may name: part of :mod:`redfuser.acrf.check.trial`."""

from __future__ import annotations

import numpy as np

from redfuser.acrf.cascade import Cascade, Let, Reduce, Stmt
from redfuser.acrf.check.domains import Array
from redfuser.acrf.check.machine import Machine
from redfuser.acrf.expr import FLOATS, Cast, Expr, Ref, walk
from redfuser.rule import UNIT

INF = float("inf")


def ranked(reference: Machine, s: Stmt) -> bool:
    """Are the values that argmax or topk ranks all finite?"""
    if not isinstance(s, Reduce) or s.expr.dtype not in FLOATS:
        return True
    return bool(np.all(np.asarray(np.abs(reference.expr(s.expr).data) < INF, np.bool_)))


def decided(reference: Machine, s: Stmt) -> Array | None:
    """Which results of an argmax, argmin or top-k have a number for their value, so that numbers alone say their places; None
    where something else ranks before numbers. A mask's infinities come after them, in any order."""
    if not isinstance(s, Reduce) or s.expr.dtype not in FLOATS or len(s.names) < 2:
        return None
    elements = reference.expr(s.expr).data
    if bool(np.any(elements != elements)) or bool(np.any(elements == (-INF if s.reducer.kind == "argmin" else INF))):
        return None
    values = np.broadcast_to(reference.values[s.names[0]].aligned(s.axes), [len(reference.ranges[a]) for a in s.axes])
    return np.asarray(np.abs(values) < INF, np.bool_)


def tied(cascade: Cascade, reference: Machine, s: Stmt, got: Array, want: Array) -> bool:
    """Do places differ only among values that a rounding of the program makes equal? Ranked before it they keep their order."""
    if not isinstance(s, Reduce) or np.array_equal(got, want) or not _rounded(cascade, s.expr):
        return False
    points = s.axes[:-1] if s.reducer.kind == "topk" else s.axes
    shape = [len(reference.ranges[a]) for a in (*points, s.over)]
    values = np.broadcast_to(reference.expr(s.expr).aligned((*points, s.over)), shape)
    along = reference.ranges[s.over]
    rows = [x if s.reducer.kind == "topk" else x[..., None] for x in (got, want)]
    if not all(np.isin(x, along).all() for x in rows):
        return False
    best = [np.take_along_axis(values, np.searchsorted(along, x), -1) for x in rows]
    once = np.sort(rows[0], -1)
    return bool(np.all(best[0] == best[1])) and not bool(np.any(once[..., 1:] == once[..., :-1]))


def _rounded(cascade: Cascade, e: Expr) -> bool:
    """Is there a rounding to fewer digits in what is ranked?"""
    lets = {n: s.expr for s in cascade.stmts if isinstance(s, Let) for n in s.names}
    return any((isinstance(x, Cast) and UNIT.get(x.dtype, 0.0) > UNIT.get(x.arg.dtype, 1.0))
               or (isinstance(x, Ref) and x.name in lets and _rounded(cascade, lets[x.name])) for x in walk(e))
