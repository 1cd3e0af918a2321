"""Results that scale a sum, joined where one by one they would take it out of range."""

from __future__ import annotations

from fractions import Fraction

from redfuser.acrf.derive.derivation import Derivation
from redfuser.acrf.expr import Expr, Op
from redfuser.acrf.facts.normal import add, from_poly, to_poly


def in_quotients(work: Derivation, results: list[tuple[Expr, Fraction]], dtype: str) -> list[tuple[Expr, Fraction]]:
    """``t * 1/(t + 1)`` of results as one factor ``t / (t + 1)``, of at most 1, and ``t ** 2 / d ** 2`` as ``(t / d) ** 2``:
    multiplied with one after the other, a sum may leave its range on the way, and either power by itself."""
    rest = list(results)
    quotients: list[tuple[Expr, Fraction]] = []
    for x, p in results:
        over = next(((y, q) for y, q in rest if p > 0 and q == -p and (p > 1 or _at_most(work, x, y))), None)
        if over is not None:
            rest.remove((x, p))
            rest.remove(over)
            quotients.append((Op("div", (x, over[0]), dtype), p))
    return [*quotients, *rest]


def in_pairs(factors: list[tuple[Expr, Fraction]], dtype: str) -> list[tuple[Expr, Fraction]]:
    """``o * (v - p) / (a * b)`` as ``(o / a) * ((v - p) / b)``: of two factors and two divisors, either product may be out of
    range where the result is not (keys of 1e-18 that are normalised, on both sides of a delta rule)."""
    above, below = ([x for x, p in factors if p == power] for power in (1, -1))
    if min(len(above), len(below)) < 2 or len(above) + len(below) < len(factors):
        return factors
    pairs = [(Op("div", both, dtype), Fraction(1)) for both in zip(above, below, strict=False)]
    return [*pairs, *((x, Fraction(1)) for x in above[len(pairs):]), *((x, Fraction(-1)) for x in below[len(pairs):])]


def _at_most(work: Derivation, x: Expr, y: Expr) -> bool:
    """Proved: ``0 <= x <= y``, both results."""
    more = add(to_poly(work.scope.inline(y)), to_poly(work.scope.inline(x)), -1)
    return work.ranges.nonneg(x) and work.ranges.nonneg(from_poly(more, y.dtype))
