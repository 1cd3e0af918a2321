"""From decompositions to one mergeable state: which factor is deferred, which is rebased, and how values are finalized.

Reductions are taken in dependency order. Each adds the accumulators it needs (an equal one is shared) and one finalized
value. A factor that bounds growth is rebased: an exponential of data and results together, a power of data over the
result that bounds it, a rounding taken at running results. Everything else is deferred to ``finalize``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product as cartesian
from math import comb

from redfuser.acrf.algebra import ORDERED, PAYLOAD, UNIT_ROUNDOFF, accumulator_dtype, neutral
from redfuser.acrf.bounds import follows_maximum
from redfuser.acrf.cases import Case, split_cases
from redfuser.acrf.classify import Outline, Scope, promote, rename
from redfuser.acrf.decompose import Decomposer
from redfuser.acrf.expr import (
    FLOATS,
    Cast,
    Const,
    Expr,
    Let,
    Op,
    Reduce,
    Reducer,
    Ref,
    Stmt,
    op,
    print_expr,
    refs_of,
    walk,
)
from redfuser.acrf.linear import split_linear
from redfuser.acrf.monotone import monotonic
from redfuser.acrf.normal import add, from_poly, product, to_poly
from redfuser.acrf.ranges import Ranges
from redfuser.acrf.refuse import Refuse
from redfuser.acrf.shifted import References
from redfuser.acrf.state import Accumulator, Certificate, Condition, State
from redfuser.acrf.terms import Part, Term, without_constant

F1 = Fraction(1)
MAX_ACCUMULATORS = 32
Rebase = Callable[[Ref], Expr]
"""From an accumulator's own reference to its value after the references moved."""
SUM = Reducer("sum")


@dataclass(slots=True)
class Value:
    """A reduction's finalized value. ``rooted``: with the last change of reference, from a guarded reference to the
    true results; ``plain``: without it, equal wherever no guard was taken. ``main``: names of its own accumulators."""

    plain: Expr
    rooted: Expr
    guards: tuple[Expr, ...] = ()
    covered: bool = False
    """The plain value is NaN by itself where a guard was taken (0/0), as the source program's is."""
    vanishes: bool = False
    """Proved: where a guard was taken every element's weight is 0, because the guarded maximum bounds its exponent."""


@dataclass(slots=True)
class Deriver:
    outline: Outline
    casts: str
    ranges: Ranges = field(init=False)
    refs: References = field(init=False)
    values: dict[str, Value] = field(default_factory=dict)
    late: dict[str, Stmt] = field(default_factory=dict)
    exposed: list[Let] = field(default_factory=list)
    decomposition: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    identities: list[str] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    roundings: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    peaks: set[str] = field(default_factory=set)
    """Accumulators of maxima that a sum's own exponents are kept relative to."""
    pending: dict[str, Accumulator] = field(default_factory=dict)
    """Counts under a mask, part of the state only where a finalized value reads them."""
    _by_key: dict[tuple[str, tuple[str, ...], str, str], str] = field(default_factory=dict)
    rebased_on: dict[str, set[str]] = field(default_factory=dict)
    """Per accumulator, the texts of the guards its reference may take."""

    def __post_init__(self) -> None:
        self.ranges = Ranges(self.scope)
        self.refs = References(self.scope, count=self._count)
        cascade = self.scope.cascade
        self.taken = {t.name for t in cascade.inputs} | {a.name for a in cascade.axes} | {
            n for s in cascade.stmts for n in s.names}

    @property
    def scope(self) -> Scope:
        return self.outline.scope

    # -- one reduction -------------------------------------------------------------------------------------------------

    def reduce(self, r: Reduce) -> None:
        """Derive the accumulators and the value of one reduction. Raises Refuse."""
        kind = self.scope.kind(r.expr)
        if r.expr.dtype in FLOATS or r.reducer.kind in ("any", "all"):
            r = replace(r, expr=promote(r.expr, self.scope))
        inner = [n for n in sorted(refs_of(r.expr)) if n in self.scope.inner]
        if inner:
            self._pull_out(r, inner[0])
            return
        if kind in ("C", "X"):
            self._plain(r)
        elif r.reducer.kind == "sum":
            self._sum(r)
        elif r.reducer.kind == "prod":
            self._prod(r)
        elif r.reducer.kind in ORDERED:
            self._ordered(r)
        else:
            raise Refuse("RF209", f"{r.reducer} has a rule", f"{r.reducer} is not a known reduction operator", "")

    def _decomposer(self) -> Decomposer:
        return Decomposer(self.scope, self.ranges, self.casts, True, self.conditions, self.roundings)

    def _plain(self, r: Reduce) -> None:
        """Nothing depends on results: a plain monoid."""
        dtype = accumulator_dtype(r.dtype) if r.reducer.kind not in PAYLOAD else r.expr.dtype
        expr = r.expr
        if r.reducer.kind in ("sum", "prod") and expr.dtype != dtype:
            expr = Cast(expr, dtype)
        elif r.reducer.kind in ("max", "min"):
            dtype = expr.dtype
        names = tuple(map(_own, r.names))
        if r.reducer.kind in ("argmax", "argmin"):
            names = (self._fresh(f"{r.name}_value"), _own(r.name))
        own = self._accumulate(names, r.axes, r.reducer, dtype, expr, None)
        for n, acc in zip(r.names, own[-len(r.names):], strict=True):
            value: Expr = acc
            if acc.dtype != self._dtype_of(r, n):
                value = Cast(acc, self._dtype_of(r, n))
                self._narrowed(r, dtype)
            self._set(n, Value(value, value), value)
        self.decomposition.append(f"{', '.join(r.names)} = {r.reducer}[{r.over}] {r.expr}")
        self.choices.append(f"{r.name}: depends on no result; accumulated as it is")

    def _narrowed(self, r: Reduce, dtype: str) -> None:
        if r.dtype in UNIT_ROUNDOFF and r.dtype != dtype:
            u = UNIT_ROUNDOFF[r.dtype]
            self.roundings.append(f"{r.name}: accumulated in {dtype} and rounded to {r.dtype} once, at most u = {u:.4g} of its "
                                  "magnitude, where the program rounds as it accumulates")

    @staticmethod
    def _dtype_of(r: Reduce, name: str) -> str:
        if r.reducer.kind in PAYLOAD:
            return r.expr.dtype if r.reducer.kind == "topk" and name == r.names[0] else "i64"
        return r.dtype

    # -- sums ----------------------------------------------------------------------------------------------------------

    def _sum(self, r: Reduce) -> None:
        d = self._decomposer()
        terms = [self._own_peak(r, d, self._bounded_powers(r, t)) for t in d.terms(r.expr)] or [Term((), Fraction(0))]
        self.decomposition.append(_spell_decomposition(r, terms))
        dtype = accumulator_dtype(r.expr.dtype)
        plain: list[Expr] = []
        rooted: list[Expr] = []
        guards: list[Expr] = []
        covered = vanishes = True
        for i, t in enumerate(terms):
            name = _own(r.name) if len(terms) == 1 else self._fresh(f"{r.name}_{i}")
            empty = bool(t.of("scaled")) and all(follows_maximum(d, p) for p in t.of("scaled"))
            main, root, mine = self._term(r, t, name, dtype, single=len(terms) == 1, vanishes=empty)
            results = [(p.base, p.power) for p in t.of("d")]
            resolved = [(self.scope.resolve(b), q) for b, q in results]
            if any(refs_of(b) & (self.scope.late | self.late.keys()) for b, _ in resolved):
                if len(terms) > 1:
                    raise Refuse("RF214", f"{r.name} is one product", "a sum of terms scaled by contractions of results",
                                 "split the reduction into one per term")
                self._finish_late(r, root if mine else main, results, t.coefficient, dtype)
                return
            for value, out in ((main, plain), (root, rooted)):
                v = product([(value, F1), *resolved], dtype, t.coefficient)
                for cond, side in t.dconds:
                    zero = Const(0.0, dtype)
                    c = self.scope.resolve(cond)
                    v = Op("select", (c, v, zero) if side else (c, zero, v), dtype)
                out.append(v)
            for g in mine:
                if g not in guards:
                    guards.append(g)
            zero_over_zero = any(q < 0 and self._is_zero_at(b, mine) for b, q in results)
            vanishes = vanishes and (not mine or empty)
            covered = covered and (not mine or (zero_over_zero and empty))
            for p in t.of("d"):
                self.choices.append(f"{r.name}: {_factor_text(p.base, p.power)} deferred: it bounds nothing, so it is "
                                    "applied once, in finalize")
        value = _sum_up(plain, dtype)
        final = _sum_up(rooted, dtype)
        if r.dtype != dtype:
            value, final = Cast(value, r.dtype), Cast(final, r.dtype)
            self._narrowed(r, dtype)
        self._set(r.name, Value(value, final, tuple(guards), covered and bool(guards), vanishes), value)

    def _is_zero_at(self, result: Expr, guards: list[Expr]) -> bool:
        """A denominator that is an accumulator under the same guard: 0 where the guard was taken, so 0/0 = NaN."""
        e = self.scope.resolve(result)
        if not isinstance(e, Ref) or e.name not in self.values:
            return False
        texts = {str(g) for g in guards}
        v = self.values[e.name].plain
        if not self.values[e.name].vanishes:
            return False
        return isinstance(v, Ref) and bool(texts) and texts <= self.rebased_on.get(v.name, set())

    def _term(self, r: Reduce, t: Term, name: str, dtype: str, single: bool, vanishes: bool) -> tuple[Expr, Expr, list[Expr]]:
        """Accumulators of one term: (its sum at the reference, its sum at the true results, guards taken)."""
        guards: list[Expr] = []
        shifts = t.of("shift")
        follows = tuple(f for p in t.of("scaled") for f in p.follows)
        ratio = self.refs.ratio(follows, vanishes) if follows else None
        drifts = [self.refs.drift(p.b) for p in shifts if p.b is not None]
        weight = [(self.refs.place(p.base, guards), p.power) for p in t.parts if p.kind in ("x", "scaled")]
        centred = [self.refs.place(p.base, guards) for p in shifts]
        powers = [int(p.power) for p in shifts]
        family: dict[tuple[int, ...], Ref] = {}
        context = frozenset().union(*(self.scope.axes_of(x) for x in drifts), frozenset()) if drifts else frozenset()
        for k in sorted(cartesian(*(range(n + 1) for n in powers)), key=lambda k: (sum(k), k)):
            factors = [*weight, *((u, Fraction(j)) for u, j in zip(centred, k, strict=True) if j)]
            body = product(factors, dtype) if factors else Const(1.0, dtype)
            if body.dtype != dtype:
                body = Cast(body, dtype)
            for cond, side in reversed(t.conds):
                zero = Const(0.0, dtype)
                body = Op("select", (cond, body, zero) if side else (cond, zero, body), dtype)
            last = k == tuple(powers)
            label = name if last else self._fresh(f"{r.name}_{''.join(map(str, k))}", reserve=False)
            axes = self._axes(r, body, context, full=last and single)

            def rebase(own: Ref, k: tuple[int, ...] = k) -> Expr:
                return self._rebase(own, k, family, drifts, ratio, dtype)

            family[k] = self._share(label, axes, dtype, body, rebase, within=r.axes)
            if guards:
                self.rebased_on.setdefault(family[k].name, set()).update(map(str, guards))
        self._explain(r, t, follows, shifts)
        # a sum's own maximum cancels against the factor deferred with it: there is nothing to undo at the root
        guards = [g for g in guards if not refs_of(g) <= self.peaks]
        residual = self._residuals(family, powers, dtype)
        value = self._translate(family, powers, residual, dtype)
        if not guards:
            return value, value, guards
        drift = [self.refs.last_drift(p.b) for p in shifts if p.b is not None]
        both: list[Expr | None] = [d if c is None else op("add", d, c) for d, c in zip(drift, residual, strict=True)]
        root = self._translate(family, powers, both, dtype)
        back = self.refs.to_true(follows) if follows else None
        root = op("mul", root, back) if back is not None else root
        return value, self._where_counted(r, t, root, dtype) if t.conds else root, guards

    def _where_counted(self, r: Reduce, t: Term, root: Expr, dtype: str) -> Expr:
        """The true results change a sum only if it has an element: one that a mask leaves empty is 0 in the program too.
        The count is added to the state only if the rooted value is used."""
        one: Expr = Const(1.0, dtype)
        for cond, side in reversed(t.conds):
            zero = Const(0.0, dtype)
            one = Op("select", (cond, one, zero) if side else (cond, zero, one), dtype)
        count = Ref(self._fresh(f"{r.name}_counted"), dtype)
        axes = tuple(a for a in r.axes if a in self.scope.axes_of(one))
        same = self._equal(one, SUM, dtype, axes, r.axes)
        if same is not None:
            count = Ref(same.name, dtype)
        else:
            self.scope.axes[count.name] = axes
            self.pending[count.name] = Accumulator((count.name,), axes, SUM, dtype, neutral(SUM, dtype), one,
                                                   (Ref(f"{count.name}@old", dtype),))
        zero = Const(0.0, dtype)
        return Op("select", (Op("eq", (count, zero), "bool"), zero, root), dtype)

    def _rebase(self, own: Ref, k: tuple[int, ...], family: dict[tuple[int, ...], Ref], drifts: list[Expr],
                ratio: Expr | None, dtype: str) -> Expr:
        terms = []
        for j in cartesian(*(range(n + 1) for n in k)):
            old = own if j == k else family[j]
            factors: list[tuple[Expr, Fraction]] = [(Ref(f"{old.name}@old", dtype), F1)]
            coefficient = 1
            for n, i, delta in zip(k, j, drifts, strict=True):
                coefficient *= comb(n, i)
                if n > i:
                    factors.append((delta, Fraction(n - i)))
            terms.append((sum(j), product(factors, dtype, Fraction(coefficient))))
        total = _sum_up([e for _, e in sorted(terms, key=lambda t: -t[0])], dtype)
        return op("mul", total, ratio) if ratio is not None else total

    @staticmethod
    def _translate(family: dict[tuple[int, ...], Ref], powers: list[int], drifts: Sequence[Expr | None],
                   dtype: str) -> Expr:
        """The last member about a reference moved by ``drifts`` (None: not moved)."""
        terms = []
        for j in cartesian(*(range(n + 1) for n in powers)):
            if any(n > i and d is None for n, i, d in zip(powers, j, drifts, strict=True)):
                continue
            factors: list[tuple[Expr, Fraction]] = [(family[j], F1)]
            coefficient = 1
            for n, i, delta in zip(powers, j, drifts, strict=True):
                coefficient *= comb(n, i)
                if n > i and delta is not None:
                    factors.append((delta, Fraction(n - i)))
            terms.append((sum(j), product(factors, dtype, Fraction(coefficient))))
        out = _sum_up([e for _, e in sorted(terms, key=lambda t: -t[0])], dtype)
        plain = all(d is None or refs_of(d) <= {m.name for m in family.values()} for d in drifts)
        return from_poly(to_poly(out), dtype) if plain and len(terms) > 1 else out

    def _residuals(self, family: dict[tuple[int, ...], Ref], powers: list[int], dtype: str) -> list[Expr | None]:
        """Where a first-order member is 0 by definition of its reference (``sum (x - mean)``), what it holds is the
        rounding error of the reference: the way from the reference to the exact value, per shift."""
        out: list[Expr | None] = [None] * len(powers)
        if sum(powers) < 2:
            return out
        weight = family[tuple(0 for _ in powers)]
        for i in range(len(powers)):
            member = family.get(tuple(int(i == j) for j in range(len(powers))))
            if member is not None and self._vanishes(member):
                safe: Expr = weight
                if not self.refs.is_count(weight.name):
                    safe = Op("select", (Op("eq", (weight, Const(0.0, dtype)), "bool"), Const(1.0, dtype), weight), dtype)
                out[i] = Op("neg", (op("div", member, safe),), dtype)
        return out

    def _vanishes(self, member: Ref) -> bool:
        """Proved: the accumulator's sum is 0, because its reference is the weighted mean of its data."""
        a = self.refs.accumulators[member.name]
        body, masks = a.contribution, []
        while isinstance(body, Op) and body.name == "select" and body.args[2] == Const(0.0, a.dtype):
            masks.append(body.args[0])
            body = body.args[1]
        total: Expr | None = None
        known = {str(from_poly(to_poly(b.contribution), b.dtype)): Ref(b.name, b.dtype)
                 for b in self.refs.accumulators.values() if b.reducer.kind == "sum" and b.name != member.name}
        for m, c in to_poly(body).items():
            outside = [(b, q) for b, q in m if not self._has_data(b)]
            inside = [(b, q) for b, q in m if self._has_data(b)]
            piece: Expr = product(inside, a.dtype) if inside else Const(1.0, a.dtype)
            for mask in reversed(masks):
                piece = Op("select", (mask, piece, Const(0.0, a.dtype)), a.dtype)
            text = str(from_poly(to_poly(piece), a.dtype))
            if text not in known:
                return False
            step = product([(known[text], F1), *outside], a.dtype, c)
            total = step if total is None else op("add", total, step)
        if total is None:
            return False
        n = [x for x in walk(total) if isinstance(x, Op) and x.name in ("max", "select")]
        # away from the guard, max(n, 1) = n and select(q == 0, 1, q) = q
        plain = total
        for g in n:
            inner = g.args[0] if g.name == "max" else g.args[2]
            plain = _swap(plain, g, inner)
        vanishes = not to_poly(plain)
        if vanishes:
            self.identities.append(f"{member.name} = {plain} = 0")
        return vanishes

    def _has_data(self, e: Expr) -> bool:
        return self.scope.raxis in self.scope.axes_of(e) or any(
            isinstance(x, Ref) and self.scope.kinds.get(x.name) == "X" for x in walk(e))

    def _bounded_powers(self, r: Reduce, t: Term) -> Term:
        """``(x / m) ** 2`` with ``abs(x) <= m`` proved: data to a power beyond 1 overflows where the quotient does not, so
        the pair stays together and is rebased."""
        parts = list(t.parts)
        for p in [p for p in parts if p.kind == "d" and p.power < 0]:
            for q in [q for q in parts if q.kind == "x" and q.power > 0]:
                degree = -p.power
                total = sum((o.power for o in parts if o.kind == "x" and o.base == q.base), Fraction(0))
                if total == degree and degree >= 2 and self.ranges.dominates(
                        p.base, without_constant(q.base)[1]):
                    dtype = p.base.dtype
                    quotient = op("div", q.base, p.base)
                    pair = Part("scaled", product([(quotient, degree)], dtype), follows=((p.base, p.power),))
                    first = next(i for i, o in enumerate(parts) if o.kind == "x" and o.base == q.base)
                    parts = [pair if i == first else o for i, o in enumerate(parts)
                             if i == first or (o is not p and not (o.kind == "x" and o.base == q.base))]
                    self.conditions.append(Condition(f"abs({q.base}) <= {p.base}", "interval",
                                                     "bounds the quotient by 1"))
                    break
        return replace(t, parts=tuple(parts))

    def _own_peak(self, r: Reduce, d: Decomposer, t: Term) -> Term:
        """``exp(A + B(D))`` that D does not bound: kept relative to the running maximum of A itself, so that no segment
        overflows where the whole row does not; ``exp(max A + B)`` is deferred."""
        parts: list[Part] = []
        for p in t.parts:
            split = split_linear(d, p.base.args[0]) if isinstance(p.base, Op) and p.base.name in ("exp", "exp2") else None
            if p.kind != "scaled" or split is None or p.power != 1 or follows_maximum(d, p):
                parts.append(p)
                continue
            assert isinstance(p.base, Op)
            dtype = p.base.dtype
            a, b = from_poly(split[0], dtype), from_poly(split[1], dtype)
            body: Expr = a
            for cond, side in reversed(t.conds):
                low = Const(float("-inf"), dtype)
                body = Op("select", (cond, body, low) if side else (cond, low, body), dtype)
            axes = tuple(x for x in r.axes if x in self.scope.axes_of(body))
            peak = self._fresh(f"{r.name}_peak")
            hidden = Reduce((peak,), axes, Reducer("max"), r.over, body, dtype, r.provenance)
            self.scope.axes[peak], self.scope.kinds[peak] = axes, "D"
            self._plain(hidden)
            self.ranges.declare(replace(hidden, expr=a))
            self.peaks |= {n for n in refs_of(self.refs.values[peak])}
            top = Ref(peak, dtype)
            lowered = Op(p.base.name, (Op("sub", (a, top), dtype),), dtype)
            follows = ((Op(p.base.name, (Op("neg", (top,), dtype),), dtype), F1),)
            parts += [Part("scaled", lowered, follows=follows),
                      Part("d", Op(p.base.name, (Op("add", (top, b), dtype),), dtype))]
        return replace(t, parts=tuple(parts))

    def _explain(self, r: Reduce, t: Term, follows: tuple[tuple[Expr, Fraction], ...], shifts: tuple[Part, ...]) -> None:
        for b, q in follows:
            self.choices.append(f"{r.name}: {_factor_text(b, q)} rebased: it bounds the growth of the data it scales")
        for p in shifts:
            self.choices.append(f"{r.name}: ({p.base}) kept whole and rebased in the shifted basis: multiplied out, its "
                                "terms would cancel")

    # -- products ------------------------------------------------------------------------------------------------------

    def _prod(self, r: Reduce) -> None:
        d = self._decomposer()
        cases = split_cases(d, r.expr)
        dtype = accumulator_dtype(r.expr.dtype)
        out: list[Expr] = []
        for i, (xs, ds, leaf) in enumerate(cases):
            if ds:
                raise Refuse("RF209", f"{r.expr} has no condition on results", "a product over conditional factors",
                             "apply the condition to the result of the product")
            terms = d.expand(leaf)
            if len(terms) != 1 or terms[0].of("shift"):
                raise Refuse("RF201", f"{leaf} = G(data) * H(results)",
                             "a product over sums of data and results has no finite-rank decomposition",
                             "reduce a logarithm by sum if the factors are positive, or compute the results earlier")
            t = terms[0]
            if t.of("scaled"):
                raise Refuse("RF209", f"{leaf} has no exponential of data and results",
                             "a product of exponentials is the exponential of a sum", "reduce the exponent with sum")
            one = Const(1.0, dtype)

            def masked(body: Expr, other: Expr, xs: tuple[tuple[Expr, bool], ...] = xs) -> Expr:
                for cond, side in reversed(xs):
                    body = Op("select", (cond, body, other) if side else (cond, other, body), body.dtype)
                return body

            body = product([(p.base, p.power) for p in t.of("x")], dtype) if t.of("x") else one
            name = _own(r.name) if len(cases) == 1 else self._fresh(f"{r.name}_{i}")
            acc = self._accumulate((name,), r.axes, r.reducer, dtype, masked(body, one), None)[0]
            h = [(self.scope.resolve(p.base), p.power) for p in t.of("d")]
            if any(refs_of(b) & self.scope.late for b, _ in h):
                raise Refuse("RF214", f"{leaf} is available while the row is reduced",
                             "a factor is a contraction of results", "split the program before it")
            out.append(acc)
            if h or t.coefficient != 1:
                count = self._share(self._fresh(f"{r.name}_n", reserve=False), r.axes, dtype,
                                    masked(one, Const(0.0, dtype)), lambda own: Ref(f"{own.name}@old", own.dtype))
                out.append(op("pow", product(h, dtype, t.coefficient), count))
                self.choices.append(f"{r.name}: {product(h, dtype, t.coefficient)} deferred, to the power of the number of "
                                    "elements")
        value = out[0]
        for o in out[1:]:
            value = op("mul", value, o)
        self.decomposition.append(f"{r.name} = prod[{r.over}] {r.expr}")
        if r.dtype != dtype:
            value = Cast(value, r.dtype)
        self._set(r.name, Value(value, value), value)

    # -- ordered reducers ----------------------------------------------------------------------------------------------

    def _ordered(self, r: Reduce) -> None:
        d = self._decomposer()
        cases = split_cases(d, r.expr)
        if any(ds for _, ds, _ in cases):
            raise Refuse("RF204", f"{r.expr} has no condition on results",
                         "which arm counts is decided by a result of the whole row",
                         "apply the condition to the result of the reduction")
        kind = r.reducer.kind
        scaled = self._scaled_extremum(r, d) if kind in ("max", "min") and len(cases) == 1 else None
        if scaled is not None:
            return
        if kind in PAYLOAD:
            self._payload(r, d, cases)
            return
        parts = [self._extremum(r, d, case, self._fresh(f"{r.name}_{i}") if len(cases) > 1 else _own(r.name))
                 for i, case in enumerate(cases)]
        join = {"any": "or", "all": "and"}.get(kind, kind)
        value = parts[0]
        for p in parts[1:]:
            value = Op(join, (value, p), value.dtype)
        if value.dtype != r.dtype:
            value = Cast(value, r.dtype)
        self.decomposition.append(f"{r.name} = {r.reducer}[{r.over}] {r.expr}")
        self._set(r.name, Value(value, value), value)

    def _extremum(self, r: Reduce, d: Decomposer, case: Case, name: str) -> Expr:
        """The extremum of one case: phi of the extremum (or extrema) of its data."""
        xs, _, leaf = case
        kind = r.reducer.kind
        largest = kind in ("max", "any")
        m = monotonic(d, leaf)
        if kind in ("any", "all") and not m.steps:
            return self._best(r, name, Reducer(kind), m.inner, xs, r.axes)
        dtype = m.inner.dtype
        if m.shape.direction:
            which = "max" if (m.shape.direction > 0) == largest else "min"
            ends = [which]
        else:
            if not (m.shape.convex if largest else m.shape.concave):
                raise Refuse("RF209", f"{leaf} has its {kind} at an end of the range of {m.inner}",
                             f"it is {'quasi-concave' if largest else 'quasi-convex'} in the data, so its {kind} lies inside "
                             "the range, at an element that moves with the results",
                             "compute the results in an earlier pass, so that they are inputs of the cascade")
            ends = ["max", "min"]
        single = len(ends) == 1
        values = []
        for end in ends:
            label = name if single else self._fresh(f"{r.name}_{end}")
            acc = self._best(r, label, Reducer(end), m.inner, xs, r.axes)
            value = m.outer(acc)
            value = self._resolved(value)
            if xs or (dtype in FLOATS and xs):
                edge = neutral(Reducer(end), dtype)[0]
                empty = Op("eq", (acc, edge), "bool")
                value = Op("select", (empty, neutral(Reducer(kind), value.dtype)[0], value), value.dtype)
            values.append(value)
        if m.steps:
            what = {1: "rises", -1: "falls"}.get(m.shape.direction, "takes its extremum at an end")
            self.choices.append(f"{r.name}: the map of {m.inner} {what}, so it is applied once to the reduced data")
        join = {"any": "or", "all": "and"}.get(kind, kind)
        out = values[0]
        for v in values[1:]:
            out = Op(join, (out, v), out.dtype)
        return out

    def _resolved(self, e: Expr) -> Expr:
        e = self.scope.resolve(e)
        late = refs_of(e) & (self.scope.late | self.late.keys())
        if late:
            raise Refuse("RF214", f"{sorted(late)[0]} is available while the row is being reduced",
                         "it is a contraction of results over another axis", "split the program after that contraction")
        return e

    def _best(self, r: Reduce, name: str, reducer: Reducer, inner: Expr, xs: tuple[tuple[Expr, bool], ...],
              axes: tuple[str, ...]) -> Ref:
        """An extremum of data, where the case applies."""
        body = inner
        edge = neutral(reducer, inner.dtype)[0]
        for cond, side in reversed(xs):
            body = Op("select", (cond, body, edge) if side else (cond, edge, body), body.dtype)
        return self._accumulate((name,), axes, reducer, inner.dtype, body, None)[0]

    def _payload(self, r: Reduce, d: Decomposer, cases: list[Case]) -> None:
        """argmax, argmin, topk: a strictly monotone map keeps the order, so the same elements win."""
        kind = r.reducer.kind
        worst = neutral(r.reducer, r.expr.dtype)[0]
        live = [c for c in cases if c[2] != worst]
        if len(live) != 1:
            raise Refuse("RF209", f"{r.expr} is one map of data", "its arms map data differently, so their order changes with "
                         "the results", "reduce the arms separately")
        xs, _, leaf = live[0]
        m = monotonic(d, leaf)
        if not m.shape.strict or not m.shape.direction:
            raise Refuse("RF209", f"{leaf} is strictly monotone in the data",
                         "elements with equal images tie, and ties go to the lowest index" if m.shape.direction
                         else "the direction of the map depends on the sign of a result", "reduce the data first and map "
                         "the chosen elements")
        inner, falling = m.inner, m.shape.direction < 0
        if falling:
            inner = Op("neg", (m.inner,), m.inner.dtype)

        body = inner
        edge = neutral(r.reducer, inner.dtype)[0]
        for cond, side in reversed(xs):
            body = Op("select", (cond, body, edge) if side else (cond, edge, body), body.dtype)
        names = tuple(map(_own, r.names)) if kind == "topk" else (self._fresh(f"{r.name}_value"), _own(r.name))
        values, places = self._accumulate(names, r.axes, r.reducer, inner.dtype, body, None)
        self.choices.append(f"{r.name}: the map of {inner} is strictly monotone, so the same elements are chosen before it")
        self.decomposition.append(f"{', '.join(r.names)} = {r.reducer}[{r.over}] {r.expr}")
        if kind == "topk":
            chosen = self._resolved(m.outer(Op("neg", (values,), values.dtype) if falling else values))
            if xs:
                chosen = Op("select", (Op("eq", (values, edge), "bool"), worst, chosen), chosen.dtype)
            if chosen.dtype != r.expr.dtype:
                chosen = Cast(chosen, r.expr.dtype)
            self._set(r.name, Value(chosen, chosen), chosen)
        index = places if places.dtype == "i64" else Cast(places, "i64")
        self._set(r.names[-1], Value(index, index), index)

    def _scaled_extremum(self, r: Reduce, d: Decomposer) -> bool | None:
        """max of non-negative data times an exponential of data and results: rebased, as under a sum."""
        saved = (len(self.conditions), len(self.roundings))
        try:
            monotonic(d, r.expr)
            del self.conditions[saved[0]:]
            del self.roundings[saved[1]:]
            return None
        except Refuse as first:
            del self.conditions[saved[0]:]
            try:
                terms = d.terms(r.expr)
            except Refuse:
                raise first from None
            if len(terms) != 1 or terms[0].of("shift") or not terms[0].of("scaled") or terms[0].conds:
                raise
            t = terms[0]
            if not all(self.ranges.nonneg(b) for p in t.of("scaled") for b, _ in p.follows) or t.coefficient < 0 or not all(
                    self.ranges.nonneg(p.base) for p in t.of("d")):
                raise
            if any(refs_of(self.scope.resolve(p.base)) & self.scope.late for p in t.of("d")):
                raise
        dtype = accumulator_dtype(r.expr.dtype)
        guards: list[Expr] = []
        follows = tuple(f for p in t.of("scaled") for f in p.follows)
        ratio = self.refs.ratio(follows, all(follows_maximum(d, p) for p in t.of("scaled")))
        assert ratio is not None
        body = product([(self.refs.place(p.base, guards), p.power) for p in t.parts if p.kind in ("x", "scaled")], dtype)
        edge = neutral(r.reducer, dtype)[0]

        def rebase(own: Ref) -> Expr:
            old = Ref(f"{own.name}@old", own.dtype)
            return Op("select", (Op("eq", (old, edge), "bool"), edge, op("mul", old, ratio)), dtype)

        main = self._share(_own(r.name), r.axes, dtype, body, rebase, r.reducer)
        back = self.refs.to_true(follows)
        results = [(self.scope.resolve(p.base), p.power) for p in t.of("d")]
        plain = product([(main, F1), *results], dtype, t.coefficient)
        rooted = product([(op("mul", main, back), F1), *results], dtype, t.coefficient) if guards and back else plain
        self.decomposition.append(_spell_decomposition(r, [t]))
        self._explain(r, t, follows, ())
        self._set(r.name, Value(plain, rooted, tuple(guards)), plain)
        return True

    # -- contractions over an inner axis -------------------------------------------------------------------------------

    def _pull_out(self, r: Reduce, name: str) -> None:
        """sum_l w * (sum_e f) = sum_e (sum_l w * f): the inner contraction moves behind the cascade."""
        inner = self.scope.inner[name]
        if r.reducer.kind != "sum" or inner.reducer.kind != "sum":
            raise Refuse("RF211", f"{name} and {r.name} are sums",
                         f"{name} contracts results with data for every element of the row, and only nested sums change places",
                         "compute the results in an earlier pass, so that they are inputs of the cascade")
        ref = Ref(name, inner.dtype)
        body = inner.expr if inner.expr.dtype == inner.dtype else Cast(inner.expr, inner.dtype)
        linear: dict[bool, Expr] = {}
        for m, c in to_poly(r.expr).items():
            degree = sum((q for b, q in m if b == ref), Fraction(0))
            inside = any(reads_name(b, name) for b, _ in m if b != ref)
            if inside or degree not in (0, 1):
                raise Refuse("RF211", f"{r.expr} is linear in {name}",
                             f"{name} is a contraction of results and data; only where it enters linearly do the two sums "
                             "change places", "compute the results in an earlier pass, so that they are inputs")
            term = product([(b, q) for b, q in m if b != ref] or [(Const(1.0, r.expr.dtype), F1)], r.expr.dtype, c)
            hit = degree == 1
            linear[hit] = term if hit not in linear else op("add", linear[hit], term)
        only = set(linear) == {True}
        pieces: list[tuple[str, Expr, tuple[str, ...]]] = []
        nested: Expr = op("mul", linear[True], body)
        if only and isinstance(r.expr, Op) and r.expr.name == "mul" and ref in r.expr.args:
            nested = Op("mul", tuple(body if a == ref else a for a in r.expr.args), r.expr.dtype)
        elif r.expr == ref:
            nested = body
        pieces.append((self._fresh(f"{r.name}_{inner.over}"), nested, (*r.axes, inner.over)))
        if not only:
            pieces.append((self._fresh(f"{r.name}_rest"), linear[False], r.axes))
        total: Expr | None = None
        for piece, expr, axes in pieces:
            self.scope.axes[piece] = axes
            self.scope.kinds[piece] = "D"
            hidden = Reduce((piece,), axes, SUM, r.over, expr, accumulator_dtype(r.dtype), r.provenance)
            self.reduce(hidden)
        self.choices.append(f"{r.name}: the sum over {inner.over} moves behind the sum over {r.over}")
        first = pieces[0][0]
        dtype = accumulator_dtype(r.dtype)
        self.scope.late.add(r.name)
        if only and r.dtype == dtype:
            self.late[r.name] = Reduce(r.names, r.axes, SUM, inner.over, Ref(first, dtype), dtype, r.provenance)
            return
        part = self._fresh(f"{r.name}_sum")
        self.scope.late.add(part)
        self.late[part] = Reduce((part,), r.axes, SUM, inner.over, Ref(first, dtype), dtype, r.provenance)
        total = Ref(part, dtype)
        if not only:
            total = op("add", total, Ref(pieces[1][0], dtype))
        self.late[r.name] = Let(r.name, r.axes, total if r.dtype == dtype else Cast(total, r.dtype), r.provenance)

    def _finish_late(self, r: Reduce, main: Expr, results: list[tuple[Expr, Fraction]], c: Fraction, dtype: str) -> None:
        """A factor is only known after another contraction: the sum is exposed, and finished in ``post``."""
        part = self._fresh(f"{r.name}_part")
        self.exposed.append(Let(part, r.axes, main, r.provenance))
        value = product([(Ref(part, dtype), F1), *results], dtype, c)
        self.scope.late.add(r.name)
        self.late[r.name] = Let(r.name, r.axes, value if r.dtype == dtype else Cast(value, r.dtype), r.provenance)

    # -- accumulators --------------------------------------------------------------------------------------------------

    def _count(self, axes: frozenset[str]) -> Expr:
        order = [a.name for a in self.scope.cascade.axes if a.name in axes and a.name != self.scope.raxis]
        dtype = "f32"
        return self._share(self._fresh("count", reserve=False), tuple(order), dtype, Const(1.0, dtype),
                           lambda own: Ref(f"{own.name}@old", own.dtype))

    def _axes(self, r: Reduce, body: Expr, context: Iterable[str], full: bool) -> tuple[str, ...]:
        """The axes an accumulator needs: those of what it accumulates, or of the reference a count belongs to."""
        if full:
            return r.axes
        used = self.scope.axes_of(body) - {r.over}
        if not any(isinstance(x, Ref) or not isinstance(x, Const) for x in walk(body)):
            used = used | frozenset(context)
        return tuple(a for a in r.axes if a in used)

    def _share(self, name: str, axes: tuple[str, ...], dtype: str, body: Expr, rebase: Rebase | None,
               reducer: Reducer = SUM, within: tuple[str, ...] = ()) -> Ref:
        """An accumulator with this body: an existing one, also one with more of the axes ``within``, or a new one."""
        found = self._equal(body, reducer, dtype, axes, within)
        if found is not None:
            return Ref(found.name, found.neutral[0].dtype)
        return self._accumulate((name,), axes, reducer, dtype, body, rebase)[0]

    def _equal(self, body: Expr, reducer: Reducer, dtype: str, axes: tuple[str, ...],
               within: tuple[str, ...]) -> Accumulator | None:
        return next((a for a in self.refs.accumulators.values()
                     if a.reducer == reducer and a.dtype == dtype and a.contribution == body
                     and set(axes) <= set(a.axes) <= {*axes, *within}), None)

    def _accumulate(self, names: tuple[str, ...], axes: tuple[str, ...], reducer: Reducer, dtype: str, body: Expr,
                    rebase: Rebase | None) -> tuple[Ref, ...]:
        """Add an accumulator, or find an equal one. ``rebase``: own reference -> expression; None for a plain monoid."""
        found = self._by_key.get((str(reducer), axes, str(body), body.dtype))
        if found is None and reducer.kind == "sum" and body == Const(1.0, dtype) and rebase is not None:
            found = next((n for n, a in self.refs.accumulators.items() if self.refs.is_count(n) and a.dtype == dtype
                          and set(a.axes) <= set(axes)), None)
        if found is not None:
            a = self.refs.accumulators[found]
            return tuple(Ref(n, c.dtype) for n, c in zip(a.names, a.neutral, strict=True))
        edges = neutral(reducer, dtype)
        own = tuple(Ref(n, c.dtype) for n, c in zip(names, edges, strict=True))
        moved = tuple(Ref(f"{o.name}@old", o.dtype) for o in own) if rebase is None else (rebase(own[0]),)
        a = Accumulator(names, axes, reducer, dtype, edges, body, moved)
        if len(self.refs.accumulators) >= MAX_ACCUMULATORS:
            raise Refuse("RF210", f"at most {MAX_ACCUMULATORS} accumulators", "the decomposition needs more",
                         "split the cascade")
        self._by_key[(str(reducer), axes, str(body), body.dtype)] = a.name
        self.taken.update(names)
        for n in names:
            self.scope.axes[n] = axes
        body_range = self.refs.ranges.of(body) if refs_of(body) & self.refs.accumulators.keys() else self.ranges.of(body)
        self.refs.register(a, body_range)
        return own

    def _fresh(self, name: str, reserve: bool = True) -> str:
        out, i = name, 2
        while out in self.taken:
            out, i = f"{name}_{i}", i + 1
        if reserve:
            self.taken.add(out)
        return out

    def _set(self, name: str, value: Value, running: Expr) -> None:
        self.values[name] = value
        self.refs.values[name] = self._over_accumulators(running)

    def _over_accumulators(self, e: Expr) -> Expr:
        """A finalized value with the other results in it replaced by their running values."""
        return self.scope.replaced(e, self.refs.values)


def _own(name: str) -> str:
    """The accumulator behind a statement's own name, until it is known whether ``finalize`` changes its value."""
    return f"{name}#"


def reads_name(e: Expr, name: str) -> bool:
    return any(isinstance(x, Ref) and x.name == name for x in walk(e))


def _swap(e: Expr, old: Expr, new: Expr) -> Expr:
    from redfuser.acrf.expr import map_children

    return new if e == old else map_children(e, lambda k: _swap(k, old, new))


def _sum_up(terms: list[Expr], dtype: str) -> Expr:
    out: Expr | None = None
    for t in terms:
        if out is None:
            out = t
        elif isinstance(t, Op) and t.name == "neg":
            out = op("sub", out, t.args[0])
        else:
            out = op("add", out, t)
    return out if out is not None else Const(0.0, dtype)


def _factor_text(base: Expr, power: Fraction) -> str:
    text = print_expr(base, 6)
    if power == 1:
        return text
    inner = print_expr(base, 8)
    return f"1/{print_expr(base, 7)}" if power == -1 else f"{inner} ** {power if power > 0 else f'({power})'}"


def _spell_decomposition(r: Reduce, terms: list[Term]) -> str:
    lines = []
    for t in terms:
        data = [_factor_text(p.base, p.power) for p in t.parts if p.kind in ("x", "scaled", "shift")]
        results = [_factor_text(p.base, p.power) for p in t.of("d")]
        left = " * ".join(data) or "1"
        if t.coefficient != 1:
            results.insert(0, str(t.coefficient))
        where = "".join(f" where {c}" if s else f" where not ({c})" for c, s in t.conds)
        lines.append(f"[{left}] (*) [{' * '.join(results) or '1'}]{where}")
    return f"{r.name} = {r.reducer}[{r.over}] " + "  +  ".join(lines)


__all__ = ["Certificate", "Deriver", "State", "Value", "add", "rename"]
