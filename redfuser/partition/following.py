"""How maps behind a region's results join it: one reader after the other, or together where one of them alone would only write
more.

    y = (x - m) * r                 a map back to the row, which the region then writes
    y * w, y * v                    all readers of it, of which nobody writes it then
    o + w * v                       a statistic's maps up to where they meet the row's result again
    m = a * m + b * g, p - s * m    every map behind what is written anyway (:meth:`Following.ending`)
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from redfuser.partition import judge
from redfuser.partition.draft import escaping
from redfuser.partition.drafted import Draft
from redfuser.partition.epilogue import contracts, launches
from redfuser.partition.graph import Node, Unit
from redfuser.partition.joins import Joining
from redfuser.partition.permuted import transposes
from redfuser.partition.sets import Units, bits, free_to_read, mask, small, widens
from redfuser.partition.work import REGION

SHARED = 3
"""A part of what maps move that they have in common with a reduction beside them, at least: chosen. A mask that is widened to
float32, a fifth, made a kernel 42.6 us (modelled) that took 18.8."""
MEETS = 4
"""Maps behind one reader of a result, at most, to where what the others make of it meets."""


class Following(Joining):
    """``wanted``: what the cascades found so far read, behind views: it must not vanish inside of another. ``loaded``: what
    their kernels read of it: all that a product with its maps has to leave."""

    wanted: set[Node]
    loaded: set[Node]

    def epilogue(self, units: Units, lead: Node) -> Units:
        """Absorb pointwise readers of the results, as long as the number of results does not grow. A map from a statistic
        back to its row may add one, since the row is at hand; so may a map of statistics, which are small."""
        refused: set[Unit] = set()
        while True:
            candidates = [u for n in escaping(units) for u in self.near.following(n) if u not in refused and u not in units]
            u = min((u for u in candidates if self.near.free_to_follow(u, units)), key=lambda u: u.index, default=None)
            if u is None:
                return self.ending(units, lead)
            grown = next((g for g in self.followed(u, units) if self.follows(u, g, units, lead)), None)
            if grown is None:
                refused.add(u)
                continue
            units = self.step("follow", grown, units)

    def followed(self, u: Unit, units: Units) -> Iterator[Units]:
        """The region with a reader of its results; with all readers of one, which then nobody writes (``y * w`` and ``y * v``);
        with the maps up to that in which what the reader makes of a statistic meets the row's result again (``o + w * v``); and
        with all that lies between, where what two readers make of a result meets (``p * log(p) - p * q``)."""
        def closed(more: Units) -> Units:
            return self.near.close(units | more) if any(free_to_read(p) for m in more for p in m.producers) else units | more

        yield closed(frozenset({u}))
        for n in u.args:
            readers = frozenset(self.graph.readers(n)) - units
            if n.unit in units and not n.escapes and 1 < len(readers) <= MEETS and all(
                    self.near.free_to_follow(v, units) and launches(v) and not v.gathers for v in readers):
                yield closed(readers)
        met, chain = u, frozenset({u})
        for hop in range(1, MEETS + 1):
            if len(met.consumers) != 1 or any(n.escapes for n in met.results) or met.consumers[0] in units:
                return
            met = met.consumers[0]
            if self.near.free_to_follow(met, units | chain) and any(n.unit in units for n in met.args):
                yield closed(chain | {met})
            chain |= {met}
            inside = met.ancestors & mask(units, "descendants") & ~bits(units)
            between = frozenset(self.near.members(inside)) if hop < inside.bit_count() <= REGION else frozenset()
            if between and all(m.pointwise and m not in self.near.claimed and not m.gathers for m in (met, *between)):
                yield closed(between | {met})

    def follows(self, u: Unit, grown: Units, units: Units, lead: Node) -> bool:
        before, after = escaping(units), escaping(grown)
        if self.parted(grown) or ((gone := self.wanted & (set(before) - set(after))) and (
                gone & self.loaded or self.verdict(judge.products, units, lead) is not None)):
            return False
        if u.gathers and not (small(u, lead) and len(after) <= len(before)):
            return False  # one element of the row is taken where the row is not written
        if transposes(u) and all(contracts(c) or c.gap for c in u.consumers) and not any(n.escapes for n in u.results):
            return False  # a library reads an operand as well either way, and across its lines nobody writes as well
        if u.piecewise and (self.multiplied(grown, lead) > self.multiplied(units, lead) or self.read_again(grown, units, lead)):
            return False  # what is joined to a product's columns would be computed as columns of it, and thrown away
        more = widens(u, units) or small(u, lead)
        if len(gone := set(before) - set(after)) == 1 and not any(contracts(v) for v in units if v.reducing):
            more = max(more, sum(n in v.args for n in gone for v in grown - units) - 1)  # written by its readers anyway
        return len(after) <= len(before) + more and self.verdict(judge.follow, grown, lead, u) is None

    def ending(self, units: Units, lead: Node, last: bool = False) -> Units:
        """The region with every map behind its row, to where others read what they make: several results for the one that
        they would be read from (``g = x * s``; ``m = a * m + b * g``, ``v = c * v + d * g * g``), or beside one that is written
        anyway (``p`` and ``c + p``). All or none: what only another map would read is written by nobody. last: nothing more is
        joined, so that what only a reduction of nobody's reads is left to it, which computes it as it reads its row."""
        if any(contracts(v) for v in units if v.reducing):
            return units
        wide = [n for n in escaping(units) if prod(n.shape) > prod(lead.shape)]
        behind = self.behind([u for n in wide for u in self.near.following(n)], units)
        return units if last and self.awaited(behind, units) else self.ends(behind, units, lead)

    def alongside(self, units: Units, lead: Node) -> Units:
        """The region with the maps, and what is behind them, that read elements of its row, where that is a third of what they
        read and write at least: one kernel reads them for both (``m = a * m + b * g`` beside ``sum(g * m)``). What another
        reduction may yet take is left to that."""
        units = self.ending(units, lead, last=True)
        tried: set[Unit] = set()
        while True:
            d = self.drafted(units, lead)
            if not isinstance(d, Draft) or any(contracts(v) for v in units if v.reducing):
                return units
            read = d.loaded()
            size = max((prod(n.shape) for n in read), default=0)
            row = sorted((n for n in read if prod(n.shape) == size), key=lambda n: n.key)
            seed = next((u for n in row for u in self.near.following(n) if u not in tried | units | self.near.claimed), None)
            if seed is None:
                return units
            tried.add(seed)
            behind = self.behind([seed], units)
            reads = {m for u in behind for n in u.args if n.unit not in behind for m in self.memory(n)}
            writes = {n for u in behind for n in u.results if n.escapes or any(c not in behind for c in u.consumers)}
            ours = reads.intersection(row) | {n for n in reads if n.unit in units}
            if SHARED * sum(n.bytes for n in ours) >= sum(n.bytes for n in reads | writes) and not self.awaited(behind, units):
                units = self.ends(behind, units, lead)

    def awaited(self, maps: set[Unit], units: Units) -> bool:
        """Do they need a reduction that is nobody's yet, or do such, and nobody else, read what they make? No product. (What is
        made of a number that is still to be reduced would be made for each element: 54 us for bytes by a scale of before, and
        their greatest, 39 in two kernels.)"""
        mine = units | self.near.claimed

        def left(n: Node) -> bool:
            out = [c for c in self.graph.readers(n) if c not in maps]
            return bool(out) and not n.escapes and all(c.reducing and not contracts(c) and c not in mine for c in out)

        return bool(mask(maps, "ancestors") & self.reducing & ~bits(mine)) or any(left(n) for u in maps for n in u.results)

    def memory(self, n: Node) -> Iterator[Node]:
        """The tensors that are read for one: itself, or where it is free to read what it is a view of."""
        if n.unit is None or not n.unit.is_cheap or n.unit.gap or n in self.held:
            yield n
        else:
            for m in n.unit.args:
                yield from self.memory(m)

    def behind(self, todo: list[Unit], units: Units) -> set[Unit]:
        """Maps with all that read them and with what of their size leads to nothing else (a number for all elements is not made
        anew for each), to where no map reads on; none where they are more than are looked at."""
        behind: set[Unit] = set()
        own = bits(units)
        while todo and len(behind) < REGION:
            u = todo.pop()
            if u in behind or u in units or u in self.near.claimed or not launches(u) or u.gathers or u.piecewise or (
                    u.descendants & own):
                continue
            behind.add(u)
            todo += u.consumers
            size = max(prod(n.shape) for n in u.results)
            todo += [p for p in u.producers if behind.issuperset(p.consumers) and all(
                not n.escapes and prod(n.shape) == size for n in p.results)]
        return set() if todo else behind

    def ends(self, behind: set[Unit], units: Units, lead: Node) -> Units:
        """The region with all these, or as it is."""
        while late := {u for u in behind if not self.near.free_to_follow(u, units | behind)}:
            behind = behind - late
        grown = self.near.close(units | behind)
        before, after = set(escaping(units)), set(escaping(grown))
        idle = any(not n.escapes and all(launches(c) for c in self.near.following(n) if c not in grown) for n in after - before)
        if not behind or idle or (before - after) & self.wanted or self.parted(grown) or not self.near.convex(grown):
            return units
        return units if self.verdict(judge.ending, grown, lead) is not None else self.step("follow", grown, units)

    def multiplied(self, units: Units, lead: Node) -> int:
        """Elements that the products over the row make."""
        d = self.drafted(units, lead)
        return sum(prod(d.extents[a] for a in i.axes) for i in d.rows if i.contraction) if isinstance(d, Draft) else 0
