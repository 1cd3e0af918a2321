"""The state under construction, as the rules of the deriver see it: its accumulators, its values and its certificate.

A rule adds what its reduction needs. Where that is another reduction of any kind (a contraction that changed places) it
asks for it here, so that no rule knows which there are (deriver.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from redfuser.acrf.cascade import Let, Reduce, Reducer, Stmt
from redfuser.acrf.derive.decomposition import Decomposition, Part, Term
from redfuser.acrf.derive.shifted import References
from redfuser.acrf.expr import Const, Expr, Op, Ref, print_expr, refs_of, walk
from redfuser.acrf.facts.algebra import neutral
from redfuser.acrf.facts.classify import Outline, Scope
from redfuser.acrf.facts.normal import number
from redfuser.acrf.facts.ranges import Ranges
from redfuser.acrf.state import Accumulator, Condition, Refuse
from redfuser.dtypes import UNIT

F1 = Fraction(1)
SUM = Reducer("sum")
Row = Literal["merged", "held", "direct", "final"]
"""merged: every reduction has a state whose parts merge. held: what has none is taken of the whole row, once the results that
it reads are final. direct: so is what has none without an extremum that the program has not. final: so is all that reads
results."""


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


def own_name(name: str) -> str:
    """The accumulator behind a statement's own name, until it is known whether ``finalize`` changes its value."""
    return f"{name}#"


MAX_ACCUMULATORS = 32
Rebase = Callable[[Ref], Expr]
"""From an accumulator's own reference to its value after the references moved."""


@dataclass(slots=True)
class Derivation(ABC):
    """The state under construction: accumulators, values, and what the certificate will say of them."""

    outline: Outline
    casts: str
    row: Row = "merged"
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
    squares: dict[str, tuple[Ref, Ref, Expr]] = field(default_factory=dict)
    """Per sum of squares about a mean, its accumulator, that of the elements' number, and minus the mean."""
    parts: dict[str, tuple[Ref, Ref]] = field(default_factory=dict)
    """Per sum that is corrected, the results whose sum it is: a mean is made of both."""
    own: set[str] = field(default_factory=set)
    """Results that a sum is kept relative to by the derivation's own choice."""
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

    @abstractmethod
    def reduce(self, r: Reduce) -> None:
        """Derive the accumulators and the value of one reduction. Raises Refuse."""

    @abstractmethod
    def decomposer(self) -> Decomposition:
        """For taking expressions apart; it reports into this derivation's certificate."""

    # -- accumulators --------------------------------------------------------------------------------------------------

    def _count(self, axes: frozenset[str]) -> Expr:
        self.not_direct("count")
        order = [a.name for a in self.scope.cascade.axes if a.name in axes and a.name != self.scope.raxis]
        dtype = "f32"
        return self.share(self.fresh("count", reserve=False), tuple(order), dtype, Const(1.0, dtype),
                          lambda own: Ref(f"{own.name}@old", own.dtype))

    def not_direct(self, name: str) -> None:
        """Raises Refuse where a reduction of a row that is held would be kept about ``name``, which the program has not."""
        if self.row == "direct":
            raise Refuse("RF214", "its state takes nothing that the program has not", f"it is kept about a {name}", "")

    def axes(self, r: Reduce, body: Expr, context: Iterable[str], full: bool) -> tuple[str, ...]:
        """The axes an accumulator needs: those of what it accumulates, or of the reference a count belongs to."""
        if full:
            return r.axes
        used = self.scope.axes_of(body) - {r.over}
        if not any(isinstance(x, Ref) or not isinstance(x, Const) for x in walk(body)):
            used = used | frozenset(context)
        return tuple(a for a in r.axes if a in used)

    def share(self, name: str, axes: tuple[str, ...], dtype: str, body: Expr, rebase: Rebase | None,
              reducer: Reducer = SUM, within: tuple[str, ...] = ()) -> Ref:
        """An accumulator with this body: an existing one, also one with more of the axes ``within``, or a new one."""
        found = self.equal(body, reducer, dtype, axes, within)
        if found is not None:
            return Ref(found.name, found.neutral[0].dtype)
        return self.accumulate((name,), axes, reducer, dtype, body, rebase)[0]

    def equal(self, body: Expr, reducer: Reducer, dtype: str, axes: tuple[str, ...],
              within: tuple[str, ...]) -> Accumulator | None:
        """An accumulator of the same contribution, over these axes or some of ``within`` as well."""
        return next((a for a in self.refs.accumulators.values()
                     if a.reducer == reducer and a.dtype == dtype and a.contribution == body
                     and set(axes) <= set(a.axes) <= {*axes, *within}), None)

    def accumulate(self, names: tuple[str, ...], axes: tuple[str, ...], reducer: Reducer, dtype: str, body: Expr,
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

    def fresh(self, name: str, reserve: bool = True) -> str:
        """``name``, numbered until it is free."""
        out, i = name, 2
        while out in self.taken:
            out, i = f"{name}_{i}", i + 1
        if reserve:
            self.taken.add(out)
        return out

    def set_value(self, name: str, value: Value, running: Expr) -> None:
        """Finish a reduction: its finalized value, and the running one that references are placed at."""
        self.values[name] = value
        self.refs.values[name] = self._over_accumulators(running)

    def _over_accumulators(self, e: Expr) -> Expr:
        """A finalized value with the other results in it replaced by their running values."""
        return self.scope.replaced(e, self.refs.values)

    def narrowed(self, r: Reduce, dtype: str) -> None:
        """Say that a value is rounded once, from the accumulator's dtype to the reduction's: no rounding moves, since that
        is what a reduction of that dtype means (:class:`redfuser.acrf.cascade.Reduce`)."""
        if r.dtype in UNIT and r.dtype != dtype:
            self.choices.append(f"{r.name}: accumulated in {dtype}, its total rounded to {r.dtype} once")


def factor_text(base: Expr, power: Fraction) -> str:
    """``pow(base, power)``, reciprocals as ``1/base``: what the text reader takes."""
    if power == 1:
        return print_expr(base, 6)
    return f"1/{print_expr(base, 7)}" if power == -1 else f"pow({base}, {power})"


def number_text(c: Fraction) -> str:
    """A rational, of parts that the text reader takes as they are: as floats."""
    if max(abs(c.numerator), c.denominator) <= 2**53:
        return str(c)
    return print_expr(number(c, "f32"), 7)


def spell_decomposition(r: Reduce, terms: list[Term]) -> str:
    """``t = sum[l] [G] (*) [H]``, one bracket pair per term."""
    lines = []
    for t in terms:
        data = [factor_text(_true(p), p.power) for p in t.parts if p.kind in ("x", "scaled", "shift")]
        results = [factor_text(p.base, p.power) for p in t.of("d")]
        left = " * ".join(data) or "1"
        if t.coefficient != 1:
            results.insert(0, number_text(t.coefficient))
        where = "".join(f" where {c}" if s else f" where not ({c})" for c, s in (*t.conds, *t.dconds))
        lines.append(f"[{left}] (*) [{' * '.join(results) or '1'}]{where}")
    return f"{r.name} = {r.reducer}[{r.over}] " + "  +  ".join(lines)


def _true(p: Part) -> Expr:
    """The program's factor, where a bounded one stands in for it."""
    if p.true is None or p.a is None:
        return p.base
    whole = Op("add", (p.a, p.true), p.base.dtype)
    return whole if p.unit is None else Op("div", (whole, p.unit), p.base.dtype)


def explain(work: Derivation, r: Reduce, follows: tuple[tuple[Expr, Fraction], ...], shifts: tuple[Part, ...]) -> None:
    """Record why factors are rebased."""
    for b, q in follows:
        work.choices.append(f"{r.name}: {factor_text(b, q)} rebased: it bounds the growth of the data it scales")
    for p in shifts:
        work.choices.append(f"{r.name}: ({p.base}) kept whole and rebased in the shifted basis: multiplied out, its "
                            "terms would cancel")
