"""Sums of data and results: the terms of one, multiplied out only where nothing cancels.

A sum that may cancel is one part, kept whole (``shift``), so that it can follow its reference.
"""

from __future__ import annotations

from dataclasses import replace

from redfuser.acrf.derive.bounds import of_weights
from redfuser.acrf.derive.decomposition import Decomposition, Part, Term, merged, spell, split_sum, without_common
from redfuser.acrf.derive.deviation import spans
from redfuser.acrf.expr import Const, Expr, Op, op
from redfuser.acrf.facts.normal import product
from redfuser.acrf.state import Condition


def sum_terms(d: Decomposition, e: Op) -> list[Term]:
    """The terms of a sum; what may cancel stays together as one shifted part."""
    joined = _joined(d, e) if d.shifted else None
    if joined is not None:
        return [joined]
    addends = [(sign, x) for sign, x in flatten_sum(e)]
    terms: list[Term] = []
    for sign, x in addends:
        terms += [replace(t, coefficient=t.coefficient * sign) for t in d.expand(x)]
    if not d.shifted:
        return terms
    whole = len(terms) == len(addends)
    if len(terms) > 1:
        logarithm = _about_results(d, e, terms)
        if logarithm is not None:
            return [logarithm]
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
    measured = _measured(d, e, terms)
    if measured is not None:
        return [measured]
    split = split_sum(d.scope, e)
    if split is not None:
        a, b = split
        return [Term((Part("shift", e, a=a, b=b),))]
    return terms


def _joined(d: Decomposition, e: Op) -> Term | None:
    """``w (x - m) - w (y - n)`` is ``w`` times one difference: summed apart, the two lose what they have in common. Of two
    sums' logarithms, rounded in all elements alike, that of their quotient is taken (``x - m - log t - (y - n - log u)``)."""
    terms = [t for x in e.args if d.scope.kind(x) == "M" for t in d.expand(x)]
    common, rest = without_common(terms)
    parts = [p for t in rest for p in t.parts]
    if len(rest) != 2 or len(parts) != 2 or any(t.conds or t.dconds for t in rest) or any(
            p.kind != "shift" or p.power != 1 or p.follows or p.unit or p.rest or p.true for p in parts):
        return None
    signs = [t.coefficient * s for t, s in zip(rest, (1, 1 if e.name == "add" else -1), strict=True)]
    ends = [(s * q, x) for s, p in zip(signs, parts, strict=True) for q, x in flatten_sum(p.base)
            if isinstance(x, Op) and x.name == "log" and of_weights(d, x.args[0])]
    up, down = ([x.args[0] for q, x in ends if q == side] for side in (1, -1))
    logs = {x for _, x in ends} if len(ends) == 2 and len(up) == len(down) == 1 else set()

    def total(side: str) -> Expr:
        terms = []
        for s, p in zip(signs, parts, strict=True):
            x = [a for a in flatten_sum(getattr(p, side)) if a[1] not in logs]
            terms += [Term((Part("x", _signed(x, e.dtype) if logs else getattr(p, side)),), s)] if x else []
        out = spell(terms, e.dtype)
        return op("add", out, op("log", op("div", *up, *down))) if logs and side != "a" else out

    return merged(Term((*common, Part("shift", total("base"), a=total("a"), b=total("b")))))


def _measured(d: Decomposition, e: Expr, terms: list[Term]) -> Term | None:
    """``(x - lo) / range - mean``: one deviation in units that bound it, and a sum of results."""
    mixed = [t for t in terms if t.of("d") and any(d.scope.kind(p.base) not in ("C", "D") for p in t.parts)]
    rest = [t for t in terms if t not in mixed]
    if len(mixed) != 1 or not rest or any(t.conds or t.dconds for t in terms) or any(
            d.scope.kind(p.base) not in ("C", "D") for t in rest for p in t.parts):
        return None
    t = mixed[0]
    shifts, data = t.of("shift"), [p for p in t.of("x") if d.scope.kind(p.base) == "X"]
    if t.of("scaled") or len(shifts) + bool(data) != 1 or any(p.follows or p.power != 1 for p in shifts):
        return None
    zero: Expr = Const(0.0, e.dtype)
    s = shifts[0] if shifts else Part("shift", zero, a=product([(p.base, p.power) for p in data], e.dtype), b=zero)
    if s.a is None or s.b is None:
        return None
    over = product([(p.base, -p.power) for p in t.parts if p not in (*shifts, *data)], e.dtype, 1 / t.coefficient)
    unit = over if s.unit is None else op("mul", s.unit, over)
    if not spans(d, unit, op("add", s.a, s.b) if shifts else s.a, ()):
        return None
    added = spell(rest, e.dtype)
    total = added if s.rest is None else op("add", op("div", s.rest, over), added)
    d.conditions.append(Condition(f"abs({s.base if shifts else s.a}) <= c * ({unit}) for a constant c",
                                  "interval",
                                  "bounds the quotient by a constant"))
    return Term((Part("shift", e, a=s.a, b=s.b, unit=unit, rest=total),))


def _about_results(d: Decomposition, e: Expr, terms: list[Term]) -> Term | None:
    """``log(x / m) - mean``: one logarithm kept whole, and a sum of results."""
    whole = [t for t in terms if len(t.parts) == 1 and t.parts[0].kind == "shift" and t.parts[0].follows]
    rest = [t for t in terms if t not in whole]
    if len(whole) != 1 or not rest or whole[0].coefficient != 1 or whole[0].parts[0].power != 1 or any(
            t.conds or t.dconds for t in terms) or any(p.kind != "d" and d.scope.kind(p.base) != "C"
                                                       for t in rest for p in t.parts):
        return None
    return Term((replace(whole[0].parts[0], base=e, rest=spell(rest, e.dtype)),))


def _opened(t: Term) -> list[Term]:
    """A logarithm kept whole is two summands where it stands in a sum."""
    (p,) = t.parts if len(t.parts) == 1 else (None,)
    if p is None or p.kind != "shift" or not p.follows or p.power != 1 or p.a is None or p.b is None:
        return [t]
    return [replace(t, parts=(Part("x", p.a),)), replace(t, parts=(Part("d", p.b),))]


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
