"""What a tiling of products would do, before there is a tile program: the same counts for the same roofline.

A kernel's program is lowered in some ten milliseconds, and there are dozens of tilings; this says which are worth it.

    y[i, d] = sum[l] f(sum[e] a[i, e] * b[l, e]) * c[l, d]       rows x columns a block, the r-axis l in segments, a depth e
    y[i, d] = sum[l] a[i, l] * c[l, d]                           without the product within
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from redfuser.target import Target
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.model.registers import GIVEN
from redfuser.tensorize.model.roofline import Blocks, Time, timed
from redfuser.tensorize.model.room import Needs, resident
from redfuser.tensorize.model.work import EXCHANGE, Work

PANELS, LINE = 2, 128
"""Panels of a line that the results of a product with roles leave through, and the bytes of a row of one."""
BESIDE = 40
"""Registers of a thread beside its tiles."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Products around a row: its points and those of the columns and of the r-axis; ``outer`` such kernels side by side.
    depth: of the product within, 0 without one. left, right: bytes of an element that varies along the rows, and of one that
    does not; dtype: of the matrix units. core, special: operations of an element between the products. once: both products
    read one tensor. narrowed: a comparison leaves about half of the r-axis. apart: a segment's products are summed apart from
    those before. several: products that share the left operand. mapped: the left operand is computed in the loop. held:
    bytes of an operand's element on chip; result: of a result's element that is staged."""

    rows: int
    columns: int
    along: int
    outer: int
    depth: int
    left: int
    right: int
    dtype: str
    core: float = 0.0
    special: float = 0.0
    once: bool = False
    narrowed: bool = False
    apart: bool = False
    several: int = 1
    mapped: bool = False
    held: int = 2
    result: int = 2


def sketched(s: Sketch, c: TileConfig, target: Target) -> Time | None:
    """Its time under a configuration; None where tiles alone have no room."""
    columns = min(c.columns or s.columns, s.columns) or s.depth
    tiles = s.outer * ceil(s.rows / c.rows) * ceil((s.columns or columns) / columns)
    threads, apart = c.threads + 128 * c.warp_specialized, c.warp_specialized and target.tma
    tiled = c.rows * (columns * s.several * (1 + s.apart) + (1.5 * c.segment if s.depth else 0.0)) / c.threads
    most = GIVEN if apart else min(target.thread, target.registers // threads)
    wide = columns > 256 and c.weights == "shared"
    if (shared := _shared(s, c, columns)) > target.shared_bytes or (tiled + BESIDE > most + BESIDE / 2 and not wide):
        return None
    limit = target.registers // threads // 8 * 8  # where warps move registers among themselves, a block starts with all
    registers = limit if apart else min(limit, int(BESIDE + tiled))
    steps = ceil(s.along / c.segment)
    if s.narrowed:
        steps = ceil((steps + c.rows / c.segment) / 2)
    done, count, several = _work(s, c, columns, steps, target), tiles, 1
    if c.persistent and tiles > target.sms:
        count, several = target.sms, ceil(tiles / target.sms)
    whole = Work()
    whole.add(done, several)
    unique = s.outer * (s.rows * (s.depth or s.along) * s.left + s.rows * s.columns * s.result
                        + s.along * (s.depth * (not s.once) + s.columns * s.several) * s.right)
    groups = max(1, c.threads // 128) if apart else 1
    need = Needs(shared, threads, max(16, registers))
    if not resident(need, target):
        return None
    return timed(Blocks(whole, need, count, unique, c.threads, groups, apart, max(c.stages, 2 * target.prefetch), 0.0),
                 target)


def _shared(s: Sketch, c: TileConfig, columns: int) -> int:
    stages = max(1, c.stages)
    if not s.depth:
        operands = stages * c.segment * (c.rows * s.left + s.several * columns * s.right)
        return operands + s.mapped * c.rows * c.segment * s.right + (PANELS * c.rows * LINE if c.schedule != "auto" else 0)
    depth = min(s.depth, c.chunk or s.depth)
    both = max(depth, columns) if s.once else depth + columns
    operands = s.held * (c.rows * depth + stages * c.segment * both)
    if c.weights == "shared":
        operands += s.held * c.rows * c.segment
    out = 0 if c.pieces else s.held * c.rows * columns  # a float32 result leaves from registers
    if c.schedule.startswith("overlap") and depth == columns:  # results leave through the room of the rows' operand
        return operands
    if c.persistent:
        return operands + s.held * c.rows * depth + out
    return max(operands, out) + (0 if columns > 256 else out)


def _work(s: Sketch, c: TileConfig, columns: int, steps: int, target: Target) -> Work:
    """Of one tile."""
    n, wide = steps * c.segment, columns * s.several
    groups = max(1, c.rows // 64) if target.wgmma and c.rows >= 64 else max(1, min(c.rows // 16, c.threads // target.warp))
    read = c.rows * (s.depth or n) * s.left + n * ((0 if s.once else s.depth) + wide) * s.right
    again = groups * n * (s.depth + wide) * s.right + c.rows * (s.depth * steps if s.depth else n) * s.left
    if c.weights == "shared" and s.depth:
        again += 3 * c.rows * n * s.right
    left = c.rows * columns * s.result
    done = Work({"": read + left}, {s.dtype: 2.0 * c.rows * n * (s.depth + wide)}, shared=read + again + 2 * left,
                ends=left + c.rows * s.depth * s.left)
    done.core = c.rows * n * s.core + c.rows * wide * ((steps if s.depth or s.apart else 0) + 2)
    if s.depth:  # a maximum and a total, among the four threads of a row
        done.core += (2 - c.lanes) * 4 * 2 * EXCHANGE * c.rows * steps
    done.special = c.rows * n * s.special
    if c.schedule == "auto":
        ramp = 0 if (c.warp_specialized and target.tma) or steps > c.stages else max(0, c.stages - 1)
        done.turns = (steps + ramp) * (2 if s.depth else s.several)
    return done
