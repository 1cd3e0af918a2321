"""Factors, decompositions and the choices made for them, as the certificate spells them."""

from __future__ import annotations

from fractions import Fraction

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.derive.derivation import Derivation
from redfuser.acrf.derive.terms import Part, Term
from redfuser.acrf.expr import Expr, Op, print_expr


def factor_text(base: Expr, power: Fraction) -> str:
    """``pow(base, power)``, reciprocals as ``1/base``: what the text reader takes."""
    if power == 1:
        return print_expr(base, 6)
    return f"1/{print_expr(base, 7)}" if power == -1 else f"pow({base}, {power})"


def spell_decomposition(r: Reduce, terms: list[Term]) -> str:
    """``t = sum[l] [G] (*) [H]``, one bracket pair per term."""
    lines = []
    for t in terms:
        data = [factor_text(_true(p), p.power) for p in t.parts if p.kind in ("x", "scaled", "shift")]
        results = [factor_text(p.base, p.power) for p in t.of("d")]
        left = " * ".join(data) or "1"
        if t.coefficient != 1:
            results.insert(0, str(t.coefficient))
        where = "".join(f" where {c}" if s else f" where not ({c})" for c, s in (*t.conds, *t.dconds))
        lines.append(f"[{left}] (*) [{' * '.join(results) or '1'}]{where}")
    return f"{r.name} = {r.reducer}[{r.over}] " + "  +  ".join(lines)


def _true(p: Part) -> Expr:
    """The program's factor, where a bounded one stands in for it."""
    return p.base if p.true is None or p.a is None else Op("add", (p.a, p.true), p.base.dtype)


def explain(work: Derivation, r: Reduce, t: Term, follows: tuple[tuple[Expr, Fraction], ...], shifts: tuple[Part, ...]) -> None:
    """Record why factors are rebased."""
    for b, q in follows:
        work.choices.append(f"{r.name}: {factor_text(b, q)} rebased: it bounds the growth of the data it scales")
    for p in shifts:
        work.choices.append(f"{r.name}: ({p.base}) kept whole and rebased in the shifted basis: multiplied out, its "
                            "terms would cancel")
