"""Proved bounds of mixed values along the row: a result that dominates data, an exponent below its maximum.

They show that a clip changes nothing, that a rounding stays in range, and which exponentials their results bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redfuser.acrf.algebra import LARGEST
from redfuser.acrf.expr import Cast, Expr, Op, Ref, map_children
from redfuser.acrf.linear import monomial_kind, split_linear
from redfuser.acrf.normal import Poly, add, multiply, scale, to_poly
from redfuser.acrf.refuse import Refuse
from redfuser.acrf.state import Condition
from redfuser.acrf.terms import F1, Part, Term, constant_of, without_constant

if TYPE_CHECKING:
    from redfuser.acrf.decompose import Decomposer


def decided(d: Decomposer, e: Op, x: Expr, y: Expr) -> Expr | None:
    """A clip that a proved bound makes redundant (``min(448 x / max|x|, 448)``)."""
    for value, limit in ((x, y), (y, x)):
        v = constant_of(limit)
        if v is not None:
            bound = _magnitude(d, value)
            if bound is not None and ((e.name == "min" and bound <= v) or (e.name == "max" and -bound >= v)):
                d.conditions.append(Condition(f"abs({value}) <= {bound:g}", "interval",
                                              f"{e.name}(., {limit}) changes nothing"))
                return value
    return None


def _magnitude(d: Decomposer, e: Expr) -> float | None:
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


def bound_of(d: Decomposer, t: Term) -> float | None:
    """A proved bound of |t|: every result in a denominator dominates some data in the numerator."""
    bound = abs(float(t.coefficient))
    data = []
    for p in t.of("x"):
        c, base = without_constant(p.base)
        bound *= c ** float(p.power) if p.power > 0 or c else 1.0
        data.append((base, p.power))
    for p in t.parts:
        if p.kind == "d":
            at = next((i for i, (g, q) in enumerate(data)
                       if p.power < 0 and q == -p.power and d.ranges.dominates(p.base, g)), None)
            if at is None:
                return None
            data.pop(at)
        elif p.kind == "shift":
            return None
        elif p.kind == "scaled":
            inside = _bounded_exponential(d, p)
            if inside is None:
                return None
            bound *= inside
    for g, q in data:
        r = d.ranges.of(g)
        most = max(abs(r.lo), abs(r.hi))
        if q < 0 or most == float("inf"):
            return None
        bound *= most ** float(q)
    return bound


def _bounded_exponential(d: Decomposer, p: Part) -> float | None:
    """exp(A - m) <= 1 where m = max of A."""
    e = p.base
    while isinstance(e, Cast):
        e = e.arg
    if not (isinstance(e, Op) and e.name in ("exp", "exp2")) or p.power < 0:
        return None
    return 1.0 if _below_zero(d, e.args[0]) else None


def follows_maximum(d: Decomposer, p: Part) -> bool:
    """exp(c * (A - m) + ...) with c >= 0, m the maximum of A, and nothing else but results: along the row it is at most
    its value at the maximum, and it vanishes where the maximum is -inf."""
    e = p.base
    while isinstance(e, Cast):
        e = e.arg
    if not (isinstance(e, Op) and e.name in ("exp", "exp2")) or p.power < 0:
        return False
    if _below_zero(d, e.args[0]):
        return True
    arg = _unclamped(d, d.scope.resolve(e.args[0]))
    split = split_linear(d, arg)
    if split is None:
        return False
    moving = {m: c for m, c in split[0].items() if monomial_kind(d, m) == "X"}
    for name, r in d.ranges.reductions.items():
        if r.reducer.kind == "max":
            data = to_poly(d.scope.inline(r.expr))
            for c in {abs(v) for v in moving.values()}:
                if scale(data, c) == moving and split[1].get(((Ref(name, r.dtype), F1),)) == -c:
                    return True
    return False


def _unclamped(d: Decomposer, e: Expr) -> Expr:
    """Without clamps at the largest finite number, which change infinities only."""
    if isinstance(e, Op) and e.name in ("min", "max"):
        for value, limit in (e.args, e.args[::-1]):
            v = constant_of(limit)
            if v is not None and abs(v) >= LARGEST[e.dtype] and (v > 0) == (e.name == "min"):
                return _unclamped(d, value)
    return map_children(e, lambda x: _unclamped(d, x))


def _below_zero(d: Decomposer, arg: Expr) -> bool:
    """Proved: arg = c * (A - m) with c >= 0 and m the maximum of A."""
    split = split_linear(d, arg)
    if split is None:
        return False
    for name, r in d.ranges.reductions.items():
        if r.reducer.kind != "max":
            continue
        ref = Ref(name, r.dtype)
        difference = add(to_poly(d.scope.inline(r.expr)), to_poly(ref), -1)
        whole = add(split[0], split[1])
        if difference == whole:
            return True
        for c in {abs(v) for v in whole.values()}:
            if scale(difference, c) == whole:
                return True
        extra = [m for m in whole if any(b == ref for b, _ in m)]
        if len(extra) == 1:
            factor: Poly = {tuple((b, q) for b, q in extra[0] if b != ref): -whole[extra[0]]}
            (m, c), = factor.items()
            positive = c > 0 and all(d.ranges.nonneg(b) for b, _ in m)
            if positive and multiply(difference, factor) == whole:
                return True
    return False
