"""Finite-rank decomposition under a sum or a product: F(X, D) = sum_k G_k(X) (*) H_k(D).

A mixed expression is taken apart into *terms*, each a product of *parts* kept in the order and spelling of the source:

======  ======================================================  =========================================
part    value                                                   what becomes of it
======  ======================================================  =========================================
x       data (kind C or X), to a power                          stays in the contribution
d       results, to a power                                     deferred: applied once in ``finalize``
scaled  mixed, with a factor H(D) that cannot be split off      rebased: the accumulator follows D by
        without losing its bound (``exp(x - m)``)               ``H(D new) / H(D old)``
shift   ``a(X) + b(D)`` to a whole power                        rebased in the shifted basis (shifted.py)
======  ======================================================  =========================================

``(x - d)`` is never multiplied out where its terms could cancel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from redfuser.acrf.classify import Scope
from redfuser.acrf.expr import COMPARISONS, FLOATS, Cast, Const, Expr, Load, Op, Ref, op
from redfuser.acrf.normal import (
    ONE,
    Mono,
    Poly,
    add,
    canonical,
    equal,
    from_poly,
    multiply,
    number,
    product,
    scale,
    to_poly,
)
from redfuser.acrf.ranges import Ranges
from redfuser.acrf.refuse import Refuse
from redfuser.acrf.state import Condition

F0, F1 = Fraction(0), Fraction(1)
MAX_TERMS = 32


@dataclass(frozen=True, slots=True)
class Part:
    """One factor of a term; see the module's table.

    base: the source's expression. follows (scaled): H as a product of (base, power) and of exponentials, each
    exponential written as ``(exp(B), 1)`` with ``B`` made of results. a, b (shift): the summands.
    """

    kind: str
    base: Expr
    power: Fraction = F1
    follows: tuple[tuple[Expr, Fraction], ...] = ()
    a: Expr | None = None
    b: Expr | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient * product of parts, counted only where every ``conds`` (data) holds."""

    parts: tuple[Part, ...] = ()
    coefficient: Fraction = F1
    conds: tuple[tuple[Expr, bool], ...] = ()
    dconds: tuple[tuple[Expr, bool], ...] = ()

    def of(self, *kinds: str) -> tuple[Part, ...]:
        return tuple(p for p in self.parts if p.kind in kinds)

    @property
    def pure(self) -> bool:
        return not self.of("d", "scaled", "shift")


_T = TypeVar("_T")
Case = tuple[tuple[tuple[Expr, bool], ...], tuple[tuple[Expr, bool], ...], Expr]


@dataclass(slots=True)
class Decomposer:
    """Takes mixed expressions apart. ``shifted``: keep ``a(X) + b(D)`` whole (sums); else multiply out (orders)."""

    scope: Scope
    ranges: Ranges
    casts: str = "preserve"
    shifted: bool = True
    conditions: list[Condition] = field(default_factory=list)
    roundings: list[str] = field(default_factory=list)

    # -- selects are lifted to the top ---------------------------------------------------------------------------------

    def cases(self, e: Expr) -> list[Case]:
        """F as disjoint cases: (conditions on data, conditions on results, F there without mixed selects)."""
        if self.scope.kind(e) != "M" or not isinstance(e, (Op, Cast)):
            return [((), (), e)]
        if isinstance(e, Op) and e.name == "select":
            cond, then, other = e.args
            kind = self.scope.kind(cond)
            if kind == "M":
                self._refuse_condition(cond)
            out: list[Case] = []
            for side, arm in ((True, then), (False, other)):
                for xs, ds, leaf in self.cases(arm):
                    here = ((cond, side),)
                    out.append(((*here, *xs), ds, leaf) if kind != "D" else (xs, (*here, *ds), leaf))
            return self._few(out)
        args = (e.arg,) if isinstance(e, Cast) else e.args
        combos: list[tuple[tuple[tuple[Expr, bool], ...], tuple[tuple[Expr, bool], ...], tuple[Expr, ...]]] = [
            ((), (), ())]
        for arg in args:
            mine = self.cases(arg)
            combos = [(_both(xs, x2), _both(ds, d2), (*done, leaf))
                      for xs, ds, done in combos for x2, d2, leaf in mine
                      if _consistent(xs, x2) and _consistent(ds, d2)]
            self._few(combos)
        return [(xs, ds, _fold(Cast(kids[0], e.dtype) if isinstance(e, Cast) else Op(e.name, kids, e.dtype)))
                for xs, ds, kids in combos]

    @staticmethod
    def _few(cases: list[_T]) -> list[_T]:
        if len(cases) > MAX_TERMS:
            raise Refuse("RF210", f"more than {MAX_TERMS} cases", "the masks of this expression split it into too many cases",
                         "combine the masks into one condition")
        return cases

    def _refuse_condition(self, cond: Expr) -> None:
        raise Refuse("RF204", f"the condition {cond} does not depend on results",
                     "which elements count is decided by comparing each with a result of the whole row; elements "
                     "already absorbed cannot be decided anew when the result changes",
                     "keep the selection outside the cascade (a second pass over the row)")

    # -- terms ---------------------------------------------------------------------------------------------------------

    def terms(self, e: Expr) -> list[Term]:
        """F as a sum of terms. Raises Refuse with the smallest sub-expression that cannot be taken apart."""
        out: list[Term] = []
        for xs, ds, leaf in self.cases(e):
            if isinstance(leaf, Const) and leaf.value == 0:
                continue
            out += [replace(t, conds=(*xs, *t.conds), dconds=(*ds, *t.dconds)) for t in self.expand(leaf)]
        if len(out) > MAX_TERMS:
            raise Refuse("RF210", f"at most {MAX_TERMS} terms", f"the decomposition has {len(out)} terms",
                         "split the expression over several reductions")
        return out

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
                from redfuser.acrf.casts import mixed_cast

                return mixed_cast(self, e)
            case Ref():
                raise Refuse("RF208", f"{e} is read along the r-axis",
                             "a result, or a contraction of results, is indexed by the element being reduced",
                             "split the program before this statement")
            case Op(name="neg", args=(x,)):
                return [replace(t, coefficient=-t.coefficient) for t in self.expand(x)]
            case Op(name="add" | "sub"):
                return self._sum(e)
            case Op(name="mul", args=(x, y)):
                left, right = self.expand(x), self.expand(y)
                if len(left) > 1 and len(right) > 1:
                    self._may_cancel([*left, *right], e)
                return self._multiply(left, right)
            case Op(name="div", args=(x, y)):
                return self._multiply(self.expand(x), [self._power(self._single(y, e), Fraction(-1), e)])
            case Op(name="pow", args=(x, Const(value=v))) if v == v and abs(v) < 64:
                return self._pow(x, Fraction(v), e)
            case Op(name="sqrt", args=(x,)):
                return self._pow(x, Fraction(1, 2), e)
            case Op(name="rsqrt", args=(x,)):
                return self._pow(x, Fraction(-1, 2), e)
            case Op(name="exp" | "exp2", args=(x,)):
                return [self._exp(e, x)]
            case Op(name="log" | "log2", args=(x,)):
                return self._log(e, x)
            case Op(name="abs", args=(x,)):
                return [self._abs(e, x)]
            case Op(name="sin" | "cos", args=(x,)):
                return self._rotate(e, x)
            case Op(name="max" | "min", args=(x, y)):
                return self._extremum(e, x, y)
            case Op(name="round" | "floor" | "ceil"):
                from redfuser.acrf.casts import rounded_value

                return rounded_value(self, e)
        return self._no_rule(e)

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
                return self._multiply([self._results(x)], [self._results(y)])[0]
            case Op(name="div", args=(x, y), dtype=d) if d in FLOATS:
                return self._multiply([self._results(x)], [self._power(self._results(y), Fraction(-1), e)])[0]
            case Const():
                found = self._const(e)
                return found[0] if found else Term((Part("x", e),))
        return Term((Part("x" if self.scope.kind(e) == "C" else "d", e),))

    def _multiply(self, left: list[Term], right: list[Term]) -> list[Term]:
        out = [Term((*a.parts, *b.parts), a.coefficient * b.coefficient, (*a.conds, *b.conds), (*a.dconds, *b.dconds))
               for a in left for b in right]
        return [_merged(t) for t in self._few(out)]

    def _single(self, x: Expr, whole: Expr) -> Term:
        found = self.terms(x)
        if len(found) != 1 or found[0].conds:
            self._not_separable(whole, f"{x} is a sum of data and results that is not a product")
        return found[0]

    def _power(self, t: Term, p: Fraction, whole: Expr) -> Term:
        """A term to a power. Fractional powers split only where all but one factor are proved non-negative."""
        if p.denominator != 1:
            unsure = [q for q in t.parts if not self.ranges.nonneg(q.base) and q.power % 2]
            if t.coefficient < 0 or len(unsure) > 1:
                raise Refuse("RF206", f"{unsure[-1].base if unsure else 'the coefficient'} >= 0",
                             f"{whole} splits into a product only where its factors are non-negative",
                             "take abs() of the factor, or prove its sign by its definition")
            for q in unsure:
                self.conditions.append(Condition(f"{q.base} >= 0 wherever {whole} is defined", "table"))
        if any(q.kind == "shift" for q in t.parts) and not (p.denominator == 1 and p > 0):
            shift = t.of("shift")[0]
            self._not_separable(whole, f"{shift.base} is a sum of data and results")
        coefficient: tuple[Part, ...] = ()
        c = F1
        if p.denominator == 1:
            c = t.coefficient ** int(p)
        elif t.coefficient != 1:
            coefficient = (Part("x", number(t.coefficient, whole.dtype), p),)
        parts = [replace(q, power=q.power * p, follows=tuple((b, r * p) for b, r in q.follows)) for q in t.parts]
        return _merged(Term((*coefficient, *parts), c, t.conds, t.dconds))

    def _pow(self, x: Expr, p: Fraction, whole: Expr) -> list[Term]:
        if p.denominator == 1 and 0 <= p <= 8:
            out = [Term()]
            base = self.expand(x)
            if len(base) > 1 and p > 1:
                self._may_cancel(base, whole)
            for _ in range(int(p)):
                out = self._multiply(out, base)
            return out
        return [self._power(self._single(x, whole), p, whole)]

    def _may_cancel(self, base: list[Term], whole: Expr) -> None:
        if self.shifted and {self._sign(t) for t in base} not in ({1}, {-1}):
            raise Refuse("RF207", f"the terms of {whole} do not cancel",
                         "multiplied out, its terms are raw moments: they lose every digit when the data's mean is "
                         "large beside its spread, and no common reference shifts them",
                         "write it as a power of (data - result), times results")

    def _sign(self, t: Term) -> int:
        """+1 when the term is proved non-negative, 0 when unknown, -1 when proved non-positive."""
        if all(p.power % 2 == 0 or self.ranges.nonneg(p.base) for p in t.parts):
            return 1 if t.coefficient > 0 else -1
        return 0

    # -- sums of data and results --------------------------------------------------------------------------------------

    def _sum(self, e: Expr) -> list[Term]:
        addends = [(sign, x) for sign, x in flatten_sum(e)]
        terms: list[Term] = []
        for sign, x in addends:
            terms += [replace(t, coefficient=t.coefficient * sign) for t in self.expand(x)]
        if not self.shifted:
            return terms
        common, rest = _common(terms)
        data = [t for t in rest if t.pure]
        results = [t for t in rest if t.of("d") and not t.of("scaled", "shift")
                   and all(self.scope.kind(p.base) == "C" for p in t.of("x"))]
        if data and results and len(data) + len(results) == len(rest):
            if all(self._sign(t) == 1 for t in rest) or all(self._sign(t) == -1 for t in rest):
                return terms  # nothing can cancel: multiply out
            if common or len(terms) != len(addends):
                a, b = self._spell(data, e.dtype), self._spell(results, e.dtype)
            else:
                a = _signed([(s, x) for s, x in addends if self.scope.kind(x) in ("C", "X")], e.dtype)
                b = _signed([(s, x) for s, x in addends if self.scope.kind(x) == "D"], e.dtype)
            base = e if not common and len(terms) == len(addends) else op("add", a, b)
            if isinstance(b, Op) and b.name == "neg" and base is not e:
                base = Op("sub", (a, b.args[0]), e.dtype)
            return [_merged(Term((*common, Part("shift", base, a=a, b=b))))]
        split = self._split_sum(e)
        if split is not None:
            a, b = split
            return [Term((Part("shift", Op("add", (a, b), e.dtype), a=a, b=b),))]
        return terms

    def _spell(self, terms: list[Term], dtype: str) -> Expr:
        out: Expr | None = None
        for t in terms:
            mine = product([(p.base, p.power) for p in t.parts], dtype, abs(t.coefficient))
            if out is None:
                out = mine if t.coefficient > 0 else Op("neg", (mine,), dtype)
            else:
                out = Op("add" if t.coefficient > 0 else "sub", (out, mine), dtype)
        return out if out is not None else Const(0.0, dtype)

    def split_linear(self, e: Expr) -> tuple[Poly, Poly] | None:
        """e = A(X) + B(D) by normal form, or None when a monomial mixes both."""
        a: Poly = {}
        b: Poly = {}
        for m, c in to_poly(self.scope.inline(e)).items():
            kind = self._mono_kind(m)
            if kind == "M":
                return None
            (b if kind == "D" else a)[m] = c
        return a, b

    def _mono_kind(self, m: Mono) -> str:
        from redfuser.acrf.classify import join

        out = "C"
        for base, _ in m:
            out = join(out, self.scope.kind(base))
        return out

    def _split_sum(self, e: Expr) -> tuple[Expr, Expr] | None:
        split = self.split_linear(e)
        if split is None or not split[0] or not split[1]:
            return None
        return from_poly(split[0], e.dtype), from_poly(split[1], e.dtype)

    # -- functions of one mixed argument -------------------------------------------------------------------------------

    def _exp(self, e: Op, x: Expr) -> Term:
        split = self.split_linear(x)
        if split is None:
            opened = self._open(x)
            split = self.split_linear(opened) if opened is not None else None
        if split is None:
            at_fault = self._mixed_mono(x)
            if at_fault is not None:
                raise Refuse("RF202", f"{x} = A(data) + B(results)",
                             f"{at_fault} multiplies data by a result inside an exponential: the exponential of such a "
                             "product has no finite-rank decomposition (a reduced temperature)",
                             "compute the factor in an earlier pass, so that it is an input of the cascade")
            self._not_separable(e, f"{x} is not a sum of data and results")
        assert split is not None
        a, b = split
        if not a:
            return Term((Part("d", e),))
        if not b:
            return Term((Part("x", e),))
        h = Op(e.name, (spell_results(b, e.dtype),), e.dtype)
        return Term((Part("scaled", e, follows=((h, F1),)),))

    def _open(self, x: Expr) -> Expr | None:
        """The argument of an exponential with its own maps taken apart (``log(exp(u)/t)``), as one expression."""
        try:
            inner = replace_shifted(self)
            terms = inner.terms(x)
        except Refuse:
            return None
        if any(t.conds or t.dconds or t.of("shift", "scaled") for t in terms):
            return None
        return self._spell(terms, x.dtype) if terms else Const(0.0, x.dtype)

    def _mixed_mono(self, x: Expr) -> Expr | None:
        for m, c in to_poly(x).items():
            if self._mono_kind(m) == "M" and all(self.scope.kind(b) != "M" for b, _ in m):
                return product(m, x.dtype, c)
        return None

    def _log(self, e: Op, x: Expr) -> list[Term]:
        t = self._single_or_refuse_log(e, x)
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
                if not self.ranges.nonneg(p.base):
                    raise Refuse("RF206", f"{p.base} > 0", f"{e} splits into a sum of logarithms only for positive factors",
                                 "take abs() of the factor, or prove its sign by its definition")
                self.conditions.append(Condition(f"{p.base} >= 0", self.ranges.how_nonneg(p.base) or "table", f"splits {e}"))
                arg = Op(e.name, (p.base,), e.dtype)
            else:
                self._no_rule(e)
            pieces.append(arg if p.power == 1 else op("mul", arg, number(p.power, e.dtype)))
        if t.coefficient <= 0:
            self._no_rule(e)
        if t.coefficient != 1:
            pieces.append(Op(e.name, (number(t.coefficient, e.dtype),), e.dtype))
        for piece in pieces:
            out = piece if out is None else op("add", out, piece)
        assert out is not None
        return self.expand(out)

    def _single_or_refuse_log(self, e: Op, x: Expr) -> Term:
        found = self.expand(x)
        if len(found) != 1 or found[0].of("shift"):
            raise Refuse("RF201", f"{x} is a product of data and results",
                         f"{e} takes the logarithm of a sum of data and results: it has no finite-rank decomposition",
                         "compute the result in an earlier pass, so that it is an input of the cascade")
        return found[0]

    def _abs(self, e: Op, x: Expr) -> Term:
        found = self.expand(x)
        if len(found) != 1 or any(p.power % 2 for p in found[0].of("shift")):
            self._not_separable(e, f"{x} is a sum of data and results, whose sign changes with the result")
        t = found[0]
        parts = [p if p.kind in ("scaled", "shift") or self.ranges.nonneg(p.base)
                 else replace(p, base=Op("abs", (p.base,), p.base.dtype)) for p in t.parts]
        if any(p.kind == "scaled" and not self.ranges.nonneg(p.base) for p in t.parts):
            self._no_rule(e)
        return replace(t, parts=tuple(parts), coefficient=abs(t.coefficient))

    def _rotate(self, e: Op, x: Expr) -> list[Term]:
        """sin(a + b) = sin a cos b + cos a sin b, and the like for cos."""
        split = self._split_sum(x)
        if split is None:
            self._not_separable(e, f"{x} is not a sum of data and results")
        assert split is not None
        a, b = split

        def f(name: str, y: Expr, kind: str) -> Part:
            return Part(kind, Op(name, (y,), e.dtype))

        first, second = ("sin", "cos") if e.name == "sin" else ("cos", "sin")
        sign = 1 if e.name == "sin" else -1
        one = Term((f(first, a, "x"), f("cos", b, "d")))
        two = Term((f(second, a, "x"), f("sin", b, "d")), Fraction(sign))
        return [one, two]

    def _extremum(self, e: Op, x: Expr, y: Expr) -> list[Term]:
        """max(a, b) = b + max(a - b, 0) with a - b data; max(h a, h b) = h max(a, b) for h >= 0; a proved bound."""
        which = self._decided(e, x, y)
        if which is not None:
            return self.expand(which)
        difference = add(to_poly(x), to_poly(y), -1)
        if difference and all(self._mono_kind(m) in ("C", "X") for m in difference):
            over = Op(e.name, (from_poly(difference, e.dtype), Const(0.0, e.dtype)), e.dtype)
            return [*self.expand(y), Term((Part("x", over),))]
        try:
            a, b = self.expand(x), self.expand(y)
        except Refuse:
            a = b = []
        if len(a) <= 1 and len(b) <= 1 and (a or b):
            t, u = (a[0] if a else None), (b[0] if b else None)
            h = _results_of((a or b)[0])
            same = all(v is None or (_results_of(v) == h and not v.of("scaled", "shift") and not v.conds)
                       for v in (t, u))
            if h and same and all(self.ranges.nonneg(d.base) or d.power % 2 == 0 for d in h):
                for d in h:
                    self.conditions.append(Condition(f"{d.base} >= 0", self.ranges.how_nonneg(d.base) or "table",
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

    def _decided(self, e: Op, x: Expr, y: Expr) -> Expr | None:
        """A clip that a proved bound makes redundant (``min(448 x / max|x|, 448)``)."""
        for value, limit in ((x, y), (y, x)):
            v = constant_of(limit)
            if v is not None:
                bound = self.magnitude(value)
                if bound is not None and ((e.name == "min" and bound <= v) or (e.name == "max" and -bound >= v)):
                    self.conditions.append(Condition(f"abs({value}) <= {bound:g}", "interval",
                                                     f"{e.name}(., {limit}) changes nothing"))
                    return value
        return None

    def magnitude(self, e: Expr) -> float | None:
        """A proved bound of |e| along the row, or None."""
        if isinstance(e, Op) and e.name in ("min", "max"):
            for value, limit in (e.args, e.args[::-1]):
                v = constant_of(limit)
                if v is not None and self.scope.kind(value) == "M":
                    inside = self.magnitude(value)
                    if inside is not None and inside <= abs(v):
                        return inside
        try:
            terms = self.expand(e)
        except Refuse:
            return None
        total = 0.0
        for t in terms:
            bound = self.bound_of(t)
            if bound is None:
                return None
            total += bound
        return total

    def bound_of(self, t: Term) -> float | None:
        """A proved bound of |t|: every result in a denominator dominates some data in the numerator."""
        bound = abs(float(t.coefficient))
        data = []
        for p in t.of("x"):
            c, base = without_constant(p.base)
            bound *= c ** float(p.power) if p.power > 0 or c else 1.0
            data.append((base, p.power))
        for p in t.parts:
            if p.kind == "d":
                at = next((i for i, (g, q) in enumerate(data)
                           if p.power < 0 and q == -p.power and self.ranges.dominates(p.base, g)), None)
                if at is None:
                    return None
                data.pop(at)
            elif p.kind == "shift":
                return None
            elif p.kind == "scaled":
                inside = self.bounded_exponential(p)
                if inside is None:
                    return None
                bound *= inside
        for g, q in data:
            r = self.ranges.of(g)
            most = max(abs(r.lo), abs(r.hi))
            if q < 0 or most == float("inf"):
                return None
            bound *= most ** float(q)
        return bound

    def bounded_exponential(self, p: Part) -> float | None:
        """exp(A - m) <= 1 where m = max of A."""
        e = p.base
        while isinstance(e, Cast):
            e = e.arg
        if not (isinstance(e, Op) and e.name in ("exp", "exp2")) or p.power < 0:
            return None
        return 1.0 if self.below_zero(e.args[0]) else None

    def below_zero(self, arg: Expr) -> bool:
        """Proved: arg = c * (A - m) with c >= 0 and m the maximum of A."""
        split = self.split_linear(arg)
        if split is None:
            return False
        for name, r in self.ranges.reductions.items():
            if r.reducer.kind != "max":
                continue
            ref = Ref(name, r.dtype)
            difference = add(to_poly(self.scope.inline(r.expr)), to_poly(ref), -1)
            whole = add(split[0], split[1])
            if difference == whole:
                return True
            for c in {abs(v) for v in whole.values()}:
                if scale(difference, c) == whole:
                    return True
            extra = [m for m in whole if any(b == ref for b, _ in m)]
            if len(extra) == 1:
                factor: Poly = {tuple((b, q) for b, q in extra[0] if b != ref): -whole[extra[0]]}
                (m, c), = factor.items()
                positive = c > 0 and all(self.ranges.nonneg(b) for b, _ in m)
                if positive and multiply(difference, factor) == whole:
                    return True
        return False

    # -- refusals ------------------------------------------------------------------------------------------------------

    def _no_rule(self, e: Expr) -> list[Term]:
        name = e.name if isinstance(e, Op) else "cast"
        if name in ("floor", "ceil", "round"):
            raise Refuse("RF205", f"the argument of {e} is data only",
                         "it rounds a value that depends on a result of the whole row: a rounding moves with the result "
                         "and does not commute with a change of it",
                         "round in a second pass, or allow it with casts=\"elide\" (its error bound is reported)")
        if name in COMPARISONS or name in ("and", "or", "not", "isnan"):
            self._refuse_condition(e)
        return self._not_separable(e, f"{name} of data and results together is not a sum of products of both")

    @staticmethod
    def _not_separable(e: Expr, why: str) -> list[Term]:
        raise Refuse("RF201", f"{e} = sum of G(data) * H(results)", why + ": it has no finite-rank decomposition",
                     "compute the result in an earlier pass, so that it is an input of the cascade")


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


def replace_shifted(d: Decomposer) -> Decomposer:
    """The same decomposer, multiplying sums out instead of keeping them shifted."""
    return Decomposer(d.scope, d.ranges, d.casts, False, d.conditions, d.roundings)


def flatten_sum(e: Expr) -> list[tuple[int, Expr]]:
    match e:
        case Op(name="add", args=(x, y)):
            return flatten_sum(x) + flatten_sum(y)
        case Op(name="sub", args=(x, y)):
            return flatten_sum(x) + [(-s, z) for s, z in flatten_sum(y)]
        case Op(name="neg", args=(x,)):
            return [(-s, z) for s, z in flatten_sum(x)]
    return [(1, e)]


def spell_results(b: Poly, dtype: str) -> Expr:
    return from_poly(b, dtype)


def _signed(addends: list[tuple[int, Expr]], dtype: str) -> Expr:
    out: Expr | None = None
    for s, x in sorted(addends, key=lambda t: -t[0]):
        first = x if s > 0 else Op("neg", (x,), dtype)
        out = first if out is None else Op("add" if s > 0 else "sub", (out, x), dtype)
    assert out is not None
    return out


def _is_product(e: Expr) -> bool:
    return isinstance(e, Op) and e.name in ("mul", "div", "neg")


def _results_of(t: Term) -> tuple[Part, ...]:
    return tuple(sorted(t.of("d"), key=lambda p: (str(p.base), p.power)))


def _merged(t: Term) -> Term:
    """Equal bases of one kind become one part with the summed power; a zero power disappears."""
    out: list[Part] = []
    for p in t.parts:
        at = next((i for i, q in enumerate(out) if q.kind == p.kind and q.base == p.base
                   and p.kind in ("d", "shift", "scaled")), None)
        if at is None:
            out.append(p)
            continue
        q = out[at]
        power = q.power + p.power
        follows = tuple((b, r * (power / q.power)) for b, r in q.follows) if q.power else p.follows
        out[at] = replace(q, power=power, follows=follows)
    return replace(t, parts=tuple(p for p in out if p.power))


def _common(terms: list[Term]) -> tuple[tuple[Part, ...], list[Term]]:
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


def _both(a: tuple[tuple[Expr, bool], ...], b: tuple[tuple[Expr, bool], ...]) -> tuple[tuple[Expr, bool], ...]:
    return tuple(dict.fromkeys((*a, *b)))


def _consistent(a: tuple[tuple[Expr, bool], ...], b: tuple[tuple[Expr, bool], ...]) -> bool:
    return not any((c, not s) in a for c, s in b)


def _fold(e: Expr) -> Expr:
    """exp(-inf) = 0, and 0 * (...) of a constant 0 stays visible as 0."""
    match e:
        case Op(name="exp" | "exp2", args=(Const(value=v),)) if v == float("-inf"):
            return Const(0.0, e.dtype)
        case Op(name="sub" | "add" | "mul" | "div", args=(Const(value=v) as c, y)) if abs(v) == float("inf"):
            del y
            return c if e.name in ("sub", "add") else e
        case Cast(arg=Const(value=v)) if e.dtype in FLOATS and (v == 0 or abs(v) == float("inf")):
            return Const(v, e.dtype)
    return e


__all__ = ["Decomposer", "Part", "Term", "canonical", "equal", "flatten_sum"]
