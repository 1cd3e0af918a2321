"""Sums of data and results: A(X) + B(D) by normal form, multiplied out only where nothing cancels.

A sum that may cancel is one part, kept whole (``shift``), so that it can follow its reference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redfuser.acrf.classify import join
from redfuser.acrf.expr import Const, Expr, Op, op
from redfuser.acrf.normal import Mono, Poly, from_poly, product, to_poly
from redfuser.acrf.terms import Part, Term, merged, without_common

if TYPE_CHECKING:
    from redfuser.acrf.decompose import Decomposer


def sum_terms(d: Decomposer, e: Expr) -> list[Term]:
    """The terms of a sum; what may cancel stays together as one shifted part."""
    addends = [(sign, x) for sign, x in flatten_sum(e)]
    terms: list[Term] = []
    for sign, x in addends:
        terms += [replace(t, coefficient=t.coefficient * sign) for t in d.expand(x)]
    if not d.shifted:
        return terms
    whole = len(terms) == len(addends)
    if len(terms) > 1:
        terms = [u for t in terms for u in _opened(t)]
    common, rest = without_common(terms)
    data = [t for t in rest if t.pure]
    results = [t for t in rest if t.of("d") and not t.of("scaled", "shift")
               and all(d.scope.kind(p.base) == "C" for p in t.of("x"))]
    if data and results and len(data) + len(results) == len(rest):
        if all(d.sign(t) == 1 for t in rest) or all(d.sign(t) == -1 for t in rest):
            return terms  # nothing can cancel: multiply out
        if common or len(terms) != len(addends):
            a, b = spell(data, e.dtype), spell(results, e.dtype)
        else:
            a = _signed([(s, x) for s, x in addends if d.scope.kind(x) in ("C", "X")], e.dtype)
            b = _signed([(s, x) for s, x in addends if d.scope.kind(x) == "D"], e.dtype)
        base = e if whole and not common else op("add", a, b)
        if isinstance(b, Op) and b.name == "neg" and base is not e:
            base = Op("sub", (a, b.args[0]), e.dtype)
        return [merged(Term((*common, Part("shift", base, a=a, b=b))))]
    split = split_sum(d, e)
    if split is not None:
        a, b = split
        return [Term((Part("shift", Op("add", (a, b), e.dtype), a=a, b=b),))]
    return terms


def _opened(t: Term) -> list[Term]:
    """A logarithm kept whole is two summands where it stands in a sum."""
    (p,) = t.parts if len(t.parts) == 1 else (None,)
    if p is None or p.kind != "shift" or not p.follows or p.power != 1 or p.a is None or p.b is None:
        return [t]
    return [replace(t, parts=(Part("x", p.a),)), replace(t, parts=(Part("d", p.b),))]


def spell(terms: list[Term], dtype: str) -> Expr:
    """The terms written as one sum."""
    out: Expr | None = None
    for t in terms:
        mine = product([(p.base, p.power) for p in t.parts], dtype, abs(t.coefficient))
        if out is None:
            out = mine if t.coefficient > 0 else Op("neg", (mine,), dtype)
        else:
            out = Op("add" if t.coefficient > 0 else "sub", (out, mine), dtype)
    return out if out is not None else Const(0.0, dtype)


def split_linear(d: Decomposer, e: Expr) -> tuple[Poly, Poly] | None:
    """e = A(X) + B(D) by normal form, or None when a monomial mixes both."""
    a: Poly = {}
    b: Poly = {}
    for m, c in to_poly(d.scope.inline(e)).items():
        kind = monomial_kind(d, m)
        if kind == "M":
            return None
        (b if kind == "D" else a)[m] = c
    return a, b


def monomial_kind(d: Decomposer, m: Mono) -> str:
    """The kind of a product: C, X, D or M."""
    out = "C"
    for base, _ in m:
        out = join(out, d.scope.kind(base))
    return out


def split_sum(d: Decomposer, e: Expr) -> tuple[Expr, Expr] | None:
    """``split_linear`` as expressions, or None unless both sides are there."""
    split = split_linear(d, e)
    if split is None or not split[0] or not split[1]:
        return None
    return from_poly(split[0], e.dtype), from_poly(split[1], e.dtype)


def flatten_sum(e: Expr) -> list[tuple[int, Expr]]:
    """The addends with their signs."""
    match e:
        case Op(name="add", args=(x, y)):
            return flatten_sum(x) + flatten_sum(y)
        case Op(name="sub", args=(x, y)):
            return flatten_sum(x) + [(-s, z) for s, z in flatten_sum(y)]
        case Op(name="neg", args=(x,)):
            return [(-s, z) for s, z in flatten_sum(x)]
    return [(1, e)]


def _signed(addends: list[tuple[int, Expr]], dtype: str) -> Expr:
    out: Expr | None = None
    for s, x in sorted(addends, key=lambda t: -t[0]):
        first = x if s > 0 else Op("neg", (x,), dtype)
        out = first if out is None else Op("add" if s > 0 else "sub", (out, x), dtype)
    assert out is not None
    return out
