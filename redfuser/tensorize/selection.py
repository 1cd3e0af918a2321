"""argmax, argmin and topk of rows held on chip: the best value and its lowest place, one turn after another."""

from __future__ import annotations

import math

from redfuser.acrf.expr import Cast, Const, Expr, Index, Op, f32, op
from redfuser.acrf.index import i64
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.tensorize.builder import Builder
from redfuser.tensorize.ir.nodes import Assign, Fill, For, ReduceTile, TileStmt
from redfuser.tensorize.maps import map_tile


def select_best(work: Builder, b: Block) -> None:
    """The k best of a row held on chip, one after another; equal values in the order of their index.

    A taken place becomes NaN, which a reduction drops. NaN in the row counts as the best, as in torch: it stands in for
    +inf while it is looked for, and the first turns, one per NaN, give NaN back. The least value is the best of the negated."""
    assert b.reducer is not None
    if not work.at.resident:
        raise LoweringError("RF489", f"{work.at.kernel.name}: no tile form of {b.reducer} in this strategy",
                            why="it needs the whole row on chip")
    n = work.at.roles.segment
    assert n is not None
    j = work.at.point[n]
    extent = work.at.extents[n]
    left = work.tile(f"{b.name}_left", work.at.across, "f32")
    least = b.reducer.kind == "argmin"
    map_tile(work, left, op("neg", b.exprs[0]) if least else b.exprs[0], work.at.source(b))
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
            op("eq", here, work.here(best)), Cast(Index(j), "i32"), Const(extent - 1, "i32")), "i32")),)),
        ReduceTile("min", place.buffer, where.buffer, True),
        work.parallel(work.at.across, (Assign(left.buffer, work.points(work.at.across), Op("select", (
            op("eq", Cast(Index(j), "i32"), work.here(where)), f32(math.nan), here), "f32")),))]
    turn = next(x for x in ("turn", "turn_") if x not in {*work.at.roles.grid, *work.at.declared})
    now: Expr = Cast(Index(turn), "f32") if b.reducer.kind == "topk" else f32(0.0)
    own = op("neg", work.here(best)) if least else work.here(best)
    value = Op("select", (op("lt", now, work.here(count)), f32(math.nan), own), "f32")
    found = ((b.names[0], value), (b.names[-1], work.here(where)))
    if b.reducer.kind != "topk":
        for stmt in body[:3]:
            work.emit(stmt)
        for name, e in found:
            work.store(work.value(name), e)
        return
    (places,) = work.at.roles.columns
    here = op("eq", Index(work.at.point[places]), Index(turn))
    lists = []
    for name, e in found:
        v = work.value(name)
        lists.append(Assign(v.buffer, work.points(v.axes), Op("select", (here, e, work.here(v)), v.dtype)))
        work.emit(Fill(v.buffer, Const(0 if v.dtype == "i32" else 0.0, v.dtype)))
    body.append(work.parallel((*work.at.row, places), tuple(lists)))
    work.emit(For(turn, i64(0), i64(b.reducer.k), tuple(body), comment=f"the {b.reducer.k} best, in order"))
