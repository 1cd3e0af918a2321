"""Views, permutations, broadcasts, slices and concatenations."""

from __future__ import annotations

from typing import Any

from redfuser.frontend.aten.context import Context, Decline, axis_of, converts
from redfuser.frontend.builder import triangle
from redfuser.tvm_compat import relax, shape_of

op = relax.op


@converts("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.unsqueeze.default",
          "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.flatten.using_ints",
          "aten.unflatten.int", "aten.view_as.default")
def view(c: Context, self: Any, **_: Any) -> Any:
    """Whatever the arguments were, the export's metadata knows the resulting shape."""
    return c.emit(op.reshape(self, c.shape))


@converts("aten.permute.default")
def permute(c: Context, self: Any, dims: Any) -> Any:
    rank = len(shape_of(self))
    return c.emit(op.permute_dims(self, [axis_of(d, rank) for d in dims])) if rank else self


@converts("aten.transpose.int")
def transpose(c: Context, self: Any, dim0: int, dim1: int) -> Any:
    rank = len(shape_of(self))
    if not rank:
        return self
    axes = list(range(rank))
    a, b = axis_of(dim0, rank), axis_of(dim1, rank)
    axes[a], axes[b] = axes[b], axes[a]
    return c.emit(op.permute_dims(self, axes))


@converts("aten.t.default")
def t(c: Context, self: Any) -> Any:
    return c.emit(op.permute_dims(self, [1, 0])) if len(shape_of(self)) == 2 else self


@converts("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def expand(c: Context, self: Any, **_: Any) -> Any:
    return c.emit(op.broadcast_to(self, c.shape))


@converts("aten.repeat.default")
def repeat(c: Context, self: Any, repeats: Any) -> Any:
    shape = shape_of(self)
    shape = (1,) * (len(repeats) - len(shape)) + shape
    x = c.emit(op.reshape(self, shape), "base")
    if all(r == 1 or s == 1 for r, s in zip(repeats, shape, strict=True)):
        return c.emit(op.broadcast_to(x, c.shape))
    spread = [e for r, s in zip(repeats, shape, strict=True) for e in (r, s)]
    x = c.emit(op.reshape(x, [e for s in shape for e in (1, s)]), "units")
    return c.emit(op.reshape(c.emit(op.broadcast_to(x, spread), "copies"), c.shape))


@converts("aten.repeat_interleave.self_int")
def repeat_interleave(c: Context, self: Any, repeats: int, dim: Any = None, output_size: Any = None) -> Any:
    if dim is None or not isinstance(repeats, int):
        raise Decline("repeat_interleave of everything")
    return c.emit(op.repeat(self, repeats, axis_of(dim, len(shape_of(self)))))


def sliced(c: Context, x: Any, axis: int, start: int, stop: int, step: int = 1, suffix: str = "") -> Any:
    """``x[..., start:stop:step, ...]`` with bounds inside the extent."""
    return c.emit(op.strided_slice(x, axes=[axis], begin=[start], end=[stop], strides=[step]), suffix)


def along(c: Context, x: Any, axis: int, first: int, step: int, count: int) -> Any:
    """``x`` at the ``count`` > 0 positions ``(first + step * i) % extent`` of an axis: arithmetic, and so no gather."""
    extent = shape_of(x)[axis]
    first, last = first % extent, first % extent + step * (count - 1)
    if step > 0 and last < extent:
        return sliced(c, x, axis, first, last + 1, step)
    at = c.emit(op.multiply(c.emit(op.arange(0, count, 1, "int64"), "number"), c.const(step, "int64")), "distance")
    at = c.emit(op.add(at, c.const(first, "int64")), "position")
    return c.emit(op.take(x, c.emit(op.floor_mod(at, c.const(extent, "int64")), "around"), axis))


def bound(value: Any, extent: int, default: int) -> int:
    if value is None:
        return default
    value = int(value)
    return min(max(value + extent if value < 0 else value, 0), extent)


@converts("aten.slice.Tensor")
def slice_(c: Context, self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if not isinstance(step, int) or any(isinstance(v, relax.Expr) for v in (start, end)):
        raise Decline("a slice with bounds that are data")
    axis = axis_of(dim, len(shape_of(self)))
    extent = shape_of(self)[axis]
    first, last = bound(start, extent, 0), bound(end, extent, extent)
    if last <= first:
        raise Decline("an empty slice")
    return sliced(c, self, axis, first, last, step)


@converts("aten.diagonal.default")
def diagonal(c: Context, self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The elements ``[..., i, i + offset]`` of two axes: of these in a row, one every row's length and one."""
    shape = shape_of(self)
    rows, columns = axis_of(dim1, len(shape)), axis_of(dim2, len(shape))
    rest = [a for a in range(len(shape)) if a not in (rows, columns)]
    n, width = shape[rows], shape[columns]
    first, count = max(offset, -offset * width), min(n + min(offset, 0), width - max(offset, 0))
    if count <= 0:
        raise Decline("a diagonal of no elements")
    turned = c.emit(op.permute_dims(self, [*rest, rows, columns]), "turned")
    flat = c.emit(op.reshape(turned, [*(shape[a] for a in rest), n * width]), "flat")
    return sliced(c, flat, len(rest), first, first + (count - 1) * (width + 1) + 1, width + 1)


@converts("aten.select.int")
def select(c: Context, self: Any, dim: int, index: Any) -> Any:
    if not isinstance(index, int):
        raise Decline("a position that is data")
    axis = axis_of(dim, len(shape_of(self)))
    index = index + shape_of(self)[axis] if index < 0 else index
    return c.emit(op.squeeze(sliced(c, self, axis, index, index + 1, suffix="slice"), [axis]))


def _pieces(c: Context, x: Any, axis: int, sizes: list[int]) -> tuple[Any, ...]:
    if any(s == 0 for s in sizes):
        raise Decline("an empty piece")
    parts, first = [], 0
    for i, size in enumerate(sizes):
        parts.append(sliced(c, x, axis, first, first + size, suffix=str(i)))
        first += size
    return tuple(parts)


@converts("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default")
def split(c: Context, self: Any, dim: int = 0, **_: Any) -> Any:
    axis = axis_of(dim, len(shape_of(self)))
    return _pieces(c, self, axis, [int(v.shape[axis]) for v in c.val])


@converts("aten.unbind.int")
def unbind(c: Context, self: Any, dim: int = 0) -> Any:
    axis = axis_of(dim, len(shape_of(self)))
    parts = _pieces(c, self, axis, [1] * shape_of(self)[axis])
    return tuple(c.emit(op.squeeze(p, [axis]), str(i)) for i, p in enumerate(parts))


@converts("aten.cat.default", "aten.concat.default")
def cat(c: Context, tensors: Any, dim: int = 0) -> Any:
    """Operands with nothing in them (a cache before its first token) are dropped, 1-D ones as torch's legacy allows."""
    axis = axis_of(dim, len(c.shape))
    parts = [t for t in tensors if 0 not in shape_of(t)]
    if not parts:
        raise Decline("a concatenation of nothing")
    parts = [c.cast(p, c.dtype) for p in parts]
    return parts[0] if len(parts) == 1 else c.emit(op.concat(parts, axis))


@converts("aten.stack.default")
def stack(c: Context, tensors: Any, dim: int = 0) -> Any:
    axis = axis_of(dim, len(c.shape))
    parts = [c.emit(op.expand_dims(c.cast(p, c.dtype), [axis]), "row") for p in tensors]
    return parts[0] if len(parts) == 1 else c.emit(op.concat(parts, axis))


@converts("aten.flip.default")
def flip(c: Context, self: Any, dims: Any) -> Any:
    for i, d in enumerate(dims):
        self = c.emit(op.flip(self, axis_of(d, len(shape_of(self)))), "" if i == len(dims) - 1 else "flip")
    return self


@converts("aten.roll.default")
def roll(c: Context, self: Any, shifts: Any, dims: Any = ()) -> Any:
    if not dims:
        raise Decline("a roll of everything")
    for shift, d in zip(shifts, dims, strict=True):
        axis = axis_of(d, len(shape_of(self)))
        extent = shape_of(self)[axis]
        if extent and shift % extent:
            self = along(c, self, axis, -shift, 1, extent)
    return self


def _triangle(lower: bool) -> Any:
    def convert(c: Context, self: Any, diagonal: int = 0) -> Any:
        keep = triangle(c, shape_of(self), int(diagonal), "keep", lower)
        return c.emit(op.where(keep, self, c.const(0, c.dtype)))

    return convert


converts("aten.tril.default")(_triangle(True))
converts("aten.triu.default")(_triangle(False))


@converts("aten.constant_pad_nd.default")
def constant_pad(c: Context, self: Any, pad: Any, value: Any = 0) -> Any:
    """Padding as concatenation with filled blocks; negative padding is a slice."""
    rank = len(shape_of(self))
    x = self
    for i in range(len(pad) // 2):
        axis = rank - 1 - i
        before, after = int(pad[2 * i]), int(pad[2 * i + 1])
        extent = shape_of(x)[axis]
        if before < 0 or after < 0:
            x = sliced(c, x, axis, max(-before, 0), extent - max(-after, 0), suffix="cut")
        block = [
            c.emit(op.full([*shape_of(x)[:axis], n, *shape_of(x)[axis + 1:]], c.const(value, c.dtype), c.dtype), "pad")
            if n > 0 else None for n in (before, after)
        ]
        parts = [b for b in (block[0], x, block[1]) if b is not None]
        x = parts[0] if len(parts) == 1 else c.emit(op.concat(parts, axis), "padded")
    return x
