"""What evaluating a set of units as one cascade comes to: a draft of the region, or why it is none. Every condition of
a cascade has a code and the tensor that fails it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import Literal

from redfuser.acrf.affine import axes_of
from redfuser.acrf.cascade import Let, Reduce
from redfuser.acrf.expr import Expr, Index, Load, walk
from redfuser.partition.evaluate import Evaluator, shared_walk
from redfuser.partition.graph import Node, Unit
from redfuser.partition.positions import axes_in, layout
from redfuser.partition.values import Instance, R, Value
from redfuser.partition.work import REFERENCE
from redfuser.target import Target


@dataclass(frozen=True, slots=True)
class Reject:
    """Why a set of units is not one cascade: a code, the tensor it is about, and the failed condition.

    ``rows`` are the reductions that were found to run over one common r-axis all the same: with two of them or more,
    what is given up is a cascade, not a mere neighbourhood."""

    code: str
    node: Node | None
    condition: str
    why: str = ""
    help: str = ""
    rows: frozenset[Node] = frozenset()


NOTHING = Reject("RF435", None, "an axis has no elements", "there is nothing to compute")


@dataclass(slots=True)
class Sink:
    """A tensor that leaves the region, at the position it is evaluated."""

    node: Node
    axes: list[str]
    at: tuple[Expr, ...]
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a region's growth: reductions that ``join`` with the maps in between, a map that comes to ``follow`` the
    results, maps that ``lead`` to the row; or a region that came to lie ``beside`` another."""

    kind: Literal["join", "follow", "lead", "beside"]
    units: frozenset[Unit]


@dataclass(slots=True)
class Draft:
    """``steps``: how the region grew from its first reduction, in order; what :mod:`redfuser.partition.smaller` undoes.
    ``parts``: the regions that it was, where nothing but their row connects them. ``without``: the region that it was before
    maps of a product's operand joined (:mod:`.operand`). ``machine``: what its costs are modelled for."""

    units: frozenset[Unit]
    ev: Evaluator
    sinks: list[Sink]
    rows: list[Instance]
    inner: list[Instance]
    p_axes: tuple[str, ...]
    extents: dict[str, int]
    external: dict[Node, set[tuple[Expr, ...]]] = field(default_factory=dict)
    machine: Target = REFERENCE
    steps: tuple[Step, ...] = ()
    parts: tuple[Draft, ...] = ()
    without: Draft | None = None

    @property
    def row_map(self) -> bool:
        """An output that carries the r-axis and depends on a reduction."""
        return any(R in axes_in(s.at) and s.value is not None and self.depends(s.value) for s in self.sinks)

    @property
    def across(self) -> bool:
        """Do the elements of a row lie apart in the largest of the tensors that are reduced?"""
        sites = [s for i in self.rows for s in i.body.sites]
        size = max((prod(n.shape) for n, _ in sites if n in self.external), default=0)
        return not all(at and R in axes_of(at[-1]) for n, at in sites if n in self.external and prod(n.shape) == size)

    def loaded(self) -> set[Node]:
        """The tensors outside that it loads: fewer than were looked at on the way, where a product takes from memory what
        another reader would compute."""
        values = [*(s.value for s in self.sinks if s.value), *(i.body for i in (*self.rows, *self.inner))]
        names = {x.tensor for v in values for x in shared_walk(v.expr) if isinstance(x, Load)}
        return {n for n in self.external if n.name in names}

    def slides(self, w: Unit) -> bool:
        """Do the places of a window (:attr:`Unit.window`) slide along the row?"""
        return any(R in axes_of(e) for (n, at), _ in self.ev.lets.items() if n.unit is w and isinstance(n.stmt, Let)
                   for a, e in zip(n.stmt.axes, at, strict=True) if a in w.window)

    def depends(self, v: Value) -> bool:
        rows = {r.node for r in self.rows}
        return any((n.lead or n) in rows for n, _ in v.sites)


@dataclass(frozen=True, slots=True)
class Cut:
    """``joining`` was not taken into the cascade grown from ``seed``. ``cascade``: the two reduce over one common r-axis,
    so a cascade was cut in two."""

    seed: Unit
    joining: Unit
    reason: Reject
    cascade: bool = False


def verdict(units: frozenset[Unit], ev: Evaluator, sinks: list[Sink], extents: dict[str, int], machine: Target
            ) -> Draft | Reject:
    """The draft of ``units``, evaluated by ``ev`` with its results at ``sinks``; a Reject names the condition that fails.

    extents: of every axis; machine: what the draft's costs are modelled for."""
    if 0 in extents.values():
        return NOTHING
    rows = [i for i in ev.instances.values() if i.over == R]
    inner = [i for i in ev.instances.values() if i.over != R]
    at: dict[Node, tuple[Expr, ...]] = {}
    for i in ev.instances.values():
        if at.setdefault(i.node, i.indices) != i.indices:
            return Reject("RF306", i.node, "a reduction is read at two different positions",
                          "the second position belongs to another row: it would need the other row's result",
                          "write what the product reads (the centred or scaled rows) in a pass before it")
    for i in rows:
        if any(R in axes_of(e) for e in i.indices):
            return Reject("RF302", i.node, "a reduction over the row is itself read per element of the row")
    for i in inner:
        if isinstance(i.node.stmt, Reduce) and i.node.stmt.reducer.kind == "topk" and R in axes_of(i.indices[-1]):
            return Reject("RF302", i.node, "the row runs over the ranks of a top-k over another axis")
        if R not in i.axes:
            return Reject("RF302", i.node, "the reduction runs over another axis and reads nothing that the row reads")
    read: dict[Node, dict[tuple[Expr, ...], int]] = {}
    for (node, pos), _ in ev.lets.items():
        if any(isinstance(x, Load) for e in pos for x in walk(e)):
            continue  # one element, taken by data
        if node.unit not in units or node.unit.is_view:
            continue
        found = read.setdefault(node, {})
        found[pos] = prod(extents[a] for a in axes_in(pos))
        if len(found) > 1 and sum(found.values()) > prod(node.shape):
            return Reject("RF306", node, "a tensor of the row is read at two different positions",
                          "its neighbours would have to be computed as well",
                          "write the tensor in a pass before the cascade")
    reached = {i.node.unit for i in ev.instances.values()}
    if missing := [u for u in units if u.reducing and u not in reached]:
        return Reject("RF302", missing[0].nodes[0], "nothing in the region reads this reduction")
    for i in rows:
        ranks = i.node.stmt.reducer.k if isinstance(i.node.stmt, Reduce) and i.node.stmt.reducer.kind == "topk" else 0
        if ranks and not isinstance(i.indices[-1], Index) and (ranks > 1 or any(
                (n.lead or n) is i.node for j in ev.instances.values() for n, _ in j.body.sites)):
            return Reject("RF306", i.node, "one rank of a top-k is read by itself",
                          "the list is one value of the cascade; a reader takes all of its ranks")
    for a, b in combinations(rows, 2) if not any(i.contraction for i in rows) else ():
        if not (set(row_axes(a)) <= set(row_axes(b)) or set(row_axes(b)) <= set(row_axes(a))):
            return Reject("RF302", b.node, "the reductions have other rows",
                          "one reduces rows, the other one columns: fused, neither could run in parallel")
    common = set.intersection(*(set(row_axes(i)) for i in rows))
    if len(rows) == 1 and rows[0].contraction:  # what a product's left factor does not know is columns
        for i in inner:
            common = common & set(i.axes) if i.contraction else common
    p_axes = tuple(a for a in rows[0].axes if a in common)
    for i in inner:
        if not common <= set(i.axes):
            return Reject("RF305", i.node, "the inner reduction does not depend on every p-axis",
                          "it would be recomputed for each of their values")
    known = common | {R} | {a for i in rows for a in i.axes}
    if (late := early(units, ev)) is not None:
        return late
    for s in sinks:
        if extra := {a for a in axes_in(s.at) if extents[a] > 1} - known - rank_axes(ev):
            return Reject("RF306", s.node, "a result has an axis that the reductions do not have",
                          f"{sorted(extra)[0]} is not a p-axis of the cascade: each row would be repeated along it")
        if layout(ev.ix, s.at, s.node.shape) is None:
            return Reject("RF306", s.node, "a result's index map is not a permutation of the axes")
    return Draft(units, ev, sinks, rows, inner, p_axes, dict(extents), ev.external, machine)


def early(units: frozenset[Unit], ev: Evaluator) -> Reject | None:
    """An operand that is a result of the region, or is made of one outside."""
    own = sum(1 << u.index for u in units)
    late = next((n for n in ev.external if n.unit is not None and (n.unit in units or n.unit.ancestors & own)), None)
    return None if late is None else Reject(
        "RF306", late, "a result of the region is also an operand that must be computed before it")


def rank_axes(ev: Evaluator) -> set[str]:
    """The axes along which top-k results are read."""
    return {a for i in ev.instances.values() if isinstance(i.node.stmt, Reduce) and i.node.stmt.reducer.kind == "topk"
            for a in axes_of(i.indices[-1])}


def row_axes(i: Instance) -> tuple[str, ...]:
    """Axes of a reduction's rows: all but the trailing axis of top-k results."""
    if isinstance(i.node.stmt, Reduce) and i.node.stmt.reducer.kind == "topk":
        return tuple(a for a in i.axes if a not in axes_of(i.indices[-1]))
    return i.axes


def columned(d: Draft, i: Instance) -> bool:
    """Is it a product with columns, for matrix units? The scores of all heads, each times a weight of its own, are a sum."""
    return i.contraction and not set(d.p_axes) >= set(row_axes(i))
