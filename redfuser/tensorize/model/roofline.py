"""Predicted seconds of a kernel: the longest of what it asks for, the rest as far as nothing hides it, and its launch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from redfuser.acrf.expr import BYTES
from redfuser.target import Target
from redfuser.tensorize.ir.nodes import For, TileKernel, TileProgram
from redfuser.tensorize.model.layout import far_reductions
from redfuser.tensorize.model.registers import spilled
from redfuser.tensorize.model.room import lacks, needs, resident
from redfuser.tensorize.model.work import Work, work

ISSUE = 2.0
"""Instructions that are issued for one that the tile program shows: addresses, conditions, moves. Fitted to the MHA family on
an H200, as SPILL and the target's turn are to configurations measured there (docs/results/h200-2026-11-22-candidates)."""
SPILL = 4
"""Accesses to a spilled register in a turn: stored and loaded by either half of it."""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds, each as if nothing else took any: bytes (device memory, or one multiprocessor's port to the cache where that
    is slower), matrix, core (spilled registers included) and special (of the multiprocessor with the most blocks), and launch
    (with the waves and the turns of loops around products). chain: what the blocks of one place take one after the other,
    waiting for every load and every result."""

    bytes: float
    matrix: float
    core: float
    special: float
    launch: float
    chain: float
    overlap: int
    """Groups of warps on a multiprocessor that may do different things at once."""
    ahead: int
    """The same of loads and what is made of them: blocks, and what a block loads ahead."""

    @property
    def total(self) -> float:
        """Products and the rest overlap as far as there are other warps to do the one while some do the other, and so do
        loads and both."""
        rest = max(self.core, self.special)
        short, long = sorted((self.matrix, rest))
        less, more = sorted((self.bytes, long + short / self.overlap))
        return max(self.launch + more + less / self.ahead, self.chain)

    @property
    def bound(self) -> str:
        """The term that is longest."""
        return max(("bytes", "matrix", "core", "special", "launch"), key=lambda n: float(getattr(self, n)))


def predicted(program: TileProgram, target: Target) -> float | None:
    """Seconds of one call; None when a kernel does not fit."""
    times = [time_of(k, target) for k in program.kernels]
    return None if None in times else sum(t.total for t in times if t is not None)


def time_of(kernel: TileKernel, target: Target) -> Time | None:
    n = needs(kernel, target)
    if lacks(kernel, target, n.shared):
        return None
    done = work(kernel)
    blocks = prod(extent for _, extent in kernel.grid)
    held = max(1, resident(n, target))
    most = -(-blocks // target.sms)  # blocks of the busiest multiprocessor
    waves = -(-blocks // (target.sms * held))
    at_once, apart = min(held, most), n.threads > kernel.threads
    groups = max(1, kernel.threads // 128) if apart else 1
    port = most * sum(done.moved.values()) / (target.port * target.clock)
    matrix = sum(ops / (target.rates.get(dtype) or _plain(target) * target.sms) for dtype, ops in done.matrix.items())
    spills = SPILL * 4 * kernel.threads * max(1.0, done.turns) * spilled(kernel, target) / (target.local * target.clock)
    core = (ISSUE * done.core + done.special) / (target.lanes * target.clock)
    turns = done.turns * target.turn / target.clock if done.matrix else 0.0
    deep = max((s.stages for s in kernel.body if isinstance(s, For)), default=0)
    return Time(bytes=max(_unique(kernel, done, blocks) / target.bandwidth, port), matrix=most * target.sms * matrix,
                core=most * (core + spills), special=most * done.special / (target.special * target.clock),
                launch=target.launch + target.latency * (1 + (waves - 1) / held) + turns * most / at_once,
                chain=target.launch + waves * (turns + _waits(kernel, done, core, target)),
                overlap=groups * at_once, ahead=at_once * (1 + (deep > 1) + 2 * apart))


def _waits(kernel: TileKernel, done: Work, core: float, target: Target) -> float:
    """Seconds of a block alone: its first data, what the steps of its loops wait for, reductions across warps, and every
    instruction as late as it may be."""
    own = 0.0 if done.matrix else core * max(1.0, target.lanes * target.dependent / kernel.threads)
    meets = len(far_reductions(kernel, target)) * target.turn / target.clock
    return target.latency * (1 + done.steps) + meets + own


def _plain(target: Target) -> float:
    """Operations per second of a multiprocessor's CUDA cores, a fused multiply-add being two."""
    return 2 * target.lanes * target.clock


def _unique(kernel: TileKernel, done: Work, blocks: int) -> float:
    """Bytes that come from device memory once: what blocks share is in a cache."""
    size = {p.name: prod(p.shape) * BYTES[p.dtype] for p in kernel.params}
    return sum(min(size[n], moved * blocks) for n, moved in done.moved.items())
