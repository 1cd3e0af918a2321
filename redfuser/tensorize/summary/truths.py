"""Truths put together, with what is known left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from redfuser.acrf.expr import Const, Expr, op

FALSE, TRUE = Const(False, "bool"), Const(True, "bool")


def operation(name: str, x: Expr, y: Expr) -> Expr:
    return x if name in ("min", "max") and x == y else op(name, x, y)


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
