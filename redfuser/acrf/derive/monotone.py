"""Decomposition under an ordered reducer (max, min, any, all, argmax, argmin, topk): F(x, D) = phi_D(G(x)).

A map that is monotone in one data expression ``G`` commutes with the reducer: ``max phi(G) = phi(max G)``, the other
extremum for a falling map. Where the direction is unknown, or the map is quasi-convex (``|x - d|``), the maximum is at
one of the two ends, so both extrema are kept: ``max(phi(max G), phi(min G))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from redfuser.acrf.derive.decomposition import Decomposition, Term, spell
from redfuser.acrf.expr import COMPARISONS, FLOATS, Cast, Const, Expr, Op, map_children, op, refs_of, walk
from redfuser.acrf.facts.algebra import MONOTONE
from redfuser.acrf.facts.normal import product
from redfuser.acrf.state import Condition, Refuse
from redfuser.dtypes import INTS, TABLE


@dataclass(frozen=True, slots=True)
class Shape:
    """How phi depends on its argument. ``convex``: quasi-convex (a maximum sits at an end of the range); ``concave``:
    quasi-concave (a minimum does). A monotone map of unknown direction is both. ``strict``: equal images mean equal
    arguments, which argmax and topk need for ties."""

    direction: int
    convex: bool = True
    concave: bool = True
    strict: bool = True

    def after(self, direction: int, strict: bool) -> Shape:
        """Compose with an outer map that rises (+1), falls (-1) or does one of both (0)."""
        strict = strict and self.strict
        if direction > 0:
            return Shape(self.direction, self.convex, self.concave, strict)
        if direction < 0:
            return Shape(-self.direction, self.concave, self.convex, strict)
        return Shape(0, self.convex and self.concave, self.convex and self.concave, strict)


@dataclass(frozen=True, slots=True)
class Monotonic:
    """F = phi(inner): ``inner`` data only; ``outer(v)`` spells phi_D(v)."""

    inner: Expr
    steps: tuple[Expr, ...]
    shape: Shape

    def outer(self, value: Expr) -> Expr:
        out = value
        for s in self.steps:
            out = _plug(s, out)
        return out


HOLE = Const(float("nan"), "hole")
"""Stands for the inner value in a step; its dtype is no dtype, so it equals nothing else."""


def _plug(e: Expr, value: Expr) -> Expr:
    return value if e == HOLE else map_children(e, lambda k: _plug(k, value))


RISING = Shape(1)


def monotonic(d: Decomposition, e: Expr) -> Monotonic:
    """Take F apart as a monotone map of data. Raises Refuse."""
    kind = d.scope.kind(e)
    if kind in ("C", "X"):
        return Monotonic(e, (), RISING)
    if kind == "D":
        # a constant along the row: the same for every element
        return Monotonic(Const(0.0, "f32"), (e,), Shape(1, strict=False))
    if _wraps(d, e):
        return _refuse(e, f"numbers of {e.dtype} wrap around at the end of its range, which they may leave")
    if isinstance(e, Cast):
        inner = monotonic(d, e.arg)
        exact = e.dtype in FLOATS
        return _step(inner, Cast(HOLE, e.dtype), 1, exact)
    assert isinstance(e, Op), e
    if e.name == "neg":
        return _step(monotonic(d, e.args[0]), Op("neg", (HOLE,), e.dtype), -1, True)
    if e.name in MONOTONE and e.name != "neg":
        rule = MONOTONE[e.name]
        arg = e.args[0]
        if d.ranges.of(arg).lo < rule.domain:
            d.conditions.append(Condition(f"{arg} >= 0 wherever {e} is defined", "table"))
        return _step(monotonic(d, arg), Op(e.name, (HOLE,), e.dtype), rule.direction, rule.strict)
    if e.name == "abs" or (e.name == "pow" and _even(e.args[1])) or (e.name == "mul" and e.args[0] == e.args[1]):
        return _even_map(d, e)
    if e.name == "pow" and isinstance(e.args[1], Const):
        return _power(d, e, float(e.args[1].value))
    if len(e.args) == 2:
        return _binary(d, e)
    return _refuse(e, f"{e.name} is not monotone in the data")


def _wraps(d: Decomposition, e: Expr) -> bool:
    """Whether ``e`` is computed in integers and is not known to be in their range: the order of numbers ends there."""
    if e.dtype not in INTS or (isinstance(e, Op) and e.name in ("max", "min", "select")) \
            or (isinstance(e, Cast) and e.arg.dtype in FLOATS):
        return False
    interval, kind = d.ranges.of(e), TABLE[e.dtype]
    given = TABLE[e.arg.dtype] if isinstance(e, Cast) else TABLE["f64"]
    return max(interval.lo, given.least) < kind.least or min(interval.hi, given.largest) > kind.largest


def _step(inner: Monotonic, step: Expr, direction: int, strict: bool) -> Monotonic:
    return Monotonic(inner.inner, (*inner.steps, step), inner.shape.after(direction, strict))


def _even(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == e.value and abs(e.value) < 64 and float(e.value) > 0 and e.value % 2 == 0


def _even_map(d: Decomposition, e: Op) -> Monotonic:
    """abs and even powers: rising where the argument is non-negative, else quasi-convex for a monotone argument."""
    x = e.args[0]
    inner = monotonic(d, x)
    step = Op(e.name, (HOLE, HOLE) if e.name == "mul" else (HOLE, *e.args[1:]), e.dtype)
    if d.ranges.nonneg(x):
        return _step(inner, step, 1, True)
    if not (inner.shape.convex and inner.shape.concave):
        return _refuse(e, f"{x} is not monotone in the data")
    return Monotonic(inner.inner, (*inner.steps, step), Shape(0, True, False, False))


def _power(d: Decomposition, e: Op, p: float) -> Monotonic:
    x = e.args[0]
    step = Op("pow", (HOLE, e.args[1]), e.dtype)
    if p > 0 and p % 2 == 1:
        return _step(monotonic(d, x), step, 1, True)
    if d.ranges.nonneg(x) or p % 1:
        return _step(monotonic(d, x), step, 1 if p > 0 else -1, True)
    return _refuse(e, f"a power of {x}, whose sign is unknown, is not monotone")


def _binary(d: Decomposition, e: Op) -> Monotonic:
    x, y = e.args
    kx, ky = d.scope.kind(x), d.scope.kind(y)
    fixed_x, fixed_y = kx in ("D", "C"), ky in ("D", "C")
    if e.name in ("add", "sub", "max", "min") and (fixed_x or fixed_y):
        inner, step = (monotonic(d, y), Op(e.name, (x, HOLE), e.dtype)) if fixed_x else (
            monotonic(d, x), Op(e.name, (HOLE, y), e.dtype))
        return _step(inner, step, -1 if e.name == "sub" and fixed_x else 1, e.name in ("add", "sub"))
    if e.name in COMPARISONS and (fixed_x or fixed_y):
        if e.name in ("eq", "ne"):
            return _refuse(e, "equality with a result is not monotone in the data")
        inner, step = (monotonic(d, y), Op(e.name, (x, HOLE), "bool")) if fixed_x else (
            monotonic(d, x), Op(e.name, (HOLE, y), "bool"))
        rises = (e.name in ("gt", "ge")) != fixed_x
        return _step(inner, step, 1 if rises else -1, False)
    if e.name in ("and", "or") and (fixed_x or fixed_y):
        inner, step = (monotonic(d, y), Op(e.name, (x, HOLE), "bool")) if fixed_x else (
            monotonic(d, x), Op(e.name, (HOLE, y), "bool"))
        return _step(inner, step, 1, False)
    if e.name in ("mul", "div") and (fixed_y or (fixed_x and e.name == "mul")):
        scale, other = (y, x) if fixed_y else (x, y)
        step = Op(e.name, (HOLE, y) if fixed_y else (x, HOLE), e.dtype)
        return _scaled(d, e, monotonic(d, other), scale, step)
    if e.name == "div" and fixed_x:
        interval = d.ranges.of(y)
        if interval.nonneg or interval.nonpos:
            top = d.ranges.of(x)
            direction = -1 if top.nonneg else 1 if top.nonpos else 0
            return _step(monotonic(d, y), Op("div", (x, HOLE), e.dtype), direction, True)
    return _affine(d, e)


def _scaled(d: Decomposition, e: Op, inner: Monotonic, h: Expr, step: Expr) -> Monotonic:
    interval = d.ranges.of(d.scope.resolve(h))
    up, down = d.ranges.how_nonneg(h), "interval" if interval.nonpos else d.ranges.how_nonneg(Op("neg", (h,), h.dtype))
    direction = 1 if up else -1 if down else 0
    if direction:
        d.conditions.append(Condition(f"{h} {'>=' if direction > 0 else '<='} 0", up or down or "table",
                                      f"scales {inner.inner}"))
    else:
        d.conditions.append(Condition(f"the sign of {h} is unknown", "table", "both extrema are kept"))
        if not (inner.shape.convex and inner.shape.concave):
            return _refuse(e, f"the sign of {h} is unknown")
    divides = isinstance(step, Op) and step.name == "div"  # by 0 it leaves nothing finite to be told apart
    return _step(inner, step, direction, interval.nonzero or (direction != 0 and (divides or _vanishes(d, h, inner.inner))))


def _vanishes(d: Decomposition, h: Expr, x: Expr) -> bool:
    """Proved: where ``h``, which is never negative, or its negation is 0, every element ``x`` of the row is the same. It bounds
    them, or what they are less some number of the row (a deviation from the mean)."""
    read = refs_of(d.scope.resolve(h)) & d.ranges.reductions.keys()
    about = [g for n in read for g in walk(d.ranges.reductions[n].expr) if isinstance(g, Op) and g.name == "sub"
             and x in g.args and any(d.scope.kind(a) in ("C", "D") for a in g.args)]
    return any(d.ranges.dominates(h, y, loosely=True) for g in (x, *about) for y in (g, Op("mul", (g, g), g.dtype)))


def _affine(d: Decomposition, e: Op) -> Monotonic:
    """F = h(D) * G(x) + b(D), by collecting terms."""
    flat = d.unshifted()
    terms = flat.terms(e)
    data = [t for t in terms if t.of("x", "scaled") and any(d.scope.kind(p.base) not in ("C", "D") for p in t.parts)]
    fixed = [t for t in terms if t not in data]
    if not data or any(t.of("scaled", "shift") or t.conds or t.dconds for t in terms):
        return _refuse(e, "it is not one map of one data expression")
    h = _key(data[0])
    if any(_key(t) != h for t in data):
        raise Refuse("RF206", f"every data term of {e} has the same factor of results",
                     "terms scaled by different results change places as the results change, so no single order of the "
                     "data decides the extremum", "reduce the terms separately, or compute the results in an earlier pass")
    g = spell([Term(t.of("x"), t.coefficient) for t in data], e.dtype)
    out = Monotonic(g, (), RISING)
    for p in data[0].of("d"):
        factor = product([(p.base, p.power)], e.dtype)
        out = _scaled(d, e, out, factor, op("mul", HOLE, factor) if p.power > 0 else Op(
            "div", (HOLE, product([(p.base, -p.power)], e.dtype)), e.dtype))
    if fixed:
        out = _step(out, Op("add", (HOLE, spell(fixed, e.dtype)), e.dtype), 1, True)
    return out


def _key(t: Term) -> tuple[tuple[str, Fraction], ...]:
    return tuple(sorted((str(p.base), p.power) for p in t.of("d")))


def _refuse(e: Expr, why: str) -> Monotonic:
    raise Refuse("RF209", f"{e} is a monotone map of data", f"{why}, so the order of the elements changes with the results",
                 "reduce the data first and map the result, or compute the results in an earlier pass")
