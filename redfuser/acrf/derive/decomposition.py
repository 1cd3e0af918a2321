"""An expression being taken apart, as the rules of that see it.

A rule knows one operation (``exp``, a cast, a clip, a sum). What its operands are made of it asks back for, here, so that
none of them knows the table they stand in (decompose.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from redfuser.acrf.derive.terms import Term
from redfuser.acrf.expr import Expr
from redfuser.acrf.facts.classify import Scope, join
from redfuser.acrf.facts.normal import Mono, Poly, from_poly, to_poly
from redfuser.acrf.facts.ranges import Ranges
from redfuser.acrf.state import Condition


@dataclass(slots=True)
class Decomposition(ABC):
    """What is known of the names (``scope``, ``ranges``), what is allowed, and where conditions and roundings are noted.
    ``shifted``: keep ``a(X) + b(D)`` whole (sums); else multiply out (orders)."""

    scope: Scope
    ranges: Ranges
    casts: str = "preserve"
    shifted: bool = True
    conditions: list[Condition] = field(default_factory=list)
    roundings: list[str] = field(default_factory=list)

    @abstractmethod
    def terms(self, e: Expr) -> list[Term]:
        """F as a sum of terms. Raises Refuse with the smallest sub-expression that cannot be taken apart."""

    @abstractmethod
    def expand(self, e: Expr) -> list[Term]:
        """The terms of an expression without mixed selects. Raises Refuse."""

    def unshifted(self) -> Decomposition:
        """The same, multiplying sums out instead of keeping them shifted."""
        return replace(self, shifted=False)

    def sign(self, t: Term) -> int:
        """+1 when the term is proved non-negative, 0 when unknown, -1 when proved non-positive."""
        if all(p.power % 2 == 0 or self.ranges.nonneg(p.base) for p in t.parts):
            return 1 if t.coefficient > 0 else -1
        return 0


def split_linear(scope: Scope, e: Expr) -> tuple[Poly, Poly] | None:
    """e = A(X) + B(D) by normal form, or None when a monomial mixes both."""
    a: Poly = {}
    b: Poly = {}
    for m, c in to_poly(scope.inline(e)).items():
        kind = monomial_kind(scope, m)
        if kind == "M":
            return None
        (b if kind == "D" else a)[m] = c
    return a, b


def monomial_kind(scope: Scope, m: Mono) -> str:
    """The kind of a product: C, X, D or M."""
    out = "C"
    for base, _ in m:
        out = join(out, scope.kind(base))
    return out


def split_sum(scope: Scope, e: Expr) -> tuple[Expr, Expr] | None:
    """``split_linear`` as expressions, or None unless both sides are there."""
    split = split_linear(scope, e)
    if split is None or not split[0] or not split[1]:
        return None
    return from_poly(split[0], e.dtype), from_poly(split[1], e.dtype)
