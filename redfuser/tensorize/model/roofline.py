"""Predicted seconds of a kernel: the longest of what it asks for, per target, and what launching it costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from redfuser.acrf.expr import BYTES
from redfuser.target import Target
from redfuser.tensorize.ir.nodes import TileKernel, TileProgram
from redfuser.tensorize.model.room import lacks, needs, resident
from redfuser.tensorize.model.work import Work, work

FILL = 1.5e-6
"""Seconds until the first data of a block have arrived and the last are stored; other blocks of a multiprocessor hide it."""
ISSUE = 2.0
"""Instructions that are issued for one that the tile program shows: addresses, conditions, moves. Fitted to the MHA family on
an H200, as FILL is; nothing else of the prediction is fitted."""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds, each as if nothing else took any: bytes (device memory, or one multiprocessor's port to the cache where that
    is slower), matrix, core and special (of the multiprocessor with the most blocks), and launch (with the waves)."""

    bytes: float
    matrix: float
    core: float
    special: float
    launch: float
    overlap: int
    """Groups of warps on a multiprocessor that may do different things at once."""

    @property
    def total(self) -> float:
        """Products and the rest overlap as far as there are other warps to do the one while some do the other."""
        rest = max(self.core, self.special)
        short, long = sorted((self.matrix, rest))
        return self.launch + max(self.bytes, long + short / self.overlap)

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
    groups = max(1, kernel.threads // 128) if n.threads > kernel.threads else 1
    port = most * sum(done.moved.values()) / (target.port * target.clock)
    matrix = sum(ops / (target.rates.get(dtype) or _plain(target) * target.sms) for dtype, ops in done.matrix.items())
    return Time(bytes=max(_unique(kernel, done, blocks) / target.bandwidth, port), matrix=most * target.sms * matrix,
                core=most * (ISSUE * done.core + done.special) / (target.lanes * target.clock),
                special=most * done.special / (target.special * target.clock),
                launch=target.launch + FILL * (1 + (waves - 1) / held), overlap=groups * min(held, most))


def _plain(target: Target) -> float:
    """Operations per second of a multiprocessor's CUDA cores, a fused multiply-add being two."""
    return 2 * target.lanes * target.clock


def _unique(kernel: TileKernel, done: Work, blocks: int) -> float:
    """Bytes that come from device memory once: what blocks share is in a cache."""
    size = {p.name: prod(p.shape) * BYTES[p.dtype] for p in kernel.params}
    return sum(min(size[n], moved * blocks) for n, moved in done.moved.items())
