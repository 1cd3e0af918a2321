"""Grow cascades: from each reduction backwards along the r-axis, then over the pointwise maps around it.

Reductions are visited from the end of the program, so that a contraction whose result is consumed per step (attention's
scores) is claimed by the cascade that consumes it. A unit joins only if the grown set still evaluates as one cascade
(:mod:`redfuser.partition.draft`), is convex, and, for contractions, pays (:mod:`redfuser.partition.cost`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from redfuser.acrf.expr import Reduce
from redfuser.acrf.lift import data_dependent
from redfuser.partition.cost import consumer_pays, inner_pays
from redfuser.partition.draft import R, Draft, Reject, draft, escaping
from redfuser.partition.graph import Graph, Node, Unit
from redfuser.partition.index import axes_of

Units = frozenset[Unit]


@dataclass(slots=True)
class Growth:
    """What growing found: drafts in program order, and the cuts that a reader should hear about."""

    drafts: list[Draft] = field(default_factory=list)
    cuts: list[tuple[Unit, Reject]] = field(default_factory=list)


class Grower:
    """Finds every cascade of a graph. ``banned`` pairs (seed unit, unit) must not share a cascade, and
    ``barred`` units start none: the algebra refused them before."""

    def __init__(self, graph: Graph, banned: frozenset[tuple[int, int]] = frozenset(),
                 barred: frozenset[int] = frozenset()) -> None:
        self.graph, self.banned, self.barred = graph, banned, barred
        self.claimed: set[Unit] = set()
        self.growth = Growth()
        self.drafts: dict[tuple[Units, Node], Draft | Reject] = {}

    def run(self) -> Growth:
        for u in reversed(self.graph.units):
            if u.reducing and u not in self.claimed and not u.gap and u.index not in self.barred:
                got = self.cascade(u)
                if got is not None:
                    self.growth.drafts.append(got)
                    self.claimed |= got.units
                    self.fence(got.units)
        self.growth.drafts.reverse()
        return self.growth

    # -- one cascade ---------------------------------------------------------------------------------------------------

    def cascade(self, seed: Unit) -> Draft | None:
        node = [n for n in seed.nodes if isinstance(n.stmt, Reduce)][-1]
        lead = node.lead or node
        excluded: set[Unit] = {c for c in self.graph.units if (seed.index, c.index) in self.banned}
        while True:
            d, joined = self.reductions(seed, lead, excluded)
            if d is None:
                return None
            d = self.siblings(d, lead)
            d = self.epilogue(d, lead)
            bad = self.escaping_inside(d)
            if bad is None or not joined:
                break
            culprit = joined[-1]
            self.growth.cuts.append((culprit, Reject(
                "RF303", bad, "a tensor of the row that depends on a reduction is needed both inside and outside",
                "it must be written in any case, so reading it back is all that a fusion would save",
                "drop the other use, or recompute it there")))
            excluded.add(culprit)
        if not worthwhile(d):
            return None
        return self.prologue(d, lead)

    def attempt(self, units: Units, seed: Node) -> Draft | Reject:
        key = (units, seed)
        if key not in self.drafts:
            self.drafts[key] = draft(units, seed)
        return self.drafts[key]

    def reductions(self, seed: Unit, lead: Node, excluded: set[Unit]) -> tuple[Draft | None, list[Unit]]:
        units: Units = frozenset({seed})
        current = self.attempt(units, lead)
        if isinstance(current, Reject):
            return None, []
        tried: set[Unit] = set(excluded)
        joined: list[Unit] = []
        while True:
            step = next(((c, between) for c, between in self.frontier(units) if c not in tried), None)
            if step is None:
                return current, joined
            c, between = step
            tried.add(c)
            got = self.join(current, units | between | {c}, lead, c, between)
            if isinstance(got, Reject):
                self.growth.cuts.append((c, got))
                continue
            units, current = got.units, got
            joined.append(c)

    def join(self, current: Draft, units: Units, lead: Node, c: Unit, between: Units) -> Draft | Reject:
        for u in between:
            if outside := self.outside(u, units):
                return Reject("RF303", u.nodes[-1], "a tensor between the two reductions is also read elsewhere",
                              f"it is read by {outside} outside the cascade and must be written in any case",
                              "drop the other use, or recompute it there")
        got = self.attempt(units, lead)
        if isinstance(got, Reject):
            return got
        for i in got.inner:
            if i.node.unit is c and (i.node.escapes or any(x not in units for x in c.consumers)):
                return Reject("RF303", i.node, "the result of an inner reduction is also read elsewhere",
                              "it must be written in any case")
            if i.node.unit is c and i.contraction and (not inner_pays(got, i) or got.row_map):
                return Reject("RF305", i.node, "evaluating the contraction per step costs more than it saves",
                              "a library GEMM and one more pass over its result are faster")
        for i in got.rows:
            if i.contraction and i.axes != got.p_axes and not consumer_pays(got, i):
                return Reject("RF305", i.node, "consuming the row in this contraction costs more than it saves",
                              "a library GEMM and one more pass over its operand are faster")
        return got

    def outside(self, u: Unit, units: Units) -> str:
        """A reader outside that is not a pointwise map which may still join, or the model's own output."""
        for n in u.results:
            if n.escapes:
                return "the model's output"
        for c in u.consumers:
            if c not in units and (not c.pointwise or c in self.claimed):
                return c.op
        return ""

    def frontier(self, units: Units) -> Iterable[tuple[Unit, Units]]:
        """Reducing ancestors with only free pointwise units between them and the region."""
        above, members = mask(units, "ancestors"), bits(units)
        out = []
        for c in reversed(self.members(above & ~members)):
            if not c.reducing or c.gap or c in self.claimed:
                continue
            between = self.members(c.descendants & above & ~members)
            if all(b.pointwise and b not in self.claimed and not gathers(b) for b in between):
                out.append((c, frozenset(between)))
        return out

    def members(self, bitmask: int) -> list[Unit]:
        out = []
        while bitmask:
            low = bitmask & -bitmask
            out.append(self.graph.units[low.bit_length() - 1])
            bitmask ^= low
        return out

    # -- maps around it ------------------------------------------------------------------------------------------------

    def epilogue(self, d: Draft, lead: Node) -> Draft:
        """Absorb pointwise readers of the results, as long as the number of results does not grow."""
        refused: set[Unit] = set()
        while True:
            candidates = [u for n in escaping(d.units) for u in self.readers(n) if u not in refused and u not in d.units]
            u = min((u for u in candidates if self.free_to_follow(u, d.units)), key=lambda u: u.index, default=None)
            if u is None:
                return d
            got = self.attempt(d.units | {u}, lead)
            if isinstance(got, Reject) or len(got.sinks) > len(d.sinks) or (got.row_map and any(i.contraction for i in got.inner)):
                refused.add(u)
                continue
            d = got

    def siblings(self, d: Draft, lead: Node) -> Draft:
        """A second reduction over the same row whose result meets ours in a pointwise map (``E[x*x] - E[x]**2``)."""
        for n in escaping(d.units):
            for u in self.readers(n):
                if not u.pointwise or u in self.claimed or u in d.units:
                    continue
                for c, between in self.frontier(frozenset({u})):
                    if c in d.units or c.descendants & bits(d.units) or c.ancestors & bits(d.units):
                        continue
                    got = self.attempt(d.units | between | {c, u}, lead)
                    if not isinstance(got, Reject) and self.convex(got.units) and not any(
                            i.contraction for i in (*got.rows, *got.inner)):
                        return self.siblings(got, lead)
        return d

    def prologue(self, d: Draft, lead: Node) -> Draft:
        """Absorb pointwise producers of the row: computed once per element either way, so one pass is saved."""
        refused: set[Unit] = set()
        while True:
            best = None
            for node, sites in d.external.items():
                u = node.unit
                if u is None or u in refused or u in d.units or not u.pointwise or u in self.claimed or gathers(u):
                    continue
                if any(self.reused(d, at) for at in sites):
                    continue
                if best is None or u.index > best.index:
                    best = u
            if best is None:
                return d
            got = self.attempt(d.units | {best}, lead)
            leaves = any(n in escaping(d.units | {best}) for n in best.results)
            if (isinstance(got, Reject) or not self.convex(got.units) or len(got.external) > 8
                    or (leaves and (d.inner or not self.covers_row(got, best)))):
                refused.add(best)
                continue
            d = got

    def covers_row(self, d: Draft, u: Unit) -> bool:
        """The escaping producer is written at every p-axis and along the row: once per element."""
        want = set(d.p_axes) | {R}
        return all({a for e in s.at for a in axes_of(e)} == want for s in d.sinks if s.node.unit is u)

    def reused(self, d: Draft, at: tuple[object, ...]) -> bool:
        names = {a for e in at for a in axes_of(e)}  # type: ignore[arg-type]
        return not (set(d.p_axes) | {R}) <= names

    def readers(self, n: Node) -> list[Unit]:
        return [c for c in (n.unit.consumers if n.unit else []) if n in c.args]

    def free_to_follow(self, u: Unit, units: Units) -> bool:
        if not u.pointwise or u in self.claimed or gathers(u):
            return False
        members = bits(units)
        return all(p in units or not (p.ancestors & members) for p in u.producers)

    def convex(self, units: Units) -> bool:
        return not (mask(units, "descendants") & mask(units, "ancestors") & ~bits(units))

    def escaping_inside(self, d: Draft) -> Node | None:
        """A result along the row that depends on a reduction and that a reduction of the region reads too."""
        read = {n for i in (*d.rows, *d.inner) for n, _ in i.body.sites}
        for s in d.sinks:
            if s.node in read and s.value is not None and d.depends(s.value) and R in {a for e in s.at for a in axes_of(e)}:
                return s.node
        return None

    def fence(self, units: Units) -> None:
        """From now on a claimed region is one vertex: whoever depends on a part depends on all of it."""
        above, below, own = mask(units, "ancestors"), mask(units, "descendants"), bits(units)
        for u in self.graph.units:
            if u in units or u.ancestors & own:
                u.ancestors |= (above | own) & ~(0 if u not in units else own)
            if u in units or u.descendants & own:
                u.descendants |= (below | own) & ~(0 if u not in units else own)


def bits(units: Iterable[Unit]) -> int:
    out = 0
    for u in units:
        out |= 1 << u.index
    return out


def mask(units: Iterable[Unit], what: str) -> int:
    out = 0
    for u in units:
        out |= getattr(u, what)
    return out


def gathers(u: Unit) -> bool:
    """Reads a tensor at positions that are data."""
    return any(n.stmt is not None and data_dependent(n.stmt.expr) for n in u.nodes)


def worthwhile(d: Draft) -> bool:
    """Fusing brings something: dependent reductions, a row map over the same data, or a reduction over a contraction."""
    if len(d.rows) >= 2 or d.row_map:
        return True
    return any(i.contraction for i in d.inner) and not d.rows[0].contraction
