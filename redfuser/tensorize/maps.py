"""Maps over tiles; a mask that holds for whole segments is applied only where it does not."""

from __future__ import annotations

from redfuser.acrf.expr import Const, Expr, Op, Ref, print_expr
from redfuser.tensorize.builder import Builder
from redfuser.tensorize.ir.nodes import Assign, If
from redfuser.tensorize.masks import TRUE, separate
from redfuser.tensorize.scope import HALF, Value
from redfuser.tensorize.staging import at_elements, at_point
from redfuser.tensorize.walk import mask_needed


def as_tile(work: Builder, e: Expr, axes: tuple[str, ...], stem: str) -> Value:
    """``e`` in a fragment of exactly these axes."""
    if isinstance(e, Ref) and work.value(e.name).axes == axes and work.value(e.name).buffer:
        return work.value(e.name)
    v = work.tile(stem, axes, "f32" if e.dtype in (*HALF, "f32", "f64") else e.dtype)
    map_tile(work, v, e)
    return v


def map_tile(work: Builder, v: Value, e: Expr, comment: str = "") -> None:
    """``v = e`` over v's tile; a mask that holds for whole segments is applied only where it does not."""
    if v.axes == work.at.across and isinstance(e, Op) and e.name == "select" and isinstance(e.args[2], Const):
        position, data = separate(e.args[0])
        partial = mask_needed(work, position)
        if position != TRUE and partial is not None:
            inner = e.args[1] if data == TRUE else Op("select", (data, e.args[1], e.args[2]), e.dtype)
            work.store(v, at_point(work, inner), comment)
            masked = Op("select", (at_point(work, position), work.here(v), e.args[2]), e.dtype)
            mask = work.parallel(v.axes, (Assign(v.buffer, work.points(v.axes), at_elements(work, masked)),))
            why = f"only where {print_expr(position)} is not settled"
            work.emit(mask if partial == TRUE else If(partial, (mask,), why))
            return
    work.store(v, at_point(work, e), comment)
