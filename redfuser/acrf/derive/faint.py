"""Weights of which a mask may leave nothing but subnormal ones, and that something divides by their own sum.

    o = sum exp(x - m) / t * v           t = sum select(k, exp(x - m), 0)
    --> o_acc = sum (exp(x - m) * 65536) * v,  o = o_acc / (t * 65536)

What is left of a row below its hidden maximum may be a few times 2^-149, and a product with ``v``, or a rounding to bfloat16
(whose smallest number is 2^-133), then has no digit, where the program's quotient is a number of order 1. Raised by 2^16 every
such weight is rounded as any other number: a whole multiple of 2^-149 becomes one of 2^-133. A power of two costs no digits.
"""

from __future__ import annotations

from dataclasses import replace

from redfuser.acrf.derive.attained import one_or_none
from redfuser.acrf.derive.decomposition import Decomposition, Part, Term
from redfuser.acrf.expr import Cast, Const, Expr, Ref, op, walk
from redfuser.acrf.state import Refuse

RAISED = 2.0**16
LEAST = 2.0**-100
"""A divisor that is never below it is never made of such weights alone."""


def raised(d: Decomposition, t: Term) -> tuple[Term, Part | None]:
    """The term with its first exponential raised, and the divisor among its results that is to be raised with it; or the term
    as it is."""
    at = next((i for i, p in enumerate(t.parts) if p.kind == "scaled" and p.power == 1 and not p.vanishes), None)
    divisor = next((p for p in t.of("d") if p.power == -1 and p.base.dtype == "f32" and may_vanish(d, p.base)), None)
    if at is None or divisor is None:
        return t, None
    base = _raised(t.parts[at].base)
    if base is None:
        return t, None
    return replace(t, parts=(*t.parts[:at], replace(t.parts[at], base=base), *t.parts[at + 1:])), divisor


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


def by(e: Expr) -> Expr:
    return op("mul", e, Const(RAISED, e.dtype))


def may_vanish(d: Decomposition, e: Expr) -> bool:
    """A sum of which nothing says that it has a term far from 0."""
    if not (isinstance(e, Ref) and e.name in d.ranges.reductions and d.ranges.reductions[e.name].reducer.kind == "sum"):
        return False
    r = d.ranges.of(e)
    return r.lo < LEAST and not one_or_none(d, e)


def _raised(e: Expr) -> Expr | None:
    """The exponential raised, inside of the roundings that it meets; None where it is rounded to what has no room for it."""
    if isinstance(e, Cast):
        inside = _raised(e.arg) if e.dtype in ("f32", "bf16") else None
        return inside and Cast(inside, e.dtype)
    return by(e) if e.dtype == "f32" else None
