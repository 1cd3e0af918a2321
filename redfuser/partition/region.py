"""Partition a model: grow cascades, fuse each, outline what fuses, and say why the rest stays.

A refused cascade is cut where the algebra stopped: the longest prefix is grown again without the refused reduction, so
that what does fuse is outlined, and both facts are reported.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import Any

from redfuser.acrf.expr import Cascade, Provenance, Reduce, refs_of
from redfuser.acrf.refuse import defect
from redfuser.acrf.state import Fused, NotFusable
from redfuser.partition.canonical import Outlined, outline
from redfuser.partition.draft import Draft
from redfuser.partition.graph import Graph, Unit, build_graph
from redfuser.partition.grow import Cut, Grower

OPAQUE = ("call_dps_packed", "call_pure_packed")
"""Calls the frontend made opaque; it reports them itself."""


@dataclass(frozen=True, slots=True)
class Region:
    """One fused cascade of the model.

    ``cascade`` is canonical: structurally equal layers have equal text (its name is for display and left out of
    sharing: compare ``key``). ``inputs`` maps cascade tensors to Relax variables, viewed (row-major, no copy) with the
    tensor's shape; ``outputs`` maps cascade outputs to Relax variables: the kernel writes the statement's axes
    row-major, the variable is a view of it. ``covered`` are the variables whose bindings nothing outside needs.
    """

    name: str
    cascade: Cascade
    fused: Fused
    inputs: dict[str, str]
    outputs: dict[str, str]
    covered: frozenset[str]
    ops: tuple[Provenance, ...]

    @property
    def key(self) -> str:
        """The canonical text without the display name."""
        return key_of(self.cascade)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A cascade, or a part of one, that was not fused."""

    name: str
    ops: tuple[Provenance, ...]
    reason: NotFusable


@dataclass(frozen=True, slots=True)
class Partition:
    """``regions`` in program order; ``refusals``: cascades, or tails of them, that did not fuse; ``opaque``: operators
    nobody can look into; ``kept``: operator -> how many stay with torch; ``notes``: (variable, code, condition) of the
    reductions and contractions that were left outside a cascade."""

    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]
    opaque: tuple[str, ...]
    kept: dict[str, int]
    notes: tuple[tuple[str, str, str], ...] = ()


def key_of(cascade: Cascade) -> str:
    return str(replace(cascade, name="_"))


def partition(imported: Any, casts: str = "preserve") -> Partition:
    """Partition ``imported`` (:class:`redfuser.frontend.imported.Imported`: ``mod`` with one dataflow ``main``).

    Raises :class:`redfuser.errors.InputError` only for a module without ``main``; whatever cannot be analysed is left
    to torch and reported.
    """
    return _Partitioner(imported, casts).run()


class _Partitioner:
    def __init__(self, imported: Any, casts: str) -> None:
        self.imported, self.casts = imported, casts
        weights = frozenset(i.name for i in getattr(imported, "inputs", ()) if i.kind != "user")
        self.graph: Graph = build_graph(imported.mod, dict(imported.provenance or {}), weights)
        self.fused: dict[str, Fused | NotFusable] = {}
        self.refusals: list[Refusal] = []
        self.declined: list[tuple[Refusal, frozenset[Unit]]] = []
        self.counts: Counter[str] = Counter()
        self.verdicts: dict[object, Any] = {}

    def run(self) -> Partition:
        banned: set[frozenset[int]] = set()
        barred: set[int] = set()
        while True:
            growth = Grower(self.graph, frozenset(banned), frozenset(barred), self.verdicts).run()
            accepted: list[tuple[Draft, Outlined, Fused]] = []
            again = False
            for d in growth.drafts:
                out, got = self.derive(d)
                if out is None or isinstance(got, NotFusable):
                    assert isinstance(got, NotFusable)
                    again |= self.refused(d, out, got, banned, barred)
                else:
                    accepted.append((d, out, got))
            if not again:
                break
            self.graph.reset()
        return self.finish(accepted, growth.cuts)

    def derive(self, d: Draft) -> tuple[Outlined | None, Fused | NotFusable]:
        """The cascade of a draft and what the algebra says of it. A cascade is of our own making: one that cannot be formed,
        or is not well formed, is a refusal."""
        out = None
        try:
            out = outline(d, "cascade")
            return out, self.fuse(out.cascade)
        except Exception as e:
            found = defect("forming a cascade", e)
            return out, NotFusable(found.code, out.cascade.name if out else "", found.condition, found.why, found.help)

    def fuse(self, cascade: Cascade) -> Fused | NotFusable:
        from redfuser.acrf import fuse

        key = key_of(cascade)
        if key not in self.fused:
            self.fused[key] = fuse(cascade, self.casts)
        return self.fused[key]

    def refused(self, d: Draft, out: Outlined | None, got: NotFusable, banned: set[frozenset[int]],
                barred: set[int]) -> bool:
        """Report it, and cut: the refused reduction may not share a cascade with what it depends on; where that says
        nothing new, no two of the cascade's reductions may, and then none of them starts one."""
        where = self.origin(out, got.statement)
        about = refused_units(d, out, got.statement)
        self.declined.append((Refusal(self.display(d), self.ops(d), replace(got, provenance=where) if where.op else got),
                              about))
        units = {i.node.unit.index for i in (*d.rows, *d.inner) if i.node.unit}
        node = out.reductions.get(got.statement) if out else None
        culprit = node.unit.index if node is not None and node.unit is not None else -1
        pairs = {frozenset({culprit, u.index}) for u in about if culprit >= 0 and u.index != culprit} - banned
        pairs = pairs or {frozenset(p) for p in combinations(sorted(units), 2)} - banned
        banned |= pairs
        if not pairs:
            barred |= units
        return True

    def origin(self, out: Outlined | None, statement: str) -> Provenance:
        for s in out.cascade.stmts if out else ():
            if statement in s.names:
                return s.provenance
        return Provenance()

    # -- the result ----------------------------------------------------------------------------------------------------

    def finish(self, accepted: list[tuple[Draft, Outlined, Fused]], cuts: list[Cut]) -> Partition:
        live = self.live({v for _, o, _ in accepted for v in o.inputs.values()},
                         {v for _, o, _ in accepted for v in o.outputs.values()})
        regions: list[Region] = []
        taken: set[str] = set()
        for d, o, fused in accepted:
            name = self.display(d)
            mine = {n.var for u in d.units for n in u.results} | {u.var for u in d.units}
            covered = frozenset(v for v in mine if v not in live and v not in taken)
            taken |= covered
            regions.append(Region(name, replace(o.cascade, name=name.rsplit(".", 1)[0]), fused, o.inputs, o.outputs,
                                  covered, self.ops(d)))
        fused_units = {u for d, _, _ in accepted for u in d.units}
        kept = Counter(u.op for u in self.graph.units if u not in fused_units and u.var in live)
        notes = tuple(dict.fromkeys((c.joining.var, c.reason.code, c.reason.condition) for c in cuts
                                    if c.joining not in fused_units))
        # what the algebra would not join is no loss when all of it was fused, in several regions
        apart = [r for r, units in self.declined if units <= fused_units]
        self.refusals += [r for r, units in self.declined if not units <= fused_units]
        notes += tuple(dict.fromkeys((r.name, r.reason.code, (
            "not joined with the reductions before it, each is fused by itself: " + r.reason.why)) for r in apart))
        self.report([c for c in cuts if c.seed not in fused_units])
        return Partition(tuple(regions), tuple(dict.fromkeys(self.refusals)), tuple(
            u.op for u in self.graph.units if u.gap), dict(kept), notes)

    def report(self, cuts: list[Cut]) -> None:
        """A cascade cut in two (a tensor inside it is also wanted outside, a reduction is read at two positions) is a
        refusal. That a projection stays with the library, or that fusing would cost more than it saves, is not."""
        for u in self.graph.units:
            if u.gap and u.args and (not u.op.endswith(OPAQUE) or self.rescales(u)):
                where = provenance_of(u)
                op = where.op if u.op.endswith(OPAQUE) else u.op.removeprefix("relax.")
                self.refusals.append(Refusal(u.var, (where,), NotFusable(
                    "RF301", u.var, f"{op} has no lowering to statements",
                    u.gap if " " in u.gap else "an element of its result is no map and no reduction of its operands' elements",
                    "it runs in torch; a cascade cannot reach through it", where)))
        for c in cuts:
            if c.cascade and c.reason.code != "RF305" and c.seed.on_activations and c.joining.on_activations:
                about = c.reason.node.unit if c.reason.node is not None and c.reason.node.unit else c.joining
                where = provenance_of(about)
                self.refusals.append(Refusal(f"cut at {about.var}", tuple(dict.fromkeys(map(provenance_of, (
                    c.joining, about, c.seed)))), NotFusable(
                    c.reason.code, about.var, c.reason.condition, c.reason.why, c.reason.help, where)))

    def rescales(self, u: Unit) -> bool:
        """Does an opaque call make of a row less than the row, to be used together with it (a deviation from a median)?"""
        size = max((prod(n.shape) for n in u.results), default=0)
        row = [a for a in u.args if prod(a.shape) > size]
        return any(a in row for c in u.consumers if c.pointwise for a in c.args)

    def live(self, wanted: set[str], produced: set[str]) -> set[str]:
        """Variables that the outer program still computes: kernel inputs, model outputs, and what those need."""
        out: set[str] = set()
        todo = [n for v in wanted for n in [self.graph_value(v)]] + [n for n in self.graph.nodes if n.escapes]
        while todo:
            n = todo.pop()
            if n.var in out or n.var in produced:
                continue
            out.add(n.var)
            if n.unit is not None:
                out.add(n.unit.var)
                todo += n.unit.args
        return out

    def graph_value(self, var: str) -> Any:
        return self.by_var[var]

    @property
    def by_var(self) -> dict[str, Any]:
        return {n.var: n for n in self.graph.nodes if n.var}

    def display(self, d: Draft) -> str:
        """A readable name from structure alone, numbered in the order of discovery."""
        kinds = {i.node.stmt.reducer.kind for i in d.rows if isinstance(i.node.stmt, Reduce)}
        if "topk" in kinds:
            stem = "topk"
        elif any(i.contraction for i in d.inner) and any(i.contraction for i in d.rows):
            stem = "attn"
        elif d.row_map:
            stem = "softmax" if {"max", "sum"} <= kinds else "norm" if "sum" in kinds else "rescale"
        else:
            stem = "cascade"
        self.counts[stem] += 1
        return f"{stem}.{self.counts[stem] - 1}"

    def ops(self, d: Draft) -> tuple[Provenance, ...]:
        return tuple(dict.fromkeys(provenance_of(u) for u in sorted(d.units, key=lambda u: u.index)))


def refused_units(d: Draft, out: Outlined | None, statement: str) -> frozenset[Unit]:
    """The units of the refused reduction and of those it depends on; of the whole row, where it is about none."""
    if out is None:
        return frozenset(i.node.unit for i in d.rows if i.node.unit is not None)
    named, todo = set(), [statement]
    while todo:
        name = todo.pop()
        if name not in named:
            named.add(name)
            todo += [r for s in out.cascade.stmts if name in s.names for r in refs_of(s.expr)]
    nodes = [out.reductions[n] for n in sorted(named) if n in out.reductions] or [i.node for i in d.rows]
    return frozenset(n.unit for n in nodes if n.unit is not None)


def provenance_of(u: Unit) -> Provenance:
    return u.provenance if u.provenance.op else Provenance(u.op, u.var)
