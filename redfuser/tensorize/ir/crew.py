"""Roles of a block, run side by side in a random order, with everything they may do to each other watched.

Every warp group of every role is a member with a vector clock; a fetch is a member too, from its start to its arrival, which
comes at any time after. What is ordered by barriers, turns and meetings is what the clocks say, so a hazard shows in
whatever order the members happen to run: shared memory read before what fills it has arrived, written before its readers are
done, an accumulator read or an operand overwritten under a product that is still under way, a phase that its waiter may take
for another, a fetch that nobody awaits. Members that wait for each other are a deadlock. Values are those of the first group
of each role, whose statements are for all rows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

from redfuser.acrf.expr import Expr, Load, walk
from redfuser.tensorize.ir.block import Block
from redfuser.tensorize.ir.effects import every, leading, reads, slices, writes
from redfuser.tensorize.ir.flight import Arrive, Await, Drain, Fetch, Let, Meet, Send, Sent, Turn
from redfuser.tensorize.ir.member import Flying, Member, Place
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, If, Roles, TileKernel, TileStmt
from redfuser.tensorize.ir.ordered import Clock, Memory
from redfuser.tensorize.ir.parts import Slice
from redfuser.tensorize.ir.phases import Ring, hazard


class Crew:
    """The members of one block's roles, or of those of a cluster's. seed: of the order in which they run."""

    def __init__(self, blocks: list[Block], kernel: TileKernel, roles: Roles, seed: int) -> None:
        self.blocks, self.kernel = blocks, kernel
        self.order = random.Random(seed)
        self.shared = {b.name for b in kernel.buffers if b.scope == "shared"}
        self.memory = Memory(hazard)
        every_block = {s.at.barrier for s in every((roles,)) if isinstance(s, Fetch) and s.all}
        self.rings = {(rank, b.name): [Ring(b.arrivals + (b.name in every_block)) for _ in range(b.slots)]
                      for b in kernel.barriers for rank in range(len(blocks))}
        """A barrier of what the first block brings for all: its own block says what it expects, which is one arrival more."""
        self.said: dict[tuple[str, int], int] = {}
        """Of a ring's slot, by whom: tiles expected, and tiles brought by another block."""
        self.fetches: list[Callable[[], None]] = []
        self.started = 0
        self.awaited: dict[str, str] = {}
        """Fetches, of which every one has to be awaited by somebody: a block may not end before."""
        self.members: list[Member] = []
        self.holders: dict[str, str] = {}
        """The role whose threads hold a fragment: the others have registers of their own."""
        self.fragments = {b.name for b in kernel.buffers if b.scope == "fragment"}
        self.meetings: dict[tuple[str, int], list[Member]] = {}
        for rank, block in enumerate(blocks):
            whose = f" of block {rank}" if len(blocks) > 1 else ""
            for role in roles.roles:
                for g in range(role.groups):
                    self.members.append(Member(f"{role.name} {g}{whose}", role, g == 0, block, rank))
                    self.members[-1].turns = int(g == 0)

    def run(self) -> None:
        """All members to their ends. Raises InternalError RF900 naming the hazard or the deadlock."""
        walks = {m.name: self._walk(m, m.role.body) for m in self.members}
        left = list(self.members)
        while left or self.fetches:
            able: list[Member | None] = [m for m in left if m.ready()]
            if self.fetches:
                able.append(None)
            if not able:
                raise hazard("a deadlock: " + "; ".join(f"{m.name} waits for {m.waits_for}" for m in left))
            chosen = self.order.choice(able)
            if chosen is None:
                self.fetches.pop(self.order.randrange(len(self.fetches)))()
                continue
            chosen.ready, chosen.block.vars = (lambda: True), chosen.vars
            if next(walks[chosen.name], None) is None:
                left.remove(chosen)
                if chosen.flying or chosen.sending:
                    raise hazard(f"{chosen.name} ends with {'products' if chosen.flying else 'copies'} under way")
        for name, what in self.awaited.items():
            if not any(m.clock.knows(name, 1) for m in self.members):
                raise hazard(f"the block may end with a copy under way: {what}")

    def _walk(self, m: Member, body: tuple[TileStmt, ...]) -> Iterator[bool]:
        """A member's statements; yields before each that another member could notice."""
        for s in body:
            match s:
                case For(var, start, stop, inner):
                    self._look(m, start, stop)
                    for k in range(self._int(m, start), self._int(m, stop)):
                        m.vars[var] = k
                        yield from self._walk(m, inner)
                case If(cond, inner):
                    self._look(m, cond)
                    if self._int(m, cond):
                        yield from self._walk(m, inner)
                case Let(var, value):
                    m.vars[var] = self._int(m, value)
                case Await(at, phase):
                    ring, want = self._ring(m, at.barrier, at.slot), self._int(m, phase)
                    m.ready, m.waits_for = partial(ring.passed, want), str(s)
                    yield True
                    m.clock = ring.wait(want, m.name, m.clock, str(s))
                case Turn(take):
                    yield from self._turn(m, take)
                case Meet(alone):
                    self._met(m)
                    if not alone:
                        yield from self._meet(m)
                case _:
                    self._do(m, s)
                    yield True

    def _met(self, m: Member) -> None:
        m.clock = m.clock.tick(m.name)
        self._over(m)
        m.unmet = {}

    def _over(self, m: Member) -> None:
        """What single threads of a group have read and written is over."""
        for place in m.reading:
            self.memory.read_done(place, m.name, m.clock)
        for place in m.writing:
            self.memory.write_done(place, m.name, m.clock)
        m.reading, m.writing = [], []

    def _turn(self, m: Member, take: bool) -> Iterator[bool]:
        mine = [x for x in self.members if x.role is m.role and x.rank == m.rank]
        if take:
            m.ready, m.waits_for = (lambda: m.turns > 0), "its turn"
            yield True
            m.turns -= 1
            return
        following = mine[(mine.index(m) + 1) % len(mine)]
        following.turns += 1
        if following.turns > 1:
            raise hazard(f"{following.name} is given its turn twice")
        yield True

    def _meet(self, m: Member) -> Iterator[bool]:
        here = self.meetings.setdefault((m.role.name, m.rank), [])
        here.append(m)
        together = here
        if len(here) == m.role.groups:
            known = Clock()
            for x in here:
                known = known.join(x.clock)
            for x in here:
                x.clock = known.tick(x.name)
            self.meetings[m.role.name, m.rank] = []
        m.ready, m.waits_for = (lambda: len(together) == m.role.groups), "the others of its role"
        yield True

    # -- single statements ---------------------------------------------------------------------------------------------

    def _do(self, m: Member, s: TileStmt) -> None:
        m.clock = m.clock.tick(m.name)
        match s:
            case Fetch():
                self._fetch(m, s)
            case Arrive(at, each, all):
                if each:  # whoever learns of the phase's end learns what each thread has done
                    self._over(m)
                for rank in range(len(self.blocks)) if all else (m.rank,):
                    self._ring(m, at.barrier, at.slot, rank).arrive(m.clock, f"{m.name} at {s}")
            case Drain(left, done):
                self._drain(m, left, done)
            case Sent(left):
                gone = m.sending[:len(m.sending) - left] if left < len(m.sending) else []
                m.reading += gone  # one thread alone knows it
                m.unmet |= {name: "sent" for name, _ in gone}
                m.sending = m.sending[len(gone):]
            case Send(src, dst, alone):
                if src.buffer in m.unmet:
                    raise hazard(f"{m.name} has not met since it has written {src.buffer}")
                if m.first or alone:
                    part = m.name if alone and m.by_rows else ""
                    self.memory.read(self._place(m, src), m.name, m.clock, open=True, part=part)
                    m.sending.append(self._place(m, src))
                if m.first:
                    m.block.exec(Copy(src, dst))
            case _:
                self._compute(m, s)

    def _fetch(self, m: Member, s: Fetch) -> None:
        if s.all:
            self._once(m, s, m.rank, "expected")
            self._ring(m, s.at.barrier, s.at.slot).arrive(m.clock, f"{m.name} at {s}")
            if m.rank:  # the first block brings it
                return
        for rank, block in enumerate(self.blocks):
            if s.all or rank == m.rank:
                self._start(m, s, block, rank)

    def _start(self, m: Member, s: Fetch, block: Block, rank: int) -> None:
        """A copy that a member starts, to its own block or to another."""
        self.started += 1
        name = f"fetch {self.started}"
        clock, vars = m.clock.tick(name), dict(m.vars)
        place, ring = self._place(m, s.dst, rank), self._ring(m, s.at.barrier, s.at.slot, rank)
        self.memory.write(place, name, clock, str(s), open=True)
        self.awaited[name] = str(s)
        if s.all:
            self._once(m, s, rank, "brought")

        def arrives() -> None:
            block.vars = vars
            block.exec(Copy(s.src, s.dst))
            self.memory.write(place, name, clock, str(s), open=False)
            ring.arrive(clock, str(s))

        self.fetches.append(arrives)

    def _once(self, m: Member, s: Fetch, rank: int, what: str) -> None:
        """A phase of a barrier that two blocks serve has one tile that its own expects and one that the other brings."""
        ring = self._ring(m, s.at.barrier, s.at.slot, rank)
        key = (f"{what} {s.at.barrier} {rank}", self._int(m, s.at.slot))
        if self.said.get(key, 0) > ring.over:
            raise hazard(f"a second tile is {what} before the first is there: {m.name} at {s}")
        self.said[key] = self.said.get(key, 0) + 1

    def _drain(self, m: Member, left: int, done: tuple[str, ...]) -> None:
        while len(m.flying) > left:
            f = m.flying.popleft()
            for place in f.places:
                self.memory.read_done(place, m.name, m.clock)
        if still := {f.result for f in m.flying} & set(done):
            raise hazard(f"{sorted(still)} is said to be done under way")
        m.undrained -= set(done)

    def _compute(self, m: Member, s: TileStmt) -> None:
        touched, written = reads(s), writes(s)
        for n in (touched | written) & self.fragments:
            if (holder := self.holders.setdefault(n, m.role.name)) != m.role.name:
                raise hazard(f"{n} is in registers of {holder}: {_line(s)}")
        own = {s.c} if isinstance(s, Gemm) and s.flies else set()
        if early := m.undrained & ((touched | written) - own):
            raise hazard(f"{', '.join(sorted(early))} is used before its product is done: {_line(s)}")
        if torn := {n for f in m.flying for n in f.registers} & written:
            raise hazard(f"{', '.join(sorted(torn))} is overwritten under a product: {_line(s)}")
        flies = isinstance(s, Gemm) and s.flies
        for part in slices(s):
            if part.buffer in self.shared:
                if part.buffer in written:
                    if m.unmet.get(part.buffer) == "sent":
                        raise hazard(f"{m.name} has not met since {part.buffer} was sent")
                    m.unmet[part.buffer] = "written"
                    rows = isinstance(s, Copy) and part.buffer not in touched
                    self.memory.write(self._place(m, part), m.name, m.clock, _line(s), open=True,
                                      part=m.name if rows else "")
                    m.writing.append(self._place(m, part))
                else:
                    self.memory.read(self._place(m, part), m.name, m.clock, open=True)
                    if not flies:
                        m.reading.append(self._place(m, part))
        if isinstance(s, Gemm) and s.flies:
            registers = {n for n in (s.a.buffer, s.b.buffer) if n not in self.shared}
            places = tuple(self._place(m, x) for x in (s.a, s.b) if x.buffer in self.shared)
            m.flying.append(Flying(s.c, frozenset(registers), places))
            m.undrained.add(s.c)
        if m.first:
            m.block.exec(s)

    def _look(self, m: Member, *exprs: Expr) -> None:
        """Every thread reads what steers it."""
        m.clock = m.clock.tick(m.name)
        for x in (x for e in exprs for x in walk(e) if isinstance(x, Load)):
            if x.tensor in m.undrained:
                raise hazard(f"{x.tensor} is used before its product is done: {x}")
            if x.tensor in self.shared:
                place = self._place(m, leading(x.tensor, x.indices, ()))
                self.memory.read(place, m.name, m.clock, open=True)
                m.reading.append(place)

    def _ring(self, m: Member, name: str, slot: object, rank: int | None = None) -> Ring:
        k, ring = self._int(m, slot), self.rings[m.rank if rank is None else rank, name]
        if not 0 <= k < len(ring):
            raise hazard(f"{name} has no slot {k}")
        return ring[k]

    def _place(self, m: Member, s: Slice, rank: int | None = None) -> Place:
        at = m.rank if rank is None else rank
        own = (at,) if len(self.blocks) > 1 else ()
        return s.buffer, (*own, *(self._int(m, d.start) for d in itertools.takewhile(lambda d: not d.size, s.dims)))

    def _int(self, m: Member, e: object) -> int:
        m.block.vars = m.vars
        return m.block.number(e)  # type: ignore[arg-type]


def _line(s: TileStmt) -> str:
    return str(s).splitlines()[0]
