"""Functions of one mixed argument as terms: exp, log, abs, sin and cos, and clips.

Each uses the identity that separates it (``exp(a + b) = exp(a) exp(b)``, the angle sums, ``max(a, b) = b + max(a - b, 0)``)
and refuses where its condition fails.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from redfuser.acrf.derive.bounds import of_weights, sign_along
from redfuser.acrf.derive.clips import decided
from redfuser.acrf.derive.decomposition import (
    F1,
    Decomposition,
    Part,
    Term,
    monomial_kind,
    results_of,
    spell,
    split_linear,
    split_sum,
)
from redfuser.acrf.derive.homogeneous import homogeneous
from redfuser.acrf.expr import Const, Expr, Op, op
from redfuser.acrf.facts.normal import Poly, add, from_poly, number, product, to_poly
from redfuser.acrf.state import Condition, Refuse, no_rule, not_separable


def exponential(d: Decomposition, e: Op, x: Expr) -> Term:
    """exp(A(X) + B(D)) is scaled by exp(B)."""
    split = split_linear(d.scope, x)
    if split is None:
        opened = _open_argument(d, x)
        split = split_linear(d.scope, opened) if opened is not None else None
    if split is None:
        at_fault = _mixed_monomial(d, x)
        if at_fault is not None:
            raise Refuse("RF202", f"{x} = A(data) + B(results)",
                         f"{at_fault} multiplies data by a result inside an exponential: the exponential of such a "
                         "product has no finite-rank decomposition (a reduced temperature)",
                         "compute the factor in an earlier pass, so that it is an input of the cascade")
        not_separable(e, f"{x} is not a sum of data and results")
    a, b = split
    if not a:
        return Term((Part("d", e),))
    if not b:
        return Term((Part("x", e),))
    b, weights = _without_weights(d, e.name, b)
    if weights:
        e = Op(e.name, (from_poly(add(a, b), e.dtype),), e.dtype)
    h = Op(e.name, (from_poly(b, e.dtype),), e.dtype)
    return Term((Part("scaled", e, follows=((h, F1),)), *weights))


def _without_weights(d: Decomposition, name: str, b: Poly) -> tuple[Poly, tuple[Part, ...]]:
    """``exp(x - m - log t)`` is ``exp(x - m) / t``: a sum of weights is between 1 and the row's length, so that neither factor
    leaves the range that the product has. Nothing of an exponential that has no other result in it."""
    log = "log" if name == "exp" else "log2"
    found = {m: Part("d", x, c) for m, c in b.items() for base, q in m[:1] if len(m) == q == 1 and isinstance(base, Op)
             and base.name == log and c.denominator == 1 for x in base.args if of_weights(d, x)}
    rest = {m: c for m, c in b.items() if m not in found}
    return (rest, tuple(found.values())) if rest else (b, ())


def _open_argument(d: Decomposition, x: Expr) -> Expr | None:
    """The argument of an exponential with its own maps taken apart (``log(exp(u)/t)``), as one expression."""
    try:
        terms = d.unshifted().terms(x)
    except Refuse:
        return None
    if any(t.conds or t.dconds or t.of("shift", "scaled") for t in terms):
        return None
    return spell(terms, x.dtype) if terms else Const(0.0, x.dtype)


def _mixed_monomial(d: Decomposition, x: Expr) -> Expr | None:
    for m, c in to_poly(x).items():
        if monomial_kind(d.scope, m) == "M" and all(d.scope.kind(b) != "M" for b, _ in m):
            return product(m, x.dtype, c)
    return None


def logarithm(d: Decomposition, e: Op, x: Expr) -> list[Term]:
    """log(g h) = log g + log h for non-negative factors; log(exp(u)) = u."""
    t = _single_product(d, e, x)
    base = "exp" if e.name == "log" else "exp2"
    out: Expr | None = None
    pieces: list[Expr] = []
    for p in t.parts:
        if p.kind == "scaled" and isinstance(p.base, Op) and p.base.name in ("exp", "exp2"):
            arg = p.base.args[0]
            if p.base.name != base:
                factor = Op(e.name, (Op(p.base.name, (Const(1.0, e.dtype),), e.dtype),), e.dtype)
                arg = op("mul", arg, factor)
        elif p.kind in ("x", "d"):
            if not d.ranges.nonneg(p.base):
                raise Refuse("RF206", f"{p.base} > 0", f"{e} splits into a sum of logarithms only for positive factors",
                             "take abs() of the factor, or prove its sign by its definition")
            d.conditions.append(Condition(f"{p.base} >= 0", d.ranges.how_nonneg(p.base) or "table", f"splits {e}"))
            arg = Op(e.name, (p.base,), e.dtype)
        else:
            no_rule(e)
        pieces.append(arg if p.power == 1 else Op("neg", (arg,), e.dtype) if p.power == -1
                      else op("mul", arg, number(p.power, e.dtype)))
    if t.coefficient <= 0:
        no_rule(e)
    whole = _whole_logarithm(d, e, t, pieces)
    if whole is not None:
        return [whole]
    if t.coefficient != 1:
        pieces.append(Op(e.name, (number(t.coefficient, e.dtype),), e.dtype))
    for piece in pieces:
        out = piece if out is None else op("add", out, piece)
    assert out is not None
    return d.expand(out)


def _whole_logarithm(d: Decomposition, e: Op, t: Term, pieces: list[Expr]) -> Term | None:
    """log of data over results, kept whole: near 1 the two logarithms cancel. It follows ``log(H new / H old)``."""
    if not d.shifted or t.conds or t.of("scaled") or not t.of("x") or not t.of("d"):
        return None
    sums: dict[str, Expr] = {}
    for x, p in zip(pieces, t.parts, strict=True):
        sums[p.kind] = x if p.kind not in sums else op("add", sums[p.kind], x)
    h = tuple((p.base, p.power) for p in t.of("d"))
    return Term((Part("shift", e, follows=h, a=sums["x"], b=sums["d"]),))


def _single_product(d: Decomposition, e: Op, x: Expr) -> Term:
    found = d.expand(x)
    if len(found) != 1 or found[0].of("shift"):
        raise Refuse("RF201", f"{x} is a product of data and results",
                     f"{e} takes the logarithm of a sum of data and results: it has no finite-rank decomposition",
                     "compute the result in an earlier pass, so that it is an input of the cascade")
    return found[0]


def absolute(d: Decomposition, e: Op, x: Expr) -> list[Term]:
    """abs(g h) = abs(g) abs(h); plus or minus the argument where its sign is known (``x - max x``)."""
    direction = sign_along(d, x)
    if direction:
        return [replace(t, coefficient=t.coefficient * direction) for t in d.expand(x)]
    whole = homogeneous(d, e)
    if whole is not None:
        return [whole]
    found = d.expand(x)
    if len(found) != 1 or any(p.power % 2 for p in found[0].of("shift")):
        not_separable(e, f"{x} is a sum of data and results, whose sign changes with the result")
    t = found[0]
    parts = [p if p.kind in ("scaled", "shift") or d.ranges.nonneg(p.base)
             else replace(p, base=Op("abs", (p.base,), p.base.dtype)) for p in t.parts]
    if any(p.kind == "scaled" and not d.ranges.nonneg(p.base) for p in t.parts):
        no_rule(e)
    return [replace(t, parts=tuple(parts), coefficient=abs(t.coefficient))]


def rotation(d: Decomposition, e: Op, x: Expr) -> list[Term]:
    """sin(a + b) = sin a cos b + cos a sin b, and the like for cos."""
    split = split_sum(d.scope, x)
    if split is None:
        not_separable(e, f"{x} is not a sum of data and results")
    a, b = split

    def f(name: str, y: Expr, kind: str) -> Part:
        return Part(kind, Op(name, (y,), e.dtype))

    first, second = ("sin", "cos") if e.name == "sin" else ("cos", "sin")
    sign = 1 if e.name == "sin" else -1
    one = Term((f(first, a, "x"), f("cos", b, "d")))
    two = Term((f(second, a, "x"), f("sin", b, "d")), Fraction(sign))
    return [one, two]


def extremum(d: Decomposition, e: Op, x: Expr, y: Expr) -> list[Term]:
    """max(a, b) = b + max(a - b, 0) with a - b data; max(h a, h b) = h max(a, b) for h >= 0; a proved bound."""
    which = decided(d, e, x, y)
    if isinstance(which, Op) and which.name == "select":
        number, inside, bound = which.args
        return [replace(t, dconds=((number, side), *t.dconds)) for side, x in ((True, inside), (False, bound))
                for t in d.expand(x)]
    if which is not None:
        return d.expand(which)
    difference = add(to_poly(x), to_poly(y), -1)
    if difference and all(monomial_kind(d.scope, m) in ("C", "X") for m in difference):
        over = Op(e.name, (from_poly(difference, e.dtype), Const(0.0, e.dtype)), e.dtype)
        return [*d.expand(y), Term((Part("x", over),))]
    whole = homogeneous(d, e)
    if whole is not None:
        return [whole]
    try:
        a, b = d.expand(x), d.expand(y)
    except Refuse:
        a = b = []
    if len(a) <= 1 and len(b) <= 1 and (a or b):
        t, u = (a[0] if a else None), (b[0] if b else None)
        h = results_of((a or b)[0])
        same = all(v is None or (results_of(v) == h and not v.of("scaled", "shift") and not v.conds)
                   for v in (t, u))
        if h and same and all(d.ranges.nonneg(p.base) or p.power % 2 == 0 for p in h):
            for p in h:
                d.conditions.append(Condition(f"{p.base} >= 0", d.ranges.how_nonneg(p.base) or "table",
                                              f"factor of {e}"))

            def rest(v: Term | None) -> Expr:
                if v is None:
                    return Const(0.0, e.dtype)
                return product([(p.base, p.power) for p in v.of("x")], e.dtype, v.coefficient)

            return [Term((Part("x", Op(e.name, (rest(t), rest(u)), e.dtype)), *h))]
    raise Refuse("RF203", f"{e} has no clip at a value known only after the row",
                 "a minimum or maximum of data and a result is not a finite sum of products of data and results: "
                 "which elements are clipped changes as the result grows",
                 "clip in a second pass, or at a bound that is an input of the cascade")
