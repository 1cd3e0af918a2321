"""The small twin of a kernel: the same fusion, strategy and configuration over two and a half tiles in every direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd, prod

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.state import Fused
from redfuser.chain.smaller import GRAIN, smaller
from redfuser.errors import LoweringError
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import Target
from redfuser.tensorize import tensorize
from redfuser.tensorize.axes import SHORT, Roles, choose
from redfuser.tensorize.by_thread import by_thread
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.rewrite import arrange

WHOLE_ROW = 4096
"""A row up to this long keeps its length where nothing is contracted."""
DEEP = 640
"""A contraction up to this deep keeps its depth under roles, where keys and values may share their tiles."""
TURNS = 3
"""Tiles that a block of a twin computes, where it computes several: one more than a ring of them has slots."""
ENDLESS = 1 << 30
"""Multiprocessors of a machine on which every tile has a block of its own."""
_WORK = 3e7
"""Elements of the largest intermediate above which a twin's batch axes shrink to one point."""


def of_scalar(program: Program, deep: bool) -> Program:
    """A twin for LLVM: segments and a ragged one, sixteen points of the longest axis."""
    return _twin(program, TileConfig(16, program.segment or 64), deep)


def of_tiles(program: Program, config: TileConfig, deep: bool) -> Program:
    """A twin for the interpreter under ``config``. With roles, what the copy engine can move it can move in the twin too."""
    return _twin(program, config, deep, 1 if config.schedule == "auto" else GRAIN)


def machine(twin: Program, program: Program, config: TileConfig, target: Target) -> Target:
    """A target on which the twin's blocks do what the program's do: compute one tile each, or (on one with so few
    multiprocessors) ``TURNS`` of them, however few there are. What a block does between tiles is held nowhere else."""
    if config.schedule == "auto":
        return target

    def blocks(of: Program, sms: int) -> int:
        return prod(n for _, n in tensorize(of, config, replace(target, sms=sms), to_run=False).kernels[0].grid)

    several = blocks(program, target.sms) < blocks(program, ENDLESS)
    return replace(target, sms=max(1, blocks(twin, ENDLESS) // TURNS) if several else ENDLESS)


def _twin(program: Program, config: TileConfig, deep: bool, grain: int = 1) -> Program:
    """deep: two points of every other axis and two whole tiles of rows; else one of each, and a ragged tile. grain: extents
    that are multiples of it stay so."""
    fused = program.fused
    cascade = fused.cascade
    extents = {a.name: a.extent for a in cascade.axes if isinstance(a.extent, int)}
    row_axis, tiled, grid = axes_of(program, 2 if deep else 1)
    inner = {s.over for s in (*cascade.stmts, *fused.producers) if isinstance(s, Reduce)} - {cascade.raxis}
    columns = {a for s in cascade.stmts for a in s.axes} - (_shared(fused) - tiled) - inner - grid.keys() - {cascade.raxis}
    alone = by_thread(program, config)
    splits = program.splits if alone else _ranges(program, config.segment, extents.get(cascade.raxis, 1))
    wanted = dict.fromkeys(extents, 2 if deep else 1) | grid
    for a in inner:
        wanted[a] = extents[a] if extents[a] <= (320 if grain == 1 else DEEP) else 2 * (config.chunk or 64) + 32
    for a in columns:
        wanted[a] = extents[a] if extents[a] <= 512 else max(288, config.columns + 32) + extents[a] % grain
    if row_axis in wanted:
        wanted[row_axis] = max(16, (2 if deep else 1) * config.rows + config.rows // 3 + 1)
    contracts = bool(inner or _shared(fused) & tiled)
    wanted[cascade.raxis] = _length(program, config.segment, splits, contracts, extents.get(cascade.raxis, 0))
    for a in (row_axis, cascade.raxis):
        if a in extents:
            whole = gcd(extents[a], grain)
            wanted[a] = -(-wanted[a] // whole) * whole
    if alone:  # two steps of every thread, the last as long as the program's, a block for each row
        step = splits * config.segment
        wanted |= {a: 3 for a in (row_axis,) if a in wanted}
        wanted[cascade.raxis] = step + (extents.get(cascade.raxis, 0) % step or step)
    if prod(min(wanted[a], extents[a]) for a in extents if a not in inner) > _WORK:
        wanted |= {a: 1 for a in extents if a not in inner and a not in columns and a not in (row_axis, cascade.raxis)}
    held = None if program.strategy == "resident" else program.segment
    tiles = dict.fromkeys(columns, config.columns) | {row_axis or "": config.rows, cascade.raxis: config.segment}
    return realise(smaller(fused, wanted, tiles), program.strategy, splits, held)


def _ranges(program: Program, segment: int, extent: int) -> int:
    """Of a split row: three, or as many as make several segments of a row that a kernel walks as a whole."""
    share = max(1, -(-extent // program.splits))
    return min(program.splits, max(3, -(-_several(program, segment) // share)))


def _several(program: Program, segment: int) -> int:
    """Elements of two segments and a ragged one, where a kernel walks a split row as a whole; else 0."""
    whole = any(k.kind == "map" for k in program.kernels)
    return 2 * segment + segment // 2 + 1 if whole else 0


def _length(program: Program, segment: int, splits: int, contracts: bool, extent: int) -> int:
    """Elements of the row. A range of a split row keeps its size where that is less than two segments."""
    if program.strategy == "resident":
        return extent
    if splits > 1:
        share = min(-(-extent // program.splits), 2 * segment + segment // 3 + 1)
        return max((splits - 1) * share + share // 2 + 1, min(_several(program, segment), extent))
    if not contracts and extent <= WHOLE_ROW:
        return extent
    return 2 * segment + segment // 2 + 1


def _shared(fused: Fused) -> set[str]:
    """Axes that every accumulator has but counts, which have none: the points of the grid. Of maps alone, all of them."""
    if not fused.state.accumulators:
        return {a.name for a in fused.cascade.axes}
    sets = [set(a.axes) for a in fused.state.accumulators if a.axes]
    return set.intersection(*sets) if sets else set()


def axes_of(program: Program, few: int) -> tuple[str | None, set[str], dict[str, int]]:
    """The cascade's axis that becomes the rows of a tile; those that become its columns; and those of the grid, with few
    points, or (an axis of which several would be taken apart) as many as leave it in the grid."""
    extents = {a.name: int(a.extent) for a in program.axes}

    def chosen(changed: Mapping[str, int]) -> Roles:
        arranged = arrange(program.kernels[0], {**extents, **changed})
        return choose(arranged.kernel, arranged.extents)

    try:
        roles = chosen({})
    except LoweringError:  # no tile has these accumulators, but a CPU's loops do
        free = {a for s in program.fused.state.accumulators for a in s.axes}
        rows = max(sorted(free), key=lambda a: extents.get(a, 0), default=None)
        return rows, free - {rows} if rows is not None else free, {}
    longest = sorted(extents, key=len, reverse=True)

    def whole(part: str) -> str | None:
        """The axis that this is, or is a part of."""
        return next((a for a in longest if part == a or part.startswith(f"{a}_")), None)

    grid = [a for a in roles.grid if a in extents]
    points = {a: few if (few == 1 and chosen({a: few}).tiled == roles.tiled) or a in chosen({a: few}).grid else SHORT
              for a in grid}
    return whole(roles.rows), {a for a in map(whole, roles.columns) if a}, points
