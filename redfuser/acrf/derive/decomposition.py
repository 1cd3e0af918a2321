"""An expression being taken apart into terms, as the rules of that see it, and the arithmetic of the terms' parts.

A rule knows one operation (``exp``, a cast, a clip, a sum). What its operands are made of it asks back for, here, so that
none of them knows the table they stand in (decompose.py).

A term is a product of *parts* kept in the order and spelling of the source:

======  ======================================================  =========================================
part    value                                                   what becomes of it
======  ======================================================  =========================================
x       data (kind C or X), to a power                          stays in the contribution
d       results, to a power                                     deferred: applied once in ``finalize``
scaled  mixed, with a factor H(D) that cannot be split off      rebased: the accumulator follows D by
        without losing its bound (``exp(x - m)``)               ``H(D new) / H(D old)``
shift   ``(a(X) + b(D)) / unit(D) + rest(D)`` to a whole power  rebased in the shifted basis (shifted.py)
======  ======================================================  =========================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from redfuser.acrf.expr import Const, Expr, Op
from redfuser.acrf.facts.classify import Scope, join
from redfuser.acrf.facts.normal import Mono, Poly, from_poly, product, to_poly
from redfuser.acrf.facts.ranges import Ranges
from redfuser.acrf.state import Condition, Refuse

F1 = Fraction(1)
Conds = tuple[tuple[Expr, bool], ...]
"""Conditions, and whether they hold."""
MAX_TERMS = 32
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Part:
    """One factor of a term; see the module's table.

    base: the source's expression. follows (scaled): H as a product of (base, power) and of exponentials, each
    exponential written as ``(exp(B), 1)`` with ``B`` made of results. a, b (shift): the summands; a logarithm's
    ``b = log(H)`` has H in follows. true (shift): the summand of the program where ``b`` only stands in for it. unit
    (shift): a bound of ``a + b`` along the row, up to a constant, that it is measured in; rest: what is added to the
    quotient. vanishes (scaled): proved to be 0 (or of no element) where a guard of H stands in for its value.
    peaked (scaled): made of exponentials about the maximum of all their data, and 0 where those are 0.
    """

    kind: str
    base: Expr
    power: Fraction = F1
    follows: tuple[tuple[Expr, Fraction], ...] = ()
    a: Expr | None = None
    b: Expr | None = None
    true: Expr | None = None
    unit: Expr | None = None
    rest: Expr | None = None
    vanishes: bool = False
    peaked: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient * product of parts, counted only where every ``conds`` (data) holds. ``elsewhere``: what is added where
    the last of them does not: zero, unless it meets an infinity or NaN (``0 * v``). ``beside``: the parts that stand beside
    that zero, where the term has them all. ``everywhere``: the results multiply what is elsewhere too
    (``select(k, g, 0) / t``)."""

    parts: tuple[Part, ...] = ()
    coefficient: Fraction = F1
    conds: tuple[tuple[Expr, bool], ...] = ()
    dconds: tuple[tuple[Expr, bool], ...] = ()
    elsewhere: Expr | None = None
    beside: tuple[Part, ...] = ()
    everywhere: bool = False

    def of(self, *kinds: str) -> tuple[Part, ...]:
        return tuple(p for p in self.parts if p.kind in kinds)

    @property
    def pure(self) -> bool:
        return not self.of("d", "scaled", "shift")


def few(cases: list[_T]) -> list[_T]:
    """At most MAX_TERMS, or Refuse."""
    if len(cases) > MAX_TERMS:
        raise Refuse("RF210", f"more than {MAX_TERMS} cases", "the masks of this expression split it into too many cases",
                     "combine the masks into one condition")
    return cases


def merged(t: Term) -> Term:
    """Equal bases of one kind become one part with the summed power. ``d / d`` stays: it is NaN where d is 0 or infinite."""
    out: list[Part] = []
    for p in t.parts:
        at = next((i for i, q in enumerate(out) if q.kind == p.kind and q.base == p.base
                   and p.kind in ("d", "shift", "scaled") and (p.power > 0) == (q.power > 0)), None)
        if at is None:
            out.append(p)
            continue
        q = out[at]
        power = q.power + p.power
        follows = q.follows if q.kind == "shift" or not q.power else tuple(
            (b, r * (power / q.power)) for b, r in q.follows)
        out[at] = replace(q, power=power, follows=follows)
    return replace(t, parts=tuple(p for p in out if p.power))


def without_common(terms: list[Term]) -> tuple[tuple[Part, ...], list[Term]]:
    """Parts that every term has (equal base and power), and the terms without them."""
    if len(terms) < 2 or any(t.conds for t in terms):
        return (), terms
    common: list[Part] = []
    rest = [list(t.parts) for t in terms]
    for p in terms[0].parts:
        if all(p in r for r in rest):
            common.append(p)
            for r in rest:
                r.remove(p)
    return tuple(common), [replace(t, parts=tuple(r)) for t, r in zip(terms, rest, strict=True)]


def results_of(t: Term) -> tuple[Part, ...]:
    return tuple(sorted(t.of("d"), key=lambda p: (str(p.base), p.power)))


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


def without_constant(e: Expr) -> tuple[float, Expr]:
    """(abs(c), rest) with e = c * rest up to sign, c a number."""
    p = to_poly(e)
    if len(p) == 1:
        (m, c), = p.items()
        if m and abs(c) != 1:
            return abs(float(c)), from_poly({m: F1}, e.dtype)
    return 1.0, e


def constant_of(e: Expr) -> float | None:
    """The value of a literal, also a negated one."""
    match e:
        case Const(value=v) if v == v:
            return float(v)
        case Op(name="neg", args=(Const(value=v),)) if v == v:
            return -float(v)
    return None


def where(conds: Sequence[tuple[Expr, bool]], e: Expr, other: Expr) -> Expr:
    """``e`` where all of the conditions are as they say, else ``other``; the first is outermost."""
    for cond, side in reversed(conds):
        e = Op("select", (cond, e, other) if side else (cond, other, e), e.dtype)
    return e


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
