"""Exponentials about a maximum, the program's or one of their own: no segment overflows where the whole row does not."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.derive.bounding import hidden
from redfuser.acrf.derive.bounds import follows_maximum, maximum_in, proved_below_zero
from redfuser.acrf.derive.decomposition import Conds, Decomposition, Part, Term, monomial_kind
from redfuser.acrf.derive.derivation import F1, Derivation
from redfuser.acrf.derive.functions import exponential
from redfuser.acrf.derive.homogeneous import Exponents, about, exponents
from redfuser.acrf.derive.indicator import data_only
from redfuser.acrf.expr import COMPARISONS, Const, Expr, Op, Ref, op, refs_of, walk
from redfuser.acrf.facts.guards import unclamped
from redfuser.acrf.facts.normal import Poly, add, from_poly, number
from redfuser.dtypes import LARGEST


def _joined(d: Decomposition, t: Term) -> tuple[Part, ...]:
    """Exponentials that no maximum bounds one by one, as one exponential: ``exp(u) ** -2 * exp(u)`` is ``exp(-u)``."""

    found = [p for p in t.parts if (p.kind == "scaled" and isinstance(p.base, Op) and p.base.name in ("exp", "exp2"))]
    if not found or all(follows_maximum(d, p, t.conds) for p in found) or (len(found) == 1 and found[0].power == 1):
        return t.parts
    if len({p.base.name for p in found if isinstance(p.base, Op)}) > 1:
        return t.parts
    name, dtype = found[0].base.name, found[0].base.dtype  # type: ignore[union-attr]
    total: Expr | None = None
    for p in found:
        assert isinstance(p.base, Op)
        arg = p.base.args[0] if p.power == 1 else op("mul", p.base.args[0], number(p.power, dtype))
        total = arg if total is None else op("add", total, arg)
    assert total is not None
    whole = exponential(d, Op(name, (total,), dtype), total)
    at = next(i for i, p in enumerate(t.parts) if p in found)
    return (*t.parts[:at], *whole.parts, *(p for p in t.parts[at:] if p not in found))


def own_peak(work: Derivation, r: Reduce, d: Decomposition, t: Term) -> Term:
    """``exp(A + B(D))`` that D does not bound: kept relative to the running maximum of A itself, so that no segment
    overflows where the whole row does not; ``exp(max A + B)`` is deferred."""
    parts: list[Part] = []
    for p in _joined(d, t):
        found = exponents(d, p.base) if p.kind == "scaled" and p.power == 1 else None
        if found is None:
            parts.append(p)
        elif p.base == found.whole and follows_maximum(d, p, t.conds):
            parts += _about_maximum(d, p, found.splits[0], t.conds)
        else:
            data_only(d, t.conds)
            parts += _about_peak(work, r, d, p, found, t.conds)
    return replace(t, parts=tuple(parts))


def _about_peak(work: Derivation, r: Reduce, d: Decomposition, p: Part, found: Exponents, conds: Conds) -> list[Part]:
    """Exponentials about the running maximum of what they are of, and what that leaves, which is deferred.

    That is NaN where any of them is; where a clip at 0 may leave nothing of several infinite ones, it is finite."""
    name, dtype = found.whole.name, found.whole.dtype

    def peak(a: Poly, b: Poly) -> Expr:
        if all(monomial_kind(d.scope, m) == "C" for m in a):
            return from_poly(a, dtype)
        known = maximum_in(d, from_poly(add(a, b), dtype), conds) if len(found.splits) > 1 else None
        if known is not None:
            return from_poly({known[0]: -known[1]}, dtype)
        return Ref(hidden(work, r, f"{r.name}_peak", "max", from_poly(a, dtype), float("-inf"), conds), dtype)

    peaks = [peak(a, b) for a, b in found.splits]
    top = _largest(peaks)
    if _compared(work, r.name):  # a sum that is infinite must not be NaN
        top = Op("min", (top, Const(LARGEST[dtype], dtype)), dtype)
        peaks = peaks if len(peaks) > 1 else [top]
    results = from_poly(found.splits[0][1], dtype)
    rest: Expr = Op(name, (_largest([Op("add", (x, results), dtype) for x in peaks]),), dtype)
    if len(peaks) > 1 and any(isinstance(x, Op) and x.name in ("max", "min") and Const(0.0, dtype) in x.args
                              for x in walk(p.base)):
        rest = Op("min", (rest, Const(LARGEST[dtype], dtype)), dtype)
    follows = ((Op(name, (Op("neg", (top,), dtype),), dtype), F1),)
    return [Part("scaled", about(d, p.base, top), follows=follows, peaked=len(peaks) > 1), Part("d", rest)]


def _largest(found: list[Expr]) -> Expr:
    return reduce(lambda x, y: Op("max", (x, y), x.dtype), found)


def _compared(work: Derivation, name: str) -> bool:
    """Does the program compare a result, or what it makes of it, with anything?"""
    reached = {name}
    for s in work.scope.cascade.stmts:
        ops = [x for x in walk(s.expr) if isinstance(x, Op) and (x.name in COMPARISONS or x.name in ("max", "min"))]
        if any(refs_of(x) & reached for x in ops):
            return True
        if refs_of(s.expr) & reached:
            reached.update(s.names)
    return False


def _about_maximum(d: Decomposition, p: Part, split: tuple[Poly, Poly], conds: Conds) -> list[Part]:
    """``exp(A - m + B)`` as ``exp(A - m)``, at most 1 in every segment, and ``exp(B)``, which is applied once: while the row
    is reduced, B (a sum, say) may be far from its final value."""
    assert isinstance(p.base, Op)
    whole = d.scope.resolve(p.base.args[0])
    top = maximum_in(d, whole, conds)
    if top is None or top[0] not in split[1] or len(split[1]) == 1 or any(
            proved_below_zero(d, x, conds) for x in (p.base.args[0], unclamped(whole))):
        return [p]
    e, lead = p.base, {top[0]: top[1]}
    rest = from_poly(add(split[1], lead, -1), e.dtype)
    h = Op(e.name, (from_poly(lead, e.dtype),), e.dtype)
    near = Op(e.name, (from_poly(add(split[0], lead), e.dtype),), e.dtype)
    return [Part("scaled", near, follows=((h, F1),)), Part("d", Op(e.name, (rest,), e.dtype))]
