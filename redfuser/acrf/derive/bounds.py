"""Proved bounds of mixed values along the row: a result that dominates data, an exponent below its maximum.

They show that a clip changes nothing (:mod:`.clips`), that a rounding stays in range, and which exponentials their results
bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from redfuser.acrf.derive.decomposition import (
    F1,
    Conds,
    Decomposition,
    Part,
    Term,
    constant_of,
    monomial_kind,
    split_linear,
    without_constant,
)
from redfuser.acrf.derive.derivation import Derivation
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, children, map_children, walk
from redfuser.acrf.facts.guards import unclamped, unguarded
from redfuser.acrf.facts.normal import Mono, Poly, add, multiply, scale, spread, to_poly
from redfuser.acrf.state import Condition
from redfuser.dtypes import widens


def bound_of(d: Decomposition, t: Term) -> float | None:
    """A proved bound of |t|: every result in a denominator dominates some data in the numerator."""
    bound = abs(float(t.coefficient))
    data = []
    for p in t.of("x"):
        c, base = without_constant(p.base)
        bound *= c ** float(p.power) if p.power > 0 or c else 1.0
        data.append((base, p.power))
    for p in map(divisor, t.parts):
        if p.kind == "d":
            at = next((i for i, (g, q) in enumerate(data)
                       if p.power < 0 and q == -p.power and d.ranges.dominates(p.base, g)), None)
            if at is None:
                return None
            data.pop(at)
        elif p.kind == "shift":
            return None
        elif p.kind == "scaled":
            inside = _bounded_exponential(d, p, t.conds)
            if inside is None:
                return None
            bound *= inside
    for g, q in data:
        r = d.ranges.of(g)
        most = max(abs(r.lo), abs(r.hi))
        if q < 0 or most == float("inf"):
            return None
        bound *= most ** float(q)
    return bound


def divisor(p: Part) -> Part:
    """``rsqrt(d)`` as ``1 / sqrt(d)``."""
    if p.kind == "d" and isinstance(p.base, Op) and p.base.name == "rsqrt":
        return replace(p, base=Op("sqrt", p.base.args, p.base.dtype), power=-p.power)
    return p


def _bounded_exponential(d: Decomposition, p: Part, conds: Conds) -> float | None:
    """exp(A - m) <= 1 where m = max of A, and what is made of it and is positive."""
    return _highest(d, p.base, conds) if p.power > 0 and d.ranges.nonneg(p.base) else None


def _highest(d: Decomposition, e: Expr, conds: Conds) -> float | None:
    """An upper bound, 0 or more, of a difference or an extremum of exponentials."""
    match e:
        case Cast(arg=x):
            return _highest(d, x, conds)
        case Op(name="exp" | "exp2", args=(x,)):
            return 1.0 if proved_below_zero(d, x, conds) else None
        case Op(name="sub", args=(x, y)) if d.ranges.nonneg(y):
            return _highest(d, x, conds)
        case Op(name="max", args=(x, Const(value=v))) if v <= 0:
            return _highest(d, x, conds)
    return None


def follows_maximum(d: Decomposition, p: Part, conds: Conds) -> bool:
    """exp(c * (A - m) + ...) with c >= 0, m the maximum of A, and nothing else but results: along the row it is at most
    its value at the maximum, and it vanishes where the maximum is -inf. ``conds``: what is known of the elements.

    Also of a rounded product with such an exponential, which vanishes with it."""
    if p.power < 0 or p.peaked:
        return p.peaked
    found = list(_moving_factors(d, p.base)) if isinstance(p.base, Cast) else [p.base]
    return bool(found) and all(_follows(d, e, conds) for e in found)


def _follows(d: Decomposition, e: Expr, conds: Conds) -> bool:
    if not (isinstance(e, Op) and e.name in ("exp", "exp2")):
        return False
    return proved_below_zero(d, e.args[0], conds) or maximum_in(d, unclamped(d.scope.resolve(e.args[0])), conds) is not None


def _moving_factors(d: Decomposition, e: Expr) -> Iterator[Expr]:
    """The factors of a product, below its roundings, that are made of data and results together."""
    while isinstance(e, Cast):
        e = e.arg
    if isinstance(e, Op) and e.name == "pow" and (constant_of(e.args[1]) or 0.0) > 0:
        yield from _moving_factors(d, e.args[0])
    elif isinstance(e, Op) and e.name in ("mul", "div"):
        x, y = e.args
        yield from _moving_factors(d, x)
        yield from _moving_factors(d, y) if e.name == "mul" else _mixed(d, y)
    else:
        yield from _mixed(d, e)


def _mixed(d: Decomposition, e: Expr) -> Iterator[Expr]:
    if d.scope.kind(e) == "M":
        yield e


def maximum_in(d: Decomposition, arg: Expr, conds: Conds = ()) -> tuple[Mono, Fraction] | None:
    """The results' term ``-c * m`` of a sum whose data is ``c * A``, m being the maximum of A; or None."""
    return next((found for as_is in (True, False) if (found := _maximum_in(d, arg, conds, as_is)) is not None), None)


def _maximum_in(d: Decomposition, arg: Expr, conds: Conds, as_is: bool) -> tuple[Mono, Fraction] | None:
    """as_is: casts that round nothing told apart from what they are of."""
    def spelled(e: Expr) -> Expr:
        return e if as_is else _narrow(e)

    split = split_linear(d.scope, spelled(arg))
    if split is None:
        return None
    moving = {m: c for m, c in split[0].items() if monomial_kind(d.scope, m) == "X"}
    for name, r in d.ranges.reductions.items():
        if r.reducer.kind == "max":
            data = to_poly(spelled(under(conds, d.scope.inline(r.expr))))
            top: Mono = ((Ref(name, r.dtype), F1),)
            for c in {abs(v) for v in moving.values()}:
                if scale(data, c) == moving and split[1].get(top) == -c:
                    return top, -c
    return None


def _narrow(e: Expr) -> Expr:
    """Without casts that round nothing: they change neither which element is the largest nor what it is."""
    if isinstance(e, Cast) and e.dtype in FLOATS and e.arg.dtype in FLOATS and widens(e.arg.dtype, e.dtype):
        return _narrow(e.arg)
    return map_children(e, _narrow) if isinstance(e, Op) and e.name in ("add", "sub", "neg") else e


def proved_below_zero(d: Decomposition, arg: Expr, conds: Conds) -> bool:
    """Proved: arg is a sum of c * (A - m) with c >= 0 and m the maximum of A, and of c * (m - A) with m its minimum."""
    split = split_linear(d.scope, spread(arg))
    if split is None:
        return False
    return bool(split[1]) and _covered(d, add(split[0], split[1]), tuple(split[1]), conds)


def sign_along(d: Decomposition, e: Expr) -> int:
    """+1 where ``e`` is proved not to be negative along the row (``x - min x``), -1 not positive (``x - max x``), else 0."""
    whole = d.scope.resolve(e)
    for side, value in ((-1, whole), (1, Op("neg", (whole,), e.dtype))):
        if d.scope.kind(e) == "M" and proved_below_zero(d, value, ()):
            d.conditions.append(Condition(f"{e} {'>=' if side > 0 else '<='} 0", "interval", "by the extremum in it"))
            return side
    return 0


def of_weights(d: Decomposition, e: Expr) -> bool:
    """Is it a sum of weights of which one is 1 and none is more: a number between 1 and the row's length?"""
    r = d.ranges.reductions.get(e.name) if isinstance(e, Ref) else None
    return r is not None and r.reducer.kind == "sum" and isinstance(r.expr, Op) and r.expr.name in (
        "exp", "exp2") and sign_along(d, r.expr.args[0]) < 0


def _covered(d: Decomposition, whole: Poly, results: tuple[Mono, ...], conds: Conds) -> bool:
    """Is it a sum of gaps, one for each of some results? What remains of the others cancels (``p - u - m``, m of ``p - u``)."""
    left = [m for m in results if m in whole]
    if not left:
        return not whole
    return any(_covered(d, add(whole, gap, -1), tuple(m for m in left if m != mono), conds)
               for mono in left for gap in gaps(d, mono, whole[mono], conds))


def gaps(d: Decomposition, mono: Mono, c: Fraction, conds: Conds) -> Iterator[Poly]:
    """Every ``factor * (A - m)`` (or ``factor * (m - A)``), never positive, whose part in the extremum m is ``c * mono``."""
    for at, (base, q) in enumerate(mono):
        others = (*mono[:at], *mono[at + 1:])
        for kind, body in _extremum_of(d, base) if q == 1 else ():
            sign = 1 if kind == "max" else -1
            factor: Poly = {others: -sign * c}
            if -sign * c > 0 and all(d.ranges.nonneg(b) for b, _ in others):
                data = to_poly(spread(under(conds, d.scope.inline(body))))
                yield multiply(scale(add(data, to_poly(base), -1), Fraction(sign)), factor)


def _extremum_of(d: Decomposition, e: Expr) -> Iterator[tuple[str, Expr]]:
    """The data that a result is at least the maximum of, or at most the minimum."""
    if isinstance(e, Ref) and e.name in d.ranges.reductions:
        r = d.ranges.reductions[e.name]
        if r.reducer.kind in ("max", "min"):
            yield r.reducer.kind, r.expr
    elif isinstance(e, Ref) and e.name in d.scope.definitions:
        yield from _extremum_of(d, d.scope.definitions[e.name])
    elif isinstance(e, Op) and e.name in ("max", "min"):
        for arg in e.args:
            yield from (found for found in _extremum_of(d, arg) if found[0] == e.name)
    elif isinstance(e, Op) and (inside := unguarded(e)) is not e:
        yield from (found for found in _extremum_of(d, inside) if found[0] == "max")


def under(conds: Conds, e: Expr) -> Expr:
    """An expression of elements for which the conditions hold: ``select(k, x, -inf)`` is x where k."""
    if isinstance(e, Op) and e.name == "select":
        for cond, side in conds:
            if e.args[0] == cond:
                return under(conds, e.args[1] if side else e.args[2])
    return map_children(e, lambda x: under(conds, x)) if conds else e


def only_counted(d: Decomposition | Derivation, e: Expr, conds: Conds) -> bool:
    """Do the results in a D-only expression depend on no element but those for which the conditions hold? Then a NaN
    elsewhere cannot reach a sum over these elements through them. True without conditions."""
    scope, reductions = d.scope, d.ranges.reductions

    def seen(x: Expr) -> bool:
        if isinstance(x, Ref) and x.name in scope.definitions:
            return seen(scope.definitions[x.name])
        if isinstance(x, Ref) and x.name in reductions:
            body = scope.inline(reductions[x.name].expr)
            if not (isinstance(body, Op) and body.name == "select"):
                return False
            cond, a, b = body.args
            kept = next((a if side else b for c, side in conds if c == cond), None)
            rest = b if kept is a else a
            return kept is not None and isinstance(rest, Const) and seen(kept)
        return all(map(seen, children(x)))

    return not conds or seen(e)


def may_be_undefined(d: Decomposition | Derivation, e: Expr) -> bool:
    """May a D-only expression be infinite or NaN although every element is finite? A quotient or logarithm of what may be
    zero, or the extremum of a row that a mask may empty."""
    scope, ranges = d.scope, d.ranges
    match e:
        case Ref(name=n) if n in scope.definitions:
            return may_be_undefined(d, scope.definitions[n])
        case Ref(name=n) if n in ranges.reductions:
            r = ranges.reductions[n]
            masked = r.reducer.kind in ("max", "min") and any(
                isinstance(x, Const) and abs(x.value) == float("inf") for x in walk(scope.inline(r.expr)))
            return masked or may_be_undefined(d, r.expr)
        case Op(name="div", args=(_, y)) | Op(name="rsqrt" | "log" | "log2", args=(y,)) if not ranges.of(y).nonzero:
            return True
        case Op(name="pow", args=(x, Const(value=v))) if v < 0 and not ranges.of(x).nonzero:
            return True
    return any(may_be_undefined(d, k) for k in children(e))
