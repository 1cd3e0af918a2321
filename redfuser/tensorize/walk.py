"""The walk along the r-axis: the steps where anything counts, and the steps where a mask is still to be asked."""

from __future__ import annotations

from functools import reduce

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import Const, Expr, Index, Op, op
from redfuser.acrf.index import i64, iadd, imul
from redfuser.strategies.alive import TRUE, both, common, conjuncts
from redfuser.tensorize.builder import Builder
from redfuser.tensorize.geometry import Geometry


def segment_steps(at: Geometry, alive: Expr) -> tuple[Expr, Expr, Expr]:
    """(first step, last step + 1, first element of step ``counter``) of the walk along the r-axis."""
    n = at.roles.segment
    assert n is not None
    extent, size = at.extents[n], at.sizes[n]
    first: Expr = i64(0)
    last: Expr = i64(-(-extent // size))
    if at.kernel.split and at.kernel.kind in ("split", "map"):
        chunk = -(-extent // at.extents[at.kernel.split])
        per = -(-chunk // size)
        first = imul(at.scalar(at.kernel.split), per)
        last = iadd(first, i64(per))
    whole = (first, last)
    ranges = at.analysis
    found = ranges.range(alive)
    if found.low is not None:
        low = ranges.segment_of(ranges.larger(found.low, i64(0)), size, up=False)  # type: ignore[arg-type]
        first = ranges.larger(first, low)  # type: ignore[assignment]
    if found.high is not None:
        high = ranges.segment_of(ranges.smaller(found.high, i64(extent)), size, up=True)  # type: ignore[arg-type]
        last = ranges.smaller(last, high)  # type: ignore[assignment]
    if at.kernel.split and not constant_trip(at, first, last):
        first, last = whole  # every split walks the same number of steps; masks take care of the rest
    return first, last, imul(Index(at.counter), size)


def constant_trip(at: Geometry, first: Expr, last: Expr) -> bool:
    """Is the number of steps the same for every block?"""
    ix = Indices(at.block_extents)
    return not ix.joined(ix.linear(last) - ix.linear(first)).terms


def from_the_end(at: Geometry, first: Expr, last: Expr) -> Expr:
    """The step that is as far from the last as ``counter`` is from the first."""
    ends = Indices(at.block_extents).simplify(iadd(iadd(first, last), i64(-1)))
    return Op("sub", (ends, Index(at.counter)), "i64")


def one_step(at: Geometry, first: Expr, last: Expr) -> bool:
    """Does every block make one step?"""
    ix = Indices(at.block_extents)
    steps = ix.joined(ix.linear(last) - ix.linear(first))
    return not steps.terms and steps.constant == 1


def alive_positions(at: Geometry) -> Expr:
    """Positions outside which no accumulator changes: the conditions that all contributions share."""
    return common(at.alive)


def masks_needed(work: Builder, position: Expr) -> tuple[tuple[Expr, Expr], ...]:
    """The parts of a mask, each with when the current segment needs it: TRUE always, else a test of the block. Bounds from
    below and from above are two parts: few segments meet both. Empty where it is never to be asked."""
    if position == TRUE or work.scope.segment is None:
        return ()
    found = work.at.analysis.range(position)
    if not found.exact or isinstance(work.scope.segment, Const):
        return ((position, TRUE),)
    start, size = work.scope.segment, work.at.sizes[work.at.roles.segment or ""]
    below = [op("lt", start, found.core_low)] if found.core_low is not None else []
    above = [op("gt", iadd(start, i64(size)), found.core_high)] if found.core_high is not None else []
    if below and above:
        each = [(c, work.at.analysis.range(c)) for c in conjuncts(position)]
        if all((r.core_low is None) != (r.core_high is None) for _, r in each):
            low = reduce(both, (c for c, r in each if r.core_low is not None), TRUE)
            high = reduce(both, (c for c, r in each if r.core_high is not None), TRUE)
            return (low, below[0]), (high, above[0])
        return ((position, op("or", below[0], above[0])),)
    test: Expr = (below or above)[0] if below or above else TRUE
    return ((position, test),)
