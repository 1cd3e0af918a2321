"""Warp groups with roles: one copies, the others compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from redfuser.acrf.expr import Expr, Index, Load, map_children
from redfuser.acrf.index import i64, iadd, ifloordiv, imod, imul, isub
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every, reads, with_exprs
from redfuser.tensorize.ir.flight import Arrive, Await, Drain, Fetch, Let, Meet, Send, Sent
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, If, Role, Roles, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import At, Barrier, Buffer, Dim, Slice
from redfuser.tensorize.schedule.roles import GROUP, Plan, Ring, plan

KEPT = 24
"""Registers that a thread keeps which only starts copies."""


@dataclass(frozen=True, slots=True)
class Specialise:
    """A pipelined loop around products becomes two roles, with a ring of slots for each tile that it brings::

        for k in 0 .. 8 pipelined 2:                roles:
          copy x1[k * 64 +: 64, ..] -> x1_shared      role compute of 2 registers 240:
          gemm q, x1_shared^T -> s clear                for k in 0 .. 8:
                                                          await x1_full[k % 2] phase k // 2
                                             -->          gemm q, x1_shared[k % 2, ..]^T -> s clear async
                                                          drain 0 for s
                                                          arrive x1_empty[k % 2]
                                                      role copy of 1 registers 24:
                                                        for k in 0 .. 8:
                                                          await x1_empty[k % 2] phase k // 2 - 1
                                                          fetch x1[..] -> x1_shared[k % 2, ..] signals x1_full[k % 2]

    In a loop over tiles the rings go round from tile to tile, and what a tile brings once has a ring of two. Requires what
    :func:`redfuser.tensorize.schedule.roles.plan` asks. Adds no rounding."""

    target: Target

    def __call__(self, kernel: TileKernel) -> TileKernel:
        found = plan(kernel, self.target)
        return kernel if found is None else Parts(found, self.target).kernel()


@dataclass(frozen=True, slots=True)
class Parts:
    """What each role does of a kernel that has a plan."""

    plan: Plan
    target: Target

    def kernel(self) -> TileKernel:
        """The kernel with roles of those that compute and those that copy."""
        p = self.plan
        most = _registers(p.kernel.threads, p.groups, self.target)
        roles = (Role("compute", p.groups, most, self.computing), Role("copy", 1, KEPT if most else 0, self.copying))
        barriers = tuple(b for r in p.rings.values() for b in (
            Barrier(r.full, r.slots, 1), *([Barrier(r.empty, r.slots, p.groups)] if r.again else [])))
        return replace(p.kernel, buffers=self.buffers, barriers=barriers, body=(Roles(roles),), warp_specialized=False)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The kernel's, those of rings with their slots."""
        p = self.plan
        return tuple(replace(b, shape=(p.rings[b.name].slots, *b.shape)) if p.slotted(b.name) else b for b in p.kernel.buffers)

    @property
    def computing(self) -> tuple[TileStmt, ...]:
        return tuple(self._around(list(self._compute())))

    @property
    def copying(self) -> tuple[TileStmt, ...]:
        return tuple(self._around(list(self._copy())))

    def _around(self, body: list[TileStmt]) -> list[TileStmt]:
        """The statements in the loop over tiles, where there is one."""
        last = [body.pop()] if self.plan.outer is not None and isinstance(body[-1], Sent) else []
        return [replace(self.plan.outer, body=tuple(body)), *last] if self.plan.outer is not None else body

    def _count(self, ring: Ring) -> Expr:
        """How many tiles the ring had before this one."""
        p = self.plan
        turn = Index(p.outer.var) if p.outer is not None else i64(0)
        if not ring.inner:
            return turn
        step = isub(Index(p.loop.var), p.loop.start)
        return step if p.outer is None else iadd(imul(turn, p.steps), step)

    def _at(self, ring: Ring, barrier: str) -> At:
        return At(barrier, imod(self._count(ring), ring.slots))

    # -- what computes -------------------------------------------------------------------------------------------------

    def _compute(self) -> Iterator[TileStmt]:
        """Each tile is awaited before its first reader and given back after its last."""
        p = self.plan
        outside = {b: r for b, r in p.rings.items() if not r.inner}
        body = [s for s in p.body if not p.brings(s)]
        around = [s.src.buffer for s in body if isinstance(s, Copy) and p.shared(s.src.buffer)]
        again = len(around) > len(set(around))  # results go round some rooms
        before = list(around) if p.outer is not None else []
        sent = staged = met = False
        for s in self._awaited(body, outside):
            if s is p.loop:
                steps = [k for k in p.loop.body if not p.brings(k)]
                inner = {b: r for b, r in p.rings.items() if r.inner}
                yield replace(s, body=tuple(self._drained(self._awaited(steps, inner))), stages=0)
            elif isinstance(s, Copy) and p.shared(s.dst.buffer):
                if again and s.dst.buffer in before:  # all that was sent from there, but not what was sent since
                    yield from (Sent(before[::-1].index(s.dst.buffer)), Meet(p.apart))
                elif p.outer is not None and not staged and not again:
                    yield from (Sent(), Meet(p.apart))
                elif s.dst.buffer in p.rings:  # another group may still multiply by what lies there
                    yield Meet()
                staged, met = True, False
                yield s
            elif isinstance(s, Copy) and p.shared(s.src.buffer):
                if not met:
                    yield Meet(p.apart)
                yield Send(s.src, s.dst, p.apart, s.comment)
                sent = met = True
                before.append(s.src.buffer)
            else:
                yield s
        if sent:
            yield Sent()

    def _awaited(self, body: list[TileStmt], rings: dict[str, Ring]) -> Iterator[TileStmt]:
        used = [{n for k in every((s,)) for n in reads(k)} & set(rings) for s in body]
        seen: set[str] = set()
        for i, s in enumerate(body):
            for b in sorted(used[i] - seen):
                yield Await(self._at(rings[b], rings[b].full), ifloordiv(self._count(rings[b]), rings[b].slots))
            seen |= used[i]
            yield s if s is self.plan.loop else self._in_slots(s)
            done = sorted(b for b in used[i] - set().union(*used[i + 1:]) if rings[b].again)
            if any(b in reads(k) and not isinstance(k, (Gemm, For, If)) for b in done for k in every(body)):
                yield Meet(alone=True)  # single threads have read it: one of them speaks for all
            for b in done:
                yield Arrive(self._at(rings[b], rings[b].empty))

    @staticmethod
    def _drained(body: Iterator[TileStmt]) -> Iterator[TileStmt]:
        for s in body:
            yield s
            if isinstance(s, Gemm):
                yield Drain(0, (s.c,))

    def _in_slots(self, s: TileStmt) -> TileStmt:
        """The statement with the current slot in a ring's place."""
        p = self.plan
        shapes = {b.name: b.shape for b in p.kernel.buffers}

        def part(x: Slice) -> Slice:
            if not p.slotted(x.buffer):
                return x
            dims = x.dims or tuple(Dim(i64(0), size) for size in shapes[x.buffer])
            ring = p.rings[x.buffer]
            return Slice(x.buffer, (Dim(imod(self._count(ring), ring.slots)), *dims))

        def value(e: Expr) -> Expr:
            e = map_children(e, value)
            if isinstance(e, Load) and p.slotted(e.tensor):
                ring = p.rings[e.tensor]
                return Load(e.tensor, (imod(self._count(ring), ring.slots), *e.indices), e.dtype)
            return e

        match s:
            case Gemm():
                return replace(s, a=part(s.a), b=part(s.b), flies=True)
            case Copy():
                return replace(s, src=part(s.src), dst=part(s.dst))
        return with_exprs(s, value)

    # -- what copies ---------------------------------------------------------------------------------------------------

    def _copy(self) -> Iterator[TileStmt]:
        for s in self.plan.body:
            if isinstance(s, Let):
                yield s
            elif s is self.plan.loop:
                yield replace(s, body=tuple(x for k in s.body for x in self._fetch(k)), stages=0, comment="")
            else:
                yield from self._fetch(s)

    def _fetch(self, s: TileStmt) -> Iterator[TileStmt]:
        if self.plan.brings(s):
            assert isinstance(s, Copy)
            ring = self.plan.rings[s.dst.buffer]
            if ring.again:
                yield Await(self._at(ring, ring.empty), iadd(ifloordiv(self._count(ring), ring.slots), i64(-1)))
            moved = self._in_slots(s)
            assert isinstance(moved, Copy)
            yield Fetch(moved.src, moved.dst, self._at(ring, ring.full))


def _registers(threads: int, groups: int, target: Target) -> int:
    """Registers of a thread that computes, once those of the group that copies are shared out: what that one gives back covers
    what they take, counted from the launch's own. A kernel that takes more waits for ever."""
    own = target.registers // (threads + GROUP) // 8 * 8
    return 0 if groups < 2 else min(240, (own + (own - KEPT) // groups) // 8 * 8)
