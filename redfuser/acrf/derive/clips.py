"""Clips that change nothing: what is clipped is proved to be within the bound, a number or a result of the row.

    min(448 x / max |x|, 448)                            448 x / max |x|
    min(max(x, -s), s)   with s = max(max |x|, 1)   -->   x if s == s else s
"""

from __future__ import annotations

from redfuser.acrf.derive.bounds import bound_of, sign_along
from redfuser.acrf.derive.decomposition import F1, Decomposition, constant_of
from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref
from redfuser.acrf.facts.normal import from_poly, scale, to_poly
from redfuser.acrf.state import Condition, Refuse
from redfuser.dtypes import widens


def decided(d: Decomposition, e: Op, x: Expr, y: Expr) -> Expr | None:
    """What a clip leaves that a proved bound makes redundant (``min(448 x / max|x|, 448)``); where the bound is a result, a
    choice by whether that is a number."""
    for value, limit in ((x, y), (y, x)):
        v = constant_of(limit)
        if v is not None:
            side = sign_along(d, value)
            if (e.name == "min" and side < 0 <= v) or (e.name == "max" and v <= 0 < side):
                return value
            bound = _magnitude(d, value)
            if bound is not None and ((e.name == "min" and bound <= v) or (e.name == "max" and -bound >= v)):
                d.conditions.append(Condition(f"abs({value}) <= {bound:g}", "interval",
                                              f"{e.name}(., {limit}) changes nothing"))
                return value
        elif (inside := _bounded_by(d, e.name, value, limit)) is not None:
            return inside
    return None


def _bounded_by(d: Decomposition, name: str, value: Expr, limit: Expr) -> Expr | None:
    """Data that are clipped at a result which bounds them (``min(max(x, -s), s)`` with ``s = max(max |x|, 1)``), where that is
    a number: NaN of an element that a mask hides is in the bound all the same. None of anything else."""
    if isinstance(value, Op) and value.name in ("min", "max") and d.scope.kind(value) == "M":
        value = _data(d, value)
    if d.scope.kind(limit) != "D" or d.scope.kind(value) != "X":
        return None
    whole = d.scope.resolve(limit)
    bound = whole if name == "min" else from_poly(scale(to_poly(whole), -F1), limit.dtype)
    if not (_largest(d, bound) and d.ranges.dominates(bound, value)):
        return None
    d.conditions.append(Condition(f"abs({value}) <= {bound}", "interval", f"{name}(., {limit}) changes nothing"))
    return Op("select", (Op("eq", (limit, limit), "bool"), value, limit), value.dtype)


def _data(d: Decomposition, e: Op) -> Expr:
    """A clip without what changes nothing; the bound outside of it asks for a number as well."""
    inside = decided(d, e, *e.args)
    return inside.args[1] if isinstance(inside, Op) and inside.name == "select" else e if inside is None else inside


def _largest(d: Decomposition, e: Expr) -> bool:
    """Is it made of extrema without a rounding? A root of a sum of squares is 0 where they vanish, and what was rounded to
    fewer digits may be less than what it was made of."""
    match e:
        case Const():
            return True
        case Ref(name=n):
            r = d.ranges.reductions.get(n)
            return r is not None and r.reducer.kind in ("max", "min")
        case Cast(arg=x, dtype=to):
            return widens(x.dtype, to) and _largest(d, x)
        case Op(name="max" | "min" | "neg" | "abs", args=args):
            return all(_largest(d, x) for x in args)
    return False


def _magnitude(d: Decomposition, e: Expr) -> float | None:
    """A proved bound of |e| along the row, or None."""
    if isinstance(e, Op) and e.name in ("min", "max"):
        for value, limit in (e.args, e.args[::-1]):
            v = constant_of(limit)
            if v is not None and d.scope.kind(value) == "M":
                inside = _magnitude(d, value)
                if inside is not None and inside <= abs(v):
                    return inside
    try:
        terms = d.expand(e)
    except Refuse:
        return None
    total = 0.0
    for t in terms:
        bound = bound_of(d, t)
        if bound is None:
            return None
        total += bound
    return total
