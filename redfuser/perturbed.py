"""What results are worth of which digits a rounding decides: held against those of inputs moved by a rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from redfuser.numerics import PROMOTED, Check, Error, compare, error, reference, tensors
from redfuser.rule import ACCUMULATOR

MOVED = 6
"""Draws of inputs moved at random."""
STRAY = 64.0
"""How much further than moved inputs take them results without digits may be."""


def astep(ours: torch.Tensor, truth: torch.Tensor, moved: Sequence[torch.Tensor]) -> torch.Tensor:
    """Which results of few values (8 bits) are not what the program gives, neither on the inputs nor on any of those moved
    by a rounding: at a tie, one rounding of the scale decides between two neighbours."""
    wrong = ours.double() != truth.double()
    for other in moved:
        wrong &= ours.double() != other.to(ours.device).double()
    return wrong


def moved(fn: Callable[..., Any], args: Sequence[Any], few: bool = False) -> Iterator[list[torch.Tensor]]:
    """The float64 results from inputs moved by what a sum in float32 may be off by, relative to each element, up or down: at
    random, and the largest along each axis against all others (what scales a row is often the largest of it). few: also
    those of the inputs as they are where what the program rounds to few values is moved before it is rounded: of what lies
    exactly between two, moved inputs need not tell (of many equal elements the largest is always moved up)."""
    rank = max((x.dim() for x in args if isinstance(x, torch.Tensor) and x.dtype in PROMOTED), default=0)
    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [partial(_at_random, seed=seed) for seed in range(MOVED)]
    ways += [partial(_largest, axis=axis, down=down) for axis in range(rank) for down in (True, False)]
    for up in ways:
        def near(x: Any, up: Callable[[torch.Tensor], torch.Tensor] = up) -> Any:
            if not isinstance(x, torch.Tensor) or x.dtype not in PROMOTED:
                return x
            return x.double() * torch.where(up(x.double()), 1.0 + ACCUMULATOR, 1.0 - ACCUMULATOR).double()

        yield tensors(reference(fn, tree_map(near, tuple(args))))
    for by in (2 * ACCUMULATOR, -2 * ACCUMULATOR) if few else ():  # a quotient of two that are off
        yield tensors(reference(fn, args, moved=by))


def as_moved(check: Check, truth: torch.Tensor, near: Iterable[torch.Tensor]) -> Check:
    """A check with no less allowed than what results differ by where sums in float32 are off by what they may be: ``near``, of
    :func:`moved` inputs. Where digits cancel, as about a mean of weights that nearly cancel, that is more than the unfused
    program happens to be off by, and no program is nearer than that for certain."""
    limits = (check.limit, *(error(x, truth) for x in near))
    return replace(check, limit=Error(max(e.maximum for e in limits), max(e.rms for e in limits), check.limit.misplaced))


def digitless(truth: torch.Tensor, near: Iterable[torch.Tensor]) -> torch.Tensor:
    """Which results have no digit that the program decides: of ``near``, some are off by more than half of it, or are numbers
    where it is none. What a sum that cancels divides is a huge number or an infinity, as the terms are taken in order."""
    lost = torch.zeros(truth.shape, dtype=torch.bool, device=truth.device)
    for x in near:
        x = x.to(truth.device, truth.dtype).reshape(truth.shape)
        lost |= (x.isfinite() != truth.isfinite()) | ((x - truth).abs() > 0.5 * truth.abs())
    return lost


def decided(ours: torch.Tensor, unfused: torch.Tensor, truth: torch.Tensor, near: Sequence[torch.Tensor]) -> Check:
    """The rule on the results that have digits. Of the others a few may be no numbers, where 0 is divided by 0, or nearly, or
    be far from all that the program gives (:func:`stray`)."""
    lost = digitless(truth, near)
    kept = [torch.where(lost, 0.0, x.to(lost.device).reshape(lost.shape)) for x in (ours, unfused, truth, *near)]
    mine, theirs, exact, *moved = kept
    found = as_moved(compare(mine, theirs, exact), exact, moved)
    astray = int((lost & stray(ours, truth, (unfused, *near))).sum())
    return replace(found, ours=replace(found.ours, misplaced=found.ours.misplaced + astray),
                   limit=replace(found.limit, misplaced=found.limit.misplaced + int(lost.sum()) // 16))


def stray(ours: torch.Tensor, truth: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Which results are further from the truth than STRAY times the furthest of the others, all of which are numbers."""
    truth = truth.double()
    ours, *others = (x.to(truth.device, truth.dtype).reshape(truth.shape) for x in (ours, *others))
    reach = torch.stack([(x - truth).abs() for x in others]).amax(0)
    return reach.isfinite() & ~((ours - truth).abs() <= STRAY * reach)


def _at_random(x: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.rand(x.shape, generator=torch.Generator(x.device).manual_seed(seed), device=x.device) < 0.5


def _largest(x: torch.Tensor, axis: int, down: bool) -> torch.Tensor:
    if axis >= x.dim():
        return torch.full_like(x, down, dtype=torch.bool)
    return (x.abs() < x.abs().amax(axis, keepdim=True)) == down
