"""Tilings of kernels that are matrix products, alone or with statistics of their rows beside them.

    y[i, j] = f(sum[l] A[i, l] * B[j, l], ...)         rows x columns a block, the r-axis in segments

Every block walks the whole r-axis; what the rows know of themselves is computed once for each tile of columns. A deep product
inside a row that is reduced is one of these as well, with the columns along the r-axis.
"""

from __future__ import annotations

from collections.abc import Mapping

from redfuser.strategies.program import Kernel
from redfuser.target import Target
from redfuser.tensorize.axes import Roles
from redfuser.tensorize.config import Schedule, TileConfig
from redfuser.tensorize.model import Sketch

DEEP = 320
"""Elements of a contraction's own axis above which its operands do not stay on chip whole."""
WIDTHS = (256, 128, 64)
"""Columns of a block's tile of a product."""
LINE = 128
"""Bytes of a row of an operand's tile: what one transaction of shared memory takes."""
HELD = 160
"""Registers of a thread that may accumulate."""


def product_space(p: Sketch, target: Target) -> list[TileConfig]:
    """Tilings of ``p``, as many stages of each as have room; never empty."""
    line = max(32, LINE // max(p.left, p.right))
    widths = [e for e in WIDTHS if e < 2 * p.columns] or [64]
    segments = [s for s in (line, 2 * line) if s <= max(line, p.along)]
    deep = (4, 3, 2) if target.kind == "cuda" else (0,)
    roles = target.wgmma and target.tma and not p.mapped and p.left == p.right <= 2
    ways: list[tuple[int, tuple[int, ...], bool, Schedule]] = [(128, deep, False, "auto"), (64, deep, False, "auto")]
    if target.tma:
        ways.insert(0, (128, deep, True, "auto"))
    if roles:
        ways.insert(0, (128, (6, 5, 4, 3), True, "persistent"))
    found = [next((c for n in stages if (c := _tile(m, e, s, n, ws, way)) and _fits(c, p, target)), None)
             for m, stages, ws, way in ways for e in widths for s in segments
             if way == "auto" or (s < p.along and (p.apart or s == line))]
    return [c for c in found if c is not None] or [_tile(64, 64, 32, 2, False)]


def tile_width(kernel: Kernel, roles: Roles, extents: Mapping[str, int], depth: int) -> int:
    """Columns of the one tile that a block makes of a deep product along the rows it reduces, where rows are in as many splits;
    0 where a block walks them::

        m[split, i] = max[l in split] sum[c] A[i, c] * B[l, c]"""
    if depth <= 2 * DEEP or kernel.kind != "split" or roles.columns or not roles.segment or not kernel.split:
        return 0
    own = -(-extents[roles.segment] // extents[kernel.split])
    return min((w for w in WIDTHS if own <= w), default=0)


def _tile(rows: int, columns: int, segment: int, stages: int, specialized: bool, schedule: Schedule = "auto") -> TileConfig:
    return TileConfig(rows, segment, 128 if rows == 64 else 256, stages, "registers", specialized, columns=columns,
                      schedule=schedule)


def _fits(c: TileConfig, p: Sketch, target: Target) -> bool:
    operands = max(1, c.stages) * c.segment * (c.rows * p.left + p.several * c.columns * p.right)
    weights = c.rows * c.segment * p.right if p.mapped else 0
    if c.schedule != "auto":
        weights += 2 * c.rows * LINE  # results leave panel by panel
    return operands + weights <= target.shared_bytes and p.several * c.rows * c.columns / c.threads * (1 + p.apart) <= HELD
