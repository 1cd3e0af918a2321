"""What the operators that move data, pick it by index or make it take and return: views, joins, paddings, gathers, fills.

One rule per torch function and method that :mod:`redfuser.outer.moving` writes; see :mod:`redfuser.runtime.computing`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from redfuser.runtime.shapes import (
    MAX_RANK,
    Pair,
    Rule,
    Shaped,
    axes,
    axis,
    broadcast,
    dtype_of,
    extents,
    fits,
    flag,
    index,
    integer,
    integers,
    long,
    need,
    number,
    promoted,
    tensor,
    tensors,
    word,
)


def _to(x: Any, dtype: Any) -> Shaped:
    return tensor(x).like(dtype=dtype_of(dtype))


def _cast(dtype: torch.dtype) -> Rule:
    return lambda x: tensor(x).like(dtype=dtype)


def _contiguous(x: Any, *, memory_format: Any = torch.contiguous_format) -> Shaped:
    need(memory_format is torch.contiguous_format or (memory_format is torch.channels_last and tensor(x).rank == 4),
         "a layout in memory")
    return tensor(x)


def _clone(x: Any, *, memory_format: Any) -> Shaped:
    need(memory_format is torch.contiguous_format, "a layout in memory")
    return tensor(x)


def _reshape(x: Any, shape: Any) -> Shaped:
    new = extents(shape)
    need(math.prod(new) == math.prod(tensor(x).shape), f"{list(x.shape)} has no view of shape {list(new)}")
    return x.like(new)


def _flatten(x: Any) -> Shaped:
    return tensor(x).like((math.prod(x.shape),))


def _t(x: Any) -> Shaped:
    need(tensor(x).rank == 2, "the transpose of a matrix")
    return x.like(x.shape[::-1])


def _unsqueeze(x: Any, dim: Any) -> Shaped:
    at = axis(dim, tensor(x).rank + 1)
    need(x.rank < MAX_RANK, "too many axes")
    return x.like((*x.shape[:at], 1, *x.shape[at:]))


def _squeeze(x: Any, dims: Any = None) -> Shaped:
    over = range(tensor(x).rank) if dims is None else axes(dims, x.rank)
    return x.like(n for i, n in enumerate(x.shape) if i not in over or n != 1)


def _transpose(x: Any, a: Any, b: Any) -> Shaped:
    order = list(range(tensor(x).rank))
    i, j = axis(a, x.rank), axis(b, x.rank)
    order[i], order[j] = order[j], order[i]
    return x.like(x.shape[i] for i in order)


def _permute(x: Any, *dims: Any) -> Shaped:
    order = axes(dims, tensor(x).rank)
    need(len(order) == x.rank, "an order of other axes")
    return x.like(x.shape[i] for i in order)


def _movedim(x: Any, source: Any, target: Any) -> Shaped:
    shape = list(tensor(x).shape)
    extent = shape.pop(axis(source, x.rank))
    shape.insert(axis(target, x.rank), extent)
    return x.like(shape)


def _expand(x: Any, shape: Any) -> Shaped:
    new = extents(shape)
    fits(tensor(x).shape, new)
    return x.like(new)


def _select(x: Any, dim: Any, at: Any) -> Shaped:
    where = axis(dim, tensor(x).rank)
    axis(at, x.shape[where])
    return x.like(n for i, n in enumerate(x.shape) if i != where)


def item(x: Any, key: Any) -> Any:
    """``x[key]``: one of several results, or slices and indices of a tensor."""
    if isinstance(x, Pair):
        return (x.values, x.indices)[integer(key, 0, 1)]
    if isinstance(x, (tuple, list)):
        return x[axis(key, len(x))]
    keys = list(key) if isinstance(key, (tuple, list)) else [key]
    return indexed(tensor(x), keys)


def indexed(x: Shaped, keys: list[Any]) -> Shaped:
    used = sum(k.rank if isinstance(k, Shaped) and k.dtype == torch.bool else 1 for k in keys)
    need(0 < used <= x.rank, "more indices than axes")
    shape: list[int] = []
    picked: list[tuple[int, ...]] = []
    places: list[int] = []
    at = 0
    for number_, key in enumerate(keys):
        if isinstance(key, slice):
            shape.append(_sliced(x.shape[at], key))
            at += 1
            continue
        need(tensor(key).dtype in (torch.int64, torch.int32), f"indices of {tensor(key).dtype}")
        picked.append(key.shape)
        places.append(number_)
        if len(places) == 1:
            first = len(shape)
        at += 1
    shape += x.shape[at:]
    if not picked:
        return x.like(shape)
    together = places[-1] - places[0] + 1 == len(places)
    where = first if together else 0
    return x.like((*shape[:where], *broadcast(*picked), *shape[where:]))


def _sliced(extent: int, key: slice) -> int:
    begin, end, step = (v if v is None else integer(v) for v in (key.start, key.stop, key.step))
    need(step is None or step > 0, "a step that is not positive")
    return len(range(extent)[begin:end:step])


def _repeat(x: Any, count: Any, dim: Any) -> Shaped:
    at, n = axis(dim, tensor(x).rank), integer(count, 0)
    return x.like((*x.shape[:at], x.shape[at] * n, *x.shape[at + 1:]))


def _flip(x: Any, dim: Any) -> Shaped:
    axis(dim, tensor(x).rank)
    return x



def _cat(parts: Any, dim: Any) -> Shaped:
    found = tensors(parts)
    first = found[0]
    at = axis(dim, first.rank)
    need(all(p.rank == first.rank and all(a == b for i, (a, b) in enumerate(zip(p.shape, first.shape, strict=True))
                                          if i != at) for p in found), "parts of other shapes")
    return Shaped(promoted(*found), (*first.shape[:at], sum(p.shape[at] for p in found), *first.shape[at + 1:]))


def _pad(x: Any, spread: Any) -> Shaped:
    widths = integers(spread, -(1 << 40), 1 << 40)
    count = len(widths) // 2
    need(len(widths) % 2 == 0 and 0 < count <= tensor(x).rank, "a width before and behind each axis")
    shape = list(x.shape)
    for i in range(count):
        low, high = widths[2 * i:2 * i + 2]
        n = shape[x.rank - 1 - i]
        need(n + low >= 0 and n + high >= 0 and n + low + high >= 0, "a padding that takes away more than there is")
        shape[x.rank - 1 - i] = n + low + high
    return x.like(shape)


class Device:
    """The value of the name ``device``."""


def _on(device: Any) -> None:
    need(isinstance(device, Device), "a device of its own")


def _index_select(x: Any, dim: Any, indices: Any) -> Shaped:
    at = axis(dim, tensor(x).rank)
    need(index(indices).rank == 1, "a vector of indices")
    return x.like((*x.shape[:at], *indices.shape, *x.shape[at + 1:]))


def _gather(x: Any, dim: Any, indices: Any) -> Shaped:
    _along(tensor(x), dim, long(indices))
    return x.like(indices.shape)


def _along(x: Shaped, dim: Any, indices: Shaped, source: Shaped | None = None) -> None:
    at = axis(dim, x.rank)
    need(indices.rank == x.rank and all(a <= b for i, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True))
                                        if i != at), "indices of another shape")
    if source is not None:
        need(source.rank == x.rank and all(a <= b for a, b in zip(indices.shape, source.shape, strict=True)),
             "a source smaller than its indices")
        need(source.dtype == x.dtype, "a source of another dtype")


def _scatter(x: Any, dim: Any, indices: Any, source: Any) -> Shaped:
    _along(tensor(x), dim, long(indices), tensor(source))
    return x


def _scatter_reduce(x: Any, dim: Any, indices: Any, source: Any, how: Any) -> Shaped:
    word(how, "sum", "prod", "amin", "amax", "mean")
    return _scatter(x, dim, indices, source)


def _embedding(indices: Any, table: Any) -> Shaped:
    need(tensor(table).rank == 2, "a table of rows")
    return table.like((*index(indices).shape, table.shape[1]))


def _topk(x: Any, k: Any, dim: Any, *, largest: Any = True) -> Pair:
    flag(largest)
    at = axis(dim, tensor(x).rank)
    values = x.like((*x.shape[:at], integer(k, 0, x.shape[at]), *x.shape[at + 1:]))
    return Pair(values, values.like(dtype=torch.int64))


def _arange(*span: Any, dtype: Any, device: Any) -> Shaped:
    _on(device)
    need(1 <= len(span) <= 3 and all(math.isfinite(number(v)) for v in span), "a range from, to, by")
    begin, end, step = (0, span[0], 1) if len(span) == 1 else (*span, 1)[:3]
    need(dtype_of(dtype).is_floating_point or all(isinstance(v, int) for v in span), "a range of integers by fractions")
    need(step != 0 and (end - begin) * step >= 0, "a range that does not end")
    count = (end - begin) / step
    need(count <= 1 << 53, "a range that does not end")
    return Shaped(dtype_of(dtype), (math.ceil(count),))


def _full(shape: Any, value: Any, *, dtype: Any, device: Any) -> Shaped:
    number(value)
    _on(device)
    return Shaped(dtype_of(dtype), extents(shape))


RULES: dict[str, Rule] = {
    ".to": _to, ".double": _cast(torch.float64), ".long": _cast(torch.int64), ".contiguous": _contiguous, ".clone": _clone,
    ".reshape": _reshape, ".flatten": _flatten, ".t": _t, ".unsqueeze": _unsqueeze, ".squeeze": _squeeze,
    ".transpose": _transpose, ".permute": _permute, ".movedim": _movedim, ".expand": _expand, ".select": _select,
    ".repeat_interleave": _repeat, ".flip": _flip, "torch.cat": _cat, "F.pad": _pad,
    ".scatter": _scatter, ".scatter_add": _scatter, ".scatter_reduce": _scatter_reduce, "torch.index_select": _index_select,
    "torch.gather": _gather, "F.embedding": _embedding, "torch.topk": _topk, "torch.arange": _arange, "torch.full": _full}
