"""What lies around a set of units: the reductions within reach, the maps between, and what a region has claimed already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from math import prod

from redfuser.acrf.cascade import Reduce
from redfuser.partition.drafted import Reject
from redfuser.partition.epilogue import (
    absorbed,
    adds_vector,
    bare,
    contracts,
    in_the_call,
    launches,
    moves,
    rounds,
    statistic,
)
from redfuser.partition.graph import Graph, Node, Unit
from redfuser.partition.sets import Units, bits, free_to_read, mask, small
from redfuser.partition.work import NEAR, REGION

DEPTH = 4
"""Maps between a tensor of the row and a reduction that is looked for beside the cascade."""


class Around:
    """Of any set of the graph's units. ``claimed``: the units of cascades that were found."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.claimed: set[Unit] = set()

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

    def beside(self, units: Units) -> list[tuple[Unit, Units]]:
        """Reductions that read a tensor which the region reads or makes, through free maps; with the maps that depend on
        the region or lead into it."""
        members = bits(units)
        below, above = mask(units, "descendants") & ~members, mask(units, "ancestors") & ~members
        tensors = dict.fromkeys(n for u in units for n in (*u.args, *u.results))
        tensors |= dict.fromkeys(n.unit.args[0] for n in tensors if n.unit is not None and rounds(n.unit))  # ours, widened
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

    def co_readers(self, made: Units, units: Units, lead: Node) -> Units:
        """Other reductions that read tensors of ``made``, through free maps, and those maps, and readers of one element: to
        write no tensor of the row they must join together. Empty where there are none, or where one is taken."""
        reached: dict[Unit, None] = {}
        row = self.row(made)
        todo = [u for m in made for u in m.consumers if u not in units and not (u in self.claimed and self.row((m,)) < row)]
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

    def outside(self, between: Units, units: Units) -> Reject | None:
        """Readers outside must be pointwise maps, which may still join; not the model's output, nor a reduction. A result of
        the rows among them (a mean) is small: it is one of the region's own, whoever reads it."""
        row = self.row(between)
        for u in between:
            if self.row((u,)) < row:
                continue
            reader = "the model's output" if any(n.escapes for n in u.results) else next(
                (c.op for c in u.consumers if c not in units and (not c.pointwise or c in self.claimed)), "")
            if reader:
                return Reject("RF303", u.nodes[-1], "a tensor between the two reductions is also read elsewhere",
                              f"{reader} reads it, so it must be written in any case",
                              "drop the other use, or recompute it there")
        return None

    def row(self, units: Iterable[Unit]) -> int:
        """Elements of the largest result."""
        return max((prod(n.shape) for u in units for n in u.results), default=0)

    def following(self, n: Node) -> list[Unit]:
        """Readers of a tensor, also behind widening casts and broadcasts, which are free for whoever reads them."""
        return [v for u in self.graph.readers(n) for v in (
            [w for m in u.results for w in self.following(m)] if free_to_read(u) and u not in self.claimed else [u])]

    def written(self, library: Callable[[Unit], bool]) -> frozenset[Node]:
        """What maps make, nobody's yet, for a library's work, which reads it from memory, behind any views: so may others,
        rather than compute it anew."""
        def read(n: Node) -> bool:
            return any(any(map(read, c.results)) if moves(c) else c not in self.claimed and (bool(c.gap) or library(c))
                       for c in self.graph.readers(n))

        return frozenset(n for u in self.graph.units if launches(u) and not absorbed(u) and u not in self.claimed
                         for n in u.results if read(n))

    def stands(self, n: Node, tiled: bool = False) -> bool:
        """Is it in memory, whatever else is found: an input, what somebody has made, or a product with its bias? tiled: that
        is none, since it is for tiles of a matrix unit, to which an index kernel brings elements in lines (not measured)."""
        u = n.unit
        if u is None or u.gap or u in self.claimed:
            return True
        made = not tiled and (contracts(u) or in_the_call(u))
        return made or (moves(u) and all(self.stands(m, tiled) for m in u.args))

    def free_to_follow(self, u: Unit, units: Units) -> bool:
        if not u.pointwise or u in self.claimed:
            return False
        members = bits(units)
        return all(p in units or not (p.ancestors & members) or (
            free_to_read(p) and self.free_to_follow(p, units)) for p in u.producers)

    def library_epilogue(self, u: Unit) -> bool:
        """A bias or a rounding that the library applies to its own contraction's result at no cost; or a map that brings a
        row's statistics to it, which is the end of another cascade."""
        full = [n for n in u.args if n.unit is not None and n.shape == u.results[0].shape]
        if len(full) != 1 or len(u.nodes) > 1 or (u.is_view and full[0].dtype == u.results[0].dtype):
            return False
        if not (rounds(u) or adds_vector(u) or any(map(statistic, set(u.args) - set(full)))):
            return False
        maker = full[0].unit
        assert maker is not None
        if maker.pointwise:
            return self.library_epilogue(maker) and not (adds_vector(u) and any(map(bare, maker.producers)))
        if adds_vector(u) and bare(maker):
            return False
        sums = [n for n in maker.nodes if isinstance(n.stmt, Reduce)]  # a convolution pads before it sums
        return sums == maker.nodes[-1:] and maker not in self.claimed and len(maker.args) == 2

    def tears(self, u: Unit, units: Units) -> bool:
        """Would a region with this map of one of the program's operations leave a reduction of the same operation (the sum
        before a logarithm) to torch, in pieces? Not a product, which a library runs with or without its bias."""
        todo, seen = [u], {u}
        while todo:
            for p in todo.pop().producers:
                if p in seen or p in units or not p.provenance.op or p.provenance is not u.provenance:
                    continue
                if p.reducing and p not in self.claimed and not contracts(p):
                    return True
                seen.add(p)
                todo.append(p)
        return False

    def window(self, u: Unit, units: Units) -> Unit | None:
        """A window in front of a map (:attr:`Unit.window`), or the map itself: through maps that nothing else reads."""
        seen, todo = {u}, [u]
        while todo and len(seen) < REGION:
            v = todo.pop(0)
            if v.window:
                return v
            more = [p for p in v.producers if p.pointwise and not p.gathers and p not in seen and p not in units
                    and p not in self.claimed and seen.issuperset(p.consumers) and not any(n.escapes for n in p.results)]
            seen.update(more)
            todo += more
        return None

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

    def members(self, bitmask: int) -> list[Unit]:
        out = []
        while bitmask:
            low = bitmask & -bitmask
            out.append(self.graph.units[low.bit_length() - 1])
            bitmask ^= low
        return out

    def claim(self, units: Units) -> None:
        """From now on the region is one vertex: whoever depends on a part depends on all of it."""
        self.claimed |= units
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
