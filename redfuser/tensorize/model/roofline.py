"""Predicted seconds of a kernel: the longest of what it asks for, the rest as far as nothing hides it, and its launch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from redfuser.acrf.expr import BYTES
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every, reads
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
UNSURE = 0.1
"""By how much an estimate of registers may be off: about half of them are by less."""
APART = 4
"""What a group of its own loads ahead."""
STAYS = 0.3
"""The part of the second-level cache that has what blocks read once and will read again: its halves hold the same lines, and
what is written goes through it. Softmaxes and norms of 1056 to 4096 rows of 28672 to 65536 halves, walked twice by blocks of
256 threads on an H200, take 1.0 to 1.4 times what the model says with it, 1.3 to 1.7 times what it said without."""
STEP = 2
"""Waves in which multiprocessors are in step, all of them waiting for memory or none; from then on what one leaves of it is
another's. Over 101 row kernels on an H200 (docs/results/h200-2026-11-27-rows) the model is off by a factor of 1.24 with it, in
the standard deviation, and has 68 of 96 pairs in order, without 1.27 and 61."""
SPILL = 4
"""Accesses to a spilled register in a turn: stored and loaded by either half of it."""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds, each as if nothing else took any: bytes (of device memory), port (of one multiprocessor to the cache), shared
    (memory), matrix, core (spilled registers included) and special (of the multiprocessor with the most blocks), waits (for
    what threads read themselves beside products), and launch (with the waves and the turns of loops around products). chain:
    what the blocks of one place take one after the other, waiting for every load and every result. total: all of it."""

    bytes: float
    port: float
    shared: float
    matrix: float
    core: float
    special: float
    waits: float
    launch: float
    chain: float
    total: float

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
    registers of a thread in memory. threads: those that compute. again: bytes that a block reads, and later once more."""

    done: Work
    needs: Needs
    count: int
    unique: float
    threads: int
    groups: int
    apart: bool
    deep: int
    spilled: float
    again: float = 0.0


@lru_cache(maxsize=256)
def time_of(kernel: TileKernel, target: Target) -> Time | None:
    n = needs(kernel, target)
    if lacks(kernel, target, n.shared):
        return None
    done, count, apart = work(kernel, target), prod(extent for _, extent in kernel.grid), n.threads > kernel.threads
    deep = max((2 if fetches_ahead(kernel, s) else s.stages for s in kernel.body if isinstance(s, For)), default=0)
    return timed(Blocks(done, n, count, _unique(kernel, done, count), kernel.threads, _groups(kernel) if apart else 1, apart,
                        deep, spilled(kernel, target), _again(kernel, done, count)), target)


def timed(b: Blocks, target: Target) -> Time:
    """The total is the mean over what its registers may come to: one more may be one block of a multiprocessor less. Warps that
    move registers have what they are launched with."""
    n, sure = b.needs, 0.0 if b.apart else UNSURE
    fewer, found, more = (_timed(b, max(1, resident(replace(n, registers=round(n.registers * by)), target)), target)
                          for by in (1 - sure, 1.0, 1 + sure))
    return replace(found, total=(fewer.total + found.total + more.total) / 3)


def _timed(b: Blocks, held: int, target: Target) -> Time:
    done = b.done
    waves = _waves(b.count, held, target)
    lost = max(0.0, 1 - STAYS * target.cache / (b.again * min(b.count, target.sms * held))) if b.again else 0.0
    unique = b.unique + b.count * b.again * lost
    matrix = sum(ops / _rate(target, dtype) for dtype, ops in done.matrix.items())
    spills = SPILL * 4 * b.threads * max(1.0, done.turns) * b.spilled / target.local
    core = (target.issue * done.core + done.special) / target.lanes + spills
    one = _One(port=sum(done.moved.values()) / target.port / target.clock, shared=done.shared / target.banks / target.clock,
               matrix=matrix, core=core / target.clock, special=done.special / target.special / target.clock,
               ends=min(done.ends, sum(done.moved.values())) / target.port / target.clock if done.matrix else 0.0,
               waits=done.waits * target.latency / b.groups,
               turns=done.turns * target.turn / target.clock if done.matrix else 0.0,
               bytes=unique / b.count / target.bandwidth)
    most = sum(times * n for times, n, _ in waves)
    first = target.latency + (target.start if b.apart else 0.0)
    begun = target.launch + target.latency + (sum(times for times, _, _ in waves) - 1) * first / held
    turns, waits = (sum(times * x for times, _, _ in waves) for x in (one.turns, one.waits))
    chain = target.launch + -(-b.count // (target.sms * held)) * (one.turns + _waits(b, one.core, target))
    total = begun
    for times, n, count in waves:
        together, behind = _together(one, n, count, b, target)
        total += times * together + (times if done.matrix else min(times, STEP)) * behind
    return Time(bytes=unique / target.bandwidth, port=most * one.port, shared=most * one.shared, matrix=most * one.matrix,
                core=most * one.core, special=most * one.special, waits=waits, launch=begun + turns, chain=chain,
                total=max(total, chain, target.launch + b.count / target.sms * target.begin))


@dataclass(frozen=True, slots=True)
class _One:
    """Seconds that one block has of its multiprocessor; bytes: that its data take of device memory."""

    port: float
    shared: float
    matrix: float
    core: float
    special: float
    waits: float
    turns: float
    ends: float
    bytes: float


def _waves(count: int, held: int, target: Target) -> list[tuple[float, int, int]]:
    """Times, blocks of a multiprocessor and blocks in all: as many as there is room for, and the rest, which has memory to
    itself and nobody to hide behind. Of many waves there is no last one: a block begins where another has ended."""
    room = target.sms * held
    if count > MANY * room:
        return [(count / room, held, room)]
    whole, rest = divmod(count, room)
    return [(n, per, blocks) for n, per, blocks in ((whole, held, room), (1, -(-rest // target.sms), rest)) if n and blocks]


def _together(one: _One, n: int, count: int, b: Blocks, target: Target) -> tuple[float, float]:
    """Seconds of ``n`` blocks of a multiprocessor, ``count`` of the device, that begin together, and what one of memory and
    the rest has to wait for the other. Matrix units run while their operands arrive. They and the rest overlap as far as there
    are other warps to do the one while some do the other, and so do loads and both."""
    short, long = sorted((_crowd(one.matrix, one.port - one.ends / n, one.shared), _crowd(one.core, one.special)))
    warps = max(1, b.threads // target.warp) if b.done.loose and not b.done.matrix else 1
    made = n * (long + short / (b.groups * warps * n ** 0.5)) + one.waits
    moved = count * one.bytes
    ahead = n * (1 + (b.deep > 1)) * (APART if b.apart else warps)
    fed = min(MANY, sum(b.done.moved.values()) // target.flight) if b.apart else 1
    behind = made / max(ahead, fed) if made < moved else moved / ahead
    return one.turns + one.ends + max(made, moved), behind


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


def _again(kernel: TileKernel, done: Work, blocks: int) -> float:
    """Bytes of a block's own that it visits in several loops, one after the other, beyond the first."""
    if done.matrix:
        return 0.0
    size = {p.name: prod(p.shape) * BYTES[p.dtype] / blocks for p in kernel.params}
    visits = Counter(n for s in kernel.body if isinstance(s, For) for n in {n for inner in every(s.body) for n in reads(inner)})
    return sum(min(visits[n] - 1, moved / size[n] - 1) * size[n] for n, moved in done.moved.items()
               if visits[n] > 1 and moved > size[n])
