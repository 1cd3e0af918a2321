"""Running results: what D would be if the row ended here, estimated for the whole row and finite in every state
(:mod:`redfuser.acrf.derive.finite`): a sum divided by a constant, ``s / N``, becomes the running estimate of the whole row's,
``s / n`` with the count n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from redfuser.acrf.derive.at_zero import maximum_is_zero
from redfuser.acrf.derive.finite import Finite, note
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Load, Op, Ref, map_children, refs_of, walk
from redfuser.acrf.facts.algebra import INF
from redfuser.acrf.facts.classify import rename
from redfuser.acrf.facts.guards import above, unguarded
from redfuser.acrf.facts.normal import Mono, Poly, from_poly, to_poly
from redfuser.acrf.facts.ranges import Interval
from redfuser.acrf.state import Accumulator, Refuse
from redfuser.dtypes import widens

WIDE, NARROW = frozenset({"f32", "f64"}), frozenset({"f16", "bf16"})
_SHORT = frozenset({"f16", "e4m3", "e5m2"})
"""Dtypes with a range much shorter than that of the sums they round."""


@dataclass(slots=True)
class Running(Finite):
    """Reference values over the accumulators made so far."""

    pending: dict[str, Accumulator] = field(default_factory=dict)
    """Counts under a mask, part of the state only where another accumulator or a finalized value reads them."""
    values: dict[str, Expr] = field(default_factory=dict)
    """Running value of each reduction, over accumulators."""
    count: Callable[[frozenset[str]], Expr] | None = None
    """Makes (or finds) the accumulator that counts elements, with the given axes."""
    units: set[str] = field(default_factory=set)
    """Results of the derivation's own that a sum is measured in: any size of the data's order will do."""
    levelled: dict[str, Expr] = field(default_factory=dict)
    """Results by name, those that are 0 wherever they are finite as that."""

    def register(self, a: Accumulator, body: Interval) -> None:
        """A new accumulator; ``body`` bounds its contribution. Its running value may be the neutral element."""
        self.accumulators[a.name] = a
        kind = a.reducer.kind
        if kind in ("max", "topk", "argmax"):
            out = Interval(-INF, body.hi)
        elif kind in ("min", "argmin"):
            out = Interval(body.lo, INF)
        elif kind == "sum":
            out = Interval(0.0 if body.nonneg else -INF, 0.0 if body.nonpos else INF)
        elif kind == "prod":
            out = Interval(0.0 if body.nonneg else -INF, INF, body.nonneg and body.nonzero)
        else:
            out = Interval(0, 1) if kind in ("any", "all") else Interval()
        self.ranges.names[a.name] = out
        for n in a.names[1:]:
            self.ranges.names[n] = Interval(0, INF)

    def whole(self, finalized: Iterable[str]) -> tuple[Accumulator, ...]:
        """The state's accumulators, each behind those it reads; of those pending what is read there or in ``finalized``."""
        out: dict[str, Accumulator] = {}
        for a in self.accumulators.values():
            read = {n.removesuffix("@old") for e in (a.contribution, *a.rebase) for n in refs_of(e)}
            out |= {n: p for n, p in self.pending.items() if n in read} | {a.name: a}
        return tuple((out | {n: p for n, p in self.pending.items() if n in finalized}).values())

    # -- running values ------------------------------------------------------------------------------------------------

    def running(self, e: Expr) -> Expr:
        """A D-only expression over accumulators: the value it would have if the row ended here."""
        e = self.scope.resolve(e)
        late = refs_of(e) & self.scope.late
        missing = [n for n in sorted(refs_of(e)) if n in self.scope.kinds and n not in self.values
                   and self.scope.kinds[n] == "D"]
        if late or missing:
            name = sorted(late or set(missing))[0]
            raise Refuse("RF214", f"{name} is available while the row is being reduced",
                         f"{name} is a contraction of results over another axis; the accumulator would have to follow it "
                         "at every step", "split the program after the reductions it contracts")
        for x in walk(e):
            if isinstance(x, (Load, Ref)) and x.indices and any(self.scope.kind(i) == "D" for i in x.indices):
                raise Refuse("RF208", f"{x} is at a place known before the row is reduced",
                             "its place is a result of the row: no element stands there before the first one is found, and "
                             "the accumulator would have to follow it at every step", "gather in a second pass")
        return self.scope.replaced(e, self.values)

    def estimate(self, e: Expr) -> Expr:
        """The running value with partial sums extrapolated to the whole row, where a constant divides them, 0 for maxima that
        are, and without guards by hand of maxima that are -inf, which have their own."""
        r = self._unguarded(self.running(self._levelled(e)))
        if isinstance(e, Ref) and e.name in self.units:
            return r
        extent = self.scope.cascade.extent(self.scope.raxis)
        return self._extrapolate(r, extent) if isinstance(extent, int) and extent > 0 else r

    def _unguarded(self, e: Expr) -> Expr:
        x = unguarded(e)
        kept = self.accumulators.get(x.name) if x is not e and isinstance(x, Ref) else None
        if kept is not None and kept.reducer.kind == "max":
            return above(e)
        return map_children(e, self._unguarded)

    def _levelled(self, e: Expr) -> Expr:
        if not isinstance(e, Ref) or e.indices:
            return map_children(e, self._levelled) if isinstance(e, (Op, Cast)) and self.scope.kind(e) == "D" else e
        if e.name not in self.levelled:
            body = self.scope.definitions.get(e.name)
            inside = e if body is None else self._levelled(body)
            self.levelled[e.name] = Const(0.0, e.dtype) if maximum_is_zero(self.scope, e) else e if inside == body else inside
        return self.levelled[e.name]

    def _extrapolate(self, e: Expr, extent: int) -> Expr:
        if e.dtype not in FLOATS:
            return e
        if isinstance(e, Cast) and isinstance(e.arg, Cast) and e.arg.dtype in _SHORT and widens(e.arg.dtype, e.dtype):
            whole = self._extrapolate(e.arg.arg, extent)
            if whole != e.arg.arg:  # an estimate of the whole may be out of the narrow dtype's range, so it is not rounded
                return whole if whole.dtype == e.dtype else Cast(whole, e.dtype)
        if isinstance(e, Cast) and e.dtype in WIDE and isinstance(e.arg, Op) and e.arg.name in ("max", "min") and (
                e.arg.dtype not in FLOATS):
            args = tuple(Const(float(x.value), e.dtype) if isinstance(x, Const) else Cast(x, e.dtype) for x in e.arg.args)
            spelled = Op(e.arg.name, args, e.dtype)  # of whole numbers: as good as of what they become
            whole = self._extrapolate(spelled, extent)
            return e if whole == spelled else whole
        if (isinstance(e, Op) and e.name in ("add", "sub", "mul", "div", "neg")) or isinstance(e, Ref) or (
                isinstance(e, Cast) and e.dtype in WIDE and e.arg.dtype not in FLOATS and isinstance(e.arg, Ref)):
            p = to_poly(e)
            degrees = {m: self._degree(m) for m in p}
            if any(degrees.values()):
                assert self.count is not None
                n = Op("max", (self.count(self.scope.axes_of(e)), Const(1.0, e.dtype)), e.dtype)
                out: Poly = {}
                for m, c in p.items():
                    d = degrees[m]
                    mono: Mono = tuple((b if isinstance(_widened(b), Ref) else self._extrapolate(b, extent), q) for b, q in m)
                    out[(*mono, (n, -d)) if d else mono] = c * Fraction(extent) ** int(d) if d.denominator == 1 else c
                return from_poly(out, e.dtype) if all(d.denominator == 1 for d in degrees.values()) else e
            if all(isinstance(_widened(b), Ref) for m in p for b, _ in m):
                return e  # a quotient of two sums is its own estimate
        if (isinstance(e, Op) and e.name in ("add", "sub", "mul", "div", "neg", "sqrt", "rsqrt", "pow", "abs", "max", "min",
                                            "select")) or isinstance(e, Cast):
            return map_children(e, lambda k: self._extrapolate(k, extent))
        return e

    def _degree(self, m: Mono) -> Fraction:
        names = [(b.name, q) for b, q in ((_widened(b), q) for b, q in m) if isinstance(b, Ref)]
        return sum((q for n, q in names if n in self.accumulators and self.accumulators[n].reducer.kind == "sum"),
                   Fraction(0))

    def at(self, e: Expr, guards: list[Expr] | None = None) -> Expr:
        """The reference value of a D-only expression."""
        guards = [] if guards is None else guards
        estimate, running = self.estimate(e), self.running(e)
        if estimate != running:
            kept = set(walk(estimate))
            if any(isinstance(x, Op) and x.dtype in NARROW and x not in kept for x in walk(running)):
                note(guards, Op("ne", (estimate, running), "bool"))  # over the whole row the same, but for its own roundings
            for x in walk(running):
                if isinstance(x, Cast) and x.dtype in _SHORT and x not in kept and x.arg.dtype in FLOATS:
                    note(guards, Op("ne", (Cast(x, x.arg.dtype), x.arg), "bool"))
        return self.guarded(estimate, guards)

    def guards_of(self, e: Expr) -> list[Expr]:
        """The guards that a result takes as a value and as a divisor."""
        out: list[Expr] = []
        self.at(e, out)
        self.inverse_at(e, out)
        return out

    def inverse_at(self, e: Expr, guards: list[Expr] | None = None) -> Expr:
        """The reference value of a D-only expression that divides."""
        return self._nonzero(self.estimate(e), [] if guards is None else guards)

    def place(self, e: Expr, guards: list[Expr] | None = None) -> Expr:
        """A mixed expression at the reference: every maximal D-only sub-expression replaced by its reference value."""
        kind = self.scope.kind(e)
        if kind == "D":
            return self.at(e, guards)
        if kind != "M":
            return e
        if isinstance(e, Op) and e.name == "div" and self.scope.kind(e.args[1]) == "D":
            return Op("div", (self.place(e.args[0], guards), self.inverse_at(e.args[1], guards)), e.dtype)
        return map_children(e, lambda k: self.place(k, guards))

    def old(self, e: Expr) -> Expr:
        """The same over the state before this segment."""
        return rename(e, {n: f"{n}@old" for a in (*self.accumulators.values(), *self.pending.values()) for n in a.names})


def _widened(e: Expr) -> Expr:
    """What a cast that rounds nothing (or a count to float) is of."""
    while isinstance(e, Cast) and e.dtype not in _SHORT and e.dtype in FLOATS:
        e = e.arg
    return e
