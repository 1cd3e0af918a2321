"""The walk along the r-axis: the steps where anything counts, and the steps where a mask is still to be asked."""

from __future__ import annotations

from redfuser.acrf.expr import Const, Expr, Index, op, walk
from redfuser.strategies.program import Block
from redfuser.tensorize.indexing import affine, minus
from redfuser.tensorize.ir.index import i64, iadd, imul
from redfuser.tensorize.masks import TRUE, both, conjuncts, positional
from redfuser.tensorize.state import KernelState


def segment_steps(work: KernelState, blocks: tuple[Block, ...], alive: Expr) -> tuple[Expr, Expr, Expr]:
    """(first step, last step + 1, first element of step ``counter``) of the walk along the r-axis."""
    n = work.roles.segment
    assert n is not None
    extent, size = work.extents[n], work.sizes[n]
    first: Expr = i64(0)
    last: Expr = i64(-(-extent // size))
    if work.kernel.split and work.kernel.kind in ("split", "map"):
        chunk = -(-extent // work.extents[work.kernel.split])
        per = -(-chunk // size)
        first = imul(work.scalar(work.kernel.split), per)
        last = iadd(first, i64(per))
    whole = (first, last)
    found = work.analysis.range(alive)
    if found.low is not None:
        low = work.analysis.segment_of(work.analysis.larger(found.low, i64(0)), size, up=False)  # type: ignore[arg-type]
        first = _at_least(work, first, low)
    if found.high is not None:
        high = work.analysis.segment_of(work.analysis.smaller(found.high, i64(extent)), size, up=True)  # type: ignore[arg-type]
        last = _at_most(work, last, high)
    if work.kernel.split and not constant_trip(work, first, last):
        first, last = whole  # every split walks the same number of steps; masks take care of the rest
    work.narrowed = work.narrowed or any(isinstance(x, Index) and x.axis == f"{work.roles.rows}_block"
                                         for e in (first, last) for x in walk(e))
    return first, last, imul(Index(work.counter), size)


def constant_trip(work: KernelState, first: Expr, last: Expr) -> bool:
    """Is the number of steps the same for every block?"""
    a, b = affine(first, work.block_extents), affine(last, work.block_extents)
    return a is not None and b is not None and not minus(b, a).terms


def _at_least(work: KernelState, a: Expr, b: Expr) -> Expr:
    return work.analysis.larger(a, b)  # type: ignore[return-value]


def _at_most(work: KernelState, a: Expr, b: Expr) -> Expr:
    return work.analysis.smaller(a, b)  # type: ignore[return-value]


def alive_positions(work: KernelState) -> Expr:
    """Positions outside which no accumulator changes: the conditions that all contributions share."""
    common = [c for c in (conjuncts(work.alive[0]) if work.alive else ()) if positional(c)
              and all(c in conjuncts(other) for other in work.alive)]
    total = TRUE
    for c in common:
        total = both(total, c)
    return total


def mask_needed(work: KernelState, position: Expr) -> Expr | None:
    """When the current segment needs the mask: None never to be asked, TRUE always, else a test of the block."""
    if position == TRUE or work.scope.segment is None:
        return None
    found = work.analysis.range(position)
    if not found.exact or isinstance(work.scope.segment, Const):
        return TRUE
    start, size = work.scope.segment, work.sizes[work.roles.segment or ""]
    tests = []
    if found.core_low is not None:
        tests.append(op("lt", start, found.core_low))
    if found.core_high is not None:
        tests.append(op("gt", iadd(start, i64(size)), found.core_high))
    if not tests:
        return TRUE
    return tests[0] if len(tests) == 1 else op("or", *tests)
