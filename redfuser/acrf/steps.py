"""Steps: functions whose result jumps or explodes with what a rounding takes.

Compilers make one operation of a product and the sum or difference that takes it, and leave out the product's rounding. Mostly
that is a gain. It is none before a step: with ``m = max(x * c)`` the argument of ``exp(x * c - m)`` is no longer 0 at the
maximum but ``x * c``'s rounding, 2^10 for scores of 1e10. Both printers say of such a difference that it is of what is rounded.
A sum before a step stays as it is: nothing is taken away that it was made of. Nor does it gain where a statistic is taken that
may have been found of the rounded product elsewhere, in another kernel or by a library (``x * c - logsumexp(x * c)``, whose
rounding is the digits that a softmax behind it shows): a tensor's element that lacks an axis of the product's.
"""

from __future__ import annotations

from redfuser.acrf.expr import Expr, Load, indices_of

STEPS = frozenset({"exp", "exp2", "lt", "le", "gt", "ge", "eq", "ne", "floor", "ceil", "round", "trunc", "sign",
                   "floordiv", "mod"})
COARSE = frozenset({"e4m3", "e5m2", "i8", "u8", "i16", "i32", "i64", "bool"})
"""Conversions to these are steps too."""
SUMS = ("add", "sub")


def a_statistic(taken: Expr, product: Expr) -> bool:
    """May ``taken`` have been found of all of a row or column that has ``product`` in it?"""
    return isinstance(taken, Load) and not indices_of(product) <= indices_of(taken)
