"""Neighbouring axes that every tensor has side by side, as one: elements do not know where a row ends.

    y[i, l] = x[i, l] + w[i, l]     i = 64, l = 100    -->    y[l] = x[l] + w[l]     l = 6400
    y[i, l] = x[i, l] + b[l]                           -->    itself
    t[b, i] = sum[l] x[b, i, l]    l = 8       -->    t[i] = sum[l] x[i, l]
    o[b, i, d] = sum[k] x[b, i, k] * w[d, k]           -->    o[i, d] = sum[k] x[i, k] * w[d, k]
    y[b, h, w] = max[l] x[b, l, h, w]                  -->    y[b, w] = max[l] x[b, l, w]

Tensors are viewed, row-major, as regions view theirs anyway.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from redfuser.acrf.affine import Indices, axes_of
from redfuser.acrf.cascade import Axis, Cascade, Let, Tensor, axes_in_order
from redfuser.acrf.expr import Expr, Index, Load, map_children, walk
from redfuser.outline import BESIDE, MANY

Place = tuple[int, bool]
"""The dimension that an axis and its neighbour index, and whether they share it; (-1, False) for neither."""
NOWHERE: Place = (-1, False)


def flattened(c: Cascade) -> Cascade:
    """``c``, which reduces nothing, with as few axes and dimensions as its tensors allow; numbers are a row of one element.
    Results keep their order."""
    c = _joined(_without_units(c))
    if c.axes:
        return c
    return replace(c, axes=(Axis(c.raxis, 1),), stmts=tuple(replace(s, axes=(c.raxis,)) for s in c.stmts))


def one_matrix(c: Cascade) -> Cascade:
    """``c`` with the rows of its products along one axis: those axes joined that an operand of a product lacks, so that no tile
    ends where an axis does. What all operands have are matrices side by side."""
    return _joined(c, reductions=True, rows=True) if all(isinstance(a.extent, int) for a in c.axes) else c


def columns_joined(c: Cascade) -> Cascade:
    """``c``, whose reductions run across memory, with the columns that lie side by side along one axis."""
    return _joined(c, reductions=True) if all(isinstance(a.extent, int) for a in c.axes) else c


def rows_joined(c: Cascade) -> Cascade:
    """``c`` without products, with its rows along one axis where they are short and many, or lie side by side: a block has
    several, whatever axes they have."""
    extents = {a.name: a.extent for a in c.axes if isinstance(a.extent, int)}
    if len(extents) < len(c.axes):
        return c
    n = extents.pop(c.raxis)
    return _joined(c, reductions=True) if (n <= BESIDE and prod(extents.values()) >= MANY) or _across(c) else c


def _across(c: Cascade) -> bool:
    """Does every tensor that the row is read of have the row's elements apart, and rows side by side?"""
    read = [x for s in c.stmts for x in walk(s.expr) if isinstance(x, Load) and len(x.indices) > 1]
    rows = [x for x in read if any(c.raxis in axes_of(i) for i in x.indices)]
    return bool(rows) and all(c.raxis not in axes_of(x.indices[-1]) for x in rows)


def _without_units(c: Cascade) -> Cascade:
    """Inputs without their dimensions of one element."""
    kept = {t.name: tuple(k for k, n in enumerate(t.shape) if n != 1) or (0,) for t in c.inputs}
    done: dict[int, Expr] = {}

    def go(e: Expr) -> Expr:
        if id(e) not in done:
            found = map_children(e, go)
            done[id(e)] = replace(found, indices=tuple(found.indices[k] for k in kept[found.tensor])) if isinstance(
                found, Load) else found
        return done[id(e)]

    stmts = tuple(replace(s, expr=go(s.expr)) for s in c.stmts)
    inputs = tuple(replace(t, shape=tuple(t.shape[k] for k in kept[t.name])) for t in c.inputs)
    return replace(c, inputs=inputs, stmts=stmts)


def _joined(c: Cascade, reductions: bool = False, rows: bool = False) -> Cascade:
    """reductions: also axes of reductions; rows: only those that a matrix lacks."""
    axes = c.stmt(c.outputs[0]).axes
    for a, b in zip(axes, axes[1:], strict=False):
        if all((reductions or isinstance(s, Let) or (s.running and s.over not in (a, b))) and _adjacent(s.axes, a, b)
               for s in c.stmts):
            pair = _Pair(c, a, b)
            done = pair.merged()
            if done is not None and (not rows or pair.matrix_lacks()):
                return _joined(done, reductions, rows)
    return c


def _adjacent(axes: tuple[str, ...], a: str, b: str) -> bool:
    if a not in axes and b not in axes:
        return True
    return a in axes and b in axes and axes.index(b) == axes.index(a) + 1


class _Apart(Exception):
    """Some tensor does not have the two axes side by side."""


class _Pair:
    """The axes ``a`` and ``b`` of a cascade, to become ``b``."""

    def __init__(self, c: Cascade, a: str, b: str) -> None:
        self.c, self.a, self.b = c, a, b
        self.extents = {x.name: int(x.extent) for x in c.axes}
        self.ix = Indices(self.extents)
        self.shapes = {t.name: tuple(map(int, t.shape)) for t in c.inputs}
        self.places: dict[str, Place] = {}
        self.done: dict[int, Expr] = {}

    def merged(self) -> Cascade | None:
        c = self.c
        try:
            stmts = tuple(replace(s, axes=tuple(x for x in s.axes if x != self.a), expr=self.expr(s.expr)) for s in c.stmts)
        except _Apart:
            return None
        extents = {**self.extents, self.b: self.extents[self.a] * self.extents[self.b]}
        inputs = tuple(Tensor(t.name, t.dtype, self.shape(t.name)) for t in c.inputs)
        return replace(c, inputs=inputs, axes=tuple(Axis(x, extents[x]) for x in axes_in_order(stmts)), stmts=stmts)

    def matrix_lacks(self) -> bool:
        """Has an operand of a product, a matrix, neither of the two?"""
        reduced = {x.tensor for s in self.c.stmts if not isinstance(s, Let) for x in walk(s.expr) if isinstance(x, Load)}
        return any(self.places.get(t) == NOWHERE and len(self.shapes[t]) > 1 for t in reduced)

    def expr(self, e: Expr) -> Expr:
        if isinstance(e, Index) and e.axis in (self.a, self.b):
            raise _Apart
        if id(e) not in self.done:
            self.done[id(e)] = self.load(e) if isinstance(e, Load) else map_children(e, self.expr)
        return self.done[id(e)]

    def load(self, e: Load) -> Expr:
        at, shared = place = self.place(e)
        if self.places.setdefault(e.tensor, place) != place:
            raise _Apart
        if place == NOWHERE:
            return e
        if shared:
            joined = self.ix.linear(e.indices[at]).without(self.a).expr()
            return replace(e, indices=(*e.indices[:at], joined, *e.indices[at + 1:]))
        return replace(e, indices=(*e.indices[:at], *e.indices[at + 1:]))

    def place(self, e: Load) -> Place:
        """Where a tensor has the two: ``x[.., a, b, ..]`` in dimensions of their extents, or ``x[.., a * 100 + b, ..]``."""
        pair = {self.a, self.b}
        at = [k for k, i in enumerate(e.indices) if axes_of(i) & pair]
        if not at:
            return NOWHERE
        if len(at) == 1:
            terms = dict(self.ix.linear(e.indices[at[0]]).terms)
            own, next_ = terms.pop(Index(self.a), 0), terms.pop(Index(self.b), 0)
            if next_ and own == next_ * self.extents[self.b] and not any(axes_of(x) & pair for x in terms):
                return at[0], True
        elif at[1:] == [at[0] + 1] and tuple((e.indices[k], self.shapes[e.tensor][k]) for k in at) == tuple(
                (Index(x), self.extents[x]) for x in (self.a, self.b)):
            return at[0], False
        raise _Apart

    def shape(self, name: str) -> tuple[int, ...]:
        shape, (at, shared) = self.shapes[name], self.places.get(name, NOWHERE)
        return shape if at < 0 or shared else (*shape[:at], prod(shape[at:at + 2]), *shape[at + 2:])
