"""What the next step reads on its way through registers, where nothing copies behind a program's back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import BYTES, Const, Expr, Index, Load, Op, walk
from redfuser.acrf.index import i64, iadd
from redfuser.tensorize.ir.effects import at_value, every, loads, reads, with_bodies, with_exprs, writes
from redfuser.tensorize.ir.nodes import Copy, Fill, For, Gemm, If, Parallel, ReduceTile, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer, Slice
from redfuser.tensorize.model.steps import trips

ROOM, ROWS_ROOM = 96, 16
"""Registers of a thread that may wait for the next step: of products, and of a row. 256 rows of 131072 halves on an H200, us,
in blocks of 256, 32 elements of a thread at once, and with as many on their way: log-sum-exp 20.6 and 18.8, norms 22.0 and
19.4, sums of sums 24.6 and 20.5; softmax in blocks of 1024 46.5 and 44.6. 64 of each on their way are slower than none."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A step's tiles are asked for while the step before computes, and wait in registers::

        for k in 0 .. n:                          copy b[0] -> b_next
          copy b[k] -> b_shared                   for k in 0 .. n:
          gemm a, b_shared -> s            -->      copy b_next -> b_shared
                                                    if k + 1 < n:
                                                      copy b[k + 1] -> b_next
                                                    gemm a, b_shared -> s

    So are the elements of a row that is walked (``pipelined``: without products there is nothing else that could do it).
    Requires several steps; with products in them a serial loop (``products``: where nothing else brings theirs) and shared
    tiles that threads can share and nothing else writes there, else tiles in registers; a tile that moves with the loop, that
    nothing before touches there, of tensors that the kernel does not write, at places that no data decide; and room in
    registers, for the tiles that come first. The first tile of a product is asked for also where the loop takes no step.
    Adds no rounding."""

    products: bool = False

    def __call__(self, kernel: TileKernel) -> TileKernel:
        work = _Ahead(kernel, self.products, {b.name: b for b in kernel.buffers}, {p.name for p in kernel.params} - {
            n for s in every(kernel.body) for n in writes(s)}, [])
        body = work.within(kernel.body)
        return kernel if body == kernel.body else replace(kernel, body=body, buffers=(*kernel.buffers, *work.made))


@dataclass(frozen=True, slots=True)
class _Ahead:
    """given: parameters that nothing writes. made: the tiles that wait."""

    kernel: TileKernel
    products: bool
    buffers: dict[str, Buffer]
    given: set[str]
    made: list[Buffer]

    def within(self, body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
        return tuple(k for s in body for k in self.ahead(with_bodies(s, self.within)))

    def ahead(self, s: TileStmt) -> Iterator[TileStmt]:
        if isinstance(s, For) and trips(s) != 1 and (room := self.room(s)):
            waits: dict[int, Buffer] = {}
            for n, k in enumerate(s.body):
                tile = self.asks(s, n, k) if isinstance(k, (Copy, Parallel)) else ""
                if tile and isinstance(k, (Copy, Parallel)) and (b := self.waiting(tile, room)) is not None:
                    waits[id(k)] = b
                    self.made.append(b)
                    yield self.at(s, _into(k, b.name), s.start)
            s = replace(s, body=tuple(k for x in s.body for k in (
                self.handed_on(s, x, waits[id(x)].name) if id(x) in waits and isinstance(x, (Copy, Parallel)) else (x,))))
        yield replace(s, stages=0) if isinstance(s, For) and not any(isinstance(k, Gemm) for k in every(s.body)) else s

    def room(self, loop: For) -> int:
        """Registers for what waits, 0 where nothing should."""
        if any(isinstance(k, Gemm) for k in loop.body):
            return ROOM if self.products and not loop.stages else 0
        plain = all(isinstance(k, (Copy, Parallel, ReduceTile, Fill)) for k in loop.body)
        return ROWS_ROOM if loop.stages > 1 and plain and trips(loop) is not None else 0

    def asks(self, loop: For, place: int, s: Copy | Parallel) -> str:
        """The tile that a statement fills with what is another in every step; none where anything before it in the loop touches
        that, or what it is filled with is not as it was given."""
        products = any(isinstance(k, Gemm) for k in loop.body)
        if isinstance(s, Copy):
            tile, starts = s.dst.buffer if not s.dst.dims else "", [d.start for d in s.src.dims]
            sources = {s.src.buffer} | {x.tensor for e in starts for x in walk(e) if isinstance(x, Load)}
        elif len(s.body) == 1 and not products:
            (a,) = s.body
            tile, starts, sources = a.target, [a.expr], set(loads(a.expr))
            if a.indices != tuple(map(Index, s.vars)) or not isinstance(a.expr, Load) or len(sources) > 1 or \
                    s.extents != self.buffers.get(a.target, _NONE).shape:
                return ""
        else:
            return ""
        moves = any(Index(loop.var) == x for e in starts for x in walk(e))
        others = loop.body[:place] + (loop.body[place + 1:] if products else ())
        touched = {n for k in loop.body[:place] for n in reads(k)} | {n for k in others for n in writes(k)}
        return tile if moves and sources <= self.given and tile in self.buffers and tile not in touched else ""

    def waiting(self, name: str, room: int) -> Buffer | None:
        """What a tile waits in; None where threads cannot share it, or have no room."""
        tile = self.buffers[name]
        taken = sum(_registers(b, self.kernel.threads) for b in self.made)
        if tile.scope != ("shared" if room == ROOM else "fragment") or prod(tile.shape) % self.kernel.threads or \
                taken + _registers(tile, self.kernel.threads) > room:
            return None
        used = {*self.buffers, *(p.name for p in self.kernel.params), *(b.name for b in self.made)}
        stem = name.removesuffix("_shared")
        return replace(tile, name=next(n for k in range(99) if (n := f"{stem}_next{k or ''}") not in used), scope="fragment")

    def handed_on(self, loop: For, s: Copy | Parallel, name: str) -> tuple[TileStmt, ...]:
        after = iadd(Index(loop.var), i64(1))
        fetch = self.at(loop, replace(_into(s, name), comment=""), after)
        tile = s.dst if isinstance(s, Copy) else Slice(s.body[0].target)
        return Copy(Slice(name), tile, s.comment), If(Op("lt", (after, loop.stop), "bool"), (fetch,))

    def at(self, loop: For, s: Copy | Parallel, step: Expr) -> TileStmt:
        """What a statement asks for in a step. The places of single elements are simplified: a compiler sees neighbours in
        ``k * 16 + j // 8 * 4096 + j % 8``, none in ``((k + 1) * 16 + j) // 8 * 4096 + ((k + 1) * 16 + j) % 8``."""
        s = at_value(s, loop.var, step)
        if not isinstance(s, Parallel):
            return s
        last = int(loop.stop.value) if isinstance(loop.stop, Const) else _FAR
        places = Indices({**dict(self.kernel.grid), loop.var: last, **dict(zip(s.vars, s.extents, strict=True))})
        return with_exprs(s, lambda e: replace(e, indices=tuple(map(places.simplify, e.indices))) if isinstance(e, Load) else e)


_NONE = Buffer("", "local", "f32", ())
_FAR = 1 << 40
"""An extent that no range says anything of."""


def _into(s: Copy | Parallel, name: str) -> Copy | Parallel:
    if isinstance(s, Copy):
        return replace(s, dst=Slice(name))
    return replace(s, body=tuple(replace(a, target=name) for a in s.body))


def _registers(b: Buffer, threads: int) -> int:
    return -(-prod(b.shape) * BYTES[b.dtype] // (4 * threads))
