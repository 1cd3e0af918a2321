"""Arithmetic of halves and float32 numbers: torch widens the halves as it reads them."""

from __future__ import annotations

from typing import Any

from redfuser.outer.scope import HALF, Scope, scalar
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


def scaled(s: Scope, call: Any) -> str | None:
    """astype(multiply(astype(x, float32), c), half) -> x * c, where nothing else reads what is between: of halves and a number
    torch's product is that of float32, rounded once. (Not its sum or quotient, on every device.)"""
    if op_name(call) != "astype" or dtype_of(call) not in HALF or not s.once(call.args[0]):
        return None
    product = s.value(call.args[0])
    if op_name(product) != "multiply" or dtype_of(product) != "float32":
        return None
    wide, c = sorted(product.args, key=lambda a: scalar(a) is not None)
    x = s.value(wide)
    if scalar(c) is None or not s.once(wide) or op_name(x) != "astype" or dtype_of(x.args[0]) != dtype_of(call):
        return None
    return f"{s.tensor(x.args[0])} * {s.text(c)}"
