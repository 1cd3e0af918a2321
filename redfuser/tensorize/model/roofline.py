"""Predicted seconds of a kernel: the longest of what it asks for, the rest as far as nothing hides it, and its launch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from redfuser.acrf.expr import BYTES
from redfuser.target import Target
from redfuser.tensorize.ir.nodes import For, Roles, TileKernel, TileProgram
from redfuser.tensorize.model.registers import spilled
from redfuser.tensorize.model.room import Needs, lacks, needs, resident
from redfuser.tensorize.model.steps import fetches_ahead
from redfuser.tensorize.model.work import Work, work

CROWD = 8
"""How sharply units that run side by side go from the slower one's time to more than that: the power of the mean by which the
times of each are put together. Two that take as long each take 1.09 times as long together."""
MANY = 16
"""Waves of blocks from which on multiprocessors have as much to do, one as the other."""
APART = 4
"""What a group of its own loads ahead."""
SPILL = 4
"""Accesses to a spilled register in a turn: stored and loaded by either half of it."""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds, each as if nothing else took any: bytes (of device memory), port (of one multiprocessor to the cache), shared
    (memory), matrix, core (spilled registers included) and special (of the multiprocessor with the most blocks), waits (for
    what threads read themselves beside products), and launch (with the waves and the turns of loops around products). chain:
    what the blocks of one place take one after the other, waiting for every load and every result."""

    bytes: float
    port: float
    shared: float
    matrix: float
    core: float
    special: float
    waits: float
    launch: float
    chain: float
    overlap: float
    """Groups of warps on a multiprocessor that may do different things at once."""
    ahead: int
    """The same of loads and what is made of them: blocks, and what a block loads ahead."""
    fed: float
    """The same where memory is what bounds and a group of its own copies: all but what is made of the data that come last."""

    @property
    def total(self) -> float:
        """Matrix units run while their operands arrive. They and the rest overlap as far as there are other warps to do the
        one while some do the other, and so do loads and both."""
        short, long = sorted((_crowd(self.matrix, self.port, self.shared), _crowd(self.core, self.special) + self.waits))
        made = long + short / self.overlap
        behind = made / max(self.ahead, self.fed) if made < self.bytes else self.bytes / self.ahead
        return max(self.launch + max(made, self.bytes) + behind, self.chain)

    @property
    def limit(self) -> str:
        """What :attr:`total` is due to: ``chain``, or the longest term."""
        return "chain" if self.total <= self.chain else self.bound

    @property
    def bound(self) -> str:
        """The term that is longest."""
        return max(("bytes", "port", "shared", "matrix", "core", "special", "launch"), key=lambda n: float(getattr(self, n)))


def _crowd(*times: float) -> float:
    return float(sum(t ** CROWD for t in times) ** (1 / CROWD))


def predicted(program: TileProgram, target: Target) -> float | None:
    """Seconds of one call; None when a kernel does not fit."""
    times = [time_of(k, target) for k in program.kernels]
    return None if None in times else sum(t.total for t in times if t is not None)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A kernel as the roofline sees it. done: by one block, ``count`` of them. unique: bytes of device memory that come once.
    groups: warp groups that compute at their own pace; apart: others copy for them. deep: stages of a pipelined loop. spilled:
    registers of a thread in memory. threads: those that compute."""

    done: Work
    needs: Needs
    count: int
    unique: float
    threads: int
    groups: int
    apart: bool
    deep: int
    spilled: float


def time_of(kernel: TileKernel, target: Target) -> Time | None:
    n = needs(kernel, target)
    if lacks(kernel, target, n.shared):
        return None
    done, count, apart = work(kernel, target), prod(extent for _, extent in kernel.grid), n.threads > kernel.threads
    deep = max((2 if fetches_ahead(kernel, s) else s.stages for s in kernel.body if isinstance(s, For)), default=0)
    return timed(Blocks(done, n, count, _unique(kernel, done, count), kernel.threads, _groups(kernel) if apart else 1, apart,
                        deep, spilled(kernel, target)), target)


def timed(b: Blocks, target: Target) -> Time:
    done, held = b.done, max(1, resident(b.needs, target))
    waves = -(-b.count // (target.sms * held))
    most: float = -(-b.count // target.sms)  # blocks of the busiest multiprocessor
    at_once = min(held, int(most))
    if waves > MANY:
        most = b.count / target.sms  # what one has more than another is little
    per = most / target.clock
    matrix = sum(ops / _rate(target, dtype) for dtype, ops in done.matrix.items())
    spills = SPILL * 4 * b.threads * max(1.0, done.turns) * b.spilled / target.local
    core = (target.issue * done.core + done.special) / target.lanes + spills
    turns = done.turns * target.turn / target.clock if done.matrix else 0.0
    first = target.latency + (target.start if b.apart else 0.0)
    warps = max(1, b.threads // target.warp) if done.loose and not done.matrix else 1
    ahead = at_once * (1 + (b.deep > 1)) * (APART if b.apart else warps)
    return Time(bytes=b.unique / target.bandwidth, port=per * sum(done.moved.values()) / target.port,
                shared=per * done.shared / target.banks, matrix=most * matrix, core=per * core,
                special=per * done.special / target.special, waits=most * done.waits * target.latency / (b.groups * at_once),
                launch=target.launch + target.latency + (waves - 1) * first / held + turns * most / at_once,
                chain=target.launch + waves * (turns + _waits(b, core / target.clock, target)),
                overlap=b.groups * warps * at_once ** 0.5, ahead=ahead,
                fed=min(MANY, sum(done.moved.values()) // target.flight) if b.apart else 1)


def _groups(kernel: TileKernel) -> int:
    """Warp groups of a block that compute, each at its own pace."""
    if isinstance(roles := kernel.body[-1], Roles):
        return sum(r.groups for r in roles.roles) - 1
    return max(1, kernel.threads // 128)


def _rate(target: Target, dtype: str) -> float:
    """Operations per second of a multiprocessor; of its CUDA cores, a fused multiply-add being two, where the matrix units do
    not have the type."""
    return target.rates[dtype] / target.sms if dtype in target.rates else 2 * target.lanes * target.clock


def _waits(b: Blocks, core: float, target: Target) -> float:
    """Seconds of a block alone: its first data, what the steps of its loops wait for, reductions across warps, and every
    instruction as late as it may be."""
    own = 0.0 if b.done.matrix else core * max(1.0, target.lanes * target.dependent / b.threads)
    own = max(own, target.latency * b.done.hidden)
    return target.latency * (1 + b.done.steps) + b.done.meets * target.turn / target.clock + own


def _unique(kernel: TileKernel, done: Work, blocks: int) -> float:
    """Bytes that come from device memory once: what blocks share is in a cache."""
    size = {p.name: prod(p.shape) * BYTES[p.dtype] for p in kernel.params}
    return sum(min(size[n], moved * blocks) for n, moved in done.moved.items())
