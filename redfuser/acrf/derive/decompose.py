"""Finite-rank decomposition under a sum or a product: F(X, D) = sum_k G_k(X) (*) H_k(D).

A mixed expression is taken apart into the terms of decomposition.py, operation by operation; ``(x - d)`` is never multiplied
out where its terms could cancel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite

from redfuser.acrf.derive.cases import split_cases
from redfuser.acrf.derive.casts import mixed_cast, rounded_value
from redfuser.acrf.derive.decomposition import F1, MAX_TERMS, Decomposition, Part, Term, few, merged, results_of
from redfuser.acrf.derive.functions import absolute, exponential, extremum, logarithm, rotation
from redfuser.acrf.derive.sums import sum_terms
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Load, Op, Ref
from redfuser.acrf.facts.normal import ONE, number, product, to_poly
from redfuser.acrf.state import Condition, Refuse, no_rule, not_separable


@dataclass(slots=True)
class Decomposer(Decomposition):
    """The table: which rule takes which operation apart."""

    def terms(self, e: Expr) -> list[Term]:
        out: list[Term] = []
        cases = {(xs, ds): leaf for xs, ds, leaf in split_cases(self, e) if not (isinstance(leaf, Const) and leaf.value == 0)}
        found = {where: self.expand(leaf) for where, leaf in cases.items()}
        for where, leaf in cases.items():
            opposite = (_other_side(where[0]), where[1])
            if where[0] and not to_poly(leaf) and opposite in found:
                joined = self._elsewhere(found[opposite], leaf)
                if joined is not None:
                    found[opposite], found[where] = joined, []
        for (xs, ds), terms in found.items():
            out += [replace(t, conds=(*xs, *t.conds), dconds=(*ds, *t.dconds)) for t in terms]
        if len(out) > MAX_TERMS:
            raise Refuse("RF210", f"at most {MAX_TERMS} terms", f"the decomposition has {len(out)} terms",
                         "split the expression over several reductions")
        return [_in_range(t) for t in out]

    def _elsewhere(self, terms: list[Term], zero: Expr) -> list[Term] | None:
        """The terms of a masked sum with what its other arm, ``0``, ``0 * v`` or ``0 / t``, adds: nothing but the NaN of
        what multiplies it. None where that is no factor of theirs."""
        one = _unzeroed(zero)
        factors = self.expand(one) if one is not None else []
        if not terms or terms[0].conds or len(factors) != 1 or factors[0].of("scaled", "shift") or factors[0].conds:
            return None
        results = results_of(factors[0])
        if results and (len(terms) != 1 or results_of(terms[0]) != results):
            return None
        data = factors[0].of("x")
        rest = product([*((p.base, p.power) for p in data), (Const(0.0, zero.dtype), F1)], zero.dtype) if data else None
        beside = data if all(p in terms[0].parts for p in data) else ()
        return [replace(terms[0], elsewhere=rest, beside=beside, everywhere=bool(results)), *terms[1:]]

    def expand(self, e: Expr) -> list[Term]:
        kind = self.scope.kind(e)
        if kind in ("C", "X"):
            return self._const(e) if isinstance(e, Const) else [Term((Part("x", e),))]
        if kind == "D":
            return [self._results(e)]
        match e:
            case Load():
                raise Refuse("RF208", f"the indices of {e} are data only",
                             "it reads an element whose place depends on a result of the whole row",
                             "gather in a second pass")
            case Cast():
                return mixed_cast(self, e)
            case Ref():
                raise Refuse("RF208", f"{e} is read along the r-axis",
                             "a result, or a contraction of results, is indexed by the element being reduced",
                             "split the program before this statement")
            case Op(name="neg", args=(x,)):
                return [replace(t, coefficient=-t.coefficient) for t in self.expand(x)]
            case Op(name="add" | "sub"):
                return sum_terms(self, e)
            case Op(name="mul", args=(x, y)):
                left, right = self.expand(x), self.expand(y)
                if len(left) > 1 and len(right) > 1:
                    self._may_cancel([*left, *right], e)
                return self.multiply(left, right)
            case Op(name="div", args=(x, y)):
                return self.multiply(self.expand(x), [self._power(self._single(y, e), Fraction(-1), e)])
            case Op(name="pow", args=(x, Const(value=v))) if v == v and abs(v) < 64:
                return self._pow(x, Fraction(v), e)
            case Op(name="sqrt", args=(x,)):
                return self._pow(x, Fraction(1, 2), e)
            case Op(name="rsqrt", args=(x,)):
                return self._pow(x, Fraction(-1, 2), e)
            case Op(name="exp" | "exp2", args=(x,)):
                return [exponential(self, e, x)]
            case Op(name="log" | "log2", args=(x,)):
                return logarithm(self, e, x)
            case Op(name="abs", args=(x,)):
                return absolute(self, e, x)
            case Op(name="sin" | "cos", args=(x,)):
                return rotation(self, e, x)
            case Op(name="max" | "min", args=(x, y)):
                return extremum(self, e, x, y)
            case Op(name="round" | "floor" | "ceil"):
                return rounded_value(self, e)
        no_rule(e)

    def _const(self, e: Const) -> list[Term]:
        p = to_poly(e)
        if set(p) <= {ONE}:
            return [Term(coefficient=p[ONE])] if p else []
        return [Term((Part("x", e),))]

    def _results(self, e: Expr) -> Term:
        """A D-only expression as a product: quotients and products (also of named maps) are split."""
        found: list[Term]
        match e:
            case Ref(name=n, indices=()) if n in self.scope.definitions and _is_product(self.scope.definitions[n]):
                return self._results(self.scope.definitions[n])
            case Op(name="neg", args=(x,)):
                t = self._results(x)
                return replace(t, coefficient=-t.coefficient)
            case Op(name="mul", args=(x, y)):
                return self.multiply([self._results(x)], [self._results(y)])[0]
            case Op(name="div", args=(x, y), dtype=d) if d in FLOATS:
                return self.multiply([self._results(x)], [self._power(self._results(y), Fraction(-1), e)])[0]
            case Const():
                found = self._const(e)
                return found[0] if found else Term((Part("x", e),))
        return Term((Part("x" if self.scope.kind(e) == "C" else "d", e),))

    def multiply(self, left: list[Term], right: list[Term]) -> list[Term]:
        out = [Term((*a.parts, *b.parts), a.coefficient * b.coefficient, (*a.conds, *b.conds), (*a.dconds, *b.dconds))
               for a in left for b in right]
        return [merged(t) for t in few(out)]

    def _single(self, x: Expr, whole: Expr) -> Term:
        found = self.terms(x)
        if len(found) != 1 or found[0].conds:
            not_separable(whole, f"{x} is a sum of data and results that is not a product")
        return found[0]

    def _power(self, t: Term, p: Fraction, whole: Expr) -> Term:
        """A term to a power. Fractional powers split only where all but one factor are proved non-negative."""
        if p.denominator != 1:
            unsure = [q for q in t.parts if not self.ranges.nonneg(q.base) and q.power % 2]
            if t.coefficient < 0 or len(unsure) > 1:
                raise Refuse("RF206", f"{unsure[-1].base if unsure else 'the coefficient'} >= 0",
                             f"{whole} splits into a product only where its factors are non-negative",
                             "take abs() of the factor, or prove its sign by its definition")
            data = [q for q in t.parts if q.kind == "x" and not self.ranges.of(q.base).nonzero]
            if data and any(q.kind == "d" for q in unsure):
                raise Refuse("RF206", f"{unsure[0].base} >= 0",
                             f"{whole} is 0 where {data[0].base} is, whatever the sign of {unsure[0].base}; split into a "
                             "product it would be undefined for a negative one",
                             "take abs() of the factor, or prove its sign by its definition")
            for q in unsure:
                self.conditions.append(Condition(f"{q.base} >= 0 wherever {whole} is defined", "table"))
        if any(q.kind == "shift" for q in t.parts) and not (p.denominator == 1 and p > 0):
            shift = t.of("shift")[0]
            not_separable(whole, f"{shift.base} is a sum of data and results")
        coefficient: tuple[Part, ...] = ()
        c = F1
        if p.denominator == 1:
            c = t.coefficient ** int(p)
        elif t.coefficient != 1:
            coefficient = (Part("x", number(t.coefficient, whole.dtype), p),)
        parts = [replace(q, power=q.power * p, follows=q.follows if q.kind == "shift" else tuple(
            (b, r * p) for b, r in q.follows)) for q in t.parts]
        return merged(Term((*coefficient, *parts), c, t.conds, t.dconds))

    def _pow(self, x: Expr, p: Fraction, whole: Expr) -> list[Term]:
        if p.denominator == 1 and 0 <= p <= 8:
            out = [Term()]
            base = self.expand(x)
            if len(base) > 1 and p > 1:
                self._may_cancel(base, whole)
            for _ in range(int(p)):
                out = self.multiply(out, base)
            return out
        return [self._power(self._single(x, whole), p, whole)]

    def _may_cancel(self, base: list[Term], whole: Expr) -> None:
        if self.shifted and {self.sign(t) for t in base} not in ({1}, {-1}):
            turned = all(any(isinstance(p.base, Op) and p.base.name in ("sin", "cos") for p in t.parts) for t in base)
            raise Refuse("RF207", f"the terms of {whole} do not cancel", (
                "multiplied out, its terms are of order 1 and their sum as small as the square of the difference that it "
                "measures: they lose its digits" if turned else
                "multiplied out, its terms are raw moments: they lose every digit when the data's mean is "
                "large beside its spread, and no common reference shifts them"),
                "compute the result in an earlier pass, so that it is an input of the cascade" if turned else
                "write it as a power of (data - result), times results")


FAR = 9
"""Binary digits by which a coefficient changes what a power of a difference may be of."""


def _in_range(t: Term) -> Term:
    """``((x - d) / 255) ** 2`` is finite where ``(x - d) ** 2`` is not: a coefficient that far from 1 stays with the
    difference, as the nearest power of two, which rounds nothing."""
    at = [p for p in t.of("shift") if p.power > 1]
    if len(at) != 1:
        return t
    (p,), c, rest = at, t.coefficient, []
    for q in t.parts:
        number = q.base.value if q.kind == "x" and isinstance(q.base, Const) and q.power.denominator == 1 else 0.0
        if number and isfinite(number):
            c *= Fraction(number) ** int(q.power)
        else:
            rest.append(q)
    far = abs(c.numerator).bit_length() - c.denominator.bit_length() if c else 0
    if abs(far) < FAR or p.a is None or p.b is None or p.follows or not (p.true is p.unit is p.rest is None):
        return t
    steps = max(-24, min(24, round(far / p.power)))
    scale = Const(2.0**steps, p.base.dtype)
    base, a, b = (Op("mul", (e, scale), e.dtype) for e in (p.base, p.a, p.b))
    moved = replace(p, base=base, a=a, b=b)
    return replace(t, parts=tuple(moved if q is p else q for q in rest), coefficient=c / Fraction(2) ** int(steps * p.power))


def _unzeroed(e: Expr) -> Expr | None:
    """A product with the factor 0 in it, without that factor; None where it is no such product."""
    match e:
        case Const(value=v) if v == 0:
            return Const(1.0, e.dtype) if e.dtype in FLOATS else Const(1, e.dtype)
        case Op(name="mul" | "div", args=(x, y)):
            left = _unzeroed(x)
            if left is not None:
                return y if e.name == "mul" and isinstance(left, Const) else Op(e.name, (left, y), e.dtype)
            right = _unzeroed(y) if e.name == "mul" else None
            if right is None:
                return None
            return x if isinstance(right, Const) else Op(e.name, (x, right), e.dtype)
        case Op(name="neg", args=(x,)):
            return _unzeroed(x)
        case Cast(arg=x) if x.dtype in FLOATS and e.dtype in FLOATS:
            inner = _unzeroed(x)
            return Cast(inner, e.dtype) if inner is not None else None
    return None


def _other_side(xs: tuple[tuple[Expr, bool], ...]) -> tuple[tuple[Expr, bool], ...]:
    """The case in which only the last condition fails."""
    if not xs:
        return xs
    (cond, side) = xs[-1]
    return (*xs[:-1], (cond, not side))


def _is_product(e: Expr) -> bool:
    return isinstance(e, Op) and e.name in ("mul", "div", "neg")
