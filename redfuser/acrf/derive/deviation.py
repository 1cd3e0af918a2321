"""What bounds the distance of data from a result: their range, their own squares, what bounds the data themselves.

A deviation is measured in such a unit where its power by itself would leave the range of its type
(:func:`redfuser.acrf.derive.bounding.in_units`).
"""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.acrf.derive.bounds import proved_below_zero
from redfuser.acrf.derive.decomposition import F1, Conds, Decomposition, split_linear, without_constant
from redfuser.acrf.expr import Expr, Op, Ref
from redfuser.acrf.facts.normal import from_poly, scale, to_poly


def spans(d: Decomposition, unit: Expr, g: Expr, conds: Conds) -> bool:
    """Proved: ``|g| <= c * unit`` along the row for a constant c, ``g`` of data and results: a deviation from a mean in
    terms of its own mean square, the distance from an extremum or from the mean in terms of the range, the latter also in
    terms of what bounds the data."""
    if d.ranges.dominates(unit, g, loosely=True):
        return True
    data = _about_its_mean(d, g) if not conds else None
    if data is not None and d.ranges.dominates(unit, data, loosely=True):
        return True
    whole = d.scope.resolve(g)
    sides = [whole, Op("neg", (whole,), g.dtype)] if data is None else _in_its_range(d, data)
    return bool(sides) and any(all(proved_below_zero(d, Op("sub", (side, size), g.dtype), conds) for side in sides)
                               for size in at_most(d, d.scope.resolve(unit)))


def at_most(d: Decomposition, unit: Expr) -> Iterator[Expr]:
    """``unit`` up to a constant factor, and what it is not below: ``max(a, eps)`` is not below a, nor is ``a + eps``."""
    _, size = without_constant(unit)
    yield size
    if isinstance(size, Op) and size.name in ("max", "add"):
        for x, y in (size.args, size.args[::-1]):
            if size.name == "max" or d.ranges.nonneg(y):
                yield from at_most(d, x)


def _about_its_mean(d: Decomposition, g: Expr) -> Expr | None:
    """The data of which ``g`` is the deviation from their mean over the whole row, or None."""
    split = split_linear(d.scope, d.scope.resolve(g))
    extent = d.scope.cascade.extent(d.scope.raxis)
    if split is None or len(split[1]) != 1 or not isinstance(extent, int):
        return None
    ((mono, c),) = split[1].items()
    base, power = mono[0] if len(mono) == 1 else (None, F1)
    r = d.ranges.reductions.get(base.name) if isinstance(base, Ref) and not base.indices else None
    if r is None or r.reducer.kind != "sum" or power != 1 or scale(to_poly(d.scope.inline(r.expr)), -c * extent) != split[0]:
        return None
    return from_poly(split[0], g.dtype)


def _in_its_range(d: Decomposition, data: Expr) -> list[Expr]:
    """How far data are from a mean of theirs at most, on either side: from their minimum, and from their maximum."""
    found: list[Expr] = []
    body = to_poly(data)
    for kind, sign in (("min", 1), ("max", -1)):
        ends = (Ref(n, r.dtype) for n, r in d.ranges.reductions.items()
                if r.reducer.kind == kind and to_poly(d.scope.inline(r.expr)) == body)
        end = next(ends, None)
        if end is not None:
            found.append(Op("sub", (data, end) if sign > 0 else (end, data), data.dtype))
    return found if len(found) == 2 else []
