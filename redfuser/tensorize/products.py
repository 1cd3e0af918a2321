"""Tilings of kernels that are matrix products, alone or with statistics of their rows beside them, and a first ranking.

    y[i, j] = f(sum[l] A[i, l] * B[j, l], ...)         rows x columns a block, the r-axis in segments

Every block walks the whole r-axis; what the rows know of themselves is computed once for each tile of columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from redfuser.target import Target
from redfuser.tensorize.config import Schedule, TileConfig

LINE = 128
"""Bytes of a row of an operand's tile: what one transaction of shared memory takes."""
REACH = 6.0
"""How many times faster than device memory the last cache delivers operands that several blocks share."""
ROOMS = 2
"""Panels of a line that results go round, where they leave panel by panel."""
WIDE, NARROW = 256, 0.92
"""Columns of accumulators with which a group keeps matrix units busy, and how busy they are with half as many (one H200,
4096x4096x4096 of bfloat16: .176 and .187 ms)."""
TILE = 3e-6
"""Seconds from the last product of a tile to the first of the next, where a block computes several."""
BESIDE = 0.6
"""Of a turn's cost where warp groups take turns, so that one's products run while another adds up (one H200, sums kept apart in
8192x4096x4096: segments of 256 bytes .399 ms in bfloat16 and .203 in e4m3, of 128 .495 and .242)."""


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
    plain = sorted((f for f in found if f[2].schedule == "auto"), key=lambda f: f[:2])
    roles = sorted((f for f in found if f[2].schedule != "auto"), key=lambda f: (f[0] + TILE * _waves(f[2], p, target), f[1]))
    ahead = roles if roles and plain and roles[0][0] <= plain[0][0] else []
    return [c for _, _, c in (*ahead, *plain)] or [_tile(64, 64, 32, 2, False)]


def _tile(rows: int, columns: int, segment: int, stages: int, specialized: bool, schedule: Schedule = "auto") -> TileConfig:
    return TileConfig(rows, segment, 128 if rows == 64 else 256, stages, "registers", specialized, columns=columns,
                      schedule=schedule)


def _space(p: Product, target: Target) -> list[TileConfig]:
    line = max(32, LINE // max(p.left, p.right))
    widths = [e for e in (256, 128, 64) if e < 2 * p.columns] or [64]
    deep = (4, 3, 2) if target.kind == "cuda" else (0,)
    roles = target.wgmma and target.tma and not p.mapped and p.left == p.right <= 2
    found = [_tile(128, e, s, stages, True, "persistent") for e in widths for s in ((2 * line, line) if p.apart else (line,))
             for stages in (6, 5, 4, 3) if roles and s < p.depth]
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
    the units find ready is what the other stages hold. With roles the next product is under way, and a turn costs nothing."""
    flops = target.flops * (2 if p.right == 1 and target.fp8_gemm else 1) / target.sms
    ahead = (c.stages - 1) * max(1.0, c.segment * p.right / LINE)
    busy = min(1.0, 0.55 + 0.1 * ahead + 0.15 * c.warp_specialized) * (1.0 if c.segment * p.right >= LINE else 0.8)
    if c.schedule != "auto":
        busy *= NARROW ** max(0.0, log2(WIDE / (c.columns * p.several * (2 if p.apart else 1))))
    compute = 2.0 * c.rows * c.columns * p.depth / (flops * busy)
    read = p.depth * (c.rows * p.left + c.columns * p.right) / (REACH * target.bandwidth / target.sms)
    first, turns = read * c.segment / p.depth, ceil(p.depth / c.segment) * target.turn / target.clock
    if c.schedule != "auto":
        turns *= BESIDE if p.apart else 0.0
    maps = 8.0 * c.rows * p.depth / (target.flops / 16 / target.sms) if p.mapped else 0.0
    return _waves(c, p, target) * (max(compute, read) + first + turns + maps)


def _waves(c: TileConfig, p: Product, target: Target) -> int:
    """Tiles that a multiprocessor computes one after another."""
    return ceil(p.outer * ceil(p.rows / c.rows) * ceil(p.columns / c.columns) / target.sms)


__all__ = ["Product", "product_configs"]
