"""Grow cascades: from each reduction backwards along the r-axis, then over the pointwise maps around it.

Reductions are visited from the end of the program, so that a contraction whose result is consumed per step (attention's
scores) is claimed by the cascade that consumes it. A unit joins only if the grown set still evaluates as one cascade
(:mod:`redfuser.partition.draft`), is convex, and, for contractions, pays (:mod:`redfuser.partition.cost`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import prod
from typing import Literal

from redfuser import progress
from redfuser.acrf.expr import Cast, Expr, Load, Op, Reduce
from redfuser.partition.cost import consumer_pays, inner_pays
from redfuser.partition.draft import Draft, R, Reject, Step, draft, escaping, row_axes
from redfuser.partition.evaluate import Instance, scales
from redfuser.partition.graph import Graph, Node, Unit
from redfuser.partition.index import axes_of
from redfuser.partition.sets import Signatures, Units, bits, free_to_read, mask, small, widens
from redfuser.partition.work import NEAR, REGION, Spent, Work

log = logging.getLogger("redfuser.partition")
DEPTH = 4
"""Maps between a tensor of the row and a reduction that is looked for beside the cascade."""
MAX_TENSORS = 8
"""Tensors one kernel reads; a prologue that would pass this stays outside."""
TWO_CONTRACTIONS = Reject("RF305", None, "two contractions that share an operand gain nothing from one kernel")


@dataclass(frozen=True, slots=True)
class Cut:
    """``joining`` was not taken into the cascade grown from ``seed``. ``cascade``: the two reduce over one common r-axis,
    so a cascade was cut in two."""

    seed: Unit
    joining: Unit
    reason: Reject
    cascade: bool = False


@dataclass(slots=True)
class Growth:
    """What growing found: drafts in program order, and the cuts that a reader should hear about."""

    drafts: list[Draft] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)


class Grower:
    """Finds every cascade of a graph. Units of a ``banned`` pair must not share a cascade, and ``barred`` units start none:
    the algebra, or what makes kernels, refused them before.

    Whether a set of units is one cascade depends on its structure alone, so verdicts are memoised by structure: the
    second of two equal layers costs one evaluation. ``verdicts`` may be shared between growers of one module.
    """

    def __init__(self, graph: Graph, banned: frozenset[frozenset[int]] = frozenset(), barred: frozenset[int] = frozenset(),
                 verdicts: dict[object, Reject | None] | None = None, work: Work | None = None,
                 drafts: dict[tuple[Units, Node], Draft | Reject] | None = None) -> None:
        self.graph, self.barred = graph, barred
        self.banned = [sum(1 << i for i in pair) for pair in banned]
        self.claimed: set[Unit] = set()
        self.growth = Growth()
        self.verdicts: dict[object, Reject | None] = {} if verdicts is None else verdicts
        self.signatures = Signatures()
        self.work = work or Work()
        self.drafts: dict[tuple[Units, Node], Draft | Reject] = {} if drafts is None else drafts
        self.steps: list[Step] = []

    def run(self) -> Growth:
        reducing = sum(u.reducing for u in self.graph.units)
        seen = 0
        for u in reversed(self.graph.units):
            if u.reducing:
                progress.tell("looking for cascades: reductions", seen := seen + 1, reducing)
            if u.index % 512 == 511:
                log.info("%d operations left to look at, %d cascades found", u.index + 1, len(self.growth.drafts))
            if u.reducing and u not in self.claimed and not u.gap and u.index not in self.barred:
                got = self.within(u)
                if got is not None:
                    self.growth.drafts.append(got)
                    self.claimed |= got.units
                    self.fence(got.units)
        self.growth.drafts.reverse()
        return self.growth

    def within(self, seed: Unit) -> Draft | None:
        """The seed's cascade, as far as the work that is left allows."""
        self.work.begin()
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

    def drafted(self, units: Units, lead: Node) -> Draft | Reject:
        """A draft costs once, however often the graph is grown again."""
        if (key := (units, lead)) not in self.drafts:
            self.drafts[key] = draft(units, lead, self.work)
        return self.drafts[key]

    # -- one cascade ---------------------------------------------------------------------------------------------------

    def cascade(self, seed: Unit) -> Draft | None:
        node = [n for n in seed.nodes if isinstance(n.stmt, Reduce)][-1]
        lead = node.lead or node
        excluded: set[Unit] = set()
        while True:
            self.steps.clear()
            units, joined = self.reductions(self.siblings(frozenset({seed}), lead), seed, lead, excluded)
            if not joined:
                self.steps.clear()
                units, joined = self.reductions(frozenset({seed}), seed, lead, excluded)
            before: Units = frozenset()
            while units != before:
                before = units
                units = self.epilogue(self.companions(self.siblings(units, lead), lead), lead)
                units, more = self.reductions(units, None, lead, excluded)
                joined += more
            unfit = self.verdict("worth", units, lead, self.judge_worth)
            if unfit is not None:
                if unfit.code != "RF307" and len(unfit.rows) > 1:
                    self.growth.cuts.append(Cut(seed, seed, unfit, True))
                return None
            bad = self.verdict("escapes", units, lead, self.judge_escapes)
            if bad is None or not joined:
                break
            culprit = next((u for u in joined if bad.node is not None and bad.node.unit is u), joined[-1])
            self.growth.cuts.append(Cut(seed, culprit, bad, True))
            excluded.add(culprit)
        d = self.prologue(units, lead)
        return None if isinstance(d, Reject) else replace(d, steps=tuple(self.steps))

    def step(self, kind: Literal["join", "follow", "lead"], grown: Units, units: Units) -> Units:
        self.steps.append(Step(kind, grown - units))
        return grown

    def verdict(self, question: str, units: Units, lead: Node, judge: Callable[[Draft, Unit | None], Reject | None],
                about: Unit | None = None) -> Reject | None:
        """``judge`` on the draft of ``units``: None when it stands. Answered once per structure."""
        if len(units) > REGION:
            return Reject("RF308", None, f"a region of more than {REGION} operations")
        key = (question, self.signatures.of(units, lead, about), self.surroundings(units, about))
        if key not in self.verdicts:
            got = self.drafted(units, lead)
            if isinstance(got, Draft):
                self.verdicts[key] = judge(got, about)
            else:
                common = question == "rows" and len(got.rows) > 1 and any(n.unit is about for n in got.rows)
                self.verdicts[key] = None if common else got
        return self.verdicts[key]

    def surroundings(self, units: Units, about: Unit | None) -> object:
        """What verdicts read beyond the units themselves: whether the newcomer's results are read outside."""
        return about is not None and any(n in escaping(units) for n in about.results)

    def reductions(self, units: Units, seed: Unit | None, lead: Node, excluded: set[Unit]) -> tuple[Units, list[Unit]]:
        """Join the reductions that the region reads, nearest first; what is not joined is noted for ``seed``. Without one:
        those over the cascade's own row only, which the maps around it have brought into reach."""
        tried: set[Unit] = set(excluded)
        joined: list[Unit] = []
        while True:
            step = next(((c, between) for c, between in self.frontier(units) if c not in tried), None)
            if step is None:
                return units, joined
            c, between = step
            tried.add(c)
            grown = units | between | {c}
            if self.parted(grown):
                continue
            others = self.co_readers(between | {c}, grown, lead)
            together = grown | others
            if others and not others & excluded and not self.parted(together) and self.outside(
                    between, together) is None and self.verdict("together", together, lead, self.judge_together, c) is None:
                units = self.step("join", together, units)
                joined += [*(u for u in others if u.reducing), c]
                continue
            question, judge = ("join", self.judge_join) if seed else ("also", self.judge_also)
            read, unfit = self.outside(between, grown), self.verdict(question, grown, lead, judge, c)
            if (cut := read or unfit) is not None:
                fits = unfit is None or self.verdict("rows", grown, lead, self.judge_rows, c) is None
                if seed is not None:
                    self.growth.cuts.append(Cut(seed, c, cut, fits))
                continue
            if self.verdict("plain", grown, lead, self.judge_plain, c) is None and self.ends_cascade(c):
                continue
            units = self.step("join", grown, units)
            joined.append(c)

    def judge_plain(self, got: Draft, c: Unit | None) -> Reject | None:
        plain = any(i.node.unit is c and not i.contraction for i in got.inner)
        return None if plain else Reject("RF302", None, "the reduction is no plain one over another axis")

    def ends_cascade(self, c: Unit) -> bool:
        """Does a reduction over another axis have a cascade of its own before it, to which it belongs?"""
        node = [n for n in c.nodes if isinstance(n.stmt, Reduce)][-1]
        own = frozenset({c})
        return any(self.outside(between, own | between | {d}) is None and self.verdict(
            "also", own | between | {d}, node.lead or node, self.judge_also, d) is None for d, between in self.frontier(own))

    def parted(self, units: Units) -> bool:
        """Does the set hold a pair that the algebra would not join?"""
        members = bits(units)
        return any(members & pair == pair for pair in self.banned)

    def co_readers(self, made: Units, units: Units, lead: Node) -> Units:
        """Other reductions that read tensors of ``made``, through free maps, and those maps, and readers of one element: to
        write no tensor of the row they must join together. Empty where there are none, or where one is taken."""
        reached: dict[Unit, None] = {}
        todo = [u for m in made for u in m.consumers if u not in units]
        while todo:
            u = todo.pop()
            if u in reached or u in units:
                continue
            if u in self.claimed or u.gap or (u.gathers and not small(u, lead)) or len(reached) > REGION:
                return frozenset()
            reached.setdefault(u)
            along = u.reducing and max(prod(n.shape) for n in u.results) >= max(prod(n.shape) for n in u.args)
            if along or (u.pointwise and not u.gathers):
                todo += u.consumers
        found = bits(u for u in reached if u.reducing or u.gathers)
        return frozenset(u for u in reached if found >> u.index & 1 or u.descendants & found)

    def judge_together(self, got: Draft, c: Unit | None) -> Reject | None:
        """Every reduction over the cascade's own row, or a contraction per step, and no tensor of the row left over."""
        if any(not i.contraction for i in got.inner):
            return Reject("RF302", None, "the reduction runs over another axis")
        return self.one_contraction(got) or self.judge_join(got, c) or self.judge_escapes(got, c)

    def judge_also(self, got: Draft, c: Unit | None) -> Reject | None:
        return self.one_contraction(got) or self.judge_join(got, c) or self.judge_rows(got, c)

    def one_contraction(self, got: Draft) -> Reject | None:
        several = len(matrices(got.rows)) > 1
        if len(matrices(got.inner)) > 1 or (several and all(i.contraction for i in got.rows)):
            return TWO_CONTRACTIONS  # weights that are normalised in the kernel serve any number of results
        return None

    def judge_rows(self, got: Draft, c: Unit | None) -> Reject | None:
        """Does the newcomer reduce over the cascade's own r-axis?"""
        if any(i.node.unit is c for i in got.rows):
            return None
        return Reject("RF302", None, "the reduction runs over another axis")

    def judge_join(self, got: Draft, c: Unit | None) -> Reject | None:
        for i in got.inner:
            if c is not None and i.node.unit is c and (i.node.escapes or any(x not in got.units for x in c.consumers)):
                return Reject("RF305", i.node, "the result of an inner reduction is also read elsewhere",
                              "it must be written in any case")
            if i.node.unit is c and i.contraction and (not inner_pays(got, i) or got.row_map):
                return Reject("RF305", i.node, "evaluating the contraction per step costs more than it saves",
                              "a library GEMM and one more pass over its result are faster")
        for i in got.rows:
            if not i.contraction and not set(got.p_axes) >= set(row_axes(i)) and any(
                    i.node.unit is not c and j.node.unit is c and set(row_axes(j)) < set(row_axes(i)) for j in got.rows):
                return Reject("RF305", i.node, "the reductions have other rows",
                              "one has a result for every row, the other one result for all rows: fused, the rows could not "
                              "run in parallel", "nothing to change: the smaller reduction runs before the cascade")
            if i.contraction and i.axes != got.p_axes and not consumer_pays(got, i):
                return Reject("RF305", i.node, "consuming the row in this contraction costs more than it saves",
                              "a library GEMM and one more pass over its operand are faster")
        return None

    def outside(self, between: Units, units: Units) -> Reject | None:
        """Readers outside must be pointwise maps, which may still join; not the model's output, nor a reduction."""
        for u in between:
            reader = "the model's output" if any(n.escapes for n in u.results) else next(
                (c.op for c in u.consumers if c not in units and (not c.pointwise or c in self.claimed)), "")
            if reader:
                return Reject("RF303", u.nodes[-1], "a tensor between the two reductions is also read elsewhere",
                              f"{reader} reads it, so it must be written in any case",
                              "drop the other use, or recompute it there")
        return None

    def frontier(self, units: Units) -> list[tuple[Unit, Units]]:
        """Reducing ancestors with only free pointwise units between them and the region."""
        above, members = mask(units, "ancestors"), bits(units)
        free = 0
        reached: set[Unit] = set()
        queue = [-p.index for u in units for p in u.producers if p not in units]
        heapify(queue)
        found: list[Unit] = []
        while queue and len(reached) < REGION:
            u = self.graph.units[-heappop(queue)]
            if u in reached or u in units:
                continue
            reached.add(u)
            if u.gap or u in self.claimed:
                continue
            if u.reducing:
                found.append(u)
            elif not u.gathers:
                free |= 1 << u.index
                for p in u.producers:
                    heappush(queue, -p.index)
        out = []
        for c in found[:NEAR]:
            between = c.descendants & above & ~members
            if not between & ~free:
                out.append((c, frozenset(self.members(between))))
        return out

    def members(self, bitmask: int) -> list[Unit]:
        out = []
        while bitmask:
            low = bitmask & -bitmask
            out.append(self.graph.units[low.bit_length() - 1])
            bitmask ^= low
        return out

    # -- maps around it ------------------------------------------------------------------------------------------------

    def epilogue(self, units: Units, lead: Node) -> Units:
        """Absorb pointwise readers of the results, as long as the number of results does not grow. A map from a statistic
        back to its row may add one, since the row is at hand; so may a map of statistics, which are small."""
        refused: set[Unit] = set()
        while True:
            candidates = [u for n in escaping(units) for u in self.following(n) if u not in refused and u not in units]
            u = min((u for u in candidates if self.free_to_follow(u, units)), key=lambda u: u.index, default=None)
            if u is None:
                return units
            grown = self.close(units | {u}) if any(free_to_read(p) for p in u.producers) else units | {u}
            if self.parted(grown):
                refused.add(u)
                continue
            if u.gathers and not (small(u, lead) and len(escaping(grown)) <= len(escaping(units))):
                refused.add(u)  # one element of the row is taken where the row is not written
                continue
            if len(escaping(grown)) > len(escaping(units)) + (widens(u, units) or small(u, lead)) or self.verdict(
                    "follow", grown, lead, self.judge_follow, u) is not None:
                refused.add(u)
                continue
            units = self.step("follow", grown, units)

    def judge_follow(self, got: Draft, u: Unit | None) -> Reject | None:
        if u is not None and u.gathers and (len(got.rows) < 2 or len(got.external) > MAX_TENSORS):
            return Reject("RF305", None, "one element of a map of a single reduction")
        if got.row_map and any(i.contraction for i in got.inner):
            return Reject("RF305", None, "a map over the row would need the inner contraction a second time")
        return None

    def siblings(self, units: Units, lead: Node) -> Units:
        """A second reduction over the same row whose result meets ours in a pointwise map (``E[x*x] - E[x]**2``)."""
        for n in escaping(units):
            for u in self.graph.readers(n):
                if not u.pointwise or u in self.claimed or u in units:
                    continue
                for c, between in self.frontier(frozenset({u})):
                    if c in units or c.descendants & bits(units):
                        continue
                    grown = units | between | {c, u}
                    spare = small(c, lead) and any(n in escaping(grown) for n in c.results)
                    if self.parted(grown) or not self.convex(grown) or len(escaping(grown)) > len(escaping(units)) + spare:
                        continue
                    if self.verdict("sibling", grown, lead, self.judge_sibling, c) is None:
                        return self.siblings(self.step("join", grown, units), lead)
        return units

    def companions(self, units: Units, lead: Node) -> Units:
        """Further reductions of a cascade's own row (a mean beside a variance, an index beside a maximum), whose results
        are small: the row is read once for all of them."""
        if self.verdict("worth", units, lead, self.judge_worth) is not None:
            return units
        for c, between in self.beside(units):
            grown = units | between | {c}
            if small(c, lead) and not self.parted(grown) and self.convex(grown) and self.outside(
                    between, grown) is None and self.verdict("companion", grown, lead, self.judge_companion, c) is None:
                return self.companions(self.step("join", grown, units), lead)
        return units

    def beside(self, units: Units) -> list[tuple[Unit, Units]]:
        """Reductions that read a tensor which the region reads or makes, through free maps; with the maps that depend on
        the region or lead into it."""
        members = bits(units)
        below, above = mask(units, "descendants") & ~members, mask(units, "ancestors") & ~members
        tensors = dict.fromkeys(n for u in units for n in (*u.args, *u.results))
        level: dict[Unit, None] = dict.fromkeys(u for n in tensors for u in self.graph.readers(n))
        out: dict[Unit, Units] = {}
        for _ in range(DEPTH):
            free = [u for u in level if u not in units and u not in self.claimed and not u.gap and not u.gathers]
            for c in (u for u in free if u.reducing and u not in out):
                between = (c.ancestors & below) | (c.descendants & above)
                if between.bit_count() <= REGION and all(
                        b.pointwise and b not in self.claimed and not b.gathers for b in self.members(between)):
                    out[c] = frozenset(self.members(between))
            level = dict.fromkeys(v for u in free if u.pointwise for v in u.consumers)
        middle = min(u.index for u in units)
        near = sorted(sorted(out, key=lambda c: abs(c.index - middle))[:NEAR], key=list(out).index)
        return [(c, out[c]) for c in near]

    def judge_companion(self, got: Draft, c: Unit | None) -> Reject | None:
        mine = [i for i in got.rows if i.node.unit is c]
        if not mine or any(i.node.unit is c for i in got.inner):
            return Reject("RF302", None, "the reduction runs over another axis")
        if any(i.contraction or set(row_axes(i)) != set(got.p_axes) for i in mine):
            return Reject("RF305", None, "the reduction has other rows")
        if len(got.external) > MAX_TENSORS:
            return Reject("RF305", None, f"more than {MAX_TENSORS} tensors read by one kernel")
        return self.judge_escapes(got, c)

    def judge_sibling(self, got: Draft, u: Unit | None) -> Reject | None:
        contractions = [i for i in (*got.rows, *got.inner) if i.contraction]
        wide = matrices(contractions)
        if len(wide) > 1:
            return TWO_CONTRACTIONS
        if len(contractions) > 1 and not consumer_pays(got, wide[0]):
            return Reject("RF305", wide[0].node, "a second reduction beside this contraction costs more than it saves",
                          "a library GEMM and one more pass over its operand are faster")
        return None

    def prologue(self, units: Units, lead: Node) -> Draft | Reject:
        """Absorb pointwise producers of the row: computed once per element either way, so one pass is saved."""
        refused: set[Unit] = set()
        d = self.drafted(units, lead)
        while not isinstance(d, Reject):
            best = None
            for node, sites in d.external.items():
                u = node.unit
                if u is None or u in refused or u in d.units or not u.pointwise or u in self.claimed or u.gathers:
                    continue
                if u.piecewise or self.library_epilogue(u):
                    continue
                if any(self.reused(d, at) for at in sites) and not (scales(u) and d.inner):
                    continue
                if best is None or u.index > best.index:
                    best = u
            if best is None:
                return d
            grown = self.close(d.units | {best})
            if self.parted(grown) or not self.convex(grown) or self.verdict(
                    "lead", grown, lead, self.judge_lead, best) is not None:
                refused.add(best)
                continue
            self.step("lead", grown, d.units)
            d = self.drafted(grown, lead)
        return d

    def judge_lead(self, got: Draft, u: Unit | None) -> Reject | None:
        if len(got.external) > MAX_TENSORS:
            return Reject("RF305", None, f"more than {MAX_TENSORS} tensors read by one kernel")
        if u is not None and any(n.unit in got.units and (n.unit is u or n.unit.ancestors >> u.index & 1)
                                 for n in got.external if n.unit is not None):
            return Reject("RF305", u.nodes[-1], "a contraction reads what the producer leads to: it is written in any case")
        leaves = [s for s in got.sinks if s.node.unit is u]
        want = set(got.p_axes) | {R}
        contractions = got.inner or any(i.contraction for i in got.rows)
        if leaves and (contractions or any({a for e in s.at for a in axes_of(e)} != want for s in leaves)):
            return Reject("RF303", None, "a producer that is read elsewhere is not written once per element of the row")
        return None

    def library_epilogue(self, u: Unit) -> bool:
        """A bias or a rounding that the library applies to its own contraction's result at no cost."""
        full = [n for n in u.args if n.unit is not None and n.shape == u.results[0].shape]
        if len(full) != 1 or len(u.nodes) > 1 or (u.is_view and full[0].dtype == u.results[0].dtype):
            return False
        maker = full[0].unit
        assert maker is not None
        if maker.pointwise:
            return self.library_epilogue(maker)
        return maker.reducing and len(maker.nodes) == 1 and maker not in self.claimed and len(maker.args) == 2

    def reused(self, d: Draft, at: tuple[Expr, ...]) -> bool:
        return not (set(d.p_axes) | {R}) <= {a for e in at for a in axes_of(e)}

    def following(self, n: Node) -> list[Unit]:
        """Readers of a tensor, also behind widening casts and broadcasts, which are free for whoever reads them."""
        return [v for u in self.graph.readers(n) for v in (
            [w for m in u.results for w in self.following(m)] if free_to_read(u) and u not in self.claimed else [u])]

    def free_to_follow(self, u: Unit, units: Units) -> bool:
        if not u.pointwise or u in self.claimed:
            return False
        members = bits(units)
        return all(p in units or not (p.ancestors & members) or (
            free_to_read(p) and self.free_to_follow(p, units)) for p in u.producers)

    def close(self, units: Units) -> Units:
        """With the free maps that lie between members and that nothing else reads."""
        between = mask(units, "descendants") & mask(units, "ancestors") & ~bits(units)
        if between.bit_count() > REGION:
            return units
        more = {u for u in self.members(between)
                if u.is_cheap and u not in self.claimed and not any(n.escapes for n in u.results)}
        while True:
            kept = {u for u in more if all(c in units or c in more for c in u.consumers)}
            if kept == more:
                return units | more
            more = kept

    def convex(self, units: Units) -> bool:
        """No path leaves and comes back, other than through maps that are evaluated inside anyway."""
        between = mask(units, "descendants") & mask(units, "ancestors") & ~bits(units)
        return between.bit_count() <= REGION and all(u.is_cheap for u in self.members(between))

    def judge_escapes(self, d: Draft, _: Unit | None) -> Reject | None:
        """A result along the row that depends on a reduction and that a reduction of the region reads too; or any result
        along the row of a cascade that evaluates a contraction per step."""
        read = {n for i in (*d.rows, *d.inner) for n, _ in i.body.sites}
        contraction = next((i for i in d.inner if i.contraction), None)
        for s in d.sinks:
            if contraction is not None and R in {a for e in s.at for a in axes_of(e)}:
                return Reject("RF303", contraction.node, "a result along the row depends on the contraction",
                              "its value would be written, or computed a second time, for every element of the row")
            if s.node in read and s.value is not None and d.depends(s.value) and R in {a for e in s.at for a in axes_of(e)}:
                return Reject(
                    "RF303", s.node, "a tensor of the row that depends on a reduction is needed both inside and outside",
                    "it must be written in any case, so reading it back is all that a fusion would save",
                    "drop the other use, or recompute it there")
        return None

    def judge_worth(self, d: Draft, _: Unit | None) -> Reject | None:
        """Fusing must bring something: dependent reductions, a row map over the same data, or a reduction over a
        contraction."""
        if len(d.rows) >= 2 or d.row_map or any(i.contraction for i in d.inner):
            return None
        if d.rows[0].contraction and widened(d.rows[0]):
            return None
        return Reject("RF307", d.rows[0].node, "a single reduction")

    def fence(self, units: Units) -> None:
        """From now on a claimed region is one vertex: whoever depends on a part depends on all of it."""
        above, below, own = mask(units, "ancestors"), mask(units, "descendants"), bits(units)
        above, below = above & ~own, below & ~own
        for u in self.graph.units:
            if u in units:
                u.ancestors |= above
                u.descendants |= below
            elif u.ancestors & own:
                u.ancestors |= above | own
            elif u.descendants & own:
                u.descendants |= below | own


def widened(i: Instance) -> bool:
    """Is it a product of tensors of narrower types, widened first? A library multiplies them as the wide numbers they have
    become, a matrix unit as what they are."""
    e, read = i.body.expr, i.node.unit.args if i.node.unit is not None else ()
    return all(n.dtype == "f32" for n in read) and isinstance(e, Op) and e.name == "mul" and all(
        isinstance(x, Cast) and x.dtype == "f32" and isinstance(x.arg, Load) and x.arg.dtype in ("f16", "bf16", "e4m3", "e5m2")
        for x in e.args)


def matrices(instances: Iterable[Instance]) -> list[Instance]:
    """The contractions but for those that have one column where another of them has many: a product with a vector (a
    normaliser ``q @ k.sum``) costs what a sum over the row costs."""
    some = [i for i in instances if i.contraction]
    return [i for i in some if not any(set(i.axes) < set(j.axes) for j in some)]
