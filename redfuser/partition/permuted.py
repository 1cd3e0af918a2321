"""Views through which a library reads a map's result, or the program's caller: which of them the map had better write itself.

    y[i, j, l] = a map; z = y.permute(1, 0, 2); F.linear(z, w, b)    -->    z[j, i, l] = the map, as it is read
    y[i, l] = a map; return y.T.contiguous()                         -->    z[l, i] = the map, as it is returned
    y[i, l] = a map; return y.flip(-1)                               -->    z[i, l] = the map of what lies at L - 1 - l

Of an operand whose lines lie in another order torch makes a copy, or many small products and a sum for their bias.
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.affine import Indices, axes_of
from redfuser.acrf.cascade import Let
from redfuser.acrf.expr import BYTES, Expr, Load
from redfuser.partition.around import Around
from redfuser.partition.epilogue import moves
from redfuser.partition.graph import Graph, Node, Unit
from redfuser.partition.positions import layout, strided

RUN = 128
"""Bytes side by side, of what torch moves, at least for it to take no longer than a copy. On an H200 joined pieces of 256
take as long as one and of 4 four times as long; permuted ones of 2 take six times a kernel's time, of 32 1.4 times. Nothing
between 32 and 256 was measured."""


FEW, LEAST, MANY = 8, 512, 1 << 18
"""Elements of one of two runs that are turned, up to which a kernel has all of them, and of both then for it to have a tile, of
so many elements in all: a pixel shuffle's 64 x 2 halves leave most of a block idle, 14.4 us for 8 x 64 x 128 x 128 of them on
one H200, torch's copy 10.9."""


def permuted(graph: Graph, near: Around, n: Node) -> frozenset[Unit]:
    """The views behind a tensor, each the only reader of the one before, up to the last that permutes it: that a library reads,
    lines as lines, or that end in a result of the program whose elements lie in order. None where somebody else reads one."""
    for lines in (False, True):
        views, end = _views(graph, near, n, lines)
        read = lines and any((u.gap or u.reducing) and u not in near.claimed for u in graph.readers(end))
        if end.lined if end.escapes else read:
            return _worth(views)
    return frozenset()


def copied(n: Node) -> frozenset[Unit]:
    """The views behind a tensor, up to the first that permutes, where that leaves lines shorter than RUN: laid in order, it is
    read or written by torch piece by piece."""
    views: list[Unit] = []
    while n.unit is not None and _view(n.unit, False) and (not views or not n.escapes):
        views.append(n.unit)
        n = n.unit.args[0]
    return _worth(views) if any(map(_short, views)) else frozenset()


def _worth(views: list[Unit]) -> frozenset[Unit]:
    """The views up to the last that permutes, rolls or turns round (of what lies in order torch has any other for nothing),
    where a kernel has tiles for that one."""
    last = max((n for n, u in enumerate(views, 1) if _permutes(u) or fetches(u)), default=0)
    return frozenset(views[:last]) if last and (fetches(views[last - 1]) or _tiled(views[last - 1])) else frozenset()


def _tiled(u: Unit) -> bool:
    """Are runs of what lies side by side, there and here, of enough elements, or all of them few?"""
    at, axes = source_of(u)
    here = [a for a in axes if u.extents[a] > 1]
    there = [a for a in layout(Indices(u.extents), at, u.args[0].shape) or () if u.extents[a] > 1]
    runs = [prod(u.extents[a] for a in _run(one, other)) for one, other in ((here, there), (there, here))]
    return prod(u.results[0].shape) < MANY or min(runs) > FEW or prod(runs) >= LEAST


def _run(order: list[str], other: list[str]) -> list[str]:
    """The last axes of an order, as many as follow one another in the other too."""
    first = len(order) - 1
    while first > 0 and (order[first - 1], order[first]) in zip(other, other[1:], strict=False):
        first -= 1
    return order[first:]


def _short(u: Unit) -> bool:
    """Does it leave less than RUN bytes side by side?"""
    at, axes = source_of(u)
    size = BYTES.get(u.results[0].dtype, 8)
    for a, b in zip(reversed(axes), reversed(layout(Indices(u.extents), at, u.args[0].shape) or ()), strict=False):
        if a != b:
            return size < RUN
        size *= u.extents[a]
    return False


def _views(graph: Graph, near: Around, n: Node, lines: bool) -> tuple[list[Unit], Node]:
    """The views behind a tensor, one after another, and what the last gives. lines: those that leave these alone."""
    views: list[Unit] = []
    while not n.escapes and len(some := graph.readers(n)) == 1 and _view(u := some[0], lines) and u not in near.claimed:
        views.append(u)
        n = u.results[0]
    return views, n


def _view(u: Unit, lines: bool) -> bool:
    """Does it list all of one tensor; lines: and what lies side by side there side by side?"""
    at, axes = source_of(u)
    whole = moves(u) and len(u.results) == 1 and prod(u.results[0].shape) == prod(u.args[0].shape)
    return whole and bool(at and axes) and (not lines or axes[-1] in axes_of(at[-1]))


def _permutes(u: Unit) -> bool:
    """Does it list axes otherwise than they lie?"""
    at, axes = source_of(u)
    order = layout(Indices(u.extents), at, u.args[0].shape)
    return order is not None and [a for a in order if u.extents[a] > 1] != [a for a in axes if u.extents[a] > 1]


def fetches(u: Unit) -> bool:
    """Is it a rearranged read that torch has no view for: what is repeated, rolled, or turned round?"""
    at, _ = source_of(u)
    return moves(u) and bool(at) and u.has_data is not False and not strided(Indices(u.extents), at, u.args[0].shape)


def transposes(u: Unit) -> bool:
    """Is it a view of all of one tensor with its last two axes the other way round?"""
    at, axes = source_of(u)
    if not (moves(u) and at and prod(u.results[0].shape) == prod(u.args[0].shape)):
        return False
    lies = [a for a in layout(Indices(u.extents), at, u.args[0].shape) or () if u.extents[a] > 1]
    mine = [a for a in axes if u.extents[a] > 1]
    return len(lies) > 1 and mine == [*lies[:-2], *lies[:-3:-1]]


def source_of(u: Unit) -> tuple[tuple[Expr, ...], tuple[str, ...]]:
    """Where a view of one tensor reads it, and the view's axes."""
    stmt = u.nodes[-1].stmt
    if len(u.nodes) == 1 and isinstance(stmt, Let) and isinstance(stmt.expr, Load):
        return stmt.expr.indices, stmt.axes
    return (), ()
