"""Identities of expressions that hold for every value, NaN and infinities included: what every folder folds; and truths
put together, with what is known left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from redfuser.acrf.expr import Cast, Const, Expr, Op, op
from redfuser.dtypes import LARGEST, SMALLEST_NORMAL

FALSE: Expr = Const(False, "bool")
TRUE: Expr = Const(True, "bool")


def is_const(e: Expr, value: float | None = None) -> bool:
    """A number, of any type but bool; this one, where it is given."""
    return isinstance(e, Const) and not isinstance(e.value, bool) and (value is None or float(e.value) == value)


def power_of_two(v: float | int) -> bool:
    """Is it one, or minus one? Dividing by it is multiplying with its inverse, and products with it do not round, where what
    comes of it is :func:`normal`."""
    return v != 0 and math.isfinite(v) and math.frexp(abs(v))[0] == 0.5


def normal(v: float | int, dtype: str) -> bool:
    """Is it a number of all of a float type's digits? A constant that is made of others and is none has lost some, or is
    infinite: 2^-20 is a half's, its inverse is not."""
    return SMALLEST_NORMAL[dtype] <= abs(v) <= LARGEST[dtype]


def identity(e: Expr) -> Expr:
    """``e`` without an operation at its root that does nothing; its operands are folded already."""
    match e:
        case Cast(arg=x, dtype=d) if x.dtype == d:
            return x
        case Op(name="mul" | "div", args=(x, one)) if is_const(one, 1.0):
            return x
        case Op(name="mul", args=(one, x)) if is_const(one, 1.0):
            return x
        case Op(name="add", args=(x, zero), dtype="i64") if is_const(zero, 0.0):
            return x
        case Op(name="and", args=(x, Const(value=True))) | Op(name="and", args=(Const(value=True), x)):
            return x
        case Op(name="not", args=(Op(name="not", args=(x,)),)):
            return x
        case Op(name="select", args=(Const(value=v), x, y)):
            return x if v else y
        case Op(name="select", args=(_, x, y)) if x == y:
            return x
    return e


def every(*truths: Expr) -> Expr:
    return _fold("and", TRUE, FALSE, truths)


def some(*truths: Expr) -> Expr:
    return _fold("or", FALSE, TRUE, truths)


def _fold(name: str, neutral: Expr, zero: Expr, truths: tuple[Expr, ...]) -> Expr:
    """Of several, without what is said twice."""
    parts: dict[Expr, None] = {}
    for t in truths:
        if t == zero:
            return zero
        if t != neutral:
            parts.setdefault(t)
    join: Callable[[Expr, Expr], Expr] = lambda x, y: op(name, x, y)  # noqa: E731
    return reduce(join, parts) if parts else neutral
