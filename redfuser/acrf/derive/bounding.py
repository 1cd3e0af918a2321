"""Factors kept with what bounds them, so that no accumulator overflows where the source program does not.

Data to a power stays over the result that dominates it (exponentials: peak.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from redfuser.acrf.cascade import Reduce, Reducer
from redfuser.acrf.derive.bounds import divisor, of_weights
from redfuser.acrf.derive.decomposition import Conds, Decomposition, Part, Term, where, without_constant
from redfuser.acrf.derive.derivation import F1, Derivation, Value
from redfuser.acrf.derive.deviation import at_most, spans
from redfuser.acrf.derive.indicator import moving
from redfuser.acrf.derive.plain import derive_plain
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, children, op, walk
from redfuser.acrf.facts.normal import product, to_poly
from redfuser.acrf.facts.ranges import Interval
from redfuser.acrf.state import Condition
from redfuser.dtypes import LARGEST


def in_range(work: Derivation, r: Reduce, t: Term) -> Term:
    """Powers over results, kept so that they leave the range of the dtype only where the program's own do.

    ``(x / m) ** 2`` is at most 1 where m bounds x, as ``(m / x) ** 2`` is where m is a minimum of ``|x|``; alone, ``x ** 2``
    is out of range for half of the exponents x may have. The quotient stays whole and is rebased as m moves. Where no
    result of the program bounds x, its own running extremum does: ``(x / p) ** 2 * (p / d) ** 2``, with the results that are
    raised alike: ``(t / d * p) ** 2``.

    ``x * y / m`` is no more than y where m bounds x, and ``x * y`` may have no value: of two data and an extremum the quotient
    stays whole too. (Not of a root of squares: they bound x far below the end of the range.)"""
    for base in dict.fromkeys(p.base for p in t.of("x")):
        power = sum((p.power for p in t.of("x") if p.base == base), Fraction(0))
        if not t.of("d") or work.scope.kind(base) != "X" or base.dtype not in FLOATS:
            continue
        if power == 1 and len(_moving(work, t)) > 1:
            t = _over_bound(work, t, base, power, sums=False) or t
        elif abs(power) > 1 and not _few(work, base, power):
            t = _over_bound(work, t, base, power) or _over_peak(work, r, t, base, power)
    return t


def _moving(work: Derivation, t: Term) -> list[Part]:
    return [p for p in t.of("x") if work.scope.kind(p.base) == "X" and p.base.dtype in FLOATS]


def _few(work: Derivation, base: Expr, power: Fraction) -> bool:
    """Whole numbers that have a power without leaving the range: places, flags, bytes."""
    if not isinstance(base, Cast) or base.arg.dtype in FLOATS or power < 0:
        return False
    r = work.ranges.of(base)
    most = max(abs(r.lo), abs(r.hi))
    return most < float("inf") and float(power) * math.log2(most + 1) <= math.log2(LARGEST[base.dtype]) / 2


def _over_bound(work: Derivation, t: Term, base: Expr, power: Fraction, sums: bool = True) -> Term | None:
    """The power of one datum in a term, over the result that bounds it; None where none does. sums: be it made of a sum."""
    size = without_constant(base)[1]
    for i, p in enumerate(map(divisor, t.parts)):
        if p.kind != "d" or p.power != -power or (not sums and _of_sums(work, p.base)):
            continue
        if power > 0 and work.ranges.dominates(p.base, _unrounded(size), loosely=True):
            quotient, text = op("div", base, p.base), f"abs({size}) <= c * ({p.base}) for a constant c"
        elif power < 0 and work.ranges.undercuts(p.base, size):
            quotient, text = op("div", p.base, base), f"{p.base} <= abs({size})"
        else:
            continue
        whole = Part("scaled", product([(quotient, abs(power))], base.dtype), follows=((p.base, p.power),), vanishes=True)
        work.conditions.append(Condition(text, "interval", "bounds the quotient by a constant"))
        return replace(t, parts=tuple(q for q in _in_place(t, base, whole) if q is not t.parts[i]))
    return None


def _unrounded(e: Expr) -> Expr:
    """What a rounding is of: it is no more than a constant times that."""
    while isinstance(e, Cast) and e.dtype in FLOATS and e.arg.dtype in FLOATS:
        e = e.arg
    return e


def _in_place(t: Term, base: Expr, whole: Part) -> list[Part]:
    """The parts of a term, with one for all of a datum where it stood first."""
    found = [i for i, p in enumerate(t.parts) if p.kind == "x" and p.base == base]
    return [whole if i == found[0] else p for i, p in enumerate(t.parts) if i == found[0] or i not in found]


def _over_peak(work: Derivation, r: Reduce, t: Term, base: Expr, power: Fraction) -> Term:
    """The power of one datum in a term, over its own extremum of the row."""
    dtype = base.dtype
    if moving(work, t.conds):
        return t
    kind, edge = ("max", float("-inf")) if power > 0 else ("min", float("inf"))
    body: Expr = base if work.ranges.nonneg(base) else Op("abs", (base,), dtype)
    peak = Ref(hidden(work, r, f"{r.name}_{'peak' if power > 0 else 'least'}", kind, body, edge, t.conds), dtype)
    whole = product([(op("div", base, peak), power)], dtype)
    rest: list[Part | None] = [*_in_place(t, base, Part("scaled", whole, follows=((peak, -power),), vanishes=True))]
    left = power
    for i, q in enumerate(rest):
        if q is None or q.kind != "d" or not left:
            continue
        p = divisor(q)
        taken = min(abs(p.power), abs(left))
        if (p.power < 0) != (left > 0) or (taken.denominator != 1 and not work.ranges.nonneg(p.base)):
            continue
        sign = F1 if left > 0 else -F1
        beside = [j for j, o in enumerate(rest) if o is not None and o.kind == "d" and o.power == sign * taken and taken > 1
                  and (taken.denominator == 1 or work.ranges.nonneg(o.base))]
        own = product([*((rest[j].base, sign) for j in beside), (p.base, -sign)], dtype)  # type: ignore[union-attr]
        ratio = op("div", peak, p.base) if left > 0 and not beside else op("mul" if left > 0 else "div", own, peak)
        for j in beside:
            rest[j] = None
        over = p.power + taken if p.power < 0 else p.power - taken
        rest[i] = Part("d", product([(ratio, taken), (p.base, over)] if over else [(ratio, taken)], dtype))
        left -= taken if left > 0 else -taken
    parts = [p for p in rest if p is not None] + ([Part("d", peak, left)] if left else [])
    return replace(t, parts=tuple(parts))


def in_units(work: Derivation, r: Reduce, d: Decomposition, t: Term, squares: Callable[[Part], Ref]) -> Term:
    """``((x - mean) / sd) ** 4``: the fourth power of ``x - mean`` alone is out of range for three quarters of its
    exponents. It is measured in units that bound it: the range of the data where the program divides by that, else the
    root of the sum of its own squares (``squares`` makes, or finds, that accumulator)."""
    for at, p in enumerate(t.parts):
        if p.kind != "shift" or p.follows or p.unit is not None or p.a is None or p.b is None:
            continue
        over = [(i, divisor(q)) for i, q in enumerate(t.parts)
                if q.kind == "d" and divisor(q).power < 0 and not of_weights(d, q.base) and not _normalises(d, t, q.base)]
        span = next((q.base for _, q in over if spans(d, q.base, op("add", p.a, p.b), t.conds)
                     and not _of_sums(work, q.base)), None)
        if not over or (span is None and (p.power < 3 or p.true is not None)):  # its squares are about what stands in for it
            continue
        dtype = p.base.dtype
        value = work.refs.running(span) if span is not None else Op("sqrt", (squares(p),), dtype)
        name = work.fresh(f"{r.name}_unit")
        work.scope.kinds[name] = "D"
        work.scope.axes[name] = tuple(a for a in r.axes if a in work.scope.axes_of(value))
        work.set_value(name, Value(value, value), value)
        unit = Ref(name, dtype)
        work.ranges.names[name] = Interval(0.0)
        work.refs.units.add(name)
        work.own.add(name)
        rest: list[Part] = []
        left = p.power
        for i, q in enumerate(t.parts):
            taken = min(-divisor(q).power, left) if any(i == k for k, _ in over) else Fraction(0)
            if taken:
                q = divisor(q)
                rest.append(Part("d", op("div", unit, q.base), taken))
                left -= taken
                q = replace(q, power=q.power + taken)
            if i == at:
                rest.append(replace(p, base=op("div", p.base, unit), unit=unit))
            elif q.power:
                rest.append(q)
        if left:
            rest.append(Part("d", unit, left))
        work.choices.append(f"{r.name}: ({p.base}) measured in units of {value}, so that its power stays in range")
        t = replace(t, parts=tuple(rest))
    return t


def _normalises(d: Decomposition, t: Term, e: Expr) -> bool:
    """Is it the sum of the very weights that the term's data are, be it kept from 0? It says nothing of deviations."""
    mine = product([(p.base, p.power) for p in t.of("x")], e.dtype) if t.of("x") and not t.conds else None
    weights = to_poly(d.scope.inline(mine)) if mine is not None else None
    sums = (d.ranges.reductions.get(x.name) for x in at_most(d, d.scope.resolve(e)) if isinstance(x, Ref))
    return any(r is not None and r.reducer.kind == "sum" and to_poly(d.scope.inline(r.expr)) == weights for r in sums)


def _of_sums(work: Derivation, e: Expr) -> bool:
    """A sum, or a root of one of squares, whose own range is that of the squares."""
    return any(isinstance(x, Ref) and x.name in work.ranges.reductions and work.ranges.reductions[x.name].reducer.kind == "sum"
               for x in walk(work.scope.resolve(e)))


def hidden(work: Derivation, r: Reduce, name: str, kind: str, body: Expr, edge: float, conds: Conds) -> str:
    """An extremum of data of the derivation's own, over what the conditions count: a result like any other."""
    work.not_direct(kind)
    body, plain = where(conds, body, Const(edge, body.dtype)), body
    axes = tuple(x for x in r.axes if x in work.scope.axes_of(body))
    name = work.fresh(name)
    hidden = Reduce((name,), axes, Reducer(kind), r.over, body, body.dtype, r.provenance)
    work.scope.axes[name], work.scope.kinds[name] = axes, "D"
    derive_plain(work, hidden)
    work.ranges.declare(replace(hidden, expr=plain))
    work.own.add(name)
    return name


def within_data(work: Derivation, r: Reduce, t: Term) -> Term:
    """``(x - s/q) ** k`` whose denominator may vanish while the row is reduced (a sum of weights of either sign): kept
    about ``s/q`` where that lies in the range of x so far, else about the middle of that range, and moved to ``s/q`` itself in
    ``finalize``. Weights of one sign never leave the range; others cannot carry the reference away from the data, and not to
    its ends either, where products with deviations are largest and segments have references far apart."""
    parts: list[Part] = []
    for p in t.parts:
        if (p.kind != "shift" or p.follows or p.unit is not None or p.a is None or p.b is None
                or _steady(work, work.refs.running(p.b))):
            parts.append(p)
            continue
        dtype = p.base.dtype
        ends = []
        for kind, edge in (("min", float("inf")), ("max", float("-inf"))):
            body = where(t.conds, p.a, Const(edge, dtype))
            axes = tuple(x for x in r.axes if x in work.scope.axes_of(body))
            end = work.fresh(f"{r.name}_{kind}")
            work.scope.axes[end], work.scope.kinds[end] = axes, "D"
            hidden = Reduce((end,), axes, Reducer(kind), r.over, body, dtype, r.provenance)
            derive_plain(work, hidden)
            work.ranges.declare(hidden)
            ends.append(Op("neg", (Ref(end, dtype),), dtype))
        high, low = ends
        inside = Op("and", (Op("le", (p.b, high), "bool"), Op("ge", (p.b, low), "bool")), "bool")
        half = Const(0.5, dtype)
        near = Op("select", (inside, p.b, op("add", op("mul", high, half), op("mul", low, half))), dtype)
        parts.append(replace(p, base=Op("add", (p.a, near), dtype), b=near, true=p.b))
        work.choices.append(f"{r.name}: the reference of ({p.base}) is kept in the range of the data, because its "
                            "denominator may vanish on a part of the row")
    return replace(t, parts=tuple(parts))


def _steady(work: Derivation, e: Expr) -> bool:
    """No denominator in it may have either sign, nor be one that may and is kept from 0 (``max(sum w, eps)``)."""
    if isinstance(e, Op) and e.name == "div" and not _of_one_sign(work, e.args[1]):
        return False
    return all(_steady(work, k) for k in children(e))


def _of_one_sign(work: Derivation, e: Expr) -> bool:
    """By itself: not because an extremum, or the size of it, is taken."""
    if isinstance(e, Const):
        return True
    r = work.refs.ranges.of(e)
    if not (r.nonneg or r.nonpos):
        return False
    return not (isinstance(e, Op) and e.name in ("max", "min", "abs", "add")) or all(_of_one_sign(work, k) for k in e.args)
