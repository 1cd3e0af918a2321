"""Weights of which a mask may leave nothing but subnormal ones, and that something divides by their own sum.

    o = sum exp(x - m) / t * v           t = sum select(k, exp(x - m), 0)
    --> o_acc = sum (exp(x - m) * 65536) * v,  o = o_acc / (t * 65536)

What is left of a row below its hidden maximum may be a few times 2^-149, and a product with ``v``, or a rounding to bfloat16
(whose smallest number is 2^-133), then has no digit, where the program's quotient is a number of order 1. Raised by 2^16 every
such weight is rounded as any other number: a whole multiple of 2^-149 becomes one of 2^-133. A power of two costs no digits.

What divides need not be that sum alone: beside something that vanishes too (``t + exp(-m)``), or that is small (``t + 1e-6``,
``max(t, 1e-20)``), the quotient is no number of order 1 and still a normal one. Only a divisor of at least 1 leaves the weights
as they are. One that may be large is not raised where it is: beyond 2^112 it would be infinite.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from redfuser.acrf.derive.attained import one_or_none
from redfuser.acrf.derive.bounds import divisor
from redfuser.acrf.derive.decomposition import F1, Decomposition, Part, Term
from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref, op, walk
from redfuser.acrf.facts.normal import power
from redfuser.acrf.state import Refuse

RAISED = 2.0**16
MOST = 2.0**111
"""What is never above it may be raised as it is."""
LEAST = 2.0**-100
"""A divisor that is never below it is never made of such weights alone: no quotient by it overflows."""


def raised(d: Decomposition, t: Term) -> tuple[Term, Part | None]:
    """The term with its first exponential raised, and the divisor among its results that is to be raised with it; or the term
    as it is."""
    at = next((i for i, p in enumerate(t.parts) if p.kind == "scaled" and p.power == 1 and not p.vanishes), None)
    small = next((p for p in t.of("d") if _small(d, divisor(p))), None)
    if at is None or small is None:
        return t, None
    base = _raised(t.parts[at].base)
    if base is None:
        return t, None
    return replace(t, parts=(*t.parts[:at], replace(t.parts[at], base=base), *t.parts[at + 1:])), small


def with_it(d: Decomposition, p: Part) -> list[tuple[Expr, Fraction]]:
    """A divisor of raised weights, raised: in its place where it has room for that, else (from 1 on) by what it divides."""
    q = divisor(p)
    e = power(q.base, -q.power, q.base.dtype)
    most = d.ranges.of(e)
    if isinstance(d.scope.resolve(e), Ref) or -MOST <= most.lo <= most.hi <= MOST:
        return [(_by(e), -F1)]
    below = op("lt", e if most.nonneg else op("abs", e), Const(1.0, e.dtype))
    up, down = (Op("select", (below, Const(x, e.dtype), Const(x / RAISED, e.dtype)), e.dtype) for x in (RAISED, 1.0))
    return [(down, F1), (op("mul", e, up), -F1)]


def refuse_rounded(d: Decomposition, t: Term) -> None:
    """Raises Refuse (RF205) where what divides weights of half precision is their own sum, rounded alike, and all may be
    subnormal in it: in the program both are whole multiples of its smallest number, and one weight by itself is 1; at a
    running reference they are rounded elsewhere than their sum."""
    if not any(_rounds(p.base) for p in t.of("scaled")):
        return
    for p in t.of("d"):
        inner = p.base
        while isinstance(inner, Cast):
            inner = inner.arg
        if p.power < 0 and _rounds(p.base) and may_vanish(d, inner):
            raise Refuse("RF205", f"{inner} is a normal number",
                         f"{p.base} rounds a sum of rounded weights, of which nothing may be left but subnormal ones",
                         "keep the sum in float32")


def _rounds(e: Expr) -> bool:
    return any(isinstance(x, Cast) and x.dtype in ("f16", "bf16") for x in walk(e))


def _by(e: Expr) -> Expr:
    return op("mul", e, Const(RAISED, e.dtype))


def may_vanish(d: Decomposition, e: Expr) -> bool:
    """A sum of which nothing says that it has a term far from 0, or what is no more where others vanish too."""
    return _of_sum(d, e) and d.ranges.of(e).lo < LEAST and not one_or_none(d, e)


def _of_sum(d: Decomposition, e: Expr) -> bool:
    """A sum of the row, also beside others, the larger of both, scaled or rounded."""
    match e:
        case Ref(name=n) if n in d.scope.definitions:
            return _of_sum(d, d.scope.definitions[n])
        case Ref(name=n):
            return n in d.ranges.reductions and d.ranges.reductions[n].reducer.kind == "sum"
        case Cast(arg=x):
            return _of_sum(d, x)
        case Op(name="add" | "max" | "mul", args=args):
            return any(_of_sum(d, x) for x in args)
    return False


def _small(d: Decomposition, p: Part) -> bool:
    """A divisor that is made of a sum and may be less than 1."""
    found = (d.ranges.reductions.get(x.name) for x in walk(d.scope.resolve(p.base)) if isinstance(x, Ref))
    return p.power < 0 and p.base.dtype == "f32" and any(r is not None and r.reducer.kind == "sum" for r in found) \
        and not one_or_none(d, p.base)


def _raised(e: Expr) -> Expr | None:
    """The exponential raised, inside of the roundings that it meets; None where it is rounded to what has no room for it."""
    if isinstance(e, Cast):
        inside = _raised(e.arg) if e.dtype in ("f32", "bf16") else None
        return inside and Cast(inside, e.dtype)
    return _by(e) if e.dtype == "f32" else None
