"""Range analysis: intervals, signs, and which result bounds which value along the row.

Intervals are over the extended reals and hold for every element, NaN excepted. A bound ``|g| <= d`` comes from what a
reduction says: ``d = max[l] abs(g)``, ``d = sqrt(sum[l] g*g)``, ``d = max(d1, eps)`` and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from redfuser.acrf.cascade import Let, Reduce
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Index, Load, Op, Ref, unwidened
from redfuser.acrf.facts.algebra import INF
from redfuser.acrf.facts.classify import Scope
from redfuser.acrf.facts.freeze import prove_nonnegative, worth_asking
from redfuser.acrf.facts.normal import equal
from redfuser.dtypes import LARGEST


@dataclass(frozen=True, slots=True)
class Interval:
    """lo <= value <= hi; ``positive``: > 0 even where lo is 0 (an exponential, over the reals)."""

    lo: float = -INF
    hi: float = INF
    positive: bool = False

    @property
    def nonneg(self) -> bool:
        return self.lo >= 0

    @property
    def nonpos(self) -> bool:
        return self.hi <= 0

    @property
    def nonzero(self) -> bool:
        return self.positive or self.lo > 0 or self.hi < 0


ANY = Interval()


def _mul(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _safe(f: object, x: float, over: float) -> float:
    try:
        return float(f(x))  # type: ignore[operator]
    except (OverflowError, ValueError):
        return over


@dataclass(slots=True)
class Ranges:
    """Intervals of names, filled statement by statement, and the facts reductions state."""

    scope: Scope
    names: dict[str, Interval] = field(default_factory=dict)
    reductions: dict[str, Reduce] = field(default_factory=dict)
    proofs: dict[Expr, str | None] = field(default_factory=dict)

    def declare(self, s: Let | Reduce) -> None:
        if isinstance(s, Let):
            self.names[s.name] = self.of(s.expr)
            return
        body = self.of(s.expr)
        kind = s.reducer.kind
        out = ANY
        if kind in ("max", "min", "topk"):
            out = body
        elif kind == "sum":
            many = self._extent(s.over)
            out = Interval(_mul(body.lo, many if body.lo < 0 else 1.0) if body.lo != -INF else -INF,
                           _mul(body.hi, many if body.hi > 0 else 1.0) if body.hi != INF else INF,
                           body.positive or body.lo > 0)
        elif kind == "prod" and body.nonneg:
            out = Interval(0.0, INF if body.hi > 1 else body.hi, body.positive)
        elif kind in ("any", "all"):
            out = Interval(0, 1)
        elif kind in ("argmax", "argmin"):
            out = Interval(0, INF)
        self.names[s.name] = out
        for n in s.names[1:]:
            self.names[n] = Interval(0, INF)
        if s.over == self.scope.raxis:
            self.reductions[s.name] = s

    def _extent(self, axis: str) -> float:
        e = self.scope.cascade.extent(axis)
        return float(e) if isinstance(e, int) else INF

    # -- intervals -----------------------------------------------------------------------------------------------------

    def of(self, e: Expr) -> Interval:
        match e:
            case Const(value=v):
                return Interval(float(v), float(v)) if v == v else ANY
            case Index():
                return Interval(0, self._extent(e.axis) - 1)
            case Load(dtype="bool") | Load(dtype="u8"):
                return Interval(0, 1 if e.dtype == "bool" else 255)
            case Load(dtype="i8"):
                return Interval(-128, 127)
            case Load():
                return ANY
            case Ref():
                return self.names.get(e.name.split("@")[0], ANY)
            case Cast(arg=arg, dtype=d):
                x = self.of(arg)
                return x if d in FLOATS or arg.dtype not in FLOATS else Interval(x.lo - 1, x.hi + 1)
        assert isinstance(e, Op)
        return self._op(e)

    def _op(self, e: Op) -> Interval:
        a = [self.of(x) for x in e.args]
        match e.name:
            case "neg":
                return Interval(-a[0].hi, -a[0].lo)
            case "add":
                return _join_sum(a[0], a[1])
            case "sub":
                return _join_sum(a[0], Interval(-a[1].hi, -a[1].lo))
            case "mul":
                return _square(a[0]) if e.args[0] == e.args[1] else _product(a[0], a[1])
            case "div":
                if a[1].nonzero and (a[1].nonneg or a[1].nonpos):
                    lo, hi = _inverse(a[1])
                    return _product(a[0], Interval(lo, hi, a[1].nonneg))
                return Interval(0, INF) if a[0].nonneg and a[1].nonneg else ANY
            case "abs":
                lo = 0.0 if a[0].lo <= 0 <= a[0].hi else min(abs(a[0].lo), abs(a[0].hi))
                return Interval(lo, max(abs(a[0].lo), abs(a[0].hi)), a[0].nonzero)
            case "exp" | "exp2":
                f = math.exp if e.name == "exp" else (lambda x: 2.0**x)
                return Interval(_safe(f, a[0].lo, 0.0), _safe(f, a[0].hi, INF), True)
            case "sqrt":
                return Interval(math.sqrt(max(a[0].lo, 0.0)), _safe(math.sqrt, a[0].hi, INF), a[0].positive)
            case "rsqrt":
                hi = 1 / math.sqrt(a[0].lo) if a[0].lo > 0 else INF
                return Interval(0 if a[0].hi == INF or a[0].hi <= 0 else 1 / math.sqrt(a[0].hi), hi, True)
            case "log" | "log2":
                f = math.log if e.name == "log" else math.log2
                return Interval(_safe(f, a[0].lo, -INF) if a[0].lo > 0 else -INF, _safe(f, a[0].hi, INF))
            case "erfc":
                return Interval(math.erfc(a[0].hi), math.erfc(a[0].lo))
            case "tanh" | "erf" | "sin" | "cos":
                if e.name in ("sin", "cos"):
                    return Interval(-1, 1)
                g = math.tanh if e.name == "tanh" else math.erf
                return Interval(g(a[0].lo), g(a[0].hi))
            case "sigmoid":
                return Interval(0.0, 1.0, True)
            case "floor" | "ceil" | "round":
                return Interval(a[0].lo - 1 if a[0].lo != 0 else 0.0, a[0].hi + 1)
            case "max":
                return Interval(max(a[0].lo, a[1].lo), max(a[0].hi, a[1].hi),
                                any(x.nonneg and x.nonzero for x in a))
            case "min":
                return Interval(min(a[0].lo, a[1].lo), min(a[0].hi, a[1].hi),
                                all(x.nonneg and x.nonzero for x in a))
            case "select":
                return Interval(min(a[1].lo, a[2].lo), max(a[1].hi, a[2].hi), a[1].positive and a[2].positive)
            case "pow":
                power = e.args[1]
                if isinstance(power, Const):
                    if a[0].nonneg:
                        return Interval(0, INF, a[0].nonzero)
                    if float(power.value) % 2 == 0:
                        return Interval(0, INF)
                return Interval(0, INF) if a[0].nonneg else ANY
        return Interval(0, 1) if e.dtype == "bool" else ANY

    def nonneg(self, e: Expr) -> bool:
        """Proved: e >= 0. Asks intervals first, then sympy and z3 where the terms of a sum are correlated."""
        return self.how_nonneg(e) is not None

    def how_nonneg(self, e: Expr) -> str | None:
        """What proves e >= 0: ``interval``, ``sympy``, ``z3``, or None."""
        if self.of(e).nonneg:
            return "interval"
        e = self.scope.resolve(e)
        if not worth_asking(e):
            return None
        if e not in self.proofs:
            self.proofs[e] = prove_nonnegative(e, lambda x: (self.of(x).lo, self.of(x).hi))
        return self.proofs[e]

    # -- bounds along the row ------------------------------------------------------------------------------------------

    def dominates(self, d: Expr, g: Expr, depth: int = 8, loosely: bool = False) -> bool:
        """Proved: ``|g| <= d`` for every element of the row, ``g`` data and ``d`` made of results. ``loosely``: up to a
        constant factor."""
        if depth == 0:
            return False
        if loosely:
            match d:
                case Op(name="div", args=(a, Const(value=v))) | Op(name="mul", args=(a, Const(value=v))) | Op(
                        name="mul", args=(Const(value=v), a)) if 0 < v < INF:
                    return self.dominates(a, g, depth - 1, True)
                case Op(name="div", args=(a, Ref(name=n))) if n in self.reductions and isinstance(
                        self.reductions[n].expr, Const):
                    return self.dominates(a, g, depth - 1, True)
        match d:
            case Ref(name=n, indices=()) if n in self.scope.definitions:
                return self.dominates(self.scope.definitions[n], g, depth - 1, loosely)
            case Ref(name=n, indices=()) if n in self.reductions:
                r = self.reductions[n]
                if r.reducer.kind == "max" or (r.reducer.kind == "sum" and self.of(r.expr).nonneg):
                    return self._covers(r.expr, g, depth - 1)
            case Op(name="max", args=(a, b)):
                return self.dominates(a, g, depth - 1, loosely) or self.dominates(b, g, depth - 1, loosely)
            case Op(name="add", args=(a, b)):
                return (self.dominates(a, g, depth - 1, loosely) and self.nonneg(b)) or (
                    self.dominates(b, g, depth - 1, loosely) and self.nonneg(a))
            case Op(name="sqrt", args=(a,)) | Op(name="pow", args=(a, Const(value=0.5))):
                return self.dominates(a, Op("mul", (g, g), g.dtype), depth - 1, loosely)
            case Cast(arg=a):
                return self.dominates(a, g, depth - 1, loosely)
        return False

    def undercuts(self, d: Expr, g: Expr) -> bool:
        """Proved: ``0 <= d <= |g|`` for every element of the row: a minimum of what is not negative."""
        while isinstance(d, Ref) and not d.indices and d.name in self.scope.definitions:
            d = self.scope.definitions[d.name]
        r = self.reductions.get(d.name) if isinstance(d, Ref) and not d.indices else None
        if r is None or r.reducer.kind != "min":
            return False
        body, g = _datum(r.expr), _datum(g)
        return (equal(body, g) or equal(body, _abs(g)) or _same_abs(body, g)) and self.of(r.expr).nonneg

    def _covers(self, body: Expr, g: Expr, depth: int) -> bool:
        """Proved: ``|g| <= body`` for every element, both data."""
        body, g = _datum(body), _datum(g)
        if equal(body, _abs(g)) or (self.of(g).nonneg and equal(body, g)) or _same_abs(body, g):
            return True
        match body:
            case Op(name="max", args=(a, b)) if depth:
                return self._covers(a, g, depth - 1) or self._covers(b, g, depth - 1)
            case Op(name="add", args=(a, b)) if depth:
                return (self._covers(a, g, depth - 1) and self.of(b).nonneg) or (
                    self._covers(b, g, depth - 1) and self.of(a).nonneg)
        return False

    def fits(self, e: Expr, dtype: str) -> bool:
        """Proved: |e| stays within ``dtype``, for finite data."""
        x = self.of(e)
        if max(abs(x.lo), abs(x.hi)) <= LARGEST[dtype]:
            return True
        inner = e
        while isinstance(inner, Cast):
            if inner.dtype == dtype or (inner.dtype in FLOATS and LARGEST.get(inner.dtype, INF) <= LARGEST[dtype]):
                return True
            inner = inner.arg
        return inner.dtype in FLOATS and LARGEST[inner.dtype] <= LARGEST[dtype]


def _datum(e: Expr) -> Expr:
    """The datum, or its size, in the dtype it has: a wider float holds every number of it."""
    e = unwidened(e)
    if isinstance(e, Op) and e.name in ("abs", "neg"):
        a = _datum(e.args[0])
        return Op(e.name, (a,), a.dtype)
    return e


def _abs(g: Expr) -> Expr:
    return Op("abs", (g,), g.dtype)


def _same_abs(body: Expr, g: Expr) -> bool:
    """body is |g| through a normal form of g: abs(a) with a = g or -g."""
    if isinstance(body, Op) and body.name == "abs":
        inner = body.args[0]
        return equal(inner, g) or equal(Op("neg", (inner,), g.dtype), g)
    return False


def _join_sum(a: Interval, b: Interval) -> Interval:
    lo = a.lo + b.lo if not (a.lo == -INF or b.lo == -INF) else -INF
    hi = a.hi + b.hi if not (a.hi == INF or b.hi == INF) else INF
    return Interval(lo, hi, a.nonneg and b.nonneg and (a.nonzero or b.nonzero))


def _square(a: Interval) -> Interval:
    return _product(a, a) if a.nonneg or a.nonpos else Interval(0.0, max(_mul(a.lo, a.lo), _mul(a.hi, a.hi)))


def _product(a: Interval, b: Interval) -> Interval:
    ends = [_mul(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Interval(min(ends), max(ends), a.nonneg and b.nonneg and a.nonzero and b.nonzero)


def _inverse(a: Interval) -> tuple[float, float]:
    ends = [(INF if a.nonneg else -INF) if x == 0 else 1 / x for x in (a.lo, a.hi)]
    return min(ends), max(ends)
