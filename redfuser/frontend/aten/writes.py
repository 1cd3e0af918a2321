"""Updates of parts of a tensor, which are tensors of their own: a concatenation, or a choice by place."""

from __future__ import annotations

from typing import Any

from redfuser.frontend.aten.context import Context, Decline, axis_of, converts
from redfuser.frontend.aten.shapes import bound, sliced
from redfuser.tvm_compat import dtype_of, relax, shape_of

op = relax.op


@converts("aten.scatter.src", "aten.scatter.value")
def scatter(c: Context, self: Any, dim: int, index: Any, src: Any = None, value: Any = None) -> Any:
    axis = axis_of(dim, len(shape_of(self)))
    if len(shape_of(self)) != len(shape_of(index)) or not shape_of(index):
        raise Decline("a scatter of scalars")
    if src is None:
        src = c.emit(op.full(shape_of(index), c.const(value, c.dtype), c.dtype), "value")
    if shape_of(src) != shape_of(index) or dtype_of(src) != c.dtype:
        raise Decline("a scatter of part of its source")
    return c.emit(op.scatter_elements(self, index, src, axis, "update"))


@converts("aten.slice_scatter.default")
def slice_scatter(c: Context, self: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None,
                  step: int = 1) -> Any:
    axis = axis_of(dim, len(shape_of(self)))
    extent = shape_of(self)[axis]
    if not isinstance(step, int) or any(isinstance(v, relax.Expr) for v in (start, end)):
        raise Decline("a slice with bounds that are data")
    first, part = bound(start, extent, 0), c.cast(src, c.dtype)
    count = len(range(first, bound(end, extent, extent), step))
    last = first + (count - 1) * step + 1
    if count > 1 and step > 1:
        part = _interleaved(c, self, part, axis, first, last, step)
    return replaced(c, self, part, axis, first, last)


def _interleaved(c: Context, x: Any, part: Any, axis: int, start: int, stop: int, step: int) -> Any:
    """``x[start:stop]`` along ``axis`` with every ``step``-th element, the first and the last among them, that of ``part``."""
    want = list(shape_of(x))
    want[axis] = (stop - start - 1) // step + 1
    spread = c.emit(op.repeat(c.emit(op.broadcast_to(part, want), "part"), step, axis), "spread")
    number = c.emit(op.arange(0, stop - start, 1, "int64"), "number")
    turn = c.emit(op.equal(c.emit(op.floor_mod(number, c.const(step, "int64")), "turn"), c.const(0, "int64")), "first")
    places = c.emit(op.reshape(turn, [-1] + [1] * (len(want) - 1 - axis)), "places")
    return c.emit(op.where(places, sliced(c, spread, axis, 0, stop - start), sliced(c, x, axis, start, stop)), "interleaved")


@converts("aten.select_scatter.default")
def select_scatter(c: Context, self: Any, src: Any, dim: int, index: Any) -> Any:
    if not isinstance(index, int):
        raise Decline("a position that is data")
    axis = axis_of(dim, len(shape_of(self)))
    index = index + shape_of(self)[axis] if index < 0 else index
    row = c.emit(op.expand_dims(c.cast(src, c.dtype), [axis]), "row")
    return replaced(c, self, row, axis, index, index + 1)


def replaced(c: Context, x: Any, part: Any, axis: int, start: int, stop: int) -> Any:
    """``x`` with ``x[start:stop]`` along ``axis`` replaced: a concatenation, which is an index expression."""
    extent = shape_of(x)[axis]
    if stop <= start:
        return x
    want = list(shape_of(x))
    want[axis] = stop - start
    part = c.emit(op.broadcast_to(part, want), "part")
    pieces = [part]
    if start:
        pieces.insert(0, c.emit(op.strided_slice(x, axes=[axis], begin=[0], end=[start], strides=[1]), "before"))
    if stop < extent:
        pieces.append(c.emit(op.strided_slice(x, axes=[axis], begin=[stop], end=[extent], strides=[1]), "after"))
    return part if len(pieces) == 1 else c.emit(op.concat(pieces, axis))


@converts("aten.copy.default")
def copy(c: Context, self: Any, src: Any, non_blocking: bool = False) -> Any:
    return c.emit(op.broadcast_to(c.cast(src, c.dtype), c.shape))
