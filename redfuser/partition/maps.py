"""Group the maps that no cascade took, by dataflow: what one kernel computes instead of a kernel of torch's each.

    0.5 * x * (1.0 + tanh(0.8 * (x + 0.04 * x ** 3)))   -->   one group
    a map, its readers, its producers, others that read the same tensor: as long as what moved bytes and launches cost together,
    modelled for the target, goes down, and what is dear is computed once

What a library applies to its own product at no cost stays with torch. A rearranged read is no operation
of its own: torch has views for it, a group reads through it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from redfuser import progress
from redfuser.acrf.expr import BYTES
from redfuser.outline import passes
from redfuser.partition.around import Around
from redfuser.partition.drafted import Draft, Reject, Step
from redfuser.partition.epilogue import absorbed, accumulated, launches, moves
from redfuser.partition.graph import Graph, Node, Unit
from redfuser.partition.lifting import lies, tables
from redfuser.partition.lone import LEAST, pays, replaced, turned
from redfuser.partition.map_draft import map_draft
from redfuser.partition.permuted import copied, permuted
from redfuser.partition.reads import TOO_MANY, crowded, moved
from redfuser.partition.sets import Signatures, Units, bits, hiding
from redfuser.partition.work import REGION, Spent, Work

log = logging.getLogger("redfuser.partition")
WRITTEN_OUT = 512
"""Maps of one result that are tried at once where they are more than growing looks at (a filter whose taps are written out)."""
WIDEST = 16
"""Readers of one tensor that are looked at for a group of another reader."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a group as one kernel; or why it is none."""

    seconds: float
    reject: Reject | None = None


class MapGrower:
    """Groups of a graph whose cascades are found. ``live``: the variables that the outer program computes when the groups
    found so far have kernels. ``taken``: those cascades; what they write is read as they write it. ``short``: maps that were
    not looked at for want of work."""

    def __init__(self, graph: Graph, near: Around, work: Work, live: Callable[[list[Draft]], set[str]],
                 taken: Sequence[Draft] = (), barred: frozenset[int] = frozenset(), costs: dict[object, Cost] | None = None,
                 drafts: dict[object, Draft | Reject] | None = None, held: frozenset[Node] = frozenset()) -> None:
        self.graph, self.near, self.work, self.live, self.taken, self.barred = graph, near, work, live, taken, barred
        self.costs: dict[object, Cost] = {} if costs is None else costs
        self.drafts: dict[object, Draft | Reject] = {} if drafts is None else drafts
        self.fence()
        self.held = held | frozenset(n for d in taken for n in hiding(d.units)) | near.written(lambda u: u.reducing)
        self.held |= {lies(n) for u in graph.units for n in tables(u)}
        self.fixed = graph.fixed()
        self.begin()

    def fence(self) -> None:
        """What cascades have is theirs, but for maps that they compute anew of what the outer program computes all the same."""
        needed = self.live([])
        for d in self.taken:
            self.near.claim(frozenset(u for u in d.units if u.reducing or u.var not in needed))

    def begin(self) -> None:
        self.wanted = {n for d in self.taken for n in d.external}
        self.loaded = {n for d in self.taken for n in d.loaded()}
        self.signatures = Signatures(self.held, self.leaving)
        self.found: list[Draft] = []
        self.short: list[Unit] = []
        self.needed = self.live([])

    def run(self) -> list[Draft]:
        """The groups in program order. Where one computes anew what another writes, and torch what is between, all read it."""
        self.groups()
        torn = bits(u for d in self.found for u in d.units if launches(u) and u.var in self.needed)
        behind = {s.node for d in self.found for s in d.sinks if s.node.unit is not None and s.node.unit.ancestors & torn}
        if more := behind - self.held:
            self.graph.reset()
            self.near.claimed.clear()
            self.fence()
            self.held |= more
            self.begin()
            self.groups()
        self.found.reverse()
        progress.tell("grouping maps", len(self.found), len(self.found))
        return self.found

    def groups(self) -> None:
        """Later operations come first, so that a group ends where its values are read."""
        for u in reversed(self.graph.units):
            if not self.open(u) or not launches(u):
                continue
            self.work.begin()
            try:
                self.group(u)
            except Spent:
                self.short.append(u)
        for n in [n for u in self.graph.units for n in u.results if n.lined]:
            views = copied(n)
            if views and not views & self.near.claimed and isinstance(d := self.drafted(views), Draft):
                self.keep(d, views, self.live([*self.found, d]))
        if self.short:
            log.info("%d maps were left to torch: the work that one model may take is spent", len(self.short))

    def group(self, seed: Unit) -> None:
        grown = self.cone(seed) or self.grown(seed)
        units = self.laid(grown)
        if self.cost(units).reject is not None:
            return
        d = self.drafted(units)
        if isinstance(d, Reject):
            return
        left = self.live([*self.found, d])
        spared = self.needed - left
        gone = [u for u in self.graph.units if u.var in spared or u in units]
        few = replaced(gone) + (units > grown) < LEAST
        if few and not turned(units, self.wanted) and not any(pays(u, self.work.machine.broad) for u in units):
            return
        self.keep(d, units, left)

    def keep(self, d: Draft, units: Units, needed: set[str]) -> None:
        self.found.append(replace(d, steps=(Step("follow", units),)))
        self.wanted |= set(d.external)
        self.loaded |= d.loaded()
        self.needed = needed
        self.near.claim(units)

    def cone(self, seed: Unit) -> Units:
        """The maps that lead to one and to nothing else, where they are many: one by one, each would be looked at again with
        all those before it. What they read at several places they read from memory. Empty where they are few, or no kernel."""
        apart: set[Unit] = set()
        while True:
            units = self.leading(seed, apart)
            few = not REGION < sum(not moves(u) for u in units) <= WRITTEN_OUT
            if few or not self.near.convex(units) or self.cuts(units):
                return frozenset()
            got = self.cost(units)
            if got.reject is None:
                return units if got.seconds < sum(map(self.alone, units)) else frozenset()
            again = got.reject.node.unit if got.reject.code == "RF306" and got.reject.node is not None else None
            if again is None or again is seed or again not in units:
                return frozenset()
            apart.add(again)

    def leading(self, seed: Unit, apart: set[Unit]) -> Units:
        """A map with all those that lead to it alone, but for what is ``apart`` and what leads to that."""
        found, ready = {seed}, [seed]
        while ready:
            for p in ready.pop().producers:
                alone = p not in found and found.issuperset(p.consumers) and not any(n.escapes for n in p.results)
                if alone and p not in apart and p not in self.near.claimed and (self.open(p) or moves(p)):
                    found.add(p)
                    ready.append(p)
        return self.near.close(frozenset(found))

    def grown(self, seed: Unit) -> Units:
        units: Units = frozenset({seed})
        tried: set[Unit] = set()
        while True:
            c = next((x for x in self.neighbours(units) if x not in tried), None)
            if c is None:
                return units
            tried.add(c)
            more: Units = frozenset({c})
            grown = self.near.close(units | more)
            if self.cuts(grown):
                more |= self.chain(c, units)
                grown = self.near.close(units | more)
            size = sum(not moves(u) for u in grown)
            if size > REGION or not self.near.convex(grown) or self.cuts(grown):
                continue
            both = self.cost(grown)
            if both.reject is None and both.seconds < self.cost(units).seconds + sum(map(self.alone, more)):
                units = grown
                tried = {t for t in tried if t in units}

    def laid(self, units: Units) -> Units:
        """With the permutations through which a library reads a result, and nothing else: it is written as it is read."""
        for n in self.leaving(units) if self.cost(units).reject is None else ():
            views = permuted(self.graph, self.near, n)
            if views and n not in self.wanted and self.cost(units | views).reject is None:
                units |= views
        return units

    def cuts(self, units: Units) -> bool:
        """Would a window compute anew, for each of its places, the end of a chain of maps whose beginning another kernel
        computes and writes? All of it is this group's then, or none."""
        d = self.drafted(units) if any(u.window for u in units) else None
        return isinstance(d, Draft) and any(
            len(places) > 2 and n.unit is not None and self.open(n.unit) and launches(n.unit) and self.within(n, units)
            for n, places in d.external.items())

    def within(self, n: Node, units: Units) -> bool:
        """Do maps of the group that are no windows read it, and nothing else, behind any views?"""
        return not n.escapes and all(all(self.within(m, units) for m in u.results) if moves(u) and u not in units else
                                     u in units and not u.window for u in self.graph.readers(n))

    def chain(self, u: Unit, units: Units) -> Units:
        """The maps that lead to one, and that nothing else reads."""
        found, todo = {u}, [u]
        while todo and len(found) < REGION:
            more = [p for p in todo.pop().producers if (self.open(p) or p.is_cheap) and p not in found and p not in units
                    and (found | units).issuperset(p.consumers)]
            found.update(more)
            todo += more
        return frozenset(found)

    # -- around a group ------------------------------------------------------------------------------------------------

    def open(self, u: Unit) -> bool:
        """May a group have it? The outer program computes it, and nothing else does."""
        return (u.pointwise and u.has_data and u.var in self.needed and u not in self.near.claimed
                and u.index not in self.barred and u not in self.fixed and not self.left(u)
                and all(n.dtype in BYTES for n in (*u.args, *u.results)))

    def left(self, u: Unit) -> bool:
        """Is it done at no cost where its operand is made?"""
        return absorbed(u)

    def neighbours(self, units: Units) -> list[Unit]:
        """What makes the group's operands, what reads its results, what else reads its operands: nearest first, each behind any
        number of rearranged reads."""
        out: dict[Unit, None] = {}
        for u in sorted(units, key=lambda u: u.index):
            for n in u.args:
                self.makers(n, units, out)
            for n in u.results:
                self.readers(n, units, out)
        makers = [u for u in out if self.open(u)]
        size = max(prod(n.shape) for u in units for n in u.results)
        beside: dict[Unit, None] = {}
        for u in units:
            for n in u.args:
                if prod(n.shape) == size and len(self.graph.readers(n)) <= WIDEST:
                    self.readers(n, units, beside)
        middle = min(u.index for u in units)
        near = sorted(makers, key=lambda u: abs(u.index - middle))
        return near + [u for u in beside if u not in out and self.open(u)]

    def makers(self, n: Node, units: Units, out: dict[Unit, None]) -> None:
        u = n.unit
        if u is None or u in units or u.gap or u.reducing:
            return
        if moves(u):
            for a in u.args:
                self.makers(a, units, out)
        elif launches(u):
            out.setdefault(u)

    def readers(self, n: Node, units: Units, out: dict[Unit, None]) -> None:
        for u in self.graph.readers(n):
            if u in units or u.gap or u.reducing:
                continue
            if moves(u):
                for m in u.results:
                    self.readers(m, units, out)
            elif launches(u):
                out.setdefault(u)

    def leaving(self, units: Units) -> list[Node]:
        """What a group writes: results of the program, what a kernel reads (which may compute anew what reads it), what an
        operation reads that no kernel has."""
        return [n for u in sorted(units, key=lambda u: u.index) for n in u.results if n.escapes or n in self.loaded
                or any(c not in units and n in c.args and c.var in self.needed for c in u.consumers)]

    # -- what it costs -------------------------------------------------------------------------------------------------

    def cost(self, units: Units) -> Cost:
        """Answered once per structure."""
        last = max(units, key=lambda u: u.index)
        key = self.signatures.of(units, last.results[0], None)
        if key not in self.costs:
            d = self.drafted(units)
            if isinstance(d, Draft) and crowded(d):
                d = Reject("RF305", None, TOO_MANY)
            if isinstance(d, Draft) and (sum_ := next(filter(accumulated, d.external), None)) is not None:
                d = Reject("RF305", sum_, "a product's sum before it is rounded", "a library rounds it where it makes it")
            self.costs[key] = Cost(0.0, d) if isinstance(d, Reject) else Cost(passes(self.work.machine, moved(d), 1))
        return self.costs[key]

    def drafted(self, units: Units) -> Draft | Reject:
        """A draft costs once, however often the maps are grouped again."""
        key = (units, frozenset(self.leaving(units)), self.held)
        if key not in self.drafts:
            self.drafts[key] = self.draft(units)
        return self.drafts[key]

    def draft(self, units: Units) -> Draft | Reject:
        return map_draft(units, self.leaving(units), self.work, self.held)

    def alone(self, u: Unit) -> float:
        """Seconds of an operation as a kernel of torch's: it reads its operands and writes its results."""
        return passes(self.work.machine, sum(n.bytes for n in (*u.args, *u.results)), 1)
