"""Operands of the next step on their way through registers, where nothing copies behind a program's back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from redfuser.acrf.expr import BYTES, Index, Load, Op, walk
from redfuser.acrf.index import i64, iadd
from redfuser.tensorize.ir.effects import at_value, every, with_bodies, writes
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, If, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer, Slice
from redfuser.tensorize.model.steps import trips

ROOM = 96
"""Registers of a thread that may wait for the next step."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A step's tiles are asked for while the step before computes, and wait in registers::

        for k in 0 .. n:                          copy b[0] -> b_next
          copy b[k] -> b_shared                   for k in 0 .. n:
          gemm a, b_shared -> s            -->      copy b_next -> b_shared
                                                    if k + 1 < n:
                                                      copy b[k + 1] -> b_next
                                                    gemm a, b_shared -> s

    Requires a serial loop of several steps with products in it; a tile that moves with it, that this copy alone writes there,
    of a tensor that the kernel does not write; threads that can share it; and room in registers, for the tiles that come first.
    The first copy is made also where the loop takes no step. Adds no rounding."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        work = _Ahead(kernel, {b.name: b for b in kernel.buffers}, {p.name for p in kernel.params} - {
            n for s in every(kernel.body) for n in writes(s)}, [])
        body = work.within(kernel.body)
        return replace(kernel, body=body, buffers=(*kernel.buffers, *work.made)) if work.made else kernel


@dataclass(frozen=True, slots=True)
class _Ahead:
    """given: parameters that nothing writes. made: the tiles that wait."""

    kernel: TileKernel
    buffers: dict[str, Buffer]
    given: set[str]
    made: list[Buffer]

    def within(self, body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
        return tuple(k for s in body for k in self.ahead(with_bodies(s, self.within)))

    def ahead(self, s: TileStmt) -> Iterator[TileStmt]:
        if isinstance(s, For) and not s.stages and trips(s) != 1 and any(isinstance(k, Gemm) for k in s.body):
            waits: dict[int, Buffer] = {}
            for k in s.body:
                if isinstance(k, Copy) and self.moves(s, k) and (b := self.waiting(k.dst.buffer)) is not None:
                    waits[id(k)] = b
                    self.made.append(b)
                    yield at_value(replace(k, dst=Slice(b.name)), s.var, s.start)
            s = replace(s, body=tuple(k for x in s.body for k in (
                _handed_on(s, x, waits[id(x)].name) if id(x) in waits and isinstance(x, Copy) else (x,))))
        yield s

    def moves(self, loop: For, s: Copy) -> bool:
        """A tile of a tensor that is another in every step, and that nothing else writes in the loop."""
        starts = [x for d in s.src.dims for x in walk(d.start)]
        return s.src.buffer in self.given and Index(loop.var) in starts and not s.dst.dims \
            and all(x.tensor in self.given for x in starts if isinstance(x, Load)) \
            and sum(s.dst.buffer in writes(k) for k in every(loop.body) if not isinstance(k, (For, If))) == 1

    def waiting(self, name: str) -> Buffer | None:
        """What a tile waits in; None where threads cannot share it, or have no room."""
        tile = self.buffers[name]
        taken = sum(_registers(b, self.kernel.threads) for b in self.made)
        if tile.scope != "shared" or prod(tile.shape) % self.kernel.threads or \
                taken + _registers(tile, self.kernel.threads) > ROOM:
            return None
        used = {*self.buffers, *(p.name for p in self.kernel.params), *(b.name for b in self.made)}
        stem = name.removesuffix("_shared")
        return replace(tile, name=next(n for k in range(99) if (n := f"{stem}_next{k or ''}") not in used), scope="fragment")


def _handed_on(loop: For, s: Copy, name: str) -> tuple[TileStmt, ...]:
    after = iadd(Index(loop.var), i64(1))
    fetch = at_value(replace(s, dst=Slice(name), comment=""), loop.var, after)
    return replace(s, src=Slice(name)), If(Op("lt", (after, loop.stop), "bool"), (fetch,))


def _registers(b: Buffer, threads: int) -> int:
    return -(-prod(b.shape) * BYTES[b.dtype] // (4 * threads))
