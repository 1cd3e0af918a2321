"""Arithmetic of halves and float32 numbers: torch widens the halves as it reads them."""

from __future__ import annotations

from typing import Any

from redfuser.outer.scope import HALF, Scope
from redfuser.tvm_compat import dtype_of, op_name, shape_of

SPELLED = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}


def promoted(s: Scope, call: Any) -> str | None:
    """f(astype(x, float32), y) -> f(x, y), where nothing else reads what was widened. Both have axes: of a number and halves
    torch makes halves."""
    if op_name(call) not in SPELLED or dtype_of(call) != "float32" or not all(shape_of(a) for a in call.args):
        return None
    wide = [s.once(a) and op_name(s.value(a)) == "astype" and dtype_of(s.value(a).args[0]) in HALF for a in call.args]
    if wide.count(True) != 1:
        return None
    x, y = (s.tensor(s.value(a).args[0] if w else a) for a, w in zip(call.args, wide, strict=True))
    return f"{x} {SPELLED[op_name(call)]} {y}"
