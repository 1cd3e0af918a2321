"""Factors kept with what bounds them, so that no accumulator overflows where the source program does not.

Data to a power stays over the result that dominates it; an exponential without a bound follows a maximum of its own.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from redfuser.acrf.bounds import follows_maximum
from redfuser.acrf.decompose import Decomposer
from redfuser.acrf.expr import Const, Expr, Op, Reduce, Reducer, Ref, children, op, refs_of
from redfuser.acrf.indicator import data_only
from redfuser.acrf.linear import split_linear
from redfuser.acrf.normal import from_poly, product
from redfuser.acrf.state import Condition
from redfuser.acrf.terms import Part, Term, without_constant
from redfuser.acrf.values import F1

if TYPE_CHECKING:
    from redfuser.acrf.derive import Deriver


def bounded_powers(work: Deriver, r: Reduce, t: Term) -> Term:
    """``(x / m) ** 2`` with ``abs(x) <= m`` proved: data to a power beyond 1 overflows where the quotient does not, so
    the pair stays together and is rebased."""
    parts = list(t.parts)
    for p in [p for p in parts if p.kind == "d" and p.power < 0]:
        for q in [q for q in parts if q.kind == "x" and q.power > 0]:
            degree = -p.power
            total = sum((o.power for o in parts if o.kind == "x" and o.base == q.base), Fraction(0))
            if total == degree and degree >= 2 and work.ranges.dominates(
                    p.base, without_constant(q.base)[1]):
                dtype = p.base.dtype
                quotient = op("div", q.base, p.base)
                pair = Part("scaled", product([(quotient, degree)], dtype), follows=((p.base, p.power),))
                first = next(i for i, o in enumerate(parts) if o.kind == "x" and o.base == q.base)
                parts = [pair if i == first else o for i, o in enumerate(parts)
                         if i == first or (o is not p and not (o.kind == "x" and o.base == q.base))]
                work.conditions.append(Condition(f"abs({q.base}) <= {p.base}", "interval",
                                                 "bounds the quotient by 1"))
                break
    return replace(t, parts=tuple(parts))


def within_data(work: Deriver, r: Reduce, t: Term) -> Term:
    """``(x - s/q) ** k`` whose denominator may vanish while the row is reduced (a sum of weights of either sign): kept
    about ``s/q`` clamped to the range of x so far, and moved to ``s/q`` itself in ``finalize``. Weights of one sign never
    feel the clamp; others cannot carry the reference away from the data."""
    parts: list[Part] = []
    for p in t.parts:
        if p.kind != "shift" or p.follows or p.a is None or p.b is None or _steady(work, work.refs.running(p.b)):
            parts.append(p)
            continue
        dtype = p.base.dtype
        ends = []
        for kind, edge in (("min", float("inf")), ("max", float("-inf"))):
            body: Expr = p.a
            for cond, side in reversed(t.conds):
                nothing = Const(edge, dtype)
                body = Op("select", (cond, body, nothing) if side else (cond, nothing, body), dtype)
            axes = tuple(x for x in r.axes if x in work.scope.axes_of(body))
            end = work.fresh(f"{r.name}_{kind}")
            work.scope.axes[end], work.scope.kinds[end] = axes, "D"
            hidden = Reduce((end,), axes, Reducer(kind), r.over, body, dtype, r.provenance)
            work.plain_monoid(hidden)
            work.ranges.declare(hidden)
            ends.append(Op("neg", (Ref(end, dtype),), dtype))
        near = Op("max", (Op("min", (p.b, ends[0]), dtype), ends[1]), dtype)
        parts.append(replace(p, base=Op("add", (p.a, near), dtype), b=near, true=p.b))
        work.choices.append(f"{r.name}: the reference of ({p.base}) is clamped to the range of the data, because its "
                            "denominator may vanish on a part of the row")
    return replace(t, parts=tuple(parts))


def _steady(work: Deriver, e: Expr) -> bool:
    """No denominator in it may have either sign."""
    if isinstance(e, Op) and e.name == "div":
        q = work.refs.ranges.of(e.args[1])
        if not (q.nonneg or q.nonpos):
            return False
    return all(_steady(work, k) for k in children(e))


def own_peak(work: Deriver, r: Reduce, d: Decomposer, t: Term) -> Term:
    """``exp(A + B(D))`` that D does not bound: kept relative to the running maximum of A itself, so that no segment
    overflows where the whole row does not; ``exp(max A + B)`` is deferred."""
    parts: list[Part] = []
    for p in t.parts:
        split = split_linear(d, p.base.args[0]) if isinstance(p.base, Op) and p.base.name in ("exp", "exp2") else None
        if p.kind != "scaled" or split is None or p.power != 1 or follows_maximum(d, p, t.conds):
            parts.append(p)
            continue
        assert isinstance(p.base, Op)
        data_only(d, t.conds)
        dtype = p.base.dtype
        a, b = from_poly(split[0], dtype), from_poly(split[1], dtype)
        body: Expr = a
        for cond, side in reversed(t.conds):
            low = Const(float("-inf"), dtype)
            body = Op("select", (cond, body, low) if side else (cond, low, body), dtype)
        axes = tuple(x for x in r.axes if x in work.scope.axes_of(body))
        peak = work.fresh(f"{r.name}_peak")
        hidden = Reduce((peak,), axes, Reducer("max"), r.over, body, dtype, r.provenance)
        work.scope.axes[peak], work.scope.kinds[peak] = axes, "D"
        work.plain_monoid(hidden)
        work.ranges.declare(replace(hidden, expr=a))
        work.peaks |= {n for n in refs_of(work.refs.values[peak])}
        top = Ref(peak, dtype)
        lowered = Op(p.base.name, (Op("sub", (a, top), dtype),), dtype)
        follows = ((Op(p.base.name, (Op("neg", (top,), dtype),), dtype), F1),)
        parts += [Part("scaled", lowered, follows=follows),
                  Part("d", Op(p.base.name, (Op("add", (top, b), dtype),), dtype))]
    return replace(t, parts=tuple(parts))
