"""Hyperbolic tangents that are one instruction: where the hardware's own is near enough."""

from __future__ import annotations

import math

from redfuser.acrf.expr import Cast, Const, Expr, Load, Op

HALF = frozenset({"f16", "bf16"})


def near(exact: bool, stored: set[str]) -> bool:
    """May a tangent be the hardware's? Where exponentials may be and all results are of half precision: scores that half
    precision happens to hold have no error of their own, and a total in single precision would show that of the tangent."""
    return not exact and stored <= HALF


def tangent(e: Expr) -> tuple[Expr, float] | None:
    """``(x, k)`` of ``1 - 2 / (1 + exp2(...))`` that is ``tanh(x * k)`` of an ``x`` that was rounded to half precision here."""
    match e:
        case Op(name="sub", dtype="f32", args=(Const(value=1), Op(name="div", args=(Const(value=2), Op(name="add", args=(
                Const(value=1), Op(name="exp2", args=(Op(name="mul", args=(x, Const(value=k))),)))))))) if computed_half(x):
            return x, float(k) * math.log(2.0) / 2
    return None


def computed_half(e: Expr) -> bool:
    """A number of half precision that was computed, as single precision has it."""
    return isinstance(e, Cast) and e.dtype == "f32" and e.arg.dtype in HALF and not isinstance(e.arg, (Load, Const))


__all__ = ["computed_half", "near", "tangent"]
