"""Expressions as A(X) + B(D), by normal form."""

from __future__ import annotations

from redfuser.acrf.derive.decomposition import Decomposition
from redfuser.acrf.expr import Expr
from redfuser.acrf.facts.classify import join
from redfuser.acrf.facts.normal import Mono, Poly, from_poly, to_poly


def split_linear(d: Decomposition, e: Expr) -> tuple[Poly, Poly] | None:
    """e = A(X) + B(D) by normal form, or None when a monomial mixes both."""
    a: Poly = {}
    b: Poly = {}
    for m, c in to_poly(d.scope.inline(e)).items():
        kind = monomial_kind(d, m)
        if kind == "M":
            return None
        (b if kind == "D" else a)[m] = c
    return a, b


def monomial_kind(d: Decomposition, m: Mono) -> str:
    """The kind of a product: C, X, D or M."""
    out = "C"
    for base, _ in m:
        out = join(out, d.scope.kind(base))
    return out


def split_sum(d: Decomposition, e: Expr) -> tuple[Expr, Expr] | None:
    """``split_linear`` as expressions, or None unless both sides are there."""
    split = split_linear(d, e)
    if split is None or not split[0] or not split[1]:
        return None
    return from_poly(split[0], e.dtype), from_poly(split[1], e.dtype)
