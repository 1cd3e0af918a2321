"""Reductions of rows that are not there: a tensor that is padded is computed at places beyond its own, where its value is not
taken, and the sums behind it would read what lies beside their tensors::

    y[i] = select(i < 8, (x[i, l] - t[i]) * w[l], 0)    t[i] = sum[l] x[i, l],  i < 9
    -->    t[i] = sum[l] select(i < 8, x[i, l], 0)
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import Const, Expr, Load, Op, map_children


def bounded(e: Expr, ix: Indices, shape: Callable[[str], tuple[int, ...]]) -> Expr:
    """``e`` with every element of a tensor that its place may lie outside of taken for 0 there. Places that data say are within
    their tensors already (:func:`redfuser.partition.meanings.within`). shape: of a tensor, by name."""
    return _bounded(e, ix, shape, frozenset())


def _bounded(e: Expr, ix: Indices, shape: Callable[[str], tuple[int, ...]], known: frozenset[Expr]) -> Expr:
    match e:
        case Op(name="select", args=(c, x, y), dtype=d):
            inside = known | _conjuncts(c, ix)
            return Op("select", (c, _bounded(x, ix, shape, inside), _bounded(y, ix, shape, known)), d)
        case Load(tensor=name, indices=indices, dtype=d):
            asked = [c for i, n in zip(indices, shape(name), strict=False) for c in _leaves(i, n, ix) if c not in known]
            if not asked:
                return e
            whole = asked[0]
            for c in asked[1:]:
                whole = Op("and", (whole, c), "bool")
            return Op("select", (whole, e, Const(False if d == "bool" else 0, d)), d)
    return map_children(e, lambda x: _bounded(x, ix, shape, known))


def _leaves(place: Expr, extent: int, ix: Indices) -> list[Expr]:
    """What must hold for a place to be inside, of what need not."""
    low, high = ix.range_of(place)
    found = [ix.compare("le", Const(0, "i64"), place)] if -inf < low < 0 else []
    return [*found, ix.compare("lt", place, Const(extent, "i64"))] if extent <= high < inf else found


def _conjuncts(c: Expr, ix: Indices) -> frozenset[Expr]:
    match c:
        case Op(name="and", args=args):
            return frozenset().union(*(_conjuncts(a, ix) for a in args))
        case Op(name="lt" | "le" | "gt" | "ge" as n, args=(x, y)) if x.dtype == y.dtype == "i64":
            return frozenset({ix.compare(n, x, y)})
    return frozenset({c})
