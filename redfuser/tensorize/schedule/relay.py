"""Warp groups that weigh, and warp groups that add up what was weighed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from redfuser.acrf.expr import Expr, Index, Load, map_children
from redfuser.acrf.index import i64, iadd, imax, isub
from redfuser.target import Target
from redfuser.tensorize.ir.effects import Names, every, reads, with_exprs, writes
from redfuser.tensorize.ir.flight import Arrive, Await, Drain, Meet, Send, Sent
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, Parallel, ReduceTile, Role, Roles, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import At, Barrier, Buffer, Slice
from redfuser.tensorize.schedule.counts import counts
from redfuser.tensorize.schedule.roles import GROUP, ROWS, Plan, plan
from redfuser.tensorize.schedule.specialise import KEPT, Parts

STEP = 8
"""Registers that a role may have more or fewer of."""
MOST = 240
"""Of a thread."""
BESIDES = 32
"""Registers of a thread that accumulates besides its accumulators: what else there is goes to those that weigh (128 x 4096 of
latent attention: .2715 ms with 184 and 120 registers, .2694 with 160 and 168; one H200, in a graph)."""


@dataclass(frozen=True, slots=True)
class Relay:
    """An accumulator of so many columns that several warp groups share them is left to those; one more computes what it is fed
    with, a step ahead, and hands it over::

        for k in 0 .. 8 pipelined 2:              roles:
          copy x[k * 64 +: 64, ..] -> x_shared      role accumulate of 2:
          gemm q, x_shared^T -> s clear cols          for k in 0 .. 8:
          c, s = f(s)                                   await handed_full[0] phase k
          o = o * c                                     o = o * c_handed
          copy s -> w_shared                  -->       gemm w_shared, x_shared[k % 2] -> o async cols;  drain 0 for o
          gemm w_shared, x_shared -> o cols             arrive x_empty[k % 2];  arrive handed_empty[0] each
                                                    role weigh of 1:
                                                      for k in 0 .. 8:
                                                        gemm q, x_shared[k % 2]^T -> s clear async;  drain 0 for s
                                                        c, s = f(s)
                                                        await handed_empty[0] phase k - 1
                                                        copy s -> w_shared;  copy c -> c_handed
                                                        arrive handed_full[0] each
                                                    role copy of 1: ...

    The weights' products and what is computed of them run beside the accumulators' products; where there are several of those,
    the second is corrected under the first's product. What is handed over single threads write and read, so that each of them
    arrives. Requires a loop that feeds
    accumulators from one tile that it writes, rows of one warp group, and that what weighs reads nothing that is accumulated.
    Every value is computed from the same values in the same order, and a row's reductions within one group: no rounding
    changes."""

    target: Target

    def __call__(self, kernel: TileKernel) -> TileKernel:
        loops = [s for s in kernel.body if isinstance(s, For)]
        fed = _fed(kernel, loops[0]) if len(loops) == 1 else None
        if fed is None:
            return kernel
        found = plan(kernel, self.target, frozenset({fed.weights}))
        if found is None or found.outer is not None:
            return kernel
        return _Relayed(found, Parts(found, self.target), fed, self.target).kernel() or kernel


@dataclass(frozen=True, slots=True)
class _Fed:
    """The tile that feeds the accumulators."""

    weights: str
    accumulators: frozenset[str]


def _fed(kernel: TileKernel, loop: For) -> _Fed | None:
    shared = {b.name: b for b in kernel.buffers if b.scope == "shared"}
    written = {s.dst.buffer for s in loop.body if isinstance(s, Copy) and s.dst.buffer in shared and not s.dst.dims
               and s.src.buffer not in {p.name for p in kernel.params}}
    products = [s for s in loop.body if isinstance(s, Gemm)]
    last = [s for s in products if s.a.buffer in written]
    rows = {b.shape[0] for b in kernel.buffers if b.scope == "fragment"}
    if len(written) != 1 or not last or len(last) == len(products) or rows != {ROWS} or kernel.threads < 2 * GROUP or any(
            s.clear or s.policy != "cols" for s in last):
        return None
    return _Fed(written.pop(), frozenset(s.c for s in last))


class _Relayed:
    """The roles of a kernel whose compute role is parted."""

    def __init__(self, plan: Plan, parts: Parts, fed: _Fed, target: Target) -> None:
        self.plan, self.parts, self.fed, self.target = plan, parts, fed, target
        self.names = Names(plan.kernel)
        self.full, self.empty = self.names.fresh("handed_full"), self.names.fresh("handed_empty")
        self.tiles = {r.full: b for b, r in plan.rings.items()} | {r.empty: b for b, r in plan.rings.items()}
        self.fragments = {b.name: b for b in plan.kernel.buffers if b.scope == "fragment"}
        self.handed: dict[str, str] = {}

    def kernel(self) -> TileKernel | None:
        p, source = self.plan, self.plan.kernel
        body = self.parts.computing
        at = next(i for i, s in enumerate(body) if isinstance(s, For))
        loop = body[at]
        assert isinstance(loop, For)
        before, steps, after = (self.parted(part) for part in (body[:at], loop.body, body[at + 1:]))
        weighs = [s for front, _ in (before, steps, after) for s in front]
        own = {n for s in weighs for n in writes(s)}
        theirs = {n for _, back in (before, steps, after) for s in back for n in writes(s)} & set(self.fragments)
        shared = {b.name for b in source.buffers if b.scope == "shared"}
        if any((reads(s) | writes(s)) & theirs for s in weighs) or any(reads(s) & own & set(self.fragments) for s in before[1]):
            return None
        if any(isinstance(s, ReduceTile) for s in (*steps[1], *after[1])) or not self.settled(own):
            return None
        count = isub(Index(loop.var), loop.start)
        front, back = self.step(*steps, count)
        if front is None:
            return None
        steps_made = isub(loop.stop, loop.start)
        if 0 in counts(source, p.loop):  # or fewer: a loop may stop before it starts
            steps_made = imax(steps_made, i64(0))
        late_front, late_back = self.end(*after, own, steps_made)
        if any(n in self.fragments and n in own for s in (*back, *late_back) for n in reads(s)) or any(
                n in shared - set(p.rings) - {self.fed.weights, *self.handed.values()} for s in front for n in writes(s)):
            return None
        weigh = (*before[0], replace(loop, body=tuple(front)), *late_front)
        accumulate = (*before[1], replace(loop, body=tuple(back), comment=""), *late_back)
        held = sum(prod(self.fragments[n].shape) for n in self.fed.accumulators) // source.threads
        few, most = _registers(held, source.threads, p.groups, self.target)
        roles = (Role("accumulate", p.groups, most, accumulate), Role("weigh", 1, few, weigh),
                 Role("copy", 1, KEPT, self.parts.copying))
        told = [Barrier(self.full, 1, 1), Barrier(self.empty, 1, p.groups)]
        arriving = {s.at.barrier: r.groups for r in roles for s in every(r.body) if isinstance(s, Arrive)}
        for r in p.rings.values():
            told += [Barrier(r.full, r.slots, 1), *([Barrier(r.empty, r.slots, arriving[r.empty])] if r.again else [])]
        handed = [Buffer(to, "shared", self.fragments[n].dtype, self.fragments[n].shape) for n, to in self.handed.items()]
        return replace(source, buffers=(*self.parts.buffers, *handed), barriers=tuple(told), body=(Roles(roles),),
                       warp_specialized=False)

    def settled(self, own: set[str]) -> bool:
        """Has a row's value, where what accumulates reads it, the value that it has at the end of the step?"""
        body = self.plan.loop.body
        first = min(i for i, s in enumerate(body) if (reads(s) | writes(s)) & self.fed.accumulators)
        read = {n for s in body if writes(s) & self.fed.accumulators for n in reads(s)} & own & set(self.fragments)
        return not any(writes(s) & read for s in body[first:])

    def parted(self, body: Iterable[TileStmt]) -> tuple[list[TileStmt], list[TileStmt]]:
        """Of a statement list, what weighs and what accumulates. A tile is given back by whoever reads it last; whoever reads
        one awaits it."""
        front: list[TileStmt] = []
        back: list[TileStmt] = []
        waits: dict[str, Await] = {}
        staged: set[str] = set()
        listed = list(body)
        for s in listed:
            if isinstance(s, Await):
                waits[self.tiles[s.at.barrier]] = s
                continue
            late = bool((reads(s) | writes(s)) & (self.fed.accumulators | staged))
            if isinstance(s, Drain):
                late = bool(set(s.done) & self.fed.accumulators)
            elif isinstance(s, Arrive):
                tile = self.tiles[s.at.barrier]
                late = any(tile in reads(k) for k in back)
            elif isinstance(s, (Meet, Send, Sent)):
                late = True
            if isinstance(s, Copy) and late:
                staged.add(s.dst.buffer)
            mine = back if late else front
            touched = {n for k in every((s,)) for n in reads(k)}
            mine += [w for b, w in waits.items() if b in touched and w not in mine]
            mine.append(s)
        front += [w for w in waits.values() if w not in front and w not in back]  # read in the loop behind
        return _together(front, self.tiles), _together(back, self.tiles)

    def step(self, front: list[TileStmt], back: list[TileStmt],
             count: Expr) -> tuple[list[TileStmt] | None, list[TileStmt]]:
        """A step's two halves, with what is handed over between them."""
        copies = [s for s in front if isinstance(s, Copy) and s.dst.buffer == self.fed.weights]
        over = copies[0] if len(copies) == 1 else None
        if over is None or any(writes(s) & reads(over) for s in front[front.index(over) + 1:]):
            return None, back
        front = [s for s in front if s is not over]
        given, back = self.taken(back, {n for s in front for n in writes(s)})
        return ([*(replace(s, policy="rows") if isinstance(s, Gemm) else s for s in front),
                 Await(At(self.empty, i64(0)), iadd(count, i64(-1))), *given, over,
                 Arrive(At(self.full, i64(0)), each=True)],
                [Await(At(self.full, i64(0)), count), *back, Arrive(At(self.empty, i64(0)), each=True)])

    def end(self, front: list[TileStmt], back: list[TileStmt], own: set[str],
            count: Expr) -> tuple[list[TileStmt], list[TileStmt]]:
        """What is done behind the loop. Results may leave through the room of what the weights were made of, so that they are
        handed over even where no row's value is."""
        given, back = self.taken(back, own)
        return ([*front, Await(At(self.empty, i64(0)), iadd(count, i64(-1))), *given,
                 Arrive(At(self.full, i64(0)), each=True)], [Await(At(self.full, i64(0)), count), *back])

    def taken(self, back: list[TileStmt], own: set[str]) -> tuple[list[TileStmt], list[TileStmt]]:
        """Copies of the row vectors that ``back`` reads and the other role has, and ``back`` reading them in shared memory."""
        wanted = sorted({n for s in back for n in reads(s) if n in own and n in self.fragments
                         and len(self.fragments[n].shape) == 1})
        for n in wanted:
            self.handed.setdefault(n, self.names.fresh(f"{n}_handed"))

        def value(e: Expr) -> Expr:
            e = map_children(e, value)
            return Load(self.handed[e.tensor], e.indices, e.dtype) if isinstance(e, Load) and e.tensor in wanted else e

        return ([Copy(Slice(n), Slice(self.handed[n])) for n in wanted],
                [with_exprs(s, value) if isinstance(s, Parallel) else s for s in back])


def _together(body: list[TileStmt], tiles: dict[str, str]) -> list[TileStmt]:
    """Products that follow each other are started one behind the other, each as soon as what it adds to is ready, and awaited
    one by one; a tile is given back behind its last one. tiles: by the barrier at which that is said."""
    return list(_runs(_when_needed(body), tiles))


def _when_needed(body: list[TileStmt]) -> list[TileStmt]:
    """Maps right before what needs them first, where that is a product."""
    out = list(body)
    for s in reversed(body):
        if isinstance(s, Parallel):
            at = next(i for i, k in enumerate(out) if k is s)
            to = next((i for i in range(at + 1, len(out)) if _touched(out[i]) & writes(s) or writes(out[i]) & reads(s)), at)
            if isinstance(out[to], Gemm):
                while isinstance(out[to - 1], Await):
                    to -= 1
                out[at:to] = [*out[at + 1:to], s]
    return out


def _touched(s: TileStmt) -> set[str]:
    return reads(s) | writes(s) | (set(s.done) if isinstance(s, Drain) else set())


def _runs(body: list[TileStmt], tiles: dict[str, str]) -> Iterator[TileStmt]:
    run: list[TileStmt] = []
    for s in [*body, None]:
        busy = {n for k in run if isinstance(k, Gemm) for n in _touched(k)}
        if isinstance(s, (Gemm, Await, Drain, Arrive)) or (isinstance(s, Parallel) and busy and not _touched(s) & busy):
            run.append(s)
            continue
        products = [k for k in run if isinstance(k, Gemm)]
        yield from (k for k in run if not isinstance(k, (Drain, Arrive)))
        for i, k in enumerate(products):
            later = products[i + 1:]
            if all(k.c != p.c for p in later):
                yield Drain(len(later), (k.c,))
                left = {n for p in later for n in reads(p)}
                free = [a for a in run if isinstance(a, Arrive) and tiles[a.at.barrier] not in left]
                yield from free
                run = [a for a in run if a not in free]
        yield from (a for a in run if isinstance(a, Arrive))
        run = []
        if s is not None:
            yield s


def _registers(accumulators: int, threads: int, groups: int, target: Target) -> tuple[int, int]:
    """Registers of a thread that weighs and of one that accumulates (which holds so many accumulators)."""
    own = target.registers // (threads + 2 * GROUP) // STEP * STEP
    left = own * (groups + 2) - KEPT
    most = min((accumulators + BESIDES) // STEP * STEP, (left - own + STEP) // groups // STEP * STEP)
    return min(MOST, left - most * groups), most
