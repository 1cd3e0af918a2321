"""argmax and topk of rows held on chip: the best value and its lowest place, one turn after another."""

from __future__ import annotations

import math

from redfuser.acrf.expr import Cast, Const, Expr, Index, Op, f32, op
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.tensorize.ir.index import at, i64
from redfuser.tensorize.ir.nodes import Assign, Fill, For, ReduceTile, TileStmt
from redfuser.tensorize.maps import map_tile
from redfuser.tensorize.state import KernelState


def select_best(work: KernelState, b: Block) -> None:
    """The k best of a row held on chip, one after another; equal values in the order of their index.

    A taken place becomes NaN, which a reduction drops. NaN in the row counts as the best, as in torch: it stands in for
    +inf while it is looked for, and the first turns, one per NaN, give NaN back."""
    assert b.reducer is not None
    if not work.resident or b.reducer.kind == "argmin":
        raise LoweringError("RF489", f"{work.kernel.name}: no tile form of {b.reducer} in this strategy",
                            why="it needs the whole row on chip")
    n = work.roles.segment
    assert n is not None
    i, j = work.point["m"], work.point["n"]
    extent = work.extents[n]
    left = work.tile(f"{b.name}_left", "mn", "f32")
    map_tile(work, left, b.exprs[0], work.source(b))
    unknown = work.tile(f"{b.name}_nan", "mn", "f32")
    count = work.tile(f"{b.name}_nans", "m", "f32")
    here = at(left.buffer, "f32", i, j)
    for target, e in ((unknown, Op("select", (op("isnan", here), f32(1.0), f32(0.0)), "f32")),
                      (left, Op("select", (op("isnan", here), f32(math.inf), here), "f32"))):
        work.emit(work.parallel("mn", (Assign(target.buffer, work.points("mn"), e),)))
    work.emit(ReduceTile("sum", unknown.buffer, count.buffer, True, "NaN counts as the best"))
    place = work.tile(f"{b.name}_place", "mn", "i32")
    best, where = work.tile(f"{b.name}_next", "m", "f32"), work.tile(f"{b.names[-1]}_next", "m", "i32")
    body: list[TileStmt] = [
        ReduceTile("max", left.buffer, best.buffer, True),
        work.parallel("mn", (Assign(place.buffer, work.points("mn"), Op("select", (
            op("eq", here, at(best.buffer, "f32", i)), Cast(Index(j), "i32"), Const(extent - 1, "i32")), "i32")),)),
        ReduceTile("min", place.buffer, where.buffer, True),
        work.parallel("mn", (Assign(left.buffer, work.points("mn"), Op("select", (
            op("eq", Cast(Index(j), "i32"), at(where.buffer, "i32", i)), f32(math.nan), here), "f32")),))]
    turn = next(x for x in ("turn", "turn_") if x not in {*work.roles.grid, *work.declared})
    now: Expr = Cast(Index(turn), "f32") if b.reducer.kind == "topk" else f32(0.0)
    value = Op("select", (op("lt", now, at(count.buffer, "f32", i)), f32(math.nan), at(best.buffer, "f32", i)), "f32")
    found = ((b.names[0], value), (b.names[-1], at(where.buffer, "i32", i)))
    if b.reducer.kind == "argmax":
        for stmt in body[:3]:
            work.emit(stmt)
        for name, e in found:
            v = work.value(name)
            work.emit(work.parallel("m", (Assign(v.buffer, work.points("m"), e),)))
        return
    here = op("eq", Index(work.point["e"]), Index(turn))
    lists = []
    for name, e in found:
        v = work.value(name)
        old = at(v.buffer, v.dtype, i, work.point["e"])
        lists.append(Assign(v.buffer, work.points("me"), Op("select", (here, e, old), v.dtype)))
        work.emit(Fill(v.buffer, Const(0 if v.dtype == "i32" else 0.0, v.dtype)))
    body.append(work.parallel("me", tuple(lists)))
    work.emit(For(turn, i64(0), i64(b.reducer.k), tuple(body), comment=f"the {b.reducer.k} best, in order"))
