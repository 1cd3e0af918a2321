"""A group of maps, evaluated: every result at the points of one of them, and what is read from memory there.

There is no reduction to say which axis is the row. The axes are those of the last result, split where tensors are read through
quotients, slowest in memory first; the fastest is the one that elements are taken together along.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from redfuser.acrf.affine import Indices, axes_of
from redfuser.acrf.expr import BYTES, Cast, Expr, Index, Load, Op, walk
from redfuser.acrf.functions import DEAR
from redfuser.acrf.index import i64
from redfuser.partition.draft import Drafter, guarded
from redfuser.partition.drafted import NOTHING, Draft, R, Reject, Sink, early
from redfuser.partition.epilogue import moves
from redfuser.partition.evaluate import Evaluator, pure_index, shared_walk
from redfuser.partition.graph import Node, Unit
from redfuser.partition.positions import axes_in, best_split, by_data, layout, parts
from redfuser.partition.work import REFERENCE, Work

ANEW = 16
"""Operations that a group computes again for an element, at most, because it reads maps of its own at several places: so many
take as long as writing two bytes and reading them."""
TOGETHER = 32
"""Elements of the fastest axis, at least, that are taken together once it is split: 64 bytes of halves."""
BESIDE = 8
"""Elements of the fastest axis up to which a block has whole rows, and computes what they share once: the sides of a box."""
SIZE = 512
"""Nodes of all results' expressions, at most."""


def map_draft(units: frozenset[Unit], results: Sequence[Node], work: Work | None = None,
              held: frozenset[Node] = frozenset()) -> Draft | Reject:
    """Evaluate ``units``, of which none reduces, as one group that writes ``results``; ``held`` are read from memory. Raises
    Spent when that takes more than ``work``."""
    return guarded("grouping maps", None, lambda: MapDrafter(units, results, work, held).run())


class MapDrafter(Drafter):
    evaluator: type[Evaluator] = Evaluator

    def __init__(self, units: frozenset[Unit], results: Sequence[Node], work: Work | None, held: frozenset[Node]) -> None:
        self.units, self.results, self.work = units, results, work
        self.extents: dict[str, int] = {}
        self.splits = 0
        self.ix = Indices(self.extents)
        self.held = frozenset(n for n in held if n.unit not in units)

    def run(self) -> Draft | Reject:
        sinks = [self.sink(n) for n in self.results]
        if not sinks:
            return Reject("RF303", None, "the region has no result")
        last = sinks[-1]
        if any(prod(s.node.shape) != prod(last.node.shape) for s in sinks):
            return Reject("RF306", last.node, "the results of a group of maps have one size")
        self.settle([last])
        done = [last]
        for s in sinks[:-1]:
            self.align(s, done)
            done.append(s)
        ev = self.settle(done)
        return self.checked(ev, sinks, last)

    # -- axes ----------------------------------------------------------------------------------------------------------

    def reaches(self, node: Node) -> bool:
        return True

    def settle(self, sinks: list[Sink]) -> Evaluator:
        while True:
            ev = self.evaluate(sinks)
            if self.split(ev, sinks):
                continue
            if not (views := self.tangled(ev)):
                return ev
            if not self.parted(ev, views, sinks):
                self.held |= views

    def evaluate(self, sinks: Collection[Sink]) -> Evaluator:
        """What is dear to compute and read along fewer axes than the group has, or at several places, is read from memory."""
        while True:
            ev = self.evaluator(self.units, self.raxis, self.ix, self.work, self.held)
            for s in sinks:
                s.value = ev.value(s.node, tuple(ev.ix.simplify(e) for e in s.at))
            if not (more := self.repeated(ev, sinks)):
                return ev
            self.held |= more

    def repeated(self, ev: Evaluator, sinks: Collection[Sink]) -> frozenset[Node]:
        """Of the values outside the group that are computed where they are read, those that are dear to compute more than
        once: the results of an operation that is dear inside, since nothing else of it is in memory."""
        points = max(prod(self.extents[a] for a in axes_in(s.at)) for s in sinks)
        places: dict[Node, int] = {}
        for node, _ in ev.lets:
            places[node] = places.get(node, 0) + 1
        found = {n for n, at in ev.lets if n.unit not in self.units and dear(n) and (
            places[n] > 1 or prod(self.extents[a] for a in axes_in(at)) < points)}
        return frozenset(r for n in found for r in ((n,) if n.var or n.unit is None else n.unit.results))

    def tangled(self, ev: Evaluator) -> frozenset[Node]:
        """Views outside the group at which no axis is divided, but the tensor behind them is (a piece of a row that was put
        together of heads): torch has the view for nothing. One that repeats elements it would write, and what is taken at
        computed places."""
        size = {n.name: prod(n.shape) for n in ev.external}
        found = {n for (n, at), v in ev.lets.items() if n.unit is not None and n.unit not in self.units and not _taken(n)
                 and isinstance(v.expr, Load) and not self.divided(at) and self.divided(v.expr.indices)
                 and prod(n.shape) <= size[v.expr.tensor]}
        return frozenset(n for n in found if n.unit is not None and not found & set(n.unit.args))

    def parted(self, ev: Evaluator, views: frozenset[Node], sinks: list[Sink]) -> bool:
        """Is an axis split at which such a view is a copy of torch's (heads of a row, pixels that have their channels side by
        side)? Not where lines of them begin within 16 bytes (21 channels of float32, 64 x 336 of them: 8.3 us read so, 5.6
        copied first, on an H200; of 24 3.5 and 6.3), nor the one that elements are taken together along where few are left."""
        for (n, _), v in ev.lets.items():
            if n not in views or not isinstance(v.expr, Load) or not self.divided((self.offset(ev, v.expr),)):
                continue
            for a in sorted(axes_in(v.expr.indices)):
                seen = {x for e in v.expr.indices for x in parts(ev.ix, e) if a in axes_of(x)}
                k = best_split(self.extents, a, seen) if any(a in axes_in(s.at) for s in sinks) else None
                if k is not None and k * BYTES.get(n.dtype, 1) % 16 == 0 and (a != self.fastest(sinks[-1]) or k >= TOGETHER):
                    self.part(a, k, sinks)
                    return True
        return False

    def fastest(self, s: Sink) -> str:
        order = [a for a in layout(self.ix, s.at, s.node.shape) or () if self.extents[a] > 1]
        return order[-1] if order else ""

    @staticmethod
    def offset(ev: Evaluator, x: Load) -> Expr:
        """Where in memory, as strides would have it."""
        shape = next(n.shape for n in ev.external if n.name == x.tensor)
        whole: Expr = i64(0)
        for e, n in zip(x.indices, shape, strict=True):
            whole = Op("add", (Op("mul", (whole, i64(n)), "i64"), e), "i64")
        return ev.ix.simplify(whole)

    def divided(self, at: tuple[Expr, ...]) -> bool:
        return any(isinstance(a, Op) and a.name in ("floordiv", "mod") for e in at for a in parts(self.ix, e))

    # -- the verdict ---------------------------------------------------------------------------------------------------

    def checked(self, ev: Evaluator, sinks: list[Sink], last: Sink) -> Draft | Reject:
        if 0 in self.extents.values():
            return NOTHING
        if (late := early(self.units, ev)) is not None:
            return late
        order = layout(self.ix, last.at, last.node.shape)
        axes = {a for a in axes_in(last.at) if self.extents[a] > 1}
        if order is None or not (axes or prod(last.node.shape) == 1):
            return Reject("RF306", last.node, "a result's index map is not a permutation of the axes")
        order = [a for a in order if self.extents[a] > 1]
        if (why := self.reduces(ev, order)) is not None:
            return why
        for s in sinks:
            if {a for a in axes_in(s.at) if self.extents[a] > 1} != axes or layout(self.ix, s.at, s.node.shape) is None:
                return Reject("RF306", s.node, "a result of a group of maps has other axes than the last one")
        places: dict[Node, set[tuple[Expr, ...]]] = {}
        for node, at in ev.lets:
            if node.unit in self.units:
                places.setdefault(node, set()).add(at)
        beside = {a for a in order[-1:] if self.extents[a] <= BESIDE}
        anew = 0
        for node, seen in places.items():
            if any(map(by_data, seen)):
                return Reject("RF306", node, "a map is read where data say", "it would be computed anew for each such place")
            if len(seen) > 1 and (anew := anew + (len(seen) - 1) * computed(node)) > ANEW:
                return Reject("RF306", node, "maps are read at several places by a window",
                              "they would be computed anew for each of its places")
            if dear(node) and (len(seen) > 1 or not all(axes - beside <= axes_in(at) for at in seen)):
                return Reject("RF306", node, "what is dear to compute is read along fewer axes, or at several places",
                              "it would be computed anew for each of its readers")
        if len({id(x) for s in sinks if s.value for x in shared_walk(s.value.expr)}) > SIZE:
            return Reject("RF308", None, f"results of more than {SIZE} operations")
        row = self.row(ev, order) if order else ""
        self.extents[R] = self.extents[row] if row else 1  # numbers are a row of one element
        if row:
            self.substitute(sinks, {row: Index(R)})
        ev = self.evaluate(sinks)
        return Draft(self.units, ev, sinks, [], [], tuple(a for a in order if a != row), dict(self.extents), ev.external,
                     self.work.machine if self.work else REFERENCE)


    def row(self, ev: Evaluator, order: list[str]) -> str:
        """The axis that elements are taken together along, of those of the last result, slowest in memory first."""
        return order[-1]

    def reduces(self, ev: Evaluator, order: list[str]) -> Reject | None:
        """What is wrong with the reductions among the maps of a group with these axes."""
        return Reject("RF302", next(iter(ev.instances.values())).node, "a map reads a reduction") if ev.instances else None


def dear(n: Node) -> bool:
    """Is it a function that takes a library's code or the special-function unit?"""
    return n.stmt is not None and any(isinstance(x, Op) and x.name in DEAR for x in walk(n.stmt.expr))


def computed(n: Node) -> int:
    """Operations on values that an element takes, roundings among them."""
    if n.stmt is None:
        return 0
    return sum(isinstance(x, Cast) or (isinstance(x, Op) and not pure_index(x)) for x in walk(n.stmt.expr))


def _taken(n: Node) -> bool:
    """Is it taken at computed places, or a view of what is?"""
    u = n.unit
    return u is not None and moves(u) and (len(u.args) > 1 or any(map(_taken, u.args)))
