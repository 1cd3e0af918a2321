"""Running results: what D would be if the row ended here, estimated for the whole row and finite in every state.

* ``m`` of a maximum becomes ``select(m == -inf, 0, m)``, and ``r = max(m, n)`` of two ``select(r == -inf, 0, r)``; a
  denominator that may be 0 becomes 1 there, as does the argument of a logarithm or root that its final value may have
  although the running one has not;
* a sum divided by a constant, ``s / N``, becomes the running estimate of the whole row's, ``s / n`` with the count n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from redfuser.acrf.derive.at_zero import maximum_is_zero
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Load, Op, Ref, map_children, refs_of, walk
from redfuser.acrf.facts.algebra import INF
from redfuser.acrf.facts.classify import Scope, rename
from redfuser.acrf.facts.guards import above, unguarded
from redfuser.acrf.facts.normal import Mono, Poly, from_poly, to_poly
from redfuser.acrf.facts.ranges import Interval, Ranges
from redfuser.acrf.state import Accumulator, Refuse
from redfuser.dtypes import LARGEST, widens

WIDE, NARROW = frozenset({"f32", "f64"}), frozenset({"f16", "bf16"})
_SHORT = frozenset({"f16", "e4m3", "e5m2"})
"""Dtypes with a range much shorter than that of the sums they round."""


@dataclass(slots=True)
class Running:
    """Reference values over the accumulators made so far."""

    scope: Scope
    accumulators: dict[str, Accumulator] = field(default_factory=dict)
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
    ranges: Ranges = field(init=False)

    def __post_init__(self) -> None:
        self.ranges = Ranges(self.scope)

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

    # -- guards --------------------------------------------------------------------------------------------------------

    def guarded(self, e: Expr, guards: list[Expr]) -> Expr:
        """A running value made finite in every state; the conditions under which it was changed are added to guards."""
        if isinstance(e, (Op, Cast)):
            interval = self.ranges.of(e)
            if interval.lo > -INF and interval.hi < INF and _defined(e):
                return e  # proved finite as it is (a clamp)
        if e.dtype in FLOATS and isinstance(e, (Ref, Op)) and (isinstance(e, Ref) or e.name in ("max", "min", "select")):
            edges = self.edges(e)
            if edges is not None:
                return self.clamped(e, self._within(e, edges, guards))
            inside: list[Expr] = []
            if isinstance(e, Op) and e.name != "select" and (moved := self._moved_extremum(e, inside)) is not None:
                for g in inside:
                    note(guards, g)
                return self.clamped(e, self._within(*moved, guards))
        match e:
            case Op(name="div", args=(x, y), dtype=d) if d in FLOATS:
                return Op("div", (self.guarded(x, guards), self._nonzero(y, guards)), d)
            case Op(name="rsqrt" | "log" | "log2", args=(x,), dtype=d):
                return Op(e.name, (self._positive(x, guards),), d)
            case Op(name="sqrt", args=(x,), dtype=d):
                return Op("sqrt", (self._positive(x, guards, strictly=False),), d)
            case Op(name="pow", args=(x, Const(value=v) as c), dtype=d) if v % 1:
                return Op("pow", (self._positive(x, guards, strictly=v < 0), c), d)
            case Op(name="pow", args=(x, Const(value=v) as c), dtype=d) if v < 0:
                return Op("pow", (self._nonzero(x, guards), c), d)
            case Op() | Cast():
                return map_children(e, lambda k: self.guarded(k, guards) if k.dtype in FLOATS else k)
        return e

    def edges(self, e: Expr) -> frozenset[float] | None:
        """The infinities that an expression of running extrema takes where some of them, or all, have no element yet: of
        ``max(m, n)`` only where both have none, of ``max(m, 0)`` never. None for what is no such expression."""
        match e:
            case Const(value=v):
                return frozenset({float(v)}) if abs(v) == INF else frozenset()
            case Ref(name=n, indices=()) if n in self.accumulators:
                return {"max": frozenset({-INF}), "min": frozenset({INF})}.get(
                    self.accumulators[n].reducer.kind, frozenset())
            case Cast(arg=x) if e.dtype in FLOATS and x.dtype in FLOATS:
                return self.edges(x)
            case Op(name="neg", args=(x,)):
                return _negated(self.edges(x))
            case Op(name="add" | "sub" as name, args=(x, y)):
                a, b = self.edges(x), self.edges(y) if name == "add" else _negated(self.edges(y))
                return None if a is None or b is None or {-INF, INF} <= a | b else a | b
            case Op(name="mul" | "div" as name, args=(x, Const(value=v))) | Op(name="mul" as name, args=(Const(value=v), x)):
                return None if v == 0 or abs(v) == INF else self.edges(x) if v > 0 else _negated(self.edges(x))
            case Op(name="select", args=(_, x, y)):
                a, b = self.edges(x), self.edges(y)
                return None if a is None or b is None else a | b
            case Op(name="max" | "min" as name, args=(x, y)):
                a, b = self.edges(x), self.edges(y)
                return None if a is None or b is None else _of_either(name, a, b)
        if not refs_of(e) <= self.scope.kinds.keys() or self.scope.kind(e) != "C":
            return None
        known = self.ranges.of(e)  # an input: it may be infinite itself
        return frozenset({v for v in (-INF, INF) if known.lo == v or known.hi == v})

    def _moved_extremum(self, e: Expr, guards: list[Expr]) -> tuple[Expr, frozenset[float]] | None:
        """An expression of running extrema that results move, with finite ones in the place of those results, and its edges:
        ``max(m - u, sink - u)`` is -inf where nothing is in m only if the sink is too."""
        if (edges := self.edges(e)) is not None:
            return e, edges
        match e:
            case Cast(arg=x) if x.dtype in FLOATS and widens(x.dtype, e.dtype):
                found = self._moved_extremum(x, guards)
                return found and (Cast(found[0], e.dtype), found[1])
            case Op(name="add" | "sub", args=(x, y)):
                found = self._moved_extremum(x, guards)
                return found and (Op(e.name, (found[0], self.guarded(y, guards)), e.dtype), found[1])
            case Op(name="max" | "min" as name, args=(x, y)):
                a, b = self._moved_extremum(x, guards), self._moved_extremum(y, guards)
                return a and b and (Op(name, (a[0], b[0]), e.dtype), _of_either(name, a[1], b[1]))
        return None

    def clamped(self, e: Expr, inner: Expr) -> Expr:
        """``inner``, the reference for ``e``, kept finite where ``e`` is an extremum of several results: an infinite element of
        the one would make it infinite, where finite elements of the other are only far from it."""
        several = len(refs_of(e) & self.accumulators.keys()) > 1
        if not several or not (isinstance(e, Op) and e.name in ("max", "min")):
            return inner
        edge = LARGEST[e.dtype]
        far = Const(edge if e.name == "max" else -edge, e.dtype)
        return Op("min" if e.name == "max" else "max", (inner, far), e.dtype)

    @staticmethod
    def _within(e: Expr, edges: frozenset[float], guards: list[Expr]) -> Expr:
        """``e`` with 0 in place of these infinities: one guard on the value, not one on each extremum in it."""
        if not edges:
            return e
        whole = e if len(edges) == 1 else Op("abs", (e,), e.dtype)
        return _instead(0.0, Op("eq", (whole, Const(max(edges), e.dtype)), "bool"), e, guards)

    def _nonzero(self, q: Expr, guards: list[Expr]) -> Expr:
        """``q`` with 1 in place of 0 (and of a maximum of nothing)."""
        zero = Const(0.0, q.dtype)
        a = self.accumulators.get(q.name) if isinstance(q, Ref) else None
        if a is not None and a.reducer.kind == "max" and self.ranges.of(a.contribution).nonneg:
            return _instead(1.0, Op("le", (q, zero), "bool"), q, guards)
        if isinstance(q, Ref) and self.is_count(q.name):
            return Op("max", (q, Const(1.0, q.dtype)), q.dtype)  # the whole row has an element: exact at the root
        inner = self.guarded(q, guards)
        if self.ranges.of(q).nonzero or self.ranges.of(inner).nonzero:
            return inner
        return _instead(1.0, Op("eq", (inner, zero), "bool"), inner, guards)

    def _positive(self, q: Expr, guards: list[Expr], strictly: bool = True) -> Expr:
        """``q`` with 1 in place of what has no logarithm or root, though its final value may have one."""
        if self.ranges.of(q).nonneg or self.ranges.of(self.guarded(q, [])).nonneg:
            return self._nonzero(q, guards) if strictly else self.guarded(q, guards)
        inner = self.guarded(q, guards)
        return _instead(1.0, Op("le" if strictly else "lt", (inner, Const(0.0, q.dtype)), "bool"), inner, guards)

    def is_count(self, name: str) -> bool:
        """An accumulator that counts the elements of the row."""
        a = self.accumulators.get(name)
        return a is not None and a.reducer.kind == "sum" and a.contribution == Const(1.0, a.dtype)

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


def _defined(e: Expr) -> bool:
    """No operation in it makes a NaN of infinities."""
    if isinstance(e, Op):
        return e.name in ("min", "max", "neg", "abs", "tanh", "sigmoid", "erf", "exp", "exp2") and all(map(_defined, e.args))
    return isinstance(e, (Ref, Const))


def _of_either(name: str, a: frozenset[float], b: frozenset[float]) -> frozenset[float]:
    """The edges of the larger (smaller) of two."""
    near, far = (-INF, INF) if name == "max" else (INF, -INF)
    return frozenset({v for v in (near, far) if (v in a and v in b) or (v == far and v in a | b)})


def _negated(edges: frozenset[float] | None) -> frozenset[float] | None:
    return edges if edges is None else frozenset(-v for v in edges)


def _instead(value: float, cond: Expr, e: Expr, guards: list[Expr]) -> Expr:
    """``e`` with a value in its place under a condition, which is noted."""
    note(guards, cond)
    return Op("select", (cond, Const(value, e.dtype), e), e.dtype)


def note(guards: list[Expr], cond: Expr) -> None:
    if cond not in guards:
        guards.append(cond)
