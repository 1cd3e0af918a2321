"""Casts are operations: which roundings may move, and by how much the result may change.

``preserve``: a rounding to f16 or bf16 is *relative*, so it commutes with a non-negative scale: ``f16(g h)`` becomes
``f16(g) h`` with a relative difference of at most ``2u + u**2`` per element (``u`` the unit roundoff), listed in the
certificate. Not so below f16's smallest normal number: where ``g`` may be there and ``h`` above 1 (weights of which a mask
takes away all but small ones, made to sum to 1 again) it refuses. Everything else (fp8, ``round``, a rounding of a sum of
data and results) stays where it is, or refuses.

``elide``: a rounding of one term stays, taken at the running results instead of the final ones (the FP8 single-pass
form), and the accumulator is rescaled as they change; a rounding of a sum of terms is dropped. Each is listed with its bound.
So is, also under ``preserve``, one that has no place: its operand does not fit the type before it is divided, and what divides
it may be infinite for a part of the row (``exp(-m)`` of the maximum so far). Lowering may round such weights for a matrix unit
all the same, before they are divided, and lists it (docs/algebra.md says where that exceeds the rule).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from redfuser.acrf.derive.attained import one_or_none
from redfuser.acrf.derive.bounds import bound_of, divisor
from redfuser.acrf.derive.decomposition import Decomposition, Part, Term
from redfuser.acrf.derive.faint import may_vanish
from redfuser.acrf.expr import FLOATS, Cast, Expr, Op, unwidened, walk
from redfuser.acrf.facts.normal import product
from redfuser.acrf.state import Condition, Refuse, no_rule
from redfuser.dtypes import LARGEST, SMALLEST_NORMAL, UNIT, widens

RELATIVE = frozenset({"f16", "bf16", "f32"})
"""Targets whose rounding is relative down to the smallest normal number."""


def mixed_cast(d: Decomposition, e: Cast) -> list[Term]:
    """The terms of a cast of a mixed expression. Raises Refuse (RF205) where the rounding may not move."""
    terms = d.expand(e.arg)
    if widens(e.arg.dtype, e.dtype):
        return [_wrap_exact(t, e) for t in terms]
    if e.dtype not in FLOATS or e.arg.dtype not in FLOATS:
        return _absolute(d, e, terms)
    if len(terms) != 1 or terms[0].of("shift"):
        if d.casts == "elide":
            d.roundings.append(f"{e}: the rounding to {e.dtype} is dropped; at most u = {UNIT[e.dtype]:.3g} of "
                               "the magnitude of each element")
            return terms
        raise Refuse("RF205", f"{e.arg} is one product of data and results",
                     f"{e} rounds a sum of data and results: the rounded value changes with the result",
                     "round after the reduction, or allow it with casts=\"elide\" (its error bound is reported)")
    return [_relative(d, e, terms[0])] if e.dtype in RELATIVE else [_running(d, e, terms[0])]


def _split(t: Term) -> tuple[list[Part], list[Part]]:
    """(data and scaled parts, which stay inside a cast; results, which come out of it)."""
    return [p for p in t.parts if p.kind in ("x", "scaled")], [p for p in t.parts if p.kind == "d"]


def _inside(parts: list[Part], e: Cast, coefficient: Fraction) -> Part:
    inner = product([(p.base, p.power) for p in parts], e.arg.dtype, coefficient)
    follows = tuple(f for p in parts for f in p.follows)
    base = Cast(inner, e.dtype)
    return Part("scaled", base, follows=follows) if follows else Part("x", base)


def _wrap_exact(t: Term, e: Cast) -> Term:
    """A widening cast: nothing is rounded, so it may sit on the data alone."""
    inside, results = _split(t)
    if not results and not t.of("shift") and len(inside) == 1 and inside[0].power == 1:
        p = inside[0]
        return replace(t, parts=(replace(p, base=Cast(p.base, e.dtype)),))
    parts = tuple(replace(p, base=Cast(p.base, e.dtype)) if p.base.dtype != e.dtype and p.kind != "shift" else p
                  for p in t.parts)
    return replace(t, parts=parts)


def _relative(d: Decomposition, e: Cast, t: Term) -> Term:
    inside, results = _split(t)
    u = UNIT[e.dtype]
    moved = [str(p.base) for p in results] + [str(b) for p in inside for b, _ in p.follows]
    for p in results:
        if not (d.ranges.nonneg(p.base) or p.power % 2 == 0):
            raise Refuse("RF206", f"{p.base} >= 0", f"{e} rounds a product with {p.base}; a rounding commutes with a scale "
                         "whose sign is known", "take abs() of the factor, or prove its sign by its definition")
        d.conditions.append(Condition(f"{p.base} >= 0", d.ranges.how_nonneg(p.base) or "table", f"moves out of {e}"))
    data = replace(t, parts=tuple(inside))
    core = product([(p.base, p.power) for p in inside], e.arg.dtype, t.coefficient)
    bound = bound_of(d, data)
    if (bound is None or bound > LARGEST[e.dtype]) and not d.ranges.fits(core, e.dtype):
        if not any(_soars(d, p.base) for p in results):
            return _running(d, e, t)
        d.roundings.append(f"{e}: the rounding to {e.dtype} is dropped; at most u = {u:.3g} of the magnitude of each element")
        return t
    if moved and _may_vanish(d, e, core, results):
        raise Refuse("RF205", f"{' * '.join(str(p.base) for p in results if p.power < 0)} is at least 1",
                     f"{e} has digits where {core}, which may be below {SMALLEST_NORMAL[e.dtype]:.3g}, has none left",
                     "divide in one kernel and multiply in a second, or round to bf16")
    if moved:
        d.roundings.append(
            f"{e}: {e.dtype} rounding moves across {', '.join(dict.fromkeys(moved))}; relative change at most "
            f"2u + u*u = {2 * u + u * u:.4g} (u = {u:.4g}) for magnitudes above {SMALLEST_NORMAL[e.dtype]:.3g}")
    return replace(t, coefficient=Fraction(1), parts=(_inside(inside, e, t.coefficient), *results))


def _may_vanish(d: Decomposition, e: Cast, core: Expr, results: list[Part]) -> bool:
    """May the rounding of ``core`` alone lose digits that the program's has? Not where ``core`` is never below what the dtype
    has in full, and not where what scales it afterwards is at most 1: the program then rounds something smaller still. A
    divisor that is 0 divides weights that are all 0."""
    return not (keeps_digits(core, e.dtype) or all(
        one_or_none(d, p.base) if p.power < 0 else d.ranges.of(p.base).hi <= 1.0
        for p in map(divisor, results)))


def keeps_digits(e: Expr, dtype: str) -> bool:
    """Is a rounding of it to ``dtype`` relative however small it is: of a number of that dtype already, or one whose range is
    float32's?"""
    e = unwidened(e)
    return e.dtype == dtype or SMALLEST_NORMAL[dtype] <= SMALLEST_NORMAL["f32"]


def _running(d: Decomposition, e: Cast, t: Term) -> Term:
    """The rounding stays on the whole value, taken at the running results; the accumulator follows their change."""
    if d.casts != "elide" and e.dtype not in RELATIVE:
        raise Refuse("RF205", f"{e} rounds data only",
                     f"a rounding to {e.dtype} is not relative over its whole range, so it does not commute with the scale "
                     "by a result of the whole row",
                     "quantise in one kernel and multiply in a second (exact), or allow casts=\"elide\" (its error bound is "
                     "reported)")
    if not _scales(d, t):
        raise Refuse("RF206", f"the results in {e} are non-negative",
                     "a rounding taken at running results is rescaled by their ratio, which must not change its sign",
                     "take abs() of the factor, or prove its sign by its definition")
    faint = [p for p in map(divisor, t.of("d")) if p.power < 0 and may_vanish(d, p.base)] if t.of("scaled") else []
    if faint and e.dtype in RELATIVE:
        raise Refuse("RF205", f"{faint[0].base} is a normal number, or at least 1",
                     f"{e} is rounded at the running results, where nothing may be left of a row but weights far below the "
                     "largest, which is hidden: quotients by a sum that is subnormal overflow",
                     "divide in one kernel and multiply in a second, keep the weights in float32, or give the divisor a least "
                     "value")
    u, tiny = UNIT[e.dtype], SMALLEST_NORMAL[e.dtype]
    if d.casts == "elide" or e.dtype not in RELATIVE:
        d.roundings.append(f"{e}: {e.dtype} rounding is taken at the running results; per element at most 2u = {2 * u:.4g} "
                           f"of its magnitude, plus 2u * {tiny:.4g} below the normal range")
    else:
        d.roundings.append(f"{e}: {e.dtype} rounding is taken at the running results; relative change at most "
                           f"2u + u*u = {2 * u + u * u:.4g} (u = {u:.4g}) for magnitudes above {tiny:.3g}")
    return replace(t, coefficient=Fraction(1), parts=(Part("scaled", _respell(e, t), follows=follows_of(t)),))


def _respell(e: Cast, t: Term) -> Expr:
    """The cast over the term's parts (a clip that a bound made redundant is gone, its guard is the bound)."""
    return Cast(product([(p.base, p.power) for p in t.parts], e.arg.dtype, t.coefficient), e.dtype)


def _soars(d: Decomposition, e: Expr) -> bool:
    """Has it an exponential that nothing bounds? Of a part of a row that may be infinite where it is not of the whole row:
    ``exp(-m)`` of a maximum so far."""
    return any(isinstance(x, Op) and x.name in ("exp", "exp2") and d.ranges.of(x).hi == float("inf")
               for x in walk(d.scope.resolve(e)))


def follows_of(t: Term) -> tuple[tuple[Expr, Fraction], ...]:
    return tuple(f for p in t.parts for f in (p.follows if p.kind == "scaled" else ((p.base, p.power),)
                                              if p.kind == "d" else ()))


def _scales(d: Decomposition, t: Term) -> bool:
    return all(d.ranges.nonneg(b) or q % 2 == 0 for b, q in follows_of(t))


def rounded_value(d: Decomposition, e: Op) -> list[Term]:
    """``round(x h)`` (also floor, ceil) of one term: under ``elide`` taken at the running results."""
    terms = d.expand(e.args[0])
    if d.casts != "elide":
        return no_rule(e)
    if len(terms) != 1 or terms[0].of("shift"):
        raise Refuse("RF205", f"{e.args[0]} is one product of data and results",
                     f"{e} rounds a sum of data and results: taken at running results it would be shifted, not only scaled, "
                     "as they change", "round in a second pass, or shift the data by an input")
    if not _scales(d, terms[0]):
        raise Refuse("RF206", f"the results in {e} are non-negative",
                     "a rounding taken at running results is rescaled by their ratio, which must not change its sign",
                     "take abs() of the factor, or prove its sign by its definition")
    t = terms[0]
    step = 0.5 if e.name == "round" else 1.0
    d.roundings.append(f"{e}: taken at the running results; per element at most {2 * step:g} quantisation steps of the final "
                       "scale where the running scale never exceeds the final one")
    inner = product([(p.base, p.power) for p in t.parts], e.dtype, t.coefficient)
    part = Part("scaled", Op(e.name, (inner,), e.dtype), follows=follows_of(t))
    return [replace(t, coefficient=Fraction(1), parts=(part,))]


def _absolute(d: Decomposition, e: Cast, terms: list[Term]) -> list[Term]:
    """A cast to or from integers of a mixed value."""
    if e.arg.dtype not in FLOATS and e.dtype in FLOATS:
        if e.arg.dtype == "bool":
            return no_rule(e.arg if isinstance(e.arg, Op) else Op("not", (e.arg,), "bool"))
        return [_wrap_exact(t, e) for t in terms]
    if d.casts == "elide" and len(terms) == 1 and not terms[0].of("shift") and _scales(d, terms[0]):
        t = terms[0]
        whole = e.arg.dtype not in FLOATS or (isinstance(e.arg, Op) and e.arg.name in ("round", "floor", "ceil"))
        if whole:
            return [replace(t, coefficient=Fraction(1), parts=(Part("scaled", _respell(e, t), follows=follows_of(t)),))]
        d.roundings.append(f"{e}: truncation is taken at the running results; per element at most 1 quantisation step of the "
                           "final scale where the running scale never exceeds the final one")
        return [replace(t, coefficient=Fraction(1), parts=(Part("scaled", _respell(e, t), follows=follows_of(t)),))]
    raise Refuse("RF205", f"{e} rounds data only", f"a conversion to {e.dtype} of a value that depends on a result does not "
                 "commute with a change of that result", "convert in a second pass, or allow casts=\"elide\"")
