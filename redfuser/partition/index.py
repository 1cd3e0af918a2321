"""Exact simplification of integer index expressions over axes of known extent.

Every index has a normal form: an integer combination of *atoms* plus a constant, where an atom is an axis, a ``floordiv``
or a ``mod`` of a normal form by a positive constant, or an expression that the algebra below does not look into (a gather
position). Only identities that hold for all integers in the stated ranges are used, so equal normal forms are equal
functions; the reverse is not promised. The rules, with ``0 <= r < g``::

    (g*k*x + y) // k        -> g*x + y // k            (k*x + y) % k   -> y % k
    (g*x + r) // (g*k)      -> x // k                  (g*x + r) % (g*k) -> g*(x % k) + r
    (x // a) // b           -> x // (a*b)              (x % (a*b)) // b -> (x // b) % a
    x // k, x % k           -> the constant or x itself when the range of x says so
    k * (x // k) + x % k    -> x
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd, inf

from redfuser.acrf.expr import Cast, Const, Expr, Index, Op, children, map_children

INTS = frozenset({"i64", "i32", "i8", "u8"})
Range = tuple[float, float]


def const(value: int) -> Const:
    return Const(int(value), "i64")


@dataclass(frozen=True, slots=True)
class Linear:
    """``sum(coefficient * atom) + offset``; terms sorted by descending |coefficient|, then by text."""

    terms: tuple[tuple[Expr, int], ...]
    offset: int

    def expr(self) -> Expr:
        out: Expr | None = None
        for atom, k in self.terms:
            part: Expr = atom if abs(k) == 1 else Op("mul", (atom, const(abs(k))), "i64")
            if out is None:
                out = part if k > 0 else Op("neg", (part,), "i64")
            else:
                out = Op("add" if k > 0 else "sub", (out, part), "i64")
        if out is None:
            return const(self.offset)
        if self.offset:
            out = Op("add" if self.offset > 0 else "sub", (out, const(abs(self.offset))), "i64")
        return out


class Indices:
    """Simplifier over a table of axis extents (an axis runs over ``0 .. extent - 1``)."""

    def __init__(self, extents: Mapping[str, int]) -> None:
        self.extents = extents
        self.cache: dict[Expr, Linear] = {}

    def simplify(self, e: Expr) -> Expr:
        """The normal form of an integer expression."""
        return self.linear(e).expr()

    # -- normal form ---------------------------------------------------------------------------------------------------

    def linear(self, e: Expr) -> Linear:
        if e not in self.cache:
            self.cache[e] = self._linear(e)
        return self.cache[e]

    def _linear(self, e: Expr) -> Linear:
        match e:
            case Const(value=v):
                return Linear((), int(v))
            case Index(axis=a):
                return Linear((), 0) if self.extents.get(a) == 1 else Linear(((e, 1),), 0)
            case Op(name="add", args=(x, y)):
                return self.sum([(self.linear(x), 1), (self.linear(y), 1)])
            case Op(name="sub", args=(x, y)):
                return self.sum([(self.linear(x), 1), (self.linear(y), -1)])
            case Op(name="neg", args=(x,)):
                return self.sum([(self.linear(x), -1)])
            case Op(name="mul", args=(x, y)):
                left, right = self.linear(x), self.linear(y)
                if not left.terms:
                    left, right = right, left
                if not right.terms:
                    return self.sum([(left, right.offset)])
                return self.atom(Op("mul", (left.expr(), right.expr()), "i64"))
            case Op(name="floordiv", args=(x, y)) if (k := self.positive(y)) is not None:
                return self.floordiv(self.linear(x), k)
            case Op(name="mod", args=(x, y)) if (k := self.positive(y)) is not None:
                return self.mod(self.linear(x), k)
            case Op(name="min" | "max" as name, args=(x, y)):
                return self.extremum(name, self.linear(x), self.linear(y))
            case Cast(arg=x, dtype=d) if d in ("i64", "i32") and x.dtype in INTS:
                return self.linear(x)
        return self.atom(map_children(e, lambda kid: self.simplify(kid) if kid.dtype in INTS else kid))

    def positive(self, e: Expr) -> int | None:
        got = self.linear(e)
        return got.offset if not got.terms and got.offset > 0 else None

    def atom(self, e: Expr) -> Linear:
        return Linear(((e, 1),), 0)

    def sum(self, parts: Iterable[tuple[Linear, int]]) -> Linear:
        terms: dict[Expr, int] = {}
        offset = 0
        for part, k in parts:
            offset += part.offset * k
            for a, c in part.terms:
                terms[a] = terms.get(a, 0) + c * k
        terms = {a: c for a, c in terms.items() if c}
        self.rejoin(terms)
        return self.make(terms, offset)

    def rejoin(self, terms: dict[Expr, int]) -> None:
        """``c*k*(x // k) + c*(x % k) -> c*x`` while it applies."""
        for a in [a for a in terms if isinstance(a, Op) and a.name == "mod"]:
            if a not in terms or not isinstance(a, Op):
                continue
            x, k = a.args[0], self.positive(a.args[1])
            if k is None:
                continue
            quotient = self.floordiv(self.linear(x), k)
            if len(quotient.terms) == 1 and quotient.offset == 0 and quotient.terms[0][1] == 1:
                q = quotient.terms[0][0]
                if q in terms and terms[q] == terms[a] * k:
                    c = terms.pop(a)
                    del terms[q]
                    for b, d in self.linear(x).terms:
                        terms[b] = terms.get(b, 0) + c * d
                    for b in [b for b, d in terms.items() if not d]:
                        del terms[b]
                    # the offset of x is zero here: `mod` strips constants only with whole multiples of k
                    if self.linear(x).offset:
                        terms[const(1)] = terms.get(const(1), 0) + c * self.linear(x).offset

    def make(self, terms: Mapping[Expr, int], offset: int) -> Linear:
        offset += sum(c for a, c in terms.items() if isinstance(a, Const))
        kept = [(a, c) for a, c in terms.items() if not isinstance(a, Const)]
        return Linear(tuple(sorted(kept, key=lambda t: (-abs(t[1]), isinstance(t[0], Op), str(t[0])))), offset)

    def floordiv(self, x: Linear, k: int) -> Linear:
        if k == 1:
            return x
        whole = {a: c // k for a, c in x.terms if c % k == 0}
        rest = self.make({a: c for a, c in x.terms if c % k}, x.offset % k)
        whole_part = self.make(whole, x.offset // k)
        lo, hi = self.range(rest)
        if lo > -inf and hi < inf and lo // k == hi // k:
            return self.sum([(whole_part, 1), (Linear((), int(lo // k)), 1)])
        for g in self.grains(rest, k):
            big, small = self.split(rest, g)
            lo, hi = self.range(small)
            if lo >= 0 and hi < g:
                inner = self.floordiv(Linear(tuple((a, c // g) for a, c in big.terms), big.offset // g), k // g)
                return self.sum([(whole_part, 1), (inner, 1)])
        inner_expr = rest.expr()
        if isinstance(inner_expr, Op) and inner_expr.name == "floordiv" and (m := self.positive(inner_expr.args[1])):
            inner = self.floordiv(self.linear(inner_expr.args[0]), m * k)
        elif (isinstance(inner_expr, Op) and inner_expr.name == "mod" and (m := self.positive(inner_expr.args[1]))
              and m % k == 0):
            inner = self.mod(self.floordiv(self.linear(inner_expr.args[0]), k), m // k)
        else:
            inner = self.atom(Op("floordiv", (inner_expr, const(k)), "i64"))
        return self.sum([(whole_part, 1), (inner, 1)])

    def mod(self, x: Linear, k: int) -> Linear:
        if k == 1:
            return Linear((), 0)
        rest = self.make({a: c for a, c in x.terms if c % k}, x.offset % k)
        lo, hi = self.range(rest)
        if lo > -inf and hi < inf and lo // k == hi // k:
            return self.sum([(rest, 1), (Linear((), -int(lo // k) * k), 1)])
        for g in self.grains(rest, k):
            big, small = self.split(rest, g)
            lo, hi = self.range(small)
            if lo >= 0 and hi < g:
                inner = self.mod(Linear(tuple((a, c // g) for a, c in big.terms), big.offset // g), k // g)
                return self.sum([(inner, g), (small, 1)])
        inner_expr = rest.expr()
        if (isinstance(inner_expr, Op) and inner_expr.name == "mod" and (m := self.positive(inner_expr.args[1]))
                and m % k == 0):
            return self.mod(self.linear(inner_expr.args[0]), k)
        return self.atom(Op("mod", (inner_expr, const(k)), "i64"))

    def grains(self, x: Linear, k: int) -> list[int]:
        return sorted({gcd(c, k) for _, c in x.terms} - {1, k}, reverse=True)

    def split(self, x: Linear, g: int) -> tuple[Linear, Linear]:
        """Terms that are whole multiples of ``g``, and the rest (with the constant's remainder)."""
        big = self.make({a: c for a, c in x.terms if c % g == 0}, x.offset - x.offset % g)
        return big, self.make({a: c for a, c in x.terms if c % g}, x.offset % g)

    def extremum(self, name: str, x: Linear, y: Linear) -> Linear:
        (xlo, xhi), (ylo, yhi) = self.range(x), self.range(y)
        if xhi <= ylo:
            return x if name == "min" else y
        if yhi <= xlo:
            return y if name == "min" else x
        return self.atom(Op(name, (x.expr(), y.expr()), "i64"))

    # -- ranges --------------------------------------------------------------------------------------------------------

    def range(self, x: Linear) -> Range:
        lo = hi = float(x.offset)
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
                return max(xlo, ylo), max(xhi, yhi)
            case Cast(arg=x) if x.dtype == "bool":
                return 0, 1
        return -inf, inf

    # -- truth ---------------------------------------------------------------------------------------------------------

    def compare(self, name: str, x: Expr, y: Expr) -> Expr:
        """A comparison of two integer expressions: decided by ranges where they decide it, else in one spelling: terms
        with positive coefficients on each side, ``<=`` or ``<`` (``i >= l`` and ``l - i < 1`` are ``l <= i``)."""
        if name in ("gt", "ge"):
            name, x, y = {"gt": "lt", "ge": "le"}[name], y, x
        difference = self.sum([(self.linear(x), 1), (self.linear(y), -1)])
        lo, hi = self.range(difference)
        verdict = {"lt": (hi < 0, lo >= 0), "le": (hi <= 0, lo > 0), "eq": (lo == hi == 0, hi < 0 or lo > 0),
                   "ne": (hi < 0 or lo > 0, lo == hi == 0)}[name]
        if any(verdict):
            return Const(verdict[0], "bool")
        left = {a: c for a, c in difference.terms if c > 0}
        right = {a: -c for a, c in difference.terms if c < 0}
        offset = difference.offset + (name == "lt")  # left + offset <= right for both inequalities
        if name == "lt":
            name = "le"
        if name == "le" and offset == 1 and right and left:
            name, offset = "lt", 0
        a, b = self.make(left, max(offset, 0)), self.make(right, max(-offset, 0))
        return Op(name, (a.expr(), b.expr()), "bool")


def axes_of(e: Expr) -> frozenset[str]:
    """Axes an index expression mentions."""
    if isinstance(e, Index):
        return frozenset({e.axis})
    out: frozenset[str] = frozenset()
    for kid in children(e):
        out |= axes_of(kid)
    return out
