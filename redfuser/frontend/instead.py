"""What is computed in the place of operators that torch would decompose otherwise, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from redfuser.frontend import checked, in_memory


def index_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1) -> Any:
    """Rows that are added to rows, as a ``scatter_add`` at places that are the same for all of a row, which torch adds 16 bytes
    at a time: of 262144 rows of 128 elements an H200 takes 99 us in float32 and 126 in float16, where ``index_add`` takes 247
    and 284, and two cores 0.85 ms for 16 of 100000 rows of 8. Both add in any order. (torch's own decomposition, an
    ``index_put`` that sorts, takes 166.) Anything else stays what it is."""
    rows = x.is_floating_point() and x.dim() == source.dim() > 1 and dim in (0, -x.dim()) and index.dim() == 1
    if not rows or index.dtype != torch.int64:
        return NotImplemented
    at = index.view(-1, *(1 for _ in source.shape[1:])).expand(source.shape)
    return x.scatter_add(0, at, source if alpha == 1 else source * alpha)


def multi_margin_loss(x: torch.Tensor, target: torch.Tensor, p: float = 1, margin: float = 1,
                      weight: torch.Tensor | None = None, reduction: int = 1) -> torch.Tensor:
    """As the kernels have it: a gap that is NaN counts as none (in torch's own decomposition it is the result)."""
    rows, at = torch.atleast_2d(x), torch.atleast_1d(target).unsqueeze(1)
    gap = margin - rows.gather(1, at) + rows
    loss = (gap if p == 1 else gap * gap) * (1 if weight is None else weight[at])
    counts = (gap > 0) & (torch.arange(rows.shape[1], device=x.device) != at)
    each = torch.where(counts, loss, 0).mean(dim=1)
    return (each.reshape(target.shape), each.mean(), each.sum())[reduction]


def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """As the operator has it: ``x`` itself where nothing is dropped, into which the program may write (torch's own
    decomposition gives a copy)."""
    return torch.dropout(x, p, train) if train and p else x


REPLACED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.dropout.default: dropout,
    torch.ops.aten.multi_margin_loss.default: multi_margin_loss,
    torch.ops.aten.fill_diagonal_.default: in_memory.fill_diagonal_,
    **checked.REPLACED,
}
"""Operators that are written out before torch decomposes a program, which it does otherwise or not at all."""

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {torch.ops.aten.index_add.default: index_add}
"""For the table of a program's decompositions."""
