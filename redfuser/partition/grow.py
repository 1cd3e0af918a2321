"""Grow cascades: from each reduction backwards along the r-axis, then over the pointwise maps around it.

Reductions are visited from the end of the program, so that a contraction whose result is consumed per step (attention's
scores) is claimed by the cascade that consumes it. A unit joins only if the grown set still evaluates as one cascade
(:mod:`redfuser.partition.draft`), is convex (:mod:`redfuser.partition.around`), and is worth having
(:mod:`redfuser.partition.judge`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from redfuser import progress
from redfuser.partition import judge
from redfuser.partition.around import Around
from redfuser.partition.draft import escaping
from redfuser.partition.drafted import Cut, Draft, Reject
from redfuser.partition.epilogue import contracts, scaled_rows
from redfuser.partition.evaluate import scales
from redfuser.partition.following import Following
from redfuser.partition.graph import Graph, Node, Unit
from redfuser.partition.lifting import tables
from redfuser.partition.operand import mapped
from redfuser.partition.sets import Units, bits, hiding, last, mask
from redfuser.partition.siblings import joined
from redfuser.partition.smaller import moves
from redfuser.partition.work import Spent, Work

log = logging.getLogger("redfuser.partition")


@dataclass(frozen=True, slots=True)
class Growth:
    """What growing found: drafts in program order, and the cuts that a reader should hear about."""

    drafts: list[Draft]
    cuts: list[Cut]


class Grower(Following):
    """Finds every cascade of a graph. Units of a ``banned`` pair must not share a cascade, and ``barred`` units start none:
    the algebra, or what makes kernels, refused them before. ``worth``: what a region must be to be kept; ``taken``: regions of
    this graph that are found; what they write is read as they write it. unshared: maps in front of a row are left out where
    others read them too. held: what is read from memory by all but who makes it."""

    def __init__(self, graph: Graph, banned: frozenset[frozenset[int]] = frozenset(), barred: frozenset[int] = frozenset(),
                 verdicts: dict[object, Reject | None] | None = None, work: Work | None = None,
                 drafts: dict[object, Draft | Reject] | None = None, worth: judge.Question = judge.worth,
                 taken: Sequence[Draft] = (), unshared: bool = False, held: frozenset[Node] = frozenset()) -> None:
        near = Around(graph)
        for d in taken:
            near.claim(d.units)
        held |= near.written(contracts) if unshared else frozenset()
        super().__init__(near, worth, banned, held | {n for d in taken for n in hiding(d.units)}, work, verdicts, drafts)
        self.barred, self.unshared = barred, unshared
        self.products = [] if worth is judge.worth else [u for u in graph.units if u.reducing and contracts(u)]
        """What reductions by themselves leave alone."""
        self.windows = any(u.window for u in graph.units)
        self.found: list[Draft] = []
        self.wanted: set[Node] = set()
        """What the cascades found so far read, behind views: it must not vanish inside of another."""
        self.loaded: set[Node] = set()
        """What their kernels read of it: all that a product with its maps has to leave."""
        for d in taken:
            self.reads_of(d)

    def run(self) -> Growth:
        reducing = sum(u.reducing for u in self.graph.units)
        seen = 0
        for u in reversed(self.graph.units):
            if u.reducing:
                progress.tell("looking for cascades: reductions", seen := seen + 1, reducing)
            if u.index % 512 == 511:
                log.info("%d operations left to look at, %d cascades found", u.index + 1, len(self.found))
            if u.reducing and not u.slides and u not in self.near.claimed and not u.gap and u.index not in self.barred:
                got = self.within(u)
                if got is not None:
                    self.found.append(got)
                    self.claim(got)
        return Growth(joined(self, self.found[::-1]), self.cuts)

    def claim(self, d: Draft) -> None:
        self.reads_of(d)
        self.near.claim(d.units)
        self.hold(hiding(d.units))

    def reads_of(self, d: Draft) -> None:
        self.wanted |= set(d.external)
        self.loaded |= d.loaded()

    def within(self, seed: Unit) -> Draft | None:
        """The seed's cascade, as far as the work that is left allows."""
        self.work.begin(contracts(seed))
        kind = id(seed.lifted)
        if self.work.hopeless(kind):
            self.work.short.add(seed.index)
            return None
        got = None
        try:
            got = self.cascade(seed)
        except Spent:
            self.work.short.add(seed.index)
        self.work.end(kind, got is not None)
        return got

    # -- one cascade ---------------------------------------------------------------------------------------------------

    def cascade(self, seed: Unit) -> Draft | None:
        node = last(seed)
        lead = node.lead or node
        excluded: set[Unit] = set(self.products)
        while True:
            self.steps.clear()
            start = self.weighed(frozenset({seed}), lead, excluded)
            units, joined = self.reductions(self.siblings(start, lead, excluded), seed, lead, excluded)
            if not joined:
                self.steps.clear()
                units, joined = self.reductions(start := self.weighed(frozenset({seed}), lead, excluded), seed, lead, excluded)
            before: Units = frozenset()
            while units != before:
                before = units
                units = self.epilogue(self.companions(self.siblings(units, lead, excluded), lead), lead)
                units, more = self.reductions(units, None, lead, excluded)
                joined += more
            if (torn := next((u for u in joined if u not in excluded and self.near.tears(u, units)), None)) is not None:
                excluded.add(torn)  # whole or not at all: the rest of the operation would run in torch's pieces
                continue
            units = self.scaled(units, lead)
            unfit = self.verdict(self.worth, units, lead)
            if unfit is not None:
                if unfit.code == "RF307":
                    return None
                own = unfit.node.unit if unfit.node is not None else None
                apart = {u for u in joined if not contracts(u)} - excluded
                if apart and any(map(scaled_rows, seed.args)):
                    excluded |= apart  # a product whose rows are scaled by what others reduce of them
                    continue
                if own is not None and own is not seed and own not in excluded:
                    excluded.add(own)  # without it the others may be worth a kernel
                    continue
                if len(unfit.rows) > 1:
                    self.cuts.append(Cut(seed, seed, unfit, True))
                return None
            bad = self.verdict(judge.escapes, units, lead)
            if bad is None or not joined:
                break
            culprit = next((u for u in joined if bad.node is not None and bad.node.unit is u), joined[-1])
            self.cuts.append(Cut(seed, culprit, bad, True))
            excluded.add(culprit)
        d = self.prologue(self.in_place(units, lead), lead, len(start) > 1)
        if isinstance(d, Reject):
            return None
        return replace(mapped(self, d, lead) if self.worth is judge.worth else d, steps=tuple(self.steps))

    def in_place(self, units: Units, lead: Node) -> Units:
        """A product without what only moves its results: torch has views for that, and a tile of a matrix leaves as rows."""
        if self.verdict(judge.products, units, lead) is None:
            while self.steps and self.steps[-1].kind == "follow" and all(map(moves, self.steps[-1].units)):
                units -= self.steps.pop().units
        return units

    # -- maps around it ------------------------------------------------------------------------------------------------

    def scaled(self, units: Units, lead: Node) -> Units:
        """Products with the maps that scale their operand's rows, where nobody else reads what these write: the algebra takes
        the scale out of the sum, and the operand is what the maps read."""
        if self.worth is not judge.worth or self.verdict(judge.products, units, lead) is not None:
            return units
        maps = frozenset(m for u in units if u.reducing for n in u.args for m in scaled_rows(n))
        grown = units | maps
        apart = any(n.escapes for m in maps for n in m.results) or any(c not in grown for m in maps for c in m.consumers)
        if not maps or apart or maps & self.near.claimed or self.parted(grown) or not self.near.convex(grown):
            return units
        return units if self.verdict(judge.scaled, grown, lead) is not None else self.step("lead", grown, units)

    def prologue(self, units: Units, lead: Node, ends: bool) -> Draft | Reject:
        """Absorb pointwise producers of the row: computed once per element either way, so one pass is saved. ends: also those
        that are the ends of other cascades, which then write nothing of the row."""
        refused: set[Unit] = set()
        while True:
            best = None
            for node, reused in self.reads(units, lead):
                u = node.unit
                if u is None or u in refused or u in units or not u.pointwise or u in self.near.claimed:
                    continue
                if u.piecewise or (self.near.library_epilogue(u) and not ends) or self.near.tears(u, units):
                    continue
                if reused == "everywhere" or (reused and not scales(u)) or (self.unshared and any(
                        c not in units for c in u.consumers)):
                    continue
                if self.windowed(u, units, lead) or not all(self.near.stands(n, self.tiled(units, lead)) for n in tables(u)):
                    continue
                if best is None or u.index > best.index:
                    best = u
            if best is None:
                units = self.ended(units, lead)
                return self.drafted(units if self.worth is judge.worth else self.alongside(units, lead), lead)
            grown = self.near.close(units | {best})
            if self.parted(grown) or not self.near.convex(grown) or self.verdict(
                    judge.lead, grown, lead, best) is not None:
                refused.add(best)
                continue
            units = self.step("lead", grown, units)

    def ended(self, units: Units, lead: Node) -> Units:
        """With the maps that are computed inside anyway, where what they make is written in place of what they read."""
        for u in self.near.members(mask(units, "descendants") & mask(units, "ancestors") & ~bits(units)):
            grown = self.near.close(units | {u})
            before, after = escaping(units), escaping(grown)
            fewer = len(after) <= len(before) and sum(n.bytes for n in after) <= sum(n.bytes for n in before)
            if u.pointwise and fewer and self.verdict(judge.lead, grown, lead, u) is None:
                units = self.step("lead", grown, units)
        return units

    def tiled(self, units: Units, lead: Node) -> bool:
        d = self.drafted(units, lead)
        return not isinstance(d, Draft) or judge.tiled(d)

    def windowed(self, u: Unit, units: Units, lead: Node) -> bool:
        """Does the map read a window that slides along the row, or is it one? Elements that lie side by side read the window's
        places together, as vectors, in a kernel of maps; in a walk of the row each would read them for itself."""
        w = self.near.window(u, units) if self.windows else None
        if w is None:
            return False
        between = frozenset(self.near.members(w.descendants & mask({u}, "ancestors")))
        got = self.drafted(units | between | {u, w}, lead)
        return isinstance(got, Draft) and got.slides(w)
