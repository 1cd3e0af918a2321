"""What a derivation leaves for each reduction: its finalized value, and how names of its accumulators are spelled."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from redfuser.acrf.cascade import Reducer
from redfuser.acrf.expr import Expr

F1 = Fraction(1)
SUM = Reducer("sum")


@dataclass(slots=True)
class Value:
    """A reduction's finalized value. ``rooted``: with the last change of reference, from a guarded reference to the
    true results; ``plain``: without it, equal wherever no guard was taken. ``main``: names of its own accumulators."""

    plain: Expr
    rooted: Expr
    guards: tuple[Expr, ...] = ()
    covered: bool = False
    """The plain value is NaN by itself where a guard was taken (0/0), as the source program's is."""
    vanishes: bool = False
    """Proved: where a guard was taken every element's weight is 0, because the guarded maximum bounds its exponent."""


def own_name(name: str) -> str:
    """The accumulator behind a statement's own name, until it is known whether ``finalize`` changes its value."""
    return f"{name}#"
