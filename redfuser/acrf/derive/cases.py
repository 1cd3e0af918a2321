"""Selects lifted to the top: F as disjoint cases, each with its conditions on data and on results.

    select(l <= i, exp(x - m), 0)  -->  l <= i: exp(x - m)     not (l <= i): 0
"""

from __future__ import annotations

from redfuser.acrf.derive.continued import continued
from redfuser.acrf.derive.decomposition import Decomposition, few
from redfuser.acrf.derive.indicator import extremum_of, strict
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op
from redfuser.acrf.state import refuse_condition

Case = tuple[tuple[tuple[Expr, bool], ...], tuple[tuple[Expr, bool], ...], Expr]


def split_cases(d: Decomposition, e: Expr, known: tuple[tuple[Expr, bool], ...] = ()) -> list[Case]:
    """F as disjoint cases: (conditions on data, conditions on results, F there without mixed selects).
    ``known``: conditions on data that hold around it."""
    if d.scope.kind(e) != "M" or not isinstance(e, (Op, Cast)):
        return [((), (), e)]
    if isinstance(e, Op) and e.name == "select":
        cond, then, other = e.args
        kind = d.scope.kind(cond)
        whole = continued(d, e) if kind == "M" else None
        if whole is not None:
            return split_cases(d, whole, known)
        if kind == "M" and isinstance(cond, Op) and cond.name in ("and", "or", "not"):
            return split_cases(d, _nested(cond, then, other, e.dtype), known)
        below = strict(d, cond, known) if kind == "M" else None
        if below is not None:
            inner = Op("select", (below[0], other, then), e.dtype)
            return split_cases(d, Op("select", (below[1], other, inner), e.dtype), known)
        if kind == "M" and extremum_of(d, cond, known) is None:
            refuse_condition(cond)
        out: list[Case] = []
        for side, arm in ((True, then), (False, other)):
            here = ((cond, side),)
            for xs, ds, leaf in split_cases(d, arm, (*known, *here) if kind != "D" else known):
                out.append(((*here, *xs), ds, leaf) if kind != "D" else (xs, (*here, *ds), leaf))
        return few(out)
    args = (e.arg,) if isinstance(e, Cast) else e.args
    combos: list[tuple[tuple[tuple[Expr, bool], ...], tuple[tuple[Expr, bool], ...], tuple[Expr, ...]]] = [
        ((), (), ())]
    for arg in args:
        mine = split_cases(d, arg, known)
        combos = [(_both(xs, x2), _both(ds, d2), (*done, leaf))
                  for xs, ds, done in combos for x2, d2, leaf in mine
                  if _consistent(xs, x2) and _consistent(ds, d2)]
        few(combos)
    return [(xs, ds, _fold(Cast(kids[0], e.dtype) if isinstance(e, Cast) else Op(e.name, kids, e.dtype)))
            for xs, ds, kids in combos]


def _nested(cond: Op, then: Expr, other: Expr, dtype: str) -> Expr:
    """One condition per select: ``select(a and b, x, y) = select(a, select(b, x, y), y)``."""
    def choose(c: Expr, x: Expr, y: Expr) -> Expr:
        return Op("select", (c, x, y), dtype)

    if cond.name == "not":
        return choose(cond.args[0], other, then)
    a, b = cond.args
    return choose(a, choose(b, then, other), other) if cond.name == "and" else choose(a, then, choose(b, then, other))


def _both(a: tuple[tuple[Expr, bool], ...], b: tuple[tuple[Expr, bool], ...]) -> tuple[tuple[Expr, bool], ...]:
    return tuple(dict.fromkeys((*a, *b)))


def _consistent(a: tuple[tuple[Expr, bool], ...], b: tuple[tuple[Expr, bool], ...]) -> bool:
    return not any((c, not s) in a for c, s in b)


def _fold(e: Expr) -> Expr:
    """exp(-inf) = 0, and 0 * (...) of a constant 0 stays visible as 0."""
    match e:
        case Op(name="exp" | "exp2", args=(Const(value=v),)) if v == float("-inf"):
            return Const(0.0, e.dtype)
        case Op(name="sub" | "add" | "mul" | "div", args=(Const(value=v) as c, y)) if abs(v) == float("inf"):
            del y
            return c if e.name in ("sub", "add") else e
        case Cast(arg=Const(value=v)) if e.dtype in FLOATS and (v == 0 or abs(v) == float("inf")):
            return Const(v, e.dtype)
    return e
