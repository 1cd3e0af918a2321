"""Reductions of rows that are not there: a tensor that is padded is computed at places beyond its own, where its value is not
taken, and the sums behind it would read what lies beside their tensors::

    y[i] = select(i < 8, (x[i, l] - t[i]) * w[l], 0)    t[i] = sum[l] x[i, l],  i < 9
    -->    t[i] = sum[l] select(i < 8, x[i, l], 0)

So would what several values share of a choice, once it has a name and is computed by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from redfuser.acrf.affine import Affine, Indices, affine
from redfuser.acrf.expr import Const, Expr, Load, Op, map_children
from redfuser.acrf.index import i64

_OTHERWISE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def bounded(e: Expr, ix: Indices, shape: Callable[[str], tuple[int, ...]]) -> Expr:
    """``e`` with every element of a tensor that its place may lie outside of taken for 0 there. Places that data say are within
    their tensors already (:func:`redfuser.partition.meanings.within`). shape: of a tensor, by name."""
    return _bounded(e, ix, shape, ())


def _bounded(e: Expr, ix: Indices, shape: Callable[[str], tuple[int, ...]], known: tuple[Affine, ...]) -> Expr:
    """known: what is at least 0 here."""
    match e:
        case Op(name="select", args=(c, x, y), dtype=d):
            inside, other = ((*known, *_holds(c, ix, truth)) for truth in (True, False))
            return Op("select", (c, _bounded(x, ix, shape, inside), _bounded(y, ix, shape, other)), d)
        case Load(tensor=name, indices=indices, dtype=d):
            asked = [c for i, n in zip(indices, shape(name), strict=False) for c in _leaves(i, n, ix, known)]
            if not asked:
                return e
            whole = asked[0]
            for c in asked[1:]:
                whole = Op("and", (whole, c), "bool")
            return Op("select", (whole, e, Const(False if d == "bool" else 0, d)), d)
    return map_children(e, lambda x: _bounded(x, ix, shape, known))


def _leaves(place: Expr, extent: int, ix: Indices, known: tuple[Affine, ...]) -> list[Expr]:
    """What must hold for a place to be inside, of what need not."""
    at = ix.linear(place)
    if -inf in ix.range(at) or inf in ix.range(at):
        return []
    from_end = affine({}, extent - 1) - at

    def open_(least: Affine) -> bool:
        return ix.range(least)[0] < 0 and not any(ix.range(ix.joined(least - k))[0] >= 0 for k in known)

    found = [ix.compare("le", i64(0), place)] if open_(at) else []
    return [*found, ix.compare("lt", place, i64(extent))] if open_(from_end) else found


def _holds(c: Expr, ix: Indices, truth: bool) -> tuple[Affine, ...]:
    """What is at least 0 where ``c`` is true, or where it is not, of what ``c`` compares."""
    match c:
        case Op(name="and" | "or" as n, args=args) if (n == "and") == truth:
            return tuple(x for a in args for x in _holds(a, ix, truth))
        case Op(name="not", args=(x,)):
            return _holds(x, ix, not truth)
        case Op(name="lt" | "le" | "gt" | "ge" as n, args=(x, y)) if x.dtype == y.dtype == "i64":
            name = n if truth else _OTHERWISE[n]
            low, high = (x, y) if name[0] == "l" else (y, x)
            return (ix.linear(high) - ix.linear(low) + affine({}, -(name in ("lt", "gt"))),)
    return ()
