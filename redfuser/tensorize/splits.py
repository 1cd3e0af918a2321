"""How many blocks share a row: as few as the model of resources finds fastest."""

from __future__ import annotations

from math import ceil, log, prod

from redfuser.acrf.cascade import Extent, Reduce
from redfuser.acrf.state import Fused
from redfuser.errors import LoweringError
from redfuser.outline import HELD
from redfuser.strategies import realise
from redfuser.strategies.program import Program, Strategy
from redfuser.target import Target
from redfuser.tensorize.by_thread import by_thread
from redfuser.tensorize.configs import configs
from redfuser.tensorize.model import predicted
from redfuser.tensorize.products import DEEP, WIDTHS
from redfuser.tensorize.tiles import tensorize

SHORTEST = 64
"""Elements of a split, at least: a step of its walk."""
NEAR = 2
"""By how much fewer or more splits take about as long."""


def shared_out(fused: Fused, most: int, target: Target) -> Program:
    """``fused`` in ``most`` splits, in half or in a quarter of them: ``most`` gives a multiprocessor the blocks that kernels
    without roles need to keep it busy, those with roles need one, and every split is a partial result more to merge. With roles
    and a row that is a product's, also in two and four times as many, while they leave multiprocessors idle: a step of a few
    keys for each."""
    tried: list[tuple[float, int, Program]] = []
    extent = fused.cascade.extent(fused.cascade.raxis)
    more = {most * 2, most * 4} if any(isinstance(s, Reduce) for s in fused.producers) else set()
    for splits in sorted({most, most // 2, most // 4, *more}):
        if splits > 1 and (splits <= most or (isinstance(extent, int) and splits * SHORTEST <= extent)):
            program = realise(fused, "multi", splits)
            try:
                best = configs(program, target)[0]
                tiles = tensorize(program, best, target)
                seconds = predicted(tiles, target)
            except LoweringError:
                continue
            idle = prod(n for _, n in tiles.kernels[0].grid) <= target.sms
            if seconds is not None and (splits == most or (best.warp_specialized and (idle or splits < most))):
                tried.append((seconds, splits, program))
    return min(tried, key=lambda x: x[:2])[2] if tried else realise(fused, "multi", most)


def whole_steps(program: Program, target: Target) -> Program:
    """``program`` in about as many splits that are whole steps of the walk each, where there are such: a step that may reach
    beyond the row asks at each of its accesses whether it does, and no two of them are under way together. Three sums over
    7208960 numbers of four tensors (1760 steps) took 104 us in 264 splits on an H200."""
    extent = program.fused.cascade.extent(program.fused.cascade.raxis)
    try:
        first, *rest = configs(program, target)
    except LoweringError:
        return program
    if not isinstance(extent, int) or first.stages or by_thread(program, first) or first.schedule != "auto":
        return program
    for config in (c for c in (first, *rest) if c.rows == first.rows and extent % c.segment == 0):
        steps = extent // config.segment
        near = [d for d in range(max(2, ceil(program.splits / NEAR)), program.splits * NEAR + 1) if steps % d == 0]
        for splits in sorted(near, key=lambda d: abs(log(d / program.splits))):
            other = program if splits == program.splits else realise(program.fused, "multi", splits)
            if configs(other, target)[0] == config:
                return other
    return program


def by_tiles(fused: Fused, strategy: Strategy, most: int, target: Target) -> Program:
    """A row of a product too deep to hold: every tile of the product is reduced by the block that makes it, where the model
    finds that faster than walks. The product is then what a library's is but for its end, and nothing of it is written."""
    extent = fused.cascade.extent(fused.cascade.raxis)
    assert isinstance(extent, int)
    walk = shared_out(fused, most, target) if strategy == "multi" else realise(fused, strategy)
    tried: list[tuple[float, int, Program]] = []
    for program in (*(realise(fused, "multi", ceil(extent / w)) for w in WIDTHS), walk):
        try:
            seconds = predicted(tensorize(program, configs(program, target)[0], target), target)
        except LoweringError:
            continue
        if seconds is not None:
            tried.append((seconds, len(tried), program))
    return min(tried, key=lambda x: x[:2])[2] if tried else walk


def too_deep(fused: Fused) -> bool:
    """Is a row made by a contraction too deep to hold, longer than registers hold, and nothing kept of it but numbers?"""
    cascade = fused.cascade
    depths = [cascade.extent(s.over) for s in fused.producers if isinstance(s, Reduce)]
    points = {frozenset(a.axes) for a in fused.state.accumulators}
    return _beyond([cascade.extent(cascade.raxis)], HELD) and _beyond(depths, 2 * DEEP) and len(points) == 1 and all(
        len(a.names) == 1 for a in fused.state.accumulators)


def _beyond(extents: list[Extent], most: int) -> bool:
    return all(isinstance(e, int) for e in extents) and any(isinstance(e, int) and e > most for e in extents)
