"""Partition a model: grow cascades, fuse each, outline what fuses, and say why the rest stays.

A cascade that the algebra refuses is cut where it stopped: the longest prefix is grown again without the refused reduction,
so that what does fuse is outlined, and both facts are reported. A region that what follows refuses (no kernel of it fits,
passes its checks or builds: :meth:`Partitioner.give_up`) is cut by its last join (:mod:`redfuser.partition.smaller`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from redfuser import progress
from redfuser.acrf.cascade import Provenance
from redfuser.acrf.state import Fused, NotFusable
from redfuser.partition import account, host, judge, loops, operand, siblings
from redfuser.partition.about import evaluated, numbered, ops, origin, refused_units, stem_of
from redfuser.partition.across import Priced, dearer
from redfuser.partition.around import Around
from redfuser.partition.canonical import Outlined
from redfuser.partition.cost import HOST
from redfuser.partition.drafted import Cut, Draft
from redfuser.partition.epilogue import contracts
from redfuser.partition.flat import columns_joined
from redfuser.partition.forming import Forming
from redfuser.partition.graph import Graph
from redfuser.partition.grow import Grower
from redfuser.partition.lifting import build_graph
from redfuser.partition.lone import LEAST, replaced
from redfuser.partition.maps import MapGrower
from redfuser.partition.region import Found, Partition, Refusal, Region, key_of
from redfuser.partition.scans import ScanGrower, why
from redfuser.partition.sets import Units
from redfuser.partition.single import by_itself
from redfuser.partition.smaller import Pair, apart, undone
from redfuser.partition.ties import decided
from redfuser.partition.unfused import slower
from redfuser.partition.work import BESIDE, REFERENCE, ROUNDS, Work, allowed
from redfuser.target import TARGETS
from redfuser.verdicts import JUDGED

log = logging.getLogger("redfuser.partition")
UNDOINGS = 8
"""Joins undone one by one in what grows from one reduction; after that its reductions are taken singly. As many distinct
regions that start with one operation may fail a check: each took seconds."""


def partition(imported: Any, casts: str = "preserve", maps: bool = True) -> Partition:
    """Partition ``imported`` (:class:`redfuser.frontend.imported.Imported`: ``mod`` with one dataflow ``main``). maps: also
    group what lies between cascades.

    Raises :class:`redfuser.errors.InputError` only for a module without ``main``; whatever cannot be analysed is left
    to torch and reported."""
    return Partitioner(imported, casts, maps=maps).run()


class Partitioner:
    """``run`` partitions; after ``give_up``, ``run`` again: what was given up gives way to smaller regions. holds: is a state's
    row on chip, reduced where nothing merges? priced: what its kernel takes. measured: that it pays, whatever models say?
    abreast: are the rows of its products lanes, on a CPU?"""

    def __init__(self, imported: Any, casts: str = "preserve", arch: str = "sm_90a", maps: bool = True,
                 holds: Callable[[Fused], bool] | None = None, priced: Priced | None = None,
                 measured: Callable[[Fused], bool] = lambda fused: False,
                 abreast: Callable[[Fused], bool] | None = None) -> None:
        self.maps, self.priced, self.measured = maps, priced if arch in TARGETS else None, measured
        self.abreast = abreast if arch == HOST else None
        weights = frozenset(i.name for i in getattr(imported, "inputs", ()) if i.kind != "user")
        written = maps and TARGETS.get(arch, REFERENCE).kind == "cuda"
        self.graph: Graph = build_graph(imported.mod, dict(imported.provenance or {}), weights, written, imported.lined)
        self.once = decided(self.graph)
        self.opaque = account.opaque(self.graph, imported)
        self.declined: list[account.Declined] = []
        self.verdicts: dict[object, Any] = {}
        self.allowed = allowed(self.graph.units)
        self.work = Work(TARGETS.get(arch) or replace(REFERENCE, arch=arch), self.allowed, kept=self.allowed // BESIDE)
        self.forms = Forming(self.graph, casts, self.work, holds, self.priced)
        self.drafts: dict[Any, Any] = {}
        self.banned: set[Pair] = set()
        self.barred: set[int] = set()
        self.tries: Counter[int] = Counter()
        self.judged: dict[int, set[str]] = {}
        self.accepted: list[Found] = []
        self.mapped: list[Found] = []
        self.unmapped: list[tuple[Units, NotFusable, Fused | None]] = []
        self.eager: set[int] = set()
        self.costs: dict[object, Any] = {}
        self.grouped: dict[Any, Any] = {}
        self.answers: dict[str, NotFusable | None] = {}
        self.again: set[str] = set()
        self.scanned: dict[Any, Any] = {}
        self.spare = Work(self.work.machine, self.allowed)

    def run(self) -> Partition:
        self.again = set()
        for turn in range(ROUNDS):
            self.graph.reset()
            growth = Grower(self.graph, frozenset(self.banned), frozenset(self.barred), self.verdicts, self.work,
                            self.drafts, held=self.once).run()
            accepted: list[tuple[Draft, Outlined, Fused]] = []
            again = False
            formed, steps = self.forms.formed(growth.drafts)
            self.work.short |= {u.index for d in steps for u in d.units if u.reducing}
            for n, (d, out) in enumerate(formed, 1):
                progress.tell("deriving states: cascades", n, len(formed))
                got = self.forms.derived(out, self.forms.fuse)
                if isinstance(out, NotFusable) or isinstance(got, NotFusable):
                    assert isinstance(got, NotFusable)
                    again |= got.code != "RF308"
                    self.refused(d, out if isinstance(out, Outlined) else None, got)
                else:
                    accepted.append((d, out, got))
            log.info("round %d: %d regions of %d operations, %d distinct cascades, %d nodes visited", turn, len(accepted),
                     len(self.graph.units), len(self.forms.fused), self.allowed - self.work.left)
            counts = Counter[str]()
            self.accepted = [Found(d, o, f, numbered(stem_of(d), counts)) for d, o, f in accepted]
            if not again and not self.give_up(self.slower()):
                break
            self.work.more()
        if self.work.short:
            log.info("%d reductions were left to torch: RF308, the work that one model may take is spent", len(self.work.short))
        self.mapped = self.reduce_maps(counts) if self.maps else []
        self.mapped += self.scan_rows(counts) if self.maps and self.work.machine.kind == "cuda" else []
        self.mapped += self.group_maps(counts) if self.maps else []
        return self.finish(growth.cuts, counts)

    def state(self, d: Draft) -> Fused | NotFusable:
        return self.forms.derived(self.forms.form(d, False), self.forms.fuse)

    def slower(self) -> dict[str, NotFusable]:
        """Regions, by name, whose kernels are modelled far behind what they are without us."""
        found: dict[str, NotFusable] = {}
        for f in self.accepted if self.priced or self.abreast else ():
            if (key := key_of(f.fused.cascade)) not in self.answers:
                self.answers[key] = None if self.measured(f.fused) else self.behind(f.draft, f.fused)
            if (why := self.answers[key]) is not None:
                found[f.name] = why
        return found

    def behind(self, d: Draft, fused: Fused) -> NotFusable | None:
        """Why a region gives way to smaller ones; of a CPU only products are known."""
        if self.priced is None:
            return host.slower(d, fused, self.abreast) if self.abreast else None
        return slower(d, fused, self.priced) or siblings.slower(d, fused, self.state, self.priced) or operand.slower(
            d, fused, self.state, self.priced)

    def reduce_maps(self, counts: Counter[str]) -> list[Found]:
        """The reductions that are no cascade, with the maps around them; where that is dearer than torch, without those in
        front that others read too."""
        barred = self.barred | self.eager | {u.index for u in self.graph.units if u.reducing and contracts(u)}
        found: list[Found] = []
        for unshared in (False, True):
            self.graph.reset()
            grower = Grower(self.graph, frozenset(self.banned), frozenset(barred), work=self.spare, worth=judge.reduced,
                            taken=[f.draft for f in (*self.accepted, *found)], unshared=unshared, held=self.once)
            wanted = [d for d in grower.run().drafts if replaced(evaluated(d)) >= LEAST or by_itself(d)]
            formed, _ = self.forms.formed(wanted, others=[f.draft for f in (*self.accepted, *found)])
            left: list[tuple[Draft, NotFusable]] = []
            for d, out in formed:
                beside = d.across
                if beside and isinstance(out, Outlined):
                    out = replace(out, cascade=columns_joined(out.cascade))
                got = self.forms.derived(out, self.forms.fuse)
                if isinstance(got, Fused) and beside:
                    got = self.dearer(d, got) or got
                if isinstance(out, NotFusable) or isinstance(got, NotFusable):
                    assert isinstance(got, NotFusable)
                    left.append((d, got))
                else:
                    found.append(Found(d, out, got, numbered(stem_of(d), counts)))
            if unshared or not left:
                for d, why in left:
                    self.left(d, why)
                break
        return found

    def dearer(self, d: Draft, fused: Fused) -> NotFusable | None:
        """Why a reduction across memory is left to torch, asked once."""
        if (key := key_of(fused.cascade)) not in self.answers:
            self.answers[key] = dearer(d, fused, self.priced)
        return self.answers[key]

    def group_maps(self, counts: Counter[str]) -> list[Found]:
        """The maps that no cascade took, in groups."""
        return self.grouping(MapGrower, self.grouped, "map", counts)

    def scan_rows(self, counts: Counter[str]) -> list[Found]:
        """Scans, each with the maps around it."""
        return self.grouping(ScanGrower, self.scanned, "scan", counts) if any(u.scan for u in self.graph.units) else []

    def grouping(self, grow: type[MapGrower], drafts: dict[Any, Any], stem: str, counts: Counter[str]) -> list[Found]:
        from redfuser.acrf import mapped

        self.graph.reset()
        near = Around(self.graph)
        taken = [*self.accepted, *self.mapped]
        inputs = {v for f in taken for v in f.outlined.inputs.values()}
        outputs = {v for f in taken for v in f.outlined.outputs.values()}

        def live(drafts: list[Draft]) -> set[str]:
            return self.graph.live(inputs | {n.var for d in drafts for n in d.external},
                                   outputs | {s.node.var for d in drafts for s in d.sinks})

        grower = grow(self.graph, near, self.spare, live, [f.draft for f in taken], frozenset(self.eager),
                      self.costs if grow is MapGrower else None, drafts, self.once)
        formed, steps = self.forms.formed(grower.run(), maps=True, others=[f.draft for f in taken])
        self.unmapped = [x for x in self.unmapped if x[1].code != "RF308"]
        self.unmapped += [(frozenset(grower.short), account.SPENT, None)] if grower.short else []
        self.unmapped += [(d.units, loops.LEFT, None) for d in steps[:1]]
        found: list[Found] = []
        for n, (d, out) in enumerate(formed, 1):
            progress.tell(f"deriving states: {stem}s", n, len(formed))
            got = self.forms.derived(out, lambda cascade: mapped(cascade, self.forms.casts))
            if isinstance(out, NotFusable) or isinstance(got, NotFusable):
                assert isinstance(got, NotFusable)
                self.left(d, got)
            else:
                found.append(Found(d, out, got, numbered(stem, counts)))
        return found

    def left(self, d: Draft, why: NotFusable) -> None:
        """Left to torch, and told once however often the graph is grown."""
        if (entry := (d.units, why, None)) not in self.unmapped:
            self.unmapped.append(entry)

    # -- refusals ------------------------------------------------------------------------------------------------------

    def refused(self, d: Draft, out: Outlined | None, got: NotFusable) -> None:
        """By the algebra: report it, and cut. The refused reduction may not share a cascade with what it depends on; where
        that says nothing new, no two of the cascade's reductions may, and then none of them starts one."""
        where = origin(out, got.statement)
        about = refused_units(d, out, got.statement)
        node = out.reductions.get(got.statement) if out else None
        self.declined.append(account.Declined(stem_of(d), ops(d.units), replace(
            got, provenance=where) if where.op else got, about, culprit=node.unit if node is not None else None))
        units = {i.node.unit.index for i in (*d.rows, *d.inner) if i.node.unit}
        culprit = node.unit.index if node is not None and node.unit is not None else -1
        pairs = {frozenset({culprit, u.index}) for u in about if culprit >= 0 and u.index != culprit} - self.banned
        pairs = pairs or {frozenset(p) for p in combinations(sorted(units), 2)} - self.banned
        self.banned |= pairs
        if not pairs:
            self.barred |= units

    def settles(self, key: str) -> bool:
        """A check found the state of a cascade wrong: is there another, of a row that is held? It comes back with that; its key
        is in ``again`` until the next ``run``."""
        f = next((f for f in self.accepted if key_of(f.outlined.cascade) == key), None)
        if f is not None and key not in self.again and self.forms.settled(f.outlined.cascade):
            self.again.add(key)
        return key in self.again

    def give_up(self, reasons: Mapping[str, NotFusable]) -> bool:
        """No kernel can be made of these regions (by name), for these reasons. Cut each; False when there are none. What a
        check found wrong comes back whole where there is another state for it (:meth:`settles`)."""
        for f in self.accepted:
            if (reason := reasons.get(f.name)) is None:
                continue
            if reason.code in JUDGED and self.settles(key_of(f.outlined.cascade)):
                log.info("%s: %s (%s); once more, with the results that it reads final", f.name, reason.code, reason.why)
                continue
            d = f.draft
            wrong = reason.code == "RF901" and reason.why.startswith("result")
            cheaper = self.abreast is not None and reason.code == "RF305"
            parted, pairs = undone(d, wrong or cheaper or (reason.code in ("RF490", "RF491") and bool(d.inner)))
            reducing = [u for u in d.units if u.reducing]
            first = min(u.index for u in reducing)
            self.tries[first] += 1
            judged = self.judged.setdefault(id(self.graph.units[first].lifted), set())
            if reason.code in JUDGED:
                judged.add(key_of(f.outlined.cascade))
            if max(self.tries[first], len(judged)) > UNDOINGS and not pairs <= (every := apart(reducing)):
                parted, pairs = frozenset(reducing), every
            about = frozenset(i.node.unit for i in d.rows if i.node.unit and not i.contraction) or frozenset(reducing)
            at = next((o for o in ops(d.units) if o.source), Provenance())
            self.declined.append(account.Declined(stem_of(d), ops(d.units), replace(reason, provenance=at), about,
                                                  ops(parted), f.fused, cheaper=cheaper))
            log.info("%s: %s (%s); %s", f.name, reason.code, reason.why or reason.condition,
                     f"tried again without {', '.join(map(repr, parted))}" if pairs - self.banned else "left to torch")
            if not pairs - self.banned:
                self.barred |= {u.index for u in reducing}
            self.banned |= pairs
        self.work.more()
        for f in self.mapped:
            if (reason := reasons.get(f.name)) is not None:
                self.eager |= {u.index for u in f.draft.units}
                self.unmapped.append((f.draft.units, reason, f.fused))
                log.info("%s: %s (%s); left to torch", f.name, reason.code, reason.why or reason.condition)
        return bool(reasons)

    # -- the result ----------------------------------------------------------------------------------------------------

    def finish(self, cuts: list[Cut], counts: Counter[str]) -> Partition:
        found = [*self.accepted, *self.mapped]
        live = self.graph.live({v for f in found for v in f.outlined.inputs.values()},
                               {v for f in found for v in f.outlined.outputs.values()})
        regions: list[Region] = []
        taken: set[str] = set()
        for f in found:
            d, o = f.draft, f.outlined
            mine = {n.var for u in d.units for n in u.results} | {u.var for u in d.units}
            covered = frozenset(v for v in mine if v not in live and v not in taken)
            taken |= covered
            regions.append(Region(f.name, replace(o.cascade, name=f.name.rsplit(".", 1)[0]), f.fused, o.inputs, o.outputs,
                                  covered, ops(d.units)))
        fused = {u: f.name.rsplit(".", 1)[0] for f in found for u in f.draft.units}
        kept = Counter(u.op for u in self.graph.units if u not in fused and u.var in live)
        alone = {u for f in self.mapped if f.draft.rows for u in f.draft.units}  # of a cascade that was refused, its reductions
        whole = {u: stem for u, stem in fused.items() if u not in alone}
        told = self.opaque | {u: why(u, self.work.machine, self.maps) for u in self.graph.units if u.scan is not None}
        losses, notes = account.balance(self.graph, whole, self.declined, cuts, told, self.work.short)
        refusals = tuple(Refusal(numbered(x.stem, counts), x.ops, x.reason, x.fused) for x in losses)
        unmapped = tuple(Refusal(numbered("map", counts), ops(units), why, state) for units, why, state in self.unmapped)
        unseen = tuple(u.symbol or u.op for u in self.graph.units if u.gap)
        return Partition(tuple(regions[:len(self.accepted)]), refusals, unseen, dict(kept), notes,
                         tuple(regions[len(self.accepted):]), unmapped)
