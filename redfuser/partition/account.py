"""What a partition owes its reader: which attention, norms, softmaxes, routings and statistics run unfused, and what was
merely not joined.

A *loss* is a cascade of the model, or an operator nobody can look into that is one (attention with dropout), without a
kernel. A *note* is a join that was not made although both sides run as well as they can by themselves: a norm that is fused
beside a projection that the library runs, a single reduction before a softmax.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from redfuser.acrf.cascade import Provenance, Reduce
from redfuser.acrf.expr import Op, walk
from redfuser.acrf.state import Fused, NotFusable
from redfuser.partition.drafted import Cut, Reject
from redfuser.partition.epilogue import contracts
from redfuser.partition.graph import Graph, Node, Unit, provenance_of
from redfuser.partition.region import Apart

OPAQUE = ("call_dps_packed", "call_pure_packed")
"""Calls the frontend made opaque; it lists them itself."""
SHORT = Reject("RF308", None, "left to torch without a closer look", "the work that partitioning one model may take is spent",
               "a loop that was unrolled is better compiled as one step")
SPENT = NotFusable("RF308", "", SHORT.condition, SHORT.why, SHORT.help)
RUNNING = "it is a scan that no kernel has, whose elements are the row's results so far: kernels have running sums and products"
UNKNOWN = "unknown to the importer"
REACH = 4
"""Maps between a statistic and the row that it comes back to."""

KINDS: tuple[tuple[str, str], ...] = (
    ("attn", r"attention|attn|mha"),
    ("softmax", r"softmax|softmin|cross_entropy"),
    ("norm", r"(batch|layer|group|instance|rms|local_response)_?norm|normalize"),
    ("topk", r"topk|kthvalue"),
    ("statistics", r"logsumexp|logcumsumexp|quantile|median|(^|_)(std|var)(_|$)|(vector|matrix|linalg)_norm"),
)
SCANS = r"(^|log)cum(sum|prod|max|min)|(^|_)scan(_|$)"


@dataclass(frozen=True, slots=True)
class Declined:
    """A cascade that was refused: its name's stem, its operations, the reason, the reductions that it is about, what was
    parted from it to try again, its state where it had one, and the reduction at which it was refused, where that was one.
    cheaper: what was parted from it is faster by itself, which is no loss."""

    stem: str
    ops: tuple[Provenance, ...]
    reason: NotFusable
    about: frozenset[Unit]
    parted: tuple[Provenance, ...] = ()
    fused: Fused | None = None
    culprit: Unit | None = None
    cheaper: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    stem: str
    ops: tuple[Provenance, ...]
    reason: NotFusable
    fused: Fused | None = None


def opaque(graph: Graph, imported: Any) -> dict[Unit, str]:
    """Why each opaque call is one, as far as the frontend said."""
    calls = getattr(imported, "opaque", {})
    return {u: calls[u.symbol].why for u in graph.units if u.symbol in calls}


def balance(graph: Graph, fused: Mapping[Unit, str], declined: Iterable[Declined], cuts: Iterable[Cut],
            why: Mapping[Unit, str], short: Container[int] = ()) -> tuple[list[Loss], tuple[Apart, ...]]:
    """``fused``: every unit that a kernel computes, with its region's stem. ``short``: reductions that
    there was no work left for."""
    return _Balance(graph, fused, why, short).of(list(declined), list(cuts))


class _Balance:
    def __init__(self, graph: Graph, fused: Mapping[Unit, str], why: Mapping[Unit, str], short: Container[int]) -> None:
        self.graph, self.fused, self.why, self.short = graph, fused, why, short
        self.told: set[Unit] = set()
        self.losses: list[tuple[int, Loss]] = []
        self.notes: list[Apart] = []

    def of(self, declined: list[Declined], cuts: list[Cut]) -> tuple[list[Loss], tuple[Apart, ...]]:
        # the last word on a reduction is about the smallest region that had it; on attention, about the whole of it
        for d in (*(d for d in declined if d.stem == "attn"), *(d for d in reversed(declined) if d.stem != "attn")):
            self.refused(d)
        for u in self.graph.units:
            if u.gap and u.args and u not in self.fused:
                self.gap(u)
        for c in cuts:
            self.cut(c)
        for u in self.graph.units:
            self.overlooked(u, cuts)
            if u.index in self.short and self.missing((u,)) and u not in self.told:
                self.notes.append(Apart(place(provenance_of(u)), SHORT.code, f"{SHORT.condition}: {SHORT.why}"))
        return [x for _, x in sorted(self.losses, key=lambda pair: pair[0])], tuple(dict.fromkeys(self.notes))

    def missing(self, units: Iterable[Unit]) -> set[Unit]:
        """Reductions among these that run unfused and are no contraction: the library's are no loss."""
        return {u for u in units if u.reducing and u not in self.fused and not contracts(u)}

    def lose(self, units: Iterable[Unit], stem: str, ops: Iterable[Provenance], reason: NotFusable,
             fused: Fused | None = None) -> None:
        self.told.update(units)
        self.losses.append((min(u.index for u in units), Loss(stem, tuple(dict.fromkeys(ops)), reason, fused)))

    def refused(self, d: Declined) -> None:
        missing = set() if d.cheaper else self.missing(d.about)
        if d.culprit in self.fused:  # what it reads is lost where it is a cascade by itself
            missing = {u for u in missing if rowwise(u) or returns(u) is not None}
        apart = d.stem == "attn" and bool(d.about) and not d.cheaper and not any(self.fused.get(u) == "attn" for u in d.about)
        if (missing or apart) and not (missing or d.about) <= self.told:
            self.lose(missing or d.about, d.stem, d.ops, d.reason, d.fused)
        elif not missing and not apart:
            text = d.reason.why or d.reason.condition
            how = f"not joined with {', '.join(map(str, dict.fromkeys(o.op for o in d.parted)))}" if d.parted else (
                "not joined with the reductions before it, each is fused by itself")
            where = d.reason.provenance if d.reason.provenance.op else next(iter(d.ops), Provenance())
            self.notes.append(Apart(place(where), d.reason.code, f"{how}: {text.strip().splitlines()[0][:160]}"))

    def gap(self, u: Unit) -> None:
        where = provenance_of(u)
        called = u.op.endswith(OPAQUE)
        name = where.op if called else u.op.removeprefix("relax.")
        stem = kind_of(name) or ("statistics" if self.rescales(u) else "")
        if called and not stem:
            return  # listed as an opaque call
        reason = NotFusable("RF301", u.var, f"{name} has no lowering to statements", self.why.get(u) or (
            u.gap if " " in u.gap and not called else RUNNING if is_scan(name) else UNKNOWN if called else
            "an element of its result is no map and no reduction of its operands' elements"),
            "it runs in torch; a cascade cannot reach through it", where)
        if stem:
            self.lose((u,), stem, (where,), reason)
        else:
            self.notes.append(Apart(place(where), "RF301", f"stays with torch: {reason.why}"))

    def rescales(self, u: Unit) -> bool:
        """Does an opaque call make of a row less than the row, to be used together with it (a deviation from a median)?"""
        size = max((prod(n.shape) for n in u.results), default=0)
        row = [a for a in u.args if prod(a.shape) > size]
        return any(a in row for c in u.consumers if c.pointwise for a in c.args)

    def cut(self, c: Cut) -> None:
        """A cascade cut in two (a tensor inside it is also wanted outside, a reduction is read at two positions) is a loss
        where one of its sides has no kernel. That fusing would cost more than it saves, is not."""
        about = c.reason.node.unit if c.reason.node is not None and c.reason.node.unit else c.joining
        units = dict.fromkeys((c.joining, about, c.seed))
        if c.cascade and c.reason.code != "RF305" and c.seed.on_activations and c.joining.on_activations:
            missing = self.missing(units) if c.seed not in self.fused else set()
            weights = c.seed not in self.fused and contracts(c.seed) and self.fused.get(c.joining) == "softmax"
            if (missing - self.told) or (weights and c.joining not in self.told):
                where = provenance_of(about)
                self.lose(missing or {c.joining}, "attn" if weights else stem_of(missing), map(provenance_of, units),
                          NotFusable(c.reason.code, about.var, c.reason.condition, c.reason.why, c.reason.help, where))
                return
            if c.seed not in self.fused and not missing:
                self.notes.append(Apart(place(provenance_of(about)), c.reason.code, c.reason.condition))
        if c.joining not in self.fused:
            self.notes.append(Apart(place(provenance_of(c.joining)), c.reason.code, c.reason.condition))

    def overlooked(self, u: Unit, cuts: list[Cut]) -> None:
        """A statistic that comes back to its own row, unfused, and nothing said so."""
        if u in self.told or not self.missing((u,)):
            return
        back = () if rowwise(u) else returns(u) if u.on_activations else None
        if back is None:
            return
        if any(v in self.fused for v in back):
            self.notes.append(Apart(place(provenance_of(u)), "RF307",
                                    "a single reduction; the map back to its row is part of another kernel"))
            return
        cut = next((c for c in cuts if u in (c.joining, c.seed)), None)
        reason = SHORT if u.index in self.short else cut.reason if cut else None
        where = provenance_of(u)
        self.lose((u,), stem_of({u, *back}), (where, *map(provenance_of, back)), NotFusable(
            reason.code if reason else "RF302", u.var, reason.condition if reason else "the reduction and the map back to its "
            "row are one cascade", reason.why if reason else "no region was found that holds both",
            reason.help if reason else "", where))


def place(where: Provenance) -> str:
    """``aten.mean.dim (model.py:42)``."""
    return f"{where.op} ({where.source})" if where.source else where.op


def rowwise(u: Unit) -> bool:
    """Is the operation a cascade in itself: reductions of the call's data, and a map back to their rows (a norm, a softmax)?"""
    size = max((prod(a.shape) for a in u.args if not a.weight), default=0)
    return u.reducing and not u.slides and size > 1 and any(
        n.stmt is not None and not isinstance(n.stmt, Reduce) and prod(n.shape) >= size for n in u.results)


def returns(u: Unit) -> tuple[Unit, ...] | None:
    """The maps from the unit's results back to the row that it reads; None where it does not come back."""
    size = max(prod(n.shape) for n in u.results)
    rows = sources(u.args)
    path: list[Unit] = []
    level = [c for c in u.consumers if c.pointwise]
    for _ in range(REACH):
        path += level
        for v in level:
            if max(prod(n.shape) for n in v.results) > size and rows & sources(
                    [a for a in v.args if a.unit is not u and a.unit not in path]):
                return tuple(path)
        level = list(dict.fromkeys(c for v in level for c in v.consumers if c.pointwise and c not in path))
    return None


def sources(nodes: Iterable[Node]) -> set[Node]:
    """The tensors, and those they are maps of, a few maps up."""
    out = {n for n in nodes if prod(n.shape) > 1}
    level = set(out)
    for _ in range(REACH):
        level = {a for n in level if n.unit is not None and n.unit.pointwise for a in n.unit.args if prod(a.shape) > 1}
        out |= level
    return out


def stem_of(units: Iterable[Unit]) -> str:
    """What unfused units amount to."""
    stmts = [n.stmt for u in units for n in u.nodes if n.stmt is not None]
    if any(isinstance(s, Reduce) and s.reducer.kind == "topk" for s in stmts):
        return "topk"
    ops = {x.name for s in stmts for x in walk(s.expr) if isinstance(x, Op)}
    if "exp" in ops and "div" in ops:
        return "softmax"
    return "norm" if ops & {"sqrt", "rsqrt"} else "statistics"


def kind_of(operator: str) -> str:
    """``aten._native_batch_norm_legit.default`` --> ``norm``; empty for what is no cascade by itself."""
    return next((kind for kind, words in KINDS if re.search(words, _name(operator))), "")


def is_scan(operator: str) -> bool:
    """``aten.cumsum.default``: every element is a result over those before it."""
    return re.search(SCANS, _name(operator)) is not None


def _name(operator: str) -> str:
    return operator.split(".")[1] if operator.count(".") >= 2 else operator.split(".")[-1]
