"""argmax, argmin and topk: the best value of a tile and its lowest place, one turn after another where there are several."""

from __future__ import annotations

import math

from redfuser.acrf.expr import BYTES, FLOATS, Cast, Const, Expr, Index, Op, f32, op
from redfuser.acrf.index import i64
from redfuser.dtypes import INTS
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.tensorize.builder import Builder
from redfuser.tensorize.ir.nodes import Assign, Fill, For, ReduceTile, TileStmt
from redfuser.tensorize.maps import map_tile
from redfuser.tensorize.staging import at_point

LAST = 2**31 - 1
"""A place that loses every tie."""


def select_best(work: Builder, b: Block) -> None:
    """The best of a tile of the row, beside what was the best before where the row is walked; the k best of a row held on chip,
    one after another; equal values in the order of their index.

    A taken place becomes NaN, which a reduction drops. NaN in the row counts as the best, as in torch: it stands in for
    +inf while it is looked for, and the first turns, one per NaN, give NaN back. The least value is the best of the negated.
    Whole numbers that float32 does not tell apart are chosen among as they are (:func:`_whole`)."""
    assert b.reducer is not None
    if not work.at.resident and b.reducer.kind == "topk":
        raise LoweringError("RF489", f"{work.at.kernel.name}: no tile form of {b.reducer} in this strategy",
                            why="it needs the whole row on chip")
    n = work.at.roles.segment
    assert n is not None
    j = work.at.point[n]
    least, value = b.reducer.kind == "argmin", b.exprs[0]
    if value.dtype in INTS:
        if BYTES[value.dtype] > 2:
            _whole(work, b)
            return
        value = Cast(value, "f32")
    left = work.tile(f"{b.name}_left", work.at.across, "f32")
    map_tile(work, left, op("neg", value) if least else value, work.at.source(b))
    own, last = _place(work, b)
    unknown = work.tile(f"{b.name}_nan", work.at.across, "f32")
    count = work.tile(f"{b.name}_nans", work.at.row, "f32")
    here = work.here(left)
    for target, e in ((unknown, Op("select", (op("isnan", here), f32(1.0), f32(0.0)), "f32")),
                      (left, Op("select", (op("isnan", here), f32(math.inf), here), "f32"))):
        work.store(target, e)
    work.emit(ReduceTile("sum", unknown.buffer, count.buffer, True, "NaN counts as the best"))
    place = work.tile(f"{b.name}_place", work.at.across, "i32")
    best, where = work.tile(f"{b.name}_next", work.at.row, "f32"), work.tile(f"{b.names[-1]}_next", work.at.row, "i32")
    body: list[TileStmt] = [
        ReduceTile("max", left.buffer, best.buffer, True),
        work.parallel(work.at.across, (Assign(place.buffer, work.points(work.at.across), Op("select", (
            op("eq", here, work.here(best)), own, Const(last, "i32")), "i32")),)),
        ReduceTile("min", place.buffer, where.buffer, True),
        work.parallel(work.at.across, (Assign(left.buffer, work.points(work.at.across), Op("select", (
            op("eq", Cast(Index(j), "i32"), work.here(where)), f32(math.nan), here), "f32")),))]
    turn = next(x for x in ("turn", "turn_") if x not in {*work.at.roles.grid, *work.at.declared})
    now: Expr = Cast(Index(turn), "f32") if b.reducer.kind == "topk" else f32(0.0)
    signed = op("neg", work.here(best)) if least else work.here(best)
    value = Op("select", (op("lt", now, work.here(count)), f32(math.nan), signed), "f32")
    found = ((b.names[0], value), (b.names[-1], work.here(where)))
    if b.reducer.kind != "topk":
        for stmt in body[:3]:
            work.emit(stmt)
        if work.at.resident:
            for name, e in found:
                work.store(work.value(name), e)
        else:
            work.store(best, value)
            keep_better(work, b, work.here(best), work.here(where))
        return
    (places,) = work.at.roles.columns
    here = op("eq", Index(work.at.point[places]), Index(turn))
    lists = []
    for name, e in found:
        v = work.value(name)
        e = e if e.dtype == v.dtype else Cast(e, v.dtype)
        lists.append(Assign(v.buffer, work.points(v.axes), Op("select", (here, e, work.here(v)), v.dtype)))
        work.emit(Fill(v.buffer, Const(0 if v.dtype == "i32" else 0.0, v.dtype)))
    body.append(work.parallel((*work.at.row, places), tuple(lists)))
    work.emit(For(turn, i64(0), i64(b.reducer.k), tuple(body), comment=f"the {b.reducer.k} best, in order"))


def _place(work: Builder, b: Block) -> tuple[Expr, int]:
    """Of an element, and one that loses every tie."""
    n = work.at.roles.segment
    assert n is not None
    if work.at.resident and len(b.exprs) == 1:
        return Cast(Index(work.at.point[n]), "i32"), work.at.extents[n] - 1
    return at_point(work, Cast(b.exprs[1] if len(b.exprs) > 1 else Index(n), "i32")), LAST


def _whole(work: Builder, b: Block) -> None:
    """The best of whole numbers in their own type, and its lowest place."""
    assert b.reducer is not None
    if b.reducer.kind == "topk":
        raise LoweringError("RF489", f"{work.at.kernel.name}: no tile form of {b.reducer} of {b.exprs[0].dtype}",
                            why="float32, in which the best are looked for, does not tell such numbers apart")
    dtype, (own, last) = b.exprs[0].dtype, _place(work, b)
    left, place = work.tile(f"{b.name}_left", work.at.across, dtype), work.tile(f"{b.name}_place", work.at.across, "i32")
    best, where = work.tile(f"{b.name}_next", work.at.row, dtype), work.tile(f"{b.names[-1]}_next", work.at.row, "i32")
    map_tile(work, left, b.exprs[0], work.at.source(b))
    work.emit(ReduceTile("min" if b.reducer.kind == "argmin" else "max", left.buffer, best.buffer, True))
    work.store(place, Op("select", (op("eq", work.here(left), work.here(best)), own, Const(last, "i32")), "i32"))
    work.emit(ReduceTile("min", place.buffer, where.buffer, True))
    if not work.at.resident:
        keep_better(work, b, work.here(best), work.here(where))
        return
    for name, found in zip(b.names, (best, where)):
        work.store(work.value(name), work.here(found))


def keep_better(work: Builder, b: Block, value: Expr, place: Expr) -> None:
    """What was the best so far, or (value, place): a better one, the first NaN, or the first of equals. The place is settled
    first, by the value that still stands."""
    assert b.reducer is not None
    v, at = (work.value(n) for n in b.names)
    own = work.corrections.pop(b.name, None) or work.here(v)
    old, where = own if own.dtype == value.dtype else Cast(own, value.dtype), work.here(at)
    better: Expr = op("lt" if b.reducer.kind == "argmin" else "gt", value, old)
    if value.dtype in FLOATS:
        better = op("or", better, op("and", op("isnan", value), op("not", op("isnan", old))))
    place = place if place.dtype == where.dtype else Cast(place, where.dtype)
    first = op("and", op("eq", value, old), op("lt", place, where))
    work.store(at, Op("select", (op("or", better, first), place, where), at.dtype))
    kept = Op("select", (better, value, old), value.dtype)
    work.store(v, kept if v.dtype == value.dtype else Cast(kept, v.dtype))
