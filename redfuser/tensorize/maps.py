"""Maps over tiles; a mask that holds for whole segments is applied only where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, Ref, map_children, print_expr, walk
from redfuser.strategies.alive import TRUE
from redfuser.tensorize.builder import HALF, Builder, Value
from redfuser.tensorize.ir.nodes import Assign, If
from redfuser.tensorize.masks import separate
from redfuser.tensorize.staging import at_elements, at_point
from redfuser.tensorize.walk import masks_needed


def as_tile(work: Builder, e: Expr, axes: tuple[str, ...], stem: str) -> Value:
    """``e`` in a fragment of exactly these axes."""
    if isinstance(e, Ref) and work.value(e.name).axes == axes and work.value(e.name).buffer:
        return work.value(e.name)
    v = work.tile(stem, axes, "f32" if e.dtype in (*HALF, "f32", "f64") else e.dtype)
    map_tile(work, v, e)
    return v


def map_tile(work: Builder, v: Value, e: Expr, comment: str = "") -> None:
    """``v = e`` over v's tile; a mask that holds for whole segments is applied only where it does not::

        v = select(l <= i, s, -inf) + b    -->    v = s + b
                                                  if a segment is not whole: v = select(l <= i, v, -inf + b)"""
    found = masked(e) if v.axes == work.at.across else None
    if found is not None:
        parts = masks_needed(work, found.position)
        if parts and (found.outermost or (parts[0][1] != TRUE and _without_tiles(work, found))):
            map_tile(work, v, found.shown, comment)
            hidden = found.hidden if isinstance(found.hidden, Const) else at_point(work, found.hidden)
            for position, when in parts:
                put = Op("select", (at_point(work, position), work.here(v), hidden), e.dtype)
                mask = work.parallel(v.axes, (Assign(v.buffer, work.points(v.axes), at_elements(work, put)),))
                why = f"only where {print_expr(position)} is not settled"
                work.emit(mask if when == TRUE else If(when, (mask,), why))
            return
    work.store(v, at_point(work, e), comment)


@dataclass(frozen=True, slots=True)
class Masked:
    """An expression as ``select(position, shown, hidden)``. outermost: that is how it is written, with a constant for what is
    hidden; else ``hidden`` is the rest of the expression of what stands there."""

    position: Expr
    shown: Expr
    hidden: Expr
    selected: Expr
    outermost: bool


def masked(e: Expr) -> Masked | None:
    """The first select of ``e`` by positions, drawn out of what is computed of it: what is a map of either branch is the same
    number. None where there is no such select."""
    chosen = next((x for x in _selects(e) if separate(x.args[0])[0] != TRUE), None)
    if chosen is None:
        return None
    condition, shown, hidden = chosen.args
    position, data = separate(condition)
    inner = shown if data == TRUE else Op("select", (data, shown, hidden), chosen.dtype)
    if chosen is e:
        return Masked(position, inner, hidden, shown, True) if isinstance(hidden, Const) else None
    return Masked(position, _with(e, chosen, inner), _with(e, chosen, hidden), shown, False)


def _selects(e: Expr) -> Iterator[Op]:
    match e:
        case Op(name="select"):
            yield e
        case Op(args=args):
            for x in args:
                yield from _selects(x)
        case Cast(arg=x):
            yield from _selects(x)


def _with(e: Expr, old: Expr, new: Expr) -> Expr:
    return new if e == old else e if isinstance(e, Load) else map_children(e, lambda x: _with(x, old, new))


def _without_tiles(work: Builder, found: Masked) -> bool:
    """Is no tile and no tensor read at each element, neither for what is hidden, which is computed behind all copies, nor for
    what is selected, which is computed where the select would not have read it?"""
    return not any(set(work.axes_of(x)) == set(work.at.across) for x in walk(found.hidden) if isinstance(x, (Load, Ref))) and \
        not any(isinstance(x, Load) and work.axes_of(x) for x in _read(work, found.selected))


def _read(work: Builder, e: Expr) -> Iterator[Expr]:
    """All parts of ``e``, values that have no tile in their place."""
    for x in walk(e):
        yield x
        if isinstance(x, Ref) and (inner := work.value(x.name).expr) is not None:
            yield from _read(work, inner)
