"""How reductions join a region: those whose results it reads, and those that read the row with it.

    s = sum[e] q[i, e] * k[l, e]    read by what comes next: joined from behind, nearest first (``reductions``)
    m = max[l] s                    the seed
    n = sum[l] s * s                beside it: meets it in a map (``siblings``), weighs what it adds up (``weighed``), or is
                                    small, of the same row (``companions``)
"""

from __future__ import annotations

from math import prod

from redfuser.outline import passes
from redfuser.partition import judge
from redfuser.partition.around import Around
from redfuser.partition.draft import escaping
from redfuser.partition.drafted import Cut, Draft, Reject
from redfuser.partition.epilogue import contracts, shortens
from redfuser.partition.graph import Node, Unit
from redfuser.partition.sets import Asking, Units, bits, free_to_read, last, mask, small
from redfuser.partition.work import Work


class Joining(Asking):
    """Joins reductions of the graph that ``near`` is around. ``worth``: what a region must be to be kept; ``cuts``: those that
    a reader should hear about."""

    def __init__(self, near: Around, worth: judge.Question, banned: frozenset[frozenset[int]], held: frozenset[Node],
                 work: Work | None, verdicts: dict[object, Reject | None] | None,
                 drafts: dict[object, Draft | Reject] | None) -> None:
        super().__init__(banned, held, work, verdicts, drafts)
        self.graph, self.near, self.worth = near.graph, near, worth
        self.cuts: list[Cut] = []
        self.reducing = bits(u for u in self.graph.units if u.reducing)

    def reductions(self, units: Units, seed: Unit | None, lead: Node, excluded: set[Unit]) -> tuple[Units, list[Unit]]:
        """Join the reductions that the region reads, nearest first; what is not joined is noted for ``seed``. Without one:
        those over the cascade's own row only, which the maps around it have brought into reach."""
        tried: set[Unit] = set(excluded)
        joined: list[Unit] = []
        while True:
            step = next(((c, between) for c, between in self.near.frontier(units) if c not in tried), None)
            if step is None:
                return units, joined
            c, between = step
            tried.add(c)
            grown = units | between | {c}
            if self.parted(grown):
                continue
            if c.slides:
                if seed is not None:
                    self.cuts.append(Cut(seed, c, judge.STEPWISE, False))
                continue
            others = self.near.co_readers(between | {c}, grown, lead)
            together = grown | others
            fits = others and not others & excluded and not self.parted(together) and self.near.convex(together)
            if fits and self.near.outside(between, together) is None and self.verdict(
                    judge.together, together, lead, c) is None:
                units = self.step("join", together, units)
                joined += [*(u for u in others if u.reducing), c]
                continue
            question = judge.join if seed else judge.also
            read, unfit = self.near.outside(between, grown), self.verdict(question, grown, lead, c)
            if read is not None and (wrote := self.written(grown, between, lead, c)) is not None:
                units = self.step("join", wrote, units)
                joined.append(c)
                continue
            if (cut := read or unfit) is not None:
                fits = unfit is None or self.verdict(judge.rows, grown, lead, c) is None
                if seed is not None:
                    self.cuts.append(Cut(seed, c, cut, fits))
                continue
            if (self.verdict(judge.plain, grown, lead, c) is None or shortens(c, units)) and self.ends_cascade(c):
                continue
            units = self.step("join", grown, units)
            joined.append(c)

    def written(self, grown: Units, between: Units, lead: Node, c: Unit) -> Units | None:
        """The region with the reduction that makes its row, though the row is read elsewhere: with what writes it, without what
        only widens it for others."""
        inside = frozenset(u for u in grown if not (free_to_read(u) and any(v not in grown for v in u.consumers)))
        own = bits(u for u in grown if u.reducing and u is not c)
        left = any(v.pointwise and v not in grown and v not in self.near.claimed and v.ancestors & own
                   for u in between for v in u.consumers)
        question = judge.made_and_read if left else judge.made
        if not contracts(c):
            question = judge.kept
            read = [p for u in between for p in u.producers if p not in inside]
            others = (mask(read, "ancestors") | bits(read)) & ~c.ancestors & self.reducing
            if others & ~bits(self.near.claimed | inside):
                return None  # maps that end another reduction, which comes to them
        return inside if self.near.convex(inside) and self.verdict(question, inside, lead, c) is None else None

    def ends_cascade(self, c: Unit) -> bool:
        """Does a reduction over another axis have a cascade of its own before it, to which it belongs?"""
        node = last(c)
        own = frozenset({c})
        return any(self.near.outside(between, grown := own | between | {d}) is None and not self.parted(grown) and self.verdict(
            judge.also, grown, node.lead or node, d) is None for d, between in self.near.frontier(own))

    def siblings(self, units: Units, lead: Node, excluded: set[Unit]) -> Units:
        """A second reduction over the same row whose result meets ours in a pointwise map (``E[x*x] - E[x]**2``)."""
        for n in escaping(units):
            for u in self.graph.readers(n):
                if not u.pointwise or u in self.near.claimed or u in units:
                    continue
                for c, between in self.near.frontier(frozenset({u})):
                    if c in units or c in excluded or c.descendants & bits(units):
                        continue
                    grown = units | between | {c, u}
                    spare = small(c, lead) and any(n in escaping(grown) for n in c.results)
                    if self.parted(grown) or not self.near.convex(grown) or len(escaping(grown)) > len(escaping(units)) + spare:
                        continue
                    if u.piecewise and self.read_again(grown, units, lead):
                        continue
                    if self.verdict(judge.sibling, grown, lead, c) is None:
                        return self.siblings(self.step("join", grown, units), lead, excluded)
        return units

    def read_again(self, grown: Units, units: Units, lead: Node) -> bool:
        """Is the row read again for results that are joined (``cat([max x, mean x])``, each with a point for every number of
        both), and does that take longer than writing them, for another kernel to join?"""
        before, after = self.drafted(units, lead), self.drafted(grown, lead)
        if not isinstance(before, Draft) or not isinstance(after, Draft):
            return False
        times = prod(after.extents[a] for a in after.p_axes) / prod(before.extents[a] for a in before.p_axes)
        some = sum(n.bytes for n in escaping(grown))
        return passes(self.work.machine, (times - 1) * sum(n.bytes for n in before.external), 0) > passes(
            self.work.machine, 2 * some, 1)

    def weighed(self, units: Units, lead: Node, excluded: set[Unit]) -> Units:
        """The product whose weights a sum adds up (``f.mT @ v`` beside ``f.sum(0)``)."""
        for c, between in self.near.beside(units) if lead.dtype == "f32" else ():
            grown = units | between | {c}
            if contracts(c) and c not in excluded and not self.parted(grown) and self.near.convex(grown) and self.near.outside(
                    between, grown) is None and self.verdict(judge.weighing, grown, lead, c) is None:
                return self.step("join", grown, units)
        return units

    def companions(self, units: Units, lead: Node) -> Units:
        """Further reductions of a cascade's own row (a mean beside a variance, an index beside a maximum), whose results
        are small: the row is read once for all of them."""
        if (unfit := self.verdict(self.worth, units, lead)) is not None and unfit.condition != judge.AS_IT_LIES:
            return units
        for c, between in self.near.beside(units):
            grown = units | between | {c}
            if small(c, lead) and not self.parted(grown) and self.near.convex(grown) and self.near.outside(
                    between, grown) is None and all(self.verdict(q, grown, lead, about) is None for q, about in (
                        (judge.companion, c), (self.worth, None))):
                return self.companions(self.step("join", grown, units), lead)
        return units
