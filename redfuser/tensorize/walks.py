"""How a row that shares nothing with another is walked: held on chip, in steps, or by several blocks, as the model of resources
finds fastest."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from redfuser.acrf.state import Fused
from redfuser.errors import LoweringError
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.strategies.select import on_chip
from redfuser.target import Target
from redfuser.tensorize.configs import ROWS_TIE, configs
from redfuser.tensorize.model import predicted
from redfuser.tensorize.tiles import tensorize

BLOCKS = 4
"""Blocks of a multiprocessor that rows are shared out to, about. Measured on an H200 (docs/results/h200-2026-11-23-tuning):
256 rows of 131072 take .0636 ms in one block each, .0435 in 2, .0406 in 4 and .0398 in 8; 512 of 8192 with four numbers each
.0353, .0345 and .0328 in 4."""
FEWEST = 128
"""Threads of a block that walks a row: more blocks than fit at once gain nothing."""
LEAST = 1024
"""Elements of a row that a block is worth."""
TRIED = 3
"""Numbers of splits, powers of two, that the model is asked about."""


def quickest(fused: Fused, rows: int, program: Program, target: Target) -> Program:
    """``program``, or what the model finds faster by more than it may be off, for so many ``rows``. A row that is held on chip
    needs no such distance: tied in the model, it was 3 to 14 % faster on an H200 (docs/results/h200-2026-11-23-tuning)."""
    others = list(_others(fused, rows, program, target))
    now = seconds(program, target) if others else None
    if now is None:
        return program
    found = [(t * (1.0 if other.strategy == "resident" else ROWS_TIE), other)
             for other in others if (t := seconds(other, target)) is not None]
    best, other = min(found, key=lambda f: f[0], default=(now, program))
    return other if best < now else program


def _others(fused: Fused, rows: int, program: Program, target: Target) -> Iterator[Program]:
    extent = fused.cascade.extent(fused.cascade.raxis)
    if program.strategy in ("resident", "map") or not isinstance(extent, int):
        return
    if on_chip(fused, target):
        yield realise(fused, "resident")
    if program.strategy == "multi":
        yield realise(fused, "single")
    aim = log2(BLOCKS * target.sms / rows)
    powers = [k for k in range(1, max(1, extent // LEAST).bit_length()) if 1 << k != program.splits]
    for k in sorted(powers, key=lambda k: abs(k - aim))[:TRIED]:
        if (1 << k) * rows <= target.sms * target.max_threads // FEWEST:
            yield realise(fused, "multi", 1 << k)


def seconds(program: Program, target: Target) -> float | None:
    """What the model says of the first configuration; None where it does not lower, or is not known."""
    try:
        return predicted(tensorize(program, configs(program, target)[0], target), target)
    except LoweringError:
        return None


__all__ = ["quickest", "seconds"]
