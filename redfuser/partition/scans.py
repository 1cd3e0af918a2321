"""Scans with the maps around them: what one kernel computes instead of torch's call and a kernel for each map.

    (x * mask).cumsum(-1)   exp(-torch.cumsum(a, -1))   mask.cumsum(-1) - 1   -->   one kernel each

A scan is a boundary to cascades and to groups of maps, as any call is that nobody looks into: its elements are results of the
row so far, and no state of a whole row gives them. Here it is the seed of a group of maps, grown as these are, whose last axis
in memory is the one that it runs along; or another, and rows that lie beside each other are scanned together.
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import BYTES, Expr, Index, Ref
from redfuser.partition.draft import guarded
from redfuser.partition.drafted import Draft, Reject
from redfuser.partition.epilogue import made_of
from redfuser.partition.evaluate import Evaluator
from redfuser.partition.graph import Node, Unit
from redfuser.partition.map_draft import MapDrafter
from redfuser.partition.maps import MapGrower
from redfuser.partition.positions import axes_in
from redfuser.partition.sets import Units
from redfuser.partition.values import Instance, Site, Value
from redfuser.partition.work import REFERENCE, Spent
from redfuser.target import Target

LONG = 1 << 14
"""Elements of a row from which few rows are not walked by a block each: torch shares one out among all of the device."""
SHARE = 4
"""Blocks that few rows are, at most: multiprocessors for each."""


def pays(u: Unit, machine: Target) -> bool:
    """Are there blocks for the device, or is there little to do?"""
    assert isinstance(u.scan, Reduce)
    n = u.extents[u.scan.over]
    rows = u.nodes[0].bytes // BYTES[u.nodes[0].dtype] // max(1, n)
    return n < LONG or rows * SHARE >= machine.sms


def why(u: Unit, machine: Target, maps: bool) -> str:
    """Why a scan is torch's call all the same."""
    if not maps or machine.kind != "cuda":
        return "scans are kernels on CUDA's devices alone"
    if not pays(u, machine):
        return "it is a scan of few rows, so long that torch shares each out among all of the device"
    if u.scan is not None and u.scan.reducer.kind == "prod":
        return "it is a running product, and its factors are not known to be at most 1: parts of a row would overflow"
    return "no kernel of this scan was found"


class ScanGrower(MapGrower):
    """Groups around the scans of a graph."""

    def groups(self) -> None:
        for u in reversed(self.graph.units):
            mine = u.scan is not None and u not in self.near.claimed and u.index not in self.barred and u not in self.fixed
            if not mine or u.var not in self.needed or not pays(u, self.work.machine):
                continue
            self.work.begin()
            try:
                self.scan(u)
            except Spent:
                self.short.append(u)

    def left(self, u: Unit) -> bool:
        made = made_of(u)
        return super().left(u) and (made is None or made.scan is None)

    def scan(self, seed: Unit) -> None:
        units = self.grown(seed)
        d = self.drafted(units)
        if isinstance(d, Draft):
            self.keep(d, units, self.live([*self.found, d]))

    def draft(self, units: Units) -> Draft | Reject:
        if not any(u.scan for u in units):
            return Reject("RF302", None, "there is no scan in it")
        return guarded("grouping maps", None, lambda: _ScanDrafter(units, self.leaving(units), self.work, self.held).run())


class _ScanEvaluator(Evaluator):
    def fresh(self, node: Node, indices: tuple[Expr, ...], scope: frozenset[str], strict: bool) -> Value:
        if node.unit is None or node.unit not in self.inside or node.unit.scan is None:
            return super().fresh(node, indices, scope, strict)
        stmt = node.unit.scan
        assert isinstance(stmt, Reduce)
        along = indices[stmt.axes.index(stmt.over)]
        if not isinstance(along, Index):
            raise _Elsewhere(node)
        site: Site = (node, indices)
        if site not in self.instances:
            env = dict(zip(stmt.axes, indices, strict=True))
            body = self.body(stmt.expr, env, node.unit, scope, False)
            self.instances[site] = Instance(node, indices, along.axis, body, False)
        return Value(Ref(node.name, node.dtype, indices), frozenset({site}))


class _Elsewhere(Exception):
    """A scan is read at a place that is no element of the row."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.name)
        self.node = node


class _ScanDrafter(MapDrafter):
    evaluator = _ScanEvaluator

    def run(self) -> Draft | Reject:
        try:
            return super().run()
        except _Elsewhere as e:
            return Reject("RF302", e.node, "a scan is read at places that are not the elements of its row in turn")

    @property
    def machine(self) -> Target:
        return self.work.machine if self.work else REFERENCE

    def row(self, ev: Evaluator, order: list[str]) -> str:
        return next(i.over for i in ev.instances.values())

    def reduces(self, ev: Evaluator, order: list[str]) -> Reject | None:
        found = list(ev.instances.values())
        beside = order[order.index(found[0].over) + 1:] if len(found) == 1 and found[0].over in order else None
        if beside is None or (beside and prod(self.extents[a] for a in beside) < self.machine.warp):
            return Reject("RF302", found[0].node if found else None, "its results have another last axis in memory")
        axes = [i.axis for i in found[0].indices if isinstance(i, Index) and self.extents[i.axis] > 1]
        places = [i for i in found[0].indices if not isinstance(i, Index) and axes_in((i,))]
        if set(order) != set(axes) or len(set(axes)) < len(axes) or places:
            return Reject("RF306", found[0].node, "a result of the scan's group has an axis that the scan does not have")
        return None
