"""Exact simplification of integer index expressions over axes of known extent.

Every index has a normal form: an integer combination of *atoms* plus a constant, where an atom is an axis, a ``floordiv``
or a ``mod`` of a normal form by a positive constant, or an expression that the algebra below does not look into (a gather
position). Only identities that hold for all integers in the stated ranges are used, so equal normal forms are equal
functions; the reverse is not promised. The rules, with ``0 <= r < g``::

    (g*k*x + y) // k        -> g*x + y // k            ((k+c)*x + y) % k -> (c*x + y) % k
    (g*x + r) // (g*k)      -> x // k                  (g*x + r) % (g*k) -> g*(x % k) + r
    (x // a + c) // b       -> (x + a*c) // (a*b)      (x % (a*b)) // b -> (x // b) % a
    x // k, x % k           -> the constant or x itself when the range of x says so
    0 <= x ? x : -x         -> max(x, -x)
    k * (x // k) + x % k    -> x                       k * (x // k % g) + x % k -> x % (k*g)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, inf

from redfuser.acrf.expr import Cast, Const, Expr, Index, Op, children, map_children
from redfuser.acrf.index import i64, iadd, imul
from redfuser.dtypes import INTS

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Affine:
    """``sum(coefficient * atom) + constant``; terms sorted by descending |coefficient|, then by text, none of them 0."""

    terms: tuple[tuple[Expr, int], ...] = ()
    constant: int = 0

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a.axis for a, _ in self.terms if isinstance(a, Index))

    def coefficient(self, axis: str) -> int:
        return next((k for a, k in self.terms if a == Index(axis)), 0)

    def without(self, axis: str) -> Affine:
        return Affine(tuple(t for t in self.terms if t[0] != Index(axis)), self.constant)

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        terms = dict(self.terms)
        for a, k in other.terms:
            terms[a] = terms.get(a, 0) + k
        return affine(terms, self.constant + other.constant)

    def __sub__(self, other: Affine | int) -> Affine:
        return self + -1 * other

    def __rmul__(self, k: int) -> Affine:
        return affine({a: k * c for a, c in self.terms}, k * self.constant)

    def __divmod__(self, k: int) -> tuple[Affine, Affine]:
        """``self = k * quotient + rest`` with every divisible term in the quotient; the rest's constant is in ``[0, k)``."""
        return (affine({a: c // k for a, c in self.terms if c % k == 0}, self.constant // k),
                affine({a: c for a, c in self.terms if c % k}, self.constant % k))

    def expr(self, names: Mapping[str, Expr] | None = None) -> Expr:
        """As an index expression, axes replaced by ``names`` where given."""
        out: Expr = i64(0)
        for a, k in self.terms:
            out = iadd(out, imul(names.get(a.axis, a) if names and isinstance(a, Index) else a, k))
        return iadd(out, i64(self.constant))


def affine(terms: Mapping[Expr, int], constant: int = 0) -> Affine:
    """The form with these coefficients, in order."""
    kept = []
    for a, c in terms.items():
        if isinstance(a, Const):
            constant += c * int(a.value)
        elif c:
            kept.append((a, c))
    if len(kept) > 1:
        kept.sort(key=lambda t: (-abs(t[1]), isinstance(t[0], Op), str(t[0])))
    return Affine(tuple(kept), constant)


def atom(e: Expr) -> Affine:
    return Affine(((e, 1),))


class Indices:
    """Simplifier over a table of axis extents (an axis runs over ``0 .. extent - 1``)."""

    def __init__(self, extents: Mapping[str, int]) -> None:
        self.extents = extents
        self.cache: dict[Expr, Affine] = {}
        self.simple: dict[Expr, Expr] = {}

    def simplify(self, e: Expr) -> Expr:
        """The normal form of an integer expression."""
        if e not in self.simple:
            self.simple[e] = self.linear(e).expr()
        return self.simple[e]

    # -- normal form ---------------------------------------------------------------------------------------------------

    def of_axes(self, e: Expr) -> Affine | None:
        """The normal form of an expression that is an integer combination of axes, else None."""
        if e.dtype not in INTS:
            return None
        p = self.linear(e)
        return p if len(p.axes) == len(p.terms) else None

    def linear(self, e: Expr) -> Affine:
        if e not in self.cache:
            self.cache[e] = self._linear(e)
        return self.cache[e]

    def _linear(self, e: Expr) -> Affine:
        match e:
            case Const(value=v):
                return Affine((), int(v))
            case Index(axis=a):
                return Affine() if self.extents.get(a) == 1 else atom(e)
            case Op(name="add", args=(x, y)):
                return self.joined(self.linear(x) + self.linear(y))
            case Op(name="sub", args=(x, y)):
                return self.joined(self.linear(x) - self.linear(y))
            case Op(name="neg", args=(x,)):
                return -1 * self.linear(x)
            case Op(name="mul", args=(x, y)):
                left, right = self.linear(x), self.linear(y)
                if not left.terms:
                    left, right = right, left
                return atom(Op("mul", (left.expr(), right.expr()), "i64")) if right.terms else right.constant * left
            case Op(name="floordiv", args=(x, y)) if (k := self.positive(y)) is not None:
                return self.floordiv(self.linear(x), k)
            case Op(name="mod", args=(x, y)) if (k := self.positive(y)) is not None:
                return self.mod(self.linear(x), k)
            case Op(name="min" | "max" as name, args=(x, y)):
                return self.extremum(name, self.linear(x), self.linear(y))
            case Op(name="select", args=(Op(name="le" | "lt", args=(a, b)), x, y)) if a.dtype in INTS and (
                    found := self.magnitude(self.linear(b) - self.linear(a), self.linear(x), self.linear(y))) is not None:
                return found
            case Cast(arg=x, dtype=d) if d in ("i64", "i32") and x.dtype in INTS:
                return self.linear(x)
        return atom(map_children(e, lambda kid: self.simplify(kid) if kid.dtype in INTS else kid))

    def positive(self, e: Expr) -> int | None:
        got = self.linear(e)
        return got.constant if not got.terms and got.constant > 0 else None

    def joined(self, p: Affine) -> Affine:
        """``c*k*(x // k) + c*(x % k) -> c*x`` and ``c*k*(x // k % g) + c*(x % k) -> c*(x % (k*g))`` while they apply."""
        for a, c in p.terms:
            if isinstance(a, Op) and a.name == "mod" and (k := self.positive(a.args[1])) is not None:
                x = self.linear(a.args[0])
                quotient = self.floordiv(x, k)
                if [(q, n) for q, n in p.terms if quotient == atom(q) and n == c * k]:
                    return self.joined(p + c * x - c * atom(a) - c * k * quotient)
                if (found := self.digits(p, a, c)) is not None:
                    return found
        return p

    def digits(self, p: Affine, a: Expr, c: int) -> Affine | None:
        """With two neighbouring digits of a number as one, of which ``a`` is the higher."""
        assert isinstance(a, Op)
        divided, g = self.quotient(self.linear(a.args[0])), self.positive(a.args[1])
        if divided is None or g is None or c % divided[1]:
            return None
        x, k = divided
        low, both = self.mod(x, k), self.mod(x, k * g)
        alike = len(low.terms) == len(both.terms) == 1 and low.constant == both.constant == 0
        if alike and (low.terms[0][0], c // k) in p.terms:
            return self.joined(p + c // k * both - c * atom(a) - c // k * low)
        return None

    def floordiv(self, x: Affine, k: int) -> Affine:
        if k == 1:
            return x
        whole, rest = divmod(x, k)
        lo, hi = self.range(rest)
        if lo > -inf and hi < inf and lo // k == hi // k:
            return whole + int(lo // k)
        for g in self.grains(rest, k):
            big, small = divmod(rest, g)
            lo, hi = self.range(small)
            if lo >= 0 and hi < g:
                return self.joined(whole + self.floordiv(big, k // g))
        if (divided := self.quotient(rest)) is not None:
            return self.joined(whole + self.floordiv(divided[0], divided[1] * k))
        match rest.expr():
            case Op(name="mod", args=(inner, y)) if (m := self.positive(y)) is not None and m % k == 0:
                return self.joined(whole + self.mod(self.floordiv(self.linear(inner), k), m // k))
            case e:
                return self.joined(whole + atom(Op("floordiv", (e, i64(k)), "i64")))

    def mod(self, x: Affine, k: int) -> Affine:
        if k == 1:
            return Affine()
        rest = affine({a: c % k if c > 0 else -(-c % k) for a, c in x.terms}, x.constant % k)
        lo, hi = self.range(rest)
        if lo > -inf and hi < inf and lo // k == hi // k:
            return rest - int(lo // k) * k
        for g in self.grains(rest, k):
            big, small = divmod(rest, g)
            lo, hi = self.range(small)
            if lo >= 0 and hi < g:
                return self.joined(g * self.mod(big, k // g) + small)
        match rest.expr():
            case Op(name="mod", args=(inner, y)) if (m := self.positive(y)) is not None and m % k == 0:
                return self.mod(self.linear(inner), k)
            case e:
                return atom(Op("mod", (e, i64(k)), "i64"))

    def quotient(self, x: Affine) -> tuple[Affine, int] | None:
        """A quotient and a number, as what is divided and by what."""
        match x.terms:
            case ((Op(name="floordiv", args=(inner, y)), 1),) if (m := self.positive(y)) is not None:
                return self.linear(inner) + m * x.constant, m
        return None

    def grains(self, x: Affine, k: int) -> list[int]:
        """Divisors of ``k`` by which some terms divide, greatest first."""
        return sorted({gcd(c, k) for _, c in x.terms} - {1, k}, reverse=True)

    def magnitude(self, side: Affine, x: Affine, y: Affine) -> Affine | None:
        """``side >= 0 (or > 0) ? x : y`` of a number and its negative, as an extremum: ``|i - 2|`` is no branch."""
        if x != -1 * y or side not in (x, y):
            return None
        return self.extremum("max" if side == x else "min", x, y)

    def extremum(self, name: str, x: Affine, y: Affine) -> Affine:
        (xlo, xhi), (ylo, yhi) = self.range(x), self.range(y)
        if xhi <= ylo:
            return x if name == "min" else y
        if yhi <= xlo:
            return y if name == "min" else x
        return atom(Op(name, (x.expr(), y.expr()), "i64"))

    # -- ranges --------------------------------------------------------------------------------------------------------

    def range(self, x: Affine) -> Range:
        lo = hi = float(x.constant)
        for a, c in x.terms:
            alo, ahi = self.atom_range(a)
            lo, hi = (lo + c * alo, hi + c * ahi) if c > 0 else (lo + c * ahi, hi + c * alo)
        return lo, hi

    def range_of(self, e: Expr) -> Range:
        return self.range(self.linear(e))

    def atom_range(self, a: Expr) -> Range:
        match a:
            case Index(axis=name) if name in self.extents:
                return 0, self.extents[name] - 1
            case Op(name="floordiv", args=(x, k)) if (d := self.positive(k)) is not None:
                lo, hi = self.range_of(x)
                return (lo // d if lo > -inf else -inf), (hi // d if hi < inf else inf)
            case Op(name="mod", args=(x, k)) if (d := self.positive(k)) is not None:
                lo, hi = self.range_of(x)
                return 0, min(d - 1, hi) if lo >= 0 else d - 1
            case Op(name="min", args=(x, y)):
                (xlo, xhi), (ylo, yhi) = self.range_of(x), self.range_of(y)
                return min(xlo, ylo), min(xhi, yhi)
            case Op(name="max", args=(x, y)):
                (xlo, xhi), (ylo, yhi) = self.range_of(x), self.range_of(y)
                return max(xlo, ylo, 0 if self.linear(x) == -1 * self.linear(y) else -inf), max(xhi, yhi)
            case Cast(arg=x) if x.dtype == "bool":
                return 0, 1
        return -inf, inf

    # -- truth ---------------------------------------------------------------------------------------------------------

    def compare(self, name: str, x: Expr, y: Expr) -> Expr:
        """A comparison of two integer expressions: decided by ranges where they decide it, else in one spelling: terms
        with positive coefficients on each side, ``<=`` or ``<`` (``i >= l`` and ``l - i < 1`` are ``l <= i``)."""
        if name in ("gt", "ge"):
            name, x, y = {"gt": "lt", "ge": "le"}[name], y, x
        difference = self.joined(self.linear(x) - self.linear(y))
        lo, hi = self.range(difference)
        verdict = {"lt": (hi < 0, lo >= 0), "le": (hi <= 0, lo > 0), "eq": (lo == hi == 0, hi < 0 or lo > 0),
                   "ne": (hi < 0 or lo > 0, lo == hi == 0)}[name]
        if any(verdict):
            return Const(verdict[0], "bool")
        left = {a: c for a, c in difference.terms if c > 0}
        right = {a: -c for a, c in difference.terms if c < 0}
        offset = difference.constant + (name == "lt")  # left + offset <= right for both inequalities
        if name == "lt":
            name = "le"
        if name == "le" and offset == 1 and right and left:
            name, offset = "lt", 0
        a, b = affine(left, max(offset, 0)), affine(right, max(-offset, 0))
        return Op(name, (a.expr(), b.expr()), "bool")


def axes_of(e: Expr) -> frozenset[str]:
    """Axes an index expression mentions."""
    if isinstance(e, Index):
        return frozenset({e.axis})
    out: frozenset[str] = frozenset()
    for kid in children(e):
        out |= axes_of(kid)
    return out
