"""Values over a state that may be of nothing yet, made finite in every state: which guards they take, and where.

``m`` of a maximum becomes ``select(m == -inf, 0, m)``, and ``r = max(m, n)`` of two ``select(r == -inf, 0, r)``, one guard on a
whole value and not one on each extremum in it; a denominator that may be 0 becomes 1 there, as does the argument of a logarithm
or root that its final value may have although the running one has not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, map_children, refs_of
from redfuser.acrf.facts.algebra import INF
from redfuser.acrf.facts.classify import Scope
from redfuser.acrf.facts.ranges import Ranges
from redfuser.acrf.state import Accumulator
from redfuser.dtypes import LARGEST, widens


@dataclass(slots=True)
class Finite:
    """Over the accumulators made so far."""

    scope: Scope
    accumulators: dict[str, Accumulator] = field(default_factory=dict)
    ranges: Ranges = field(init=False)

    def __post_init__(self) -> None:
        self.ranges = Ranges(self.scope)

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


_DEFINED = frozenset({"min", "max", "neg", "abs", "tanh", "sigmoid", "erf", "erfc", "exp", "exp2"})


def _defined(e: Expr) -> bool:
    """No operation in it makes a NaN of infinities."""
    if isinstance(e, Op):
        return e.name in _DEFINED and all(map(_defined, e.args))
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
