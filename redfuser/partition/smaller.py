"""The next smaller regions of one that cannot be made: which of its joins to undo first.

A region is refused by what comes after partition (no tile form, does not fit, fails a check, does not build). It gives way
step by step, the cheapest loss first::

    maps that only move the results    --> torch does them as views
    maps that lead to the row          --> one more pass over an input
    maps after the row is written      --> one more pass over a result
    a contraction per step                        --> the library's
    another reduction per step                    --> one pass more over what it reduces to
    a contraction over the row                    --> the library's
    the reduction that joined last     --> a cascade of its own, or a single reduction

Two regions that nothing connects but their row part first, and maps of a product's operand (:mod:`.operand`).

A region whose results are other ones than its program's keeps its maps: without those that follow, the results would be wrong
all the same, and nobody would see it (an infinity for a NaN, whose inverse is 0).

An undone join is a pair of units that must not share a region again; both sides then grow by themselves, from the same
graph as everything else. A region of one reduction has no smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from redfuser.partition.drafted import Draft
from redfuser.partition.epilogue import rounds
from redfuser.partition.graph import Unit

Pair = frozenset[int]


def undone(d: Draft, whole: bool = False) -> tuple[frozenset[Unit], frozenset[Pair]]:
    """The units to part from the region, and the pairs that do it. Nothing, when there is nothing left to undo. whole: its
    maps stay, since its results are not the program's, or it is a product that has no tile form (RF490 and RF491) or is a
    library's."""
    if not (rest := [u for u in d.units if u.reducing]):
        return frozenset(), frozenset()
    if d.parts:
        _, beside = d.parts
        return beside.units, frozenset(frozenset({u.index, v.index}) for u in beside.units for v in d.units - beside.units
                                       if u.reducing and v.reducing)
    grown = frozenset(u for s in d.steps for u in s.units)
    seeds = [u for u in rest if u not in grown] or rest[:1]
    if d.without is not None:
        maps = d.units - d.without.units
        return maps, frozenset(frozenset({m.index, s.index}) for m in maps for s in seeds)
    if not whole and (maps := spare_maps(d)):
        return maps, frozenset(frozenset({m.index, s.index}) for m in maps for s in seeds)
    if len(rest) < 2:
        return frozenset(), frozenset()
    last = next(order(d), rest[-1])
    return frozenset({last}), frozenset(frozenset({last.index, u.index}) for u in rest if u is not last)


def apart(units: Iterable[Unit]) -> frozenset[Pair]:
    """No two of the reductions share a region."""
    some = sorted(u.index for u in units if u.reducing)
    return frozenset(frozenset({a, b}) for a in some for b in some if a < b)


def spare_maps(d: Draft) -> frozenset[Unit]:
    """The outermost layer of maps that the region can do without, as one set."""
    follow = [u for s in d.steps if s.kind == "follow" for u in s.units]
    moved: list[Unit] = []
    while follow and moves(follow[-1]):
        moved.append(follow.pop())
    if moved:
        return frozenset(moved)
    if leading := frozenset(u for s in d.steps if s.kind == "lead" for u in s.units if not u.reducing):
        return leading
    row = max((prod(n.shape) for i in d.rows if i.node.unit for n in i.node.unit.results), default=0)
    writes = next((i for i, u in enumerate(follow) if max(prod(n.shape) for n in u.results) > row), -1)
    after = follow[writes + 1:]
    while after and rounds(after[0]):  # a library would round it too, and write no more than that
        after.pop(0)
    return frozenset(after)


def moves(u: Unit) -> bool:
    """Only places its operand's elements elsewhere (a transpose, a view), in the same dtype."""
    return u.is_view and len(u.args) == 1 and all(
        n.dtype == u.args[0].dtype and prod(n.shape) == prod(u.args[0].shape) for n in u.results)


def order(d: Draft) -> Iterator[Unit]:
    """The reductions in the order in which they are given up."""
    for i in (*sorted(d.inner, key=lambda i: not i.contraction), *(i for i in d.rows if i.contraction)):
        if i.node.unit is not None:
            yield i.node.unit
    for s in reversed(d.steps):
        yield from sorted((u for u in s.units if u.reducing), key=lambda u: u.index)
