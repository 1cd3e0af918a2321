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
from redfuser.tensorize.by_thread import by_thread, possible
from redfuser.tensorize.configs import ALL, EACH, THREADS, configs
from redfuser.tensorize.map_configs import branches
from redfuser.tensorize.model import predicted
from redfuser.tensorize.ranked import ROWS_TIE
from redfuser.tensorize.tiles import tensorize

BLOCKS = 4
"""Blocks of a multiprocessor that rows are shared out to, about. Measured on an H200 (docs/results/h200-2026-11-23-tuning):
256 rows of 131072 take .0636 ms in one block each, .0435 in 2, .0406 in 4 and .0398 in 8; 512 of 8192 with four numbers each
.0353, .0345 and .0328 in 4."""
FEWEST = 128
"""Threads of a block that walks a row: more blocks than fit at once gain nothing."""
LEAST = 1024
"""Elements of a row that a block is worth."""
BY_THREAD = 0.9
"""What a row walked by threads that exchange nothing until its end takes of what the model says beside another walk: it counts
instructions of a thread at the rate of blocks whose threads wait for one another. Measured and modelled on an H200, us:
variance of 1024 rows of 32768 33.5 and 32.8 (by a block 35.6 and 36.6), log-sum-exp of 4096 rows 64.1 and 71.7 (70.8 and 72.7),
of 32000 64.3 and 72.5 (71.6 and 85.3), of 256 rows of 131072 20.0 and 20.1 (56.7 and 47.2)."""
SHORT = 16
"""Elements of each thread of the largest block, in a row that a block holds with ease, and rows of a multiprocessor, up to
which it does not walk one that it could hold. On an H200 128 rows of 8192, variance, take 3.2 us held and 3.6 walked, 8192 rows
of 8192, log-sum-exp, 38.5 and 33.7."""
HELD = 0.87
"""What a long row held on chip takes of what the model says beside a walk: 1024 rows of 8192 numbers of float32 10.1 us, walked
10.3 (modelled 11.7 and 11.0), sums of sums of 4096 such rows 32.6 and 34.6. Not of so few rows that many multiprocessors have
none: softmax of 64 rows of 32000 16.8 held and 12.3 in parts (18.6 and 18.0), three sums of 64 rows of 16384 5.9
and 4.5 (9.4 and 9.6). Nor of a row that a multiprocessor holds alone and that is read once in any way: inertia of 1024 rows of
8192 masses, 128 KB each, 60.7 held and 46.2 by threads (48.3 and 40.7)."""
AGAIN = 0.94
"""What a row that is read twice by the only block of a multiprocessor takes of what the model says, beside one that many blocks
walk, and with :data:`BY_THREAD`. Of the ways measured of 21 rows on an H200 (docs/results/h200-2026-11-27-rows), from which it
and :data:`HELD` are, the model takes one that is 1.4 % slower than the best, at most 8 %. Measured and modelled, us, the one
and the other: softmax of 4096 rows of 65536 halves 317 (300) and 418 (333), of 1056 of 36864 71 (79) and 60 (49). It mends
the model, as these do; no fact of a part."""
EVEN = 0.8
"""How much of the multiprocessors' time must be taken where each has a row at a time: a preference, on any part."""
TRIED = 3
"""Numbers of splits, powers of two, that the model is asked about."""


def quickest(fused: Fused, rows: int, program: Program, target: Target) -> Program:
    """``program``, or what the model finds faster by more than it may be off, for so many ``rows``. A row that is held on chip
    needs no such distance (:data:`HELD`)."""
    others = list(_others(fused, rows, program, target))
    now = seconds(program, target) if others else None
    if now is None:
        return program
    found = [(t * distance, other) for other, distance in others if (t := seconds(other, target)) is not None]
    best, other = min(found, key=lambda f: f[0], default=(now, program))
    return other if best < now else program


def faster(ways: list[Program], target: Target) -> Program:
    """The one that the model finds fastest, the first where it knows of none."""
    found = [t if (t := seconds(way, target)) is not None else float("inf") for way in ways]
    return ways[found.index(min(found))]


def _others(fused: Fused, rows: int, program: Program, target: Target) -> Iterator[tuple[Program, float]]:
    """Other ways, each with what its time counts for."""
    extent = fused.cascade.extent(fused.cascade.raxis)
    if program.strategy in ("resident", "map") or not isinstance(extent, int):
        return
    few, cuda, held = 2 * rows < target.sms, target.kind == "cuda", on_chip(fused, target)
    if on_chip(fused, target, 2 * target.registers) if cuda else held:  # half of the registers' bytes
        filled = rows >= EVEN * target.sms
        alone = cuda and not on_chip(fused, target, target.registers) and not realise(fused, "multi", ALL).kernels[2:]
        yield realise(fused, "resident"), 1.0 if extent < LEAST or (filled and alone) else HELD if filled else ROWS_TIE
    ease = extent <= SHORT * ALL and on_chip(fused, target, 4 * SHORT * ALL)
    if cuda and not few and not (ease and rows <= SHORT * target.sms) and not branches(program.kernels[0]):
        whole = realise(fused, "multi", ALL)
        if whole.kernels[2:]:
            if not held and any(possible(whole, s) for s in EACH) and rows >= EVEN * target.sms * -(-rows // target.sms):
                yield whole, AGAIN
        else:
            threads = THREADS[:1] if rows <= target.sms else (*THREADS[1:], *THREADS[:1])
            ways = [realise(fused, "multi", t) for t in threads]
            yield from ((way, ROWS_TIE ** n) for n, way in enumerate(ways, 1) if any(possible(way, s) for s in EACH))
    if program.strategy == "multi":
        yield realise(fused, "single"), ROWS_TIE
    aim = log2(BLOCKS * target.sms / rows)
    powers = [k for k in range(1, max(1, extent // LEAST).bit_length()) if 1 << k != program.splits]
    for k in sorted(powers, key=lambda k: abs(k - aim))[:TRIED]:
        if (1 << k) * rows <= target.sms * target.max_threads // FEWEST:
            yield realise(fused, "multi", 1 << k), ROWS_TIE


def seconds(program: Program, target: Target) -> float | None:
    """What the model and measurements say of the first configuration; None where it does not lower, or is not known."""
    try:
        config = configs(program, target)[0]
        found = predicted(tensorize(program, config, target), target)
        return found * (BY_THREAD / ROWS_TIE if by_thread(program, config) else 1.0) if found is not None else None
    except LoweringError:
        return None
