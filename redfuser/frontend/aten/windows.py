"""Windows, and pools: averages and largest elements of windows. A window of few elements is a map of them, which joins what
lies around it (:mod:`redfuser.partition.windows`); where nothing does it is torch's call again."""

from __future__ import annotations

from math import prod
from typing import Any

from redfuser.frontend.aten.context import FLOATS, Context, Decline, axis_of, converts
from redfuser.frontend.aten.reductions import PRODUCTS, largest, mean
from redfuser.places import COPY, MOVE
from redfuser.tvm_compat import dtype_of, relax, shape_of

op = relax.op
WINDOW = {"avg": 25, "max": 9}
"""Elements of a window that is a map, at most: a maximum that lets NaN through is long where compilers write it out."""
ROW = 256
"""Elements of a window from which it is a row to reduce, where there are several: of fewer torch's kernel has enough threads.
One H200, float16, 64 x 64 pictures of 64 x 64 in one window each: 2158 us, and 8.6 with the maps before it and after."""
POOLS = {"avg": {2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}, "max": {2: op.nn.max_pool2d, 3: op.nn.max_pool3d}}

REDUCED = {"avg": mean, "max": largest}


def _pool(c: Context, kind: str, rank: int, x: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
          whole: bool) -> Any:
    """whole: padding counts in an average. One axis is two, and one image a batch of them."""

    def spread(v: Any) -> list[int]:
        return [int(i) for i in v] * (rank if len(v) == 1 else 1)

    size = spread(size)
    stride, padding, dilation = spread(stride) if stride else size, spread(padding), spread(dilation)
    if dtype_of(x) not in FLOATS or 0 in shape_of(x):
        raise Decline(f"a pool of {dtype_of(x)}, or of nothing")
    if prod(size) > WINDOW[kind]:
        several = prod(c.shape[-rank:]) > 1 and prod(size) < ROW
        if several or not _apart(shape_of(x)[-rank:], c.shape[-rank:], size, stride, padding, dilation):
            raise Decline(f"a window of {prod(size)} elements")
        return _reduced(c, kind, x, size)
    missing = rank + 2 - len(shape_of(x))
    if missing:
        x = c.emit(op.expand_dims(x, [0]), "batch")
    if rank == 1:
        x = c.emit(op.expand_dims(x, [2]), "row")
        size, stride, padding, dilation = ([one, *v] for one, v in ((1, size), (1, stride), (0, padding), (1, dilation)))
    made = POOLS[kind][max(rank, 2)](x, pool_size=tuple(size), strides=tuple(stride), padding=(*padding, *padding),
                                     dilation=tuple(dilation), ceil_mode=bool(ceil), count_include_pad=bool(whole))
    if not missing and rank > 1:
        return c.emit(made)
    return c.emit(op.reshape(c.emit(made, "pooled"), c.shape))


def _apart(extents: Any, made: Any, size: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> bool:
    """Is no element in two windows, and padding in none? A single window has no other to overlap."""
    return all((n == 1 or s == k) and not p and (d == 1 or k == 1) and n * k <= extent
               for extent, n, k, s, p, d in zip(extents, made, size, stride, padding, dilation, strict=True))


def _reduced(c: Context, kind: str, x: Any, size: list[int]) -> Any:
    """Windows that share nothing are axes of their own, over which a reduction runs; what is in none is cut off."""
    before, after = list(shape_of(x)[:-len(size)]), list(c.shape[-len(size):])
    used = [n * k for n, k in zip(after, size, strict=True)]
    for axis, (n, extent) in enumerate(zip(used, shape_of(x)[-len(size):], strict=True), len(before)):
        if n < extent:
            x = c.emit(op.strided_slice(x, axes=[axis], begin=[0], end=[n], strides=[1]), "windows")
    first, rank = len(before), len(size)
    if all(n == 1 for n in after):
        return REDUCED[kind](c, x, list(range(first, first + rank)), True)
    split = c.emit(op.reshape(x, [*before, *(v for pair in zip(after, size, strict=True) for v in pair)]), "windows")
    return REDUCED[kind](c, split, [first + 2 * i + 1 for i in range(rank)])


def _averages(rank: int) -> Any:
    def convert(c: Context, self: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
                divisor_override: Any = None) -> Any:
        if divisor_override is not None:
            raise Decline("a pool with a divisor of its own")
        return _pool(c, "avg", rank, self, kernel_size, stride, padding, [1], ceil_mode, count_include_pad)

    return convert


def _largest(rank: int) -> Any:
    def convert(c: Context, self: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
        return _pool(c, "max", rank, self, kernel_size, stride, padding, dilation, ceil_mode, False)

    return convert


def _largest_and_where(rank: int) -> Any:
    def convert(c: Context, **arguments: Any) -> Any:
        if any(u.args[1] == 1 and u.users for u in c.node.users):
            raise Decline("a pool whose positions are read")
        return (_largest(rank)(c, **arguments), None)

    return convert


def _adaptive(rank: int) -> Any:
    def convert(c: Context, self: Any, output_size: Any) -> Any:
        """Of extents that are multiples of the results' they are windows side by side."""
        extents, wanted = shape_of(self)[-rank:], list(c.shape[-rank:])
        if 0 in wanted or any(n % k for n, k in zip(extents, wanted, strict=True)):
            raise Decline("an adaptive pool of windows that overlap")
        if rank == 3 and dtype_of(self) not in ("float32", "float64"):
            raise Decline("an adaptive pool of a space in halves")  # torch has no other of these on a CPU
        size = [n // k for n, k in zip(extents, wanted, strict=True)]
        return _pool(c, "avg", rank, self, size, size, [0], [1], False, True)

    return convert


for _n in (1, 2, 3):
    converts(f"aten.adaptive_avg_pool{_n}d.default", f"aten._adaptive_avg_pool{_n}d.default")(_adaptive(_n))
    converts(f"aten.avg_pool{_n}d.default")(_averages(_n))
    converts(f"aten.max_pool{_n}d.default")(_largest(_n))
    if _n > 1:
        converts(f"aten.max_pool{_n}d_with_indices.default")(_largest_and_where(_n))


TAKEN = PRODUCTS | {f"aten::{n}" for n in ("mv", "dot", "conv1d", "conv2d", "conv3d")}
"""What a library computes of a view as it lies."""


def _only_multiplied(node: Any) -> bool:
    """Is it returned or multiplied as it is, whichever way it is turned? A view is free, and a library takes it as it lies."""
    names = {u: "" if u.op == "output" else u.target._schema.name for u in node.users}
    return all(not n or n in TAKEN or (n in MOVE | COPY and _only_multiplied(u)) for u, n in names.items())


@converts("aten.unfold.default")
def unfold(c: Context, self: Any, dimension: int, size: int, step: int) -> Any:
    """Windows of an axis, as an axis of their own behind the others. Those that lie side by side are a reshape."""
    shape = list(shape_of(self))
    if not shape or 0 in c.shape:
        raise Decline("windows of a number, or of nothing")
    if _only_multiplied(c.node):
        raise Decline("windows that are only returned or multiplied, of which torch has a view")
    axis = axis_of(dimension, len(shape))
    count = c.shape[axis]
    if step == size:
        split = c.emit(op.strided_slice(self, axes=[axis], begin=[0], end=[count * size], strides=[1]), "windows")
    else:
        first = c.emit(op.multiply(c.emit(op.arange(0, count, 1, "int64"), "number"), c.const(step, "int64")), "first")
        within = c.emit(op.arange(0, size, 1, "int64"), "within")
        place = c.emit(op.add(c.emit(op.expand_dims(first, [1]), "firsts"), within), "place")
        split = c.emit(op.take(self, c.emit(op.reshape(place, [count * size]), "places"), axis), "windows")
    split = c.emit(op.reshape(split, [*shape[:axis], count, size, *shape[axis + 1:]]), "split")
    return c.emit(op.permute_dims(split, [*range(axis + 1), *range(axis + 2, len(shape) + 1), axis + 1]))
