"""What the operators that pick data by index, order it or make it take and return; see :mod:`redfuser.runtime.computing`."""

from __future__ import annotations

import math
from typing import Any

import torch

from redfuser.runtime.shapes import (
    Pair,
    Rule,
    Shaped,
    axis,
    dtype_of,
    extents,
    flag,
    index,
    integer,
    long,
    need,
    number,
    tensor,
    word,
)


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
    ".scatter": _scatter, ".scatter_add": _scatter, ".scatter_reduce": _scatter_reduce, "torch.index_select": _index_select,
    "torch.gather": _gather, "F.embedding": _embedding, "torch.topk": _topk, "torch.arange": _arange, "torch.full": _full}
