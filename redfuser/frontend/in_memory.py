"""Operators that say which places of memory they mean, written as what a tensor's elements are: in a compiled model a value
need not lie as it does in eager torch.

    as_strided(x, (5, 3), (2, 1))          -->  x.flatten()[:11].unfold(0, 3, 2)
    as_strided_scatter(x, src, ...)        -->  a scatter to the places that as_strided reads
    x.fill_diagonal_(value)                -->  x.masked_fill_(rows == columns, value)

How the operand lies is what the export says. What it holds no element of has no form: such a call is left, and refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Any:
    """The elements of ``x`` at these places, in views of it alone."""
    begin = _begin(x, size, stride, storage_offset)
    return NotImplemented if begin is None else _at(x.permute(_order(x)).reshape(-1), size, stride, begin)


def as_strided_scatter(x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int],
                       storage_offset: int | None = None) -> Any:
    """``x`` with ``src`` at these places."""
    begin = _begin(x, size, stride, storage_offset)
    if begin is None:
        return NotImplemented
    order = _order(x)
    lying = x.permute(order)
    places = _at(torch.arange(x.numel(), device=x.device), size, stride, begin).reshape(-1)
    written = lying.reshape(-1).scatter(0, places, src.reshape(-1)).view(lying.shape)
    return written.permute(sorted(range(x.dim()), key=order.__getitem__))


def fill_diagonal_(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """As torch has it: the elements whose indices are all equal; of a tall matrix with ``wrap`` also those that follow."""
    where = torch.meshgrid(*(torch.arange(n, device=x.device) for n in x.shape), indexing="ij")
    if wrap and x.dim() == 2:
        columns = x.shape[1]
        return x.masked_fill_((where[0] * columns + where[1]) % (columns + 1) == 0, fill_value)
    mask = where[0] == where[1]
    for other in where[2:]:
        mask = mask & (where[0] == other)
    return x.masked_fill_(mask, fill_value)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.as_strided.default: as_strided,
    torch.ops.aten.as_strided_scatter.default: as_strided_scatter,
}
"""For the table of a program's decompositions."""

UNNAMED = "it names places in memory that its operand has no elements at"
"""Why one of these that is left cannot run."""


def _order(x: Tensor) -> list[int]:
    """The axes of ``x``, the one whose elements lie farthest apart first."""
    return sorted(range(x.dim()), key=lambda i: (-x.stride(i), -x.shape[i], i))


def _begin(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> int | None:
    """Where the places begin among the elements of ``x``; None where ``x`` lies with gaps, or they are not all in it."""
    begin = 0 if offset is None else offset - x.storage_offset()
    last = begin + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    inside = 0 in size or 0 <= begin <= last < x.numel()
    return begin if inside and x.permute(_order(x)).is_contiguous() else None


def _at(flat: Tensor, size: Sequence[int], stride: Sequence[int], begin: int) -> Tensor:
    """``flat.as_strided(size, stride, begin)``."""
    if 0 in size:
        return flat[:0].view(tuple(size))
    axes = sorted((i for i, n in enumerate(size) if n > 1 and stride[i]), key=lambda i: -stride[i])
    extents = [size[i] for i in axes]
    spans = [1 + sum((size[j] - 1) * stride[j] for j in axes[k:]) for k in range(len(axes) + 1)]
    found = flat[begin:begin + spans[0]]
    if spans[0] == math.prod(extents) and all(stride[i] == math.prod(extents[k + 1:]) for k, i in enumerate(axes)):
        found = found.view(extents)
    else:
        for i, span in zip(axes, spans[1:], strict=True):
            found = found.unfold(-1, span, stride[i])
        found = found.squeeze(-1)
    found = found.permute(sorted(range(len(axes)), key=axes.__getitem__))
    if len(axes) == len(size):
        return found
    return found.view([n if i in axes else 1 for i, n in enumerate(size)]).expand(tuple(size))
