"""Steps: functions whose result jumps or explodes with what a rounding takes.

Compilers make one operation of a product and the sum or difference that takes it, and leave out the product's rounding. Mostly
that is a gain. It is none before a step: with ``m = max(x * c)`` the argument of ``exp(x * c - m)`` is no longer 0 at the
maximum but ``x * c``'s rounding, 2^10 for scores of 1e10. Both printers say of such a difference that it is of what is rounded.
A sum before a step stays as it is: nothing is taken away that it was made of.
"""

from __future__ import annotations

STEPS = frozenset({"exp", "exp2", "lt", "le", "gt", "ge", "eq", "ne", "floor", "ceil", "round", "trunc", "sign",
                   "floordiv", "mod"})
COARSE = frozenset({"e4m3", "e5m2", "i8", "u8", "i16", "i32", "i64", "bool"})
"""Conversions to these are steps too."""
SUMS = ("add", "sub")
