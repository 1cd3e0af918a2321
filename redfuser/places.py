"""Places (the results of argmax, topk, sort): what they are places in, so that another choice can be held to what was chosen.

Of elements with one value any is as good: torch promises no order among them, kernels take the lowest. So a place is right
where the element there is as large as the one at torch's own place, up to what the rounding of the program itself leaves
open. :class:`Recorder` finds out, while a program runs, what each place in its results was chosen from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from redfuser.rule import FACTOR

UNDERFLOW = 1e-30
"""Values that differ by less are one: probabilities at the end of float32's range."""
STEP = 2.0**-21
"""What arithmetic in float32 cannot tell apart, of the largest value in the row."""
CHOOSE = frozenset({"aten::argmax", "aten::argmin", "aten::topk", "aten::sort", "aten::max", "aten::min", "aten::kthvalue",
                    "aten::median"})
MOVE = frozenset({"aten::view", "aten::_unsafe_view", "aten::reshape", "aten::squeeze", "aten::unsqueeze", "aten::expand",
                  "aten::permute", "aten::transpose", "aten::t", "aten::slice", "aten::select", "aten::detach", "aten::alias"})
COPY = frozenset({"aten::_to_copy", "aten::clone"})


@dataclass(frozen=True)
class Ranking:
    """``values``: rows of elements; ``rows``: of which row each place is, in the shape of the places."""

    values: torch.Tensor
    rows: torch.Tensor

    def at(self, places: torch.Tensor) -> torch.Tensor:
        return self.values[self.rows, places]


class Recorder(TorchDispatchMode):
    """Remembers, of every place that is chosen while it is on, what it was chosen from; also when it is moved about."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, tuple[torch.Tensor, Ranking]] = {}  # with the tensor, whose address then stays its own

    def of(self, places: torch.Tensor) -> Ranking | None:
        found = self.found.get(id(places))
        return found[1] if found is not None else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, given = func._schema.name, kwargs or {}
        if name in CHOOSE:
            names = [a.name for a in func._schema.arguments]
            given = {**dict(zip(names, args)), **given}
            places = out if isinstance(out, torch.Tensor) and "arg" in name else out[-1] if isinstance(out, tuple) else None
            if places is not None:  # not the maximum of two tensors, or of a whole one
                dim = given.get("dim", -1 if "dim" in names and "arg" not in name else None)
                self.found[id(places)] = places, ranking(given["self"], dim, places)
        elif (name in MOVE or name in COPY) and id(args[0]) in self.found:
            known = self.found[id(args[0])][1]
            rows = laid_out(known.rows, out) if name in COPY else func(known.rows, *args[1:], **given)
            self.found[id(out)] = out, Ranking(known.values, rows)
        return out


def ranking(x: torch.Tensor, dim: int | None, places: torch.Tensor) -> Ranking:
    """What ``places`` chooses from, along ``dim`` of x, or from all of it."""
    if dim is None or not x.dim():
        return Ranking(x.reshape(1, -1), torch.zeros_like(places))
    moved = x.movedim(dim, -1)
    rows = torch.arange(moved[..., 0].numel(), device=x.device).reshape(moved.shape[:-1])
    rows = rows.unsqueeze(dim).expand(places.shape) if places.dim() == x.dim() else rows
    return Ranking(moved.reshape(-1, moved.shape[-1]), laid_out(rows, places))


def laid_out(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """``rows`` in memory as ``places`` are: what a view can be taken of, a view can be taken of both."""
    return torch.empty_like(places, dtype=rows.dtype).copy_(rows)


def defined(own: Ranking, exact: Ranking) -> torch.Tensor:
    """Where a place is of a row without NaN and infinities."""
    return (own.values.to(exact.values).isfinite() & exact.values.isfinite()).all(-1)[exact.rows]


def astray(ours: torch.Tensor, theirs: torch.Tensor, own: Ranking, exact: Ranking,
           left: tuple[Ranking, Ranking] | None = None) -> torch.Tensor:
    """Where a place of ours is wrong. ``own``: what torch chose from, in the program's types; ``exact``: in float64. The rule
    allows twice its error to either of two elements. In a row with NaN or infinities any place will do; none twice.

    ``left``: own and exact are scores of which the larger is chosen, and this is what a map of them (a softmax) left of them
    to choose by: what it makes equal is, and one that is larger is no error."""
    extent = exact.values.shape[-1]
    outside = (ours < 0) | (ours >= extent)
    x, y = (t.long().clamp(0, extent - 1) for t in (ours, theirs))
    high = exact.values.double()
    error = (own.values.to(exact.values).double() - high).abs().nan_to_num(0, 0, 0).amax(-1)
    size = high.abs().nan_to_num(0, 0, 0).amax(-1)
    gap = high[exact.rows, y] - high[exact.rows, x]
    if left is None:
        gap, apart = gap.abs(), own.at(y) != own.at(x)
    else:  # float32 cannot tell apart what is exponentiated by less than its step at 1
        size = size.clamp(min=1.0)
        apart = (left[0].at(y) > left[0].at(x)) & (left[1].at(y) - left[1].at(x) > UNDERFLOW)
    open_ = 2 * FACTOR * error + STEP * size + UNDERFLOW
    wrong = (gap > open_[exact.rows]) & apart & (x != y) & defined(own, exact)
    chosen, order = (exact.rows * extent + x).flatten().sort()
    again = torch.zeros_like(order, dtype=torch.bool)
    again[order[1:]] = chosen.diff() == 0
    return outside | wrong | again.reshape(x.shape)
