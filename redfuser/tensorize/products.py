"""Tilings of kernels that are matrix products, alone or with statistics of their rows beside them, and a first ranking.

    y[i, j] = f(sum[l] A[i, l] * B[j, l], ...)         rows x columns a block, the r-axis in segments

Every block walks the whole r-axis; what the rows know of themselves is computed once for each tile of columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from redfuser.target import Target
from redfuser.tensorize.config import Schedule, TileConfig

LINE = 128
"""Bytes of a row of an operand's tile: what one transaction of shared memory takes."""
REACH = 6.0
"""How many times faster than device memory the last cache delivers operands that several blocks share."""
ROOMS = 2
"""Panels of a line that results go round, where they leave panel by panel."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product's extents: points of the rows and columns, elements of the r-axis, how many products there are side by side;
    bytes of an element of either operand; whether the left one is computed in the loop from what is loaded, whether a
    segment's products are summed apart from those before, and how many products share the left operand."""

    rows: int
    columns: int
    depth: int
    outer: int
    left: int
    right: int
    mapped: bool
    apart: bool
    several: int = 1


def product_configs(p: Product, target: Target) -> list[TileConfig]:
    """Configurations for ``p``, best first by the model; never empty."""
    found = [(_time(c, p, target), k, c) for k, c in enumerate(_space(p, target)) if _fits(c, p, target)]
    return [c for _, _, c in sorted(found, key=lambda t: t[:2])] or [_tile(64, 64, 32, 2, False)]


def _tile(rows: int, columns: int, segment: int, stages: int, specialized: bool, schedule: Schedule = "auto") -> TileConfig:
    return TileConfig(rows, segment, 128 if rows == 64 else 256, stages, "registers", specialized, columns=columns,
                      schedule=schedule)


def _space(p: Product, target: Target) -> list[TileConfig]:
    line = max(32, LINE // max(p.left, p.right))
    widths = [e for e in (256, 128, 64) if e < 2 * p.columns] or [64]
    deep = (4, 3, 2) if target.kind == "cuda" else (0,)
    roles = target.wgmma and target.tma and not p.mapped and p.left == p.right <= 2
    found = [_tile(128, e, line, stages, True, "persistent") for e in widths for stages in (6, 5, 4, 3) if roles]
    return found + [
        _tile(m, e, s, stages, ws) for m in (128, 64) for e in widths for s in (line, 2 * line, line // 2)
        for stages in deep for ws in ((True, False) if target.tma and m == 128 else (False,)) if s <= max(line, p.depth)]


def _fits(c: TileConfig, p: Product, target: Target) -> bool:
    operands = max(1, c.stages) * c.segment * (c.rows * p.left + p.several * c.columns * p.right)
    weights = c.rows * c.segment * p.right if p.mapped else 0
    if c.schedule != "auto":
        weights += ROOMS * c.rows * LINE
    accumulators = p.several * c.rows * c.columns / c.threads
    return operands + weights <= target.shared_bytes and accumulators * (2 if p.apart else 1) <= 160


def _time(c: TileConfig, p: Product, target: Target) -> float:
    """Seconds: waves of blocks, each bound by the matrix units, the operands it reads from the last cache, or its maps. It
    waits for a whole segment before its first turn, and every turn has a cost of its own: deep segments for long axes. What
    the units find ready is what the other stages hold."""
    flops = target.flops * (2 if p.right == 1 and target.fp8_gemm else 1) / target.sms
    ahead = (c.stages - 1) * max(1.0, c.segment * p.right / LINE)
    busy = min(1.0, 0.55 + 0.1 * ahead + 0.15 * c.warp_specialized) * (1.0 if c.segment * p.right >= LINE else 0.8)
    compute = 2.0 * c.rows * c.columns * p.depth / (flops * busy)
    read = p.depth * (c.rows * p.left + c.columns * p.right) / (REACH * target.bandwidth / target.sms)
    first, turns = read * c.segment / p.depth, ceil(p.depth / c.segment) * target.turn / target.clock
    maps = 8.0 * c.rows * p.depth / (target.flops / 16 / target.sms) if p.mapped else 0.0
    blocks = p.outer * ceil(p.rows / c.rows) * ceil(p.columns / c.columns)
    return ceil(blocks / target.sms) * (max(compute, read) + first + turns + maps)


__all__ = ["Product", "product_configs"]
