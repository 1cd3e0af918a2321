"""Seconds of work that has no tile program: a product of a library, one inside a kernel, tensors that are written and read.

The model of resources (:mod:`redfuser.tensorize.model`) reads tile programs. What is decided before there is one, and what the
alternative to a kernel takes, is estimated here, from the same table of targets and over bytes and operations alone.
"""

from __future__ import annotations

from math import ceil

from redfuser.target import Target

FEW = 64
"""Points of an axis that are columns, if the other is longer: a matrix unit takes columns by the eight, rows by the sixty-four.
8 x 14336 results of two products 4096 deep take 80 us on an H200 with their 8 rows padded to 128, and 59 as columns."""
HELD = 512
"""Columns that the warp groups of a block can accumulate; more are shared by blocks."""
SHORT, MANY = 16, 1 << 10
"""Elements of a row that is shorter than half a warp, and rows from which blocks share them: fewer are one turn of the device
either way, and padded to a warp each lane has one element."""
BESIDE = 256
"""Elements of a row, at most, of which a block has several where there are many, side by side."""
MAKING = 128
"""Matrix operations in the time that a block takes to make one element of a row that it weighs."""
CORES = 0.74
"""Of what a target's cores can multiply and add, what a library's float32 product gets there: a sixteenth of its rate in half
precision on an H200, a fifth on an A10."""

TILED = 64 * 64
"""Results of a tile of a library's float32 product, at least 32 of a row or column."""


def library(target: Target, flops: float, moved: float) -> float:
    """A library's product: what it computes or what it reads and writes, whichever takes longer."""
    return max(flops / target.flops, moved / target.bandwidth)


def on_cores(target: Target, flops: float, moved: float, most: float = 0.0) -> float:
    """A library's product of float32 operands, which CUDA's matrix units would round. most: operations of the multiprocessor
    that has most (:func:`turns`), where that is known."""
    each = CORES * 2 * target.lanes * target.clock
    return max(flops / target.sms / each, most / each, moved / target.bandwidth)


def turns(target: Target, count: int, rows: int, columns: int, depth: int) -> float:
    """Operations of the multiprocessor that has most tiles of ``count`` products ``depth`` deep. 12 x 512 x 16, 12 x 512 x 64
    and 512 x 512, all 512 deep, are 48 to 96 tiles, and took 14.3, 19.0 and 13.1 us on an H200; without tiles, 2.0 to 8.1."""
    tiles = count * ceil(32 * ceil(rows / 32) * 32 * ceil(columns / 32) / TILED)
    return ceil(tiles / target.sms) * 2.0 * TILED * depth


def generated(target: Target, flops: float, moved: float) -> float:
    """A product inside a kernel that has all of the device."""
    return max(flops * (1 + target.lead) / target.flops, moved / target.bandwidth)


def passes(target: Target, moved: float, kernels: int) -> float:
    """Kernels that do little but move so many bytes."""
    return moved / target.bandwidth + kernels * target.kernel
