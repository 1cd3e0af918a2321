"""A total over several axes of values that were normalised along some of them: along those first.

``sum[i, l] f(x[i, l], m[i])`` is no reduction over the row ``l`` that ``m`` belongs to; ``sum[i] sum[l]`` is one, and the
total of the row results is small. Equal in exact arithmetic, for every associative reducer::

    sum(softmax(x, -1) * y)   -->   sum(sum(softmax(x, -1) * y, -1))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redfuser.tvm_compat import op_name, shape_of

TOTALS = frozenset({"sum", "mean", "prod", "max", "min"})
ROWWISE = frozenset({"nn.softmax", "nn.log_softmax"})
REDUCING = TOTALS | {"variance"}
STEPS = 64
"""Values looked at on the way back to where a row was reduced."""


def row_axes(x: Any, axes: tuple[int, ...], value: Callable[[Any], Any], maps: frozenset[str]) -> tuple[int, ...]:
    """The axes among ``axes`` (some, not all) along which ``x`` was normalised, found through ``maps``; () for none.
    ``value`` gives the call behind a variable."""
    full = shape_of(x)
    todo: list[Any] = [x]
    seen: set[Any] = set()
    while todo and len(seen) < STEPS:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        call = value(v)
        name = op_name(call)
        found: tuple[int, ...] = ()
        if name in ROWWISE and shape_of(v) == full:
            found = (int(call.attrs.axis) % len(full),)
        elif len(shape_of(v)) == len(full) and shape_of(v) != full and reduced(v, value, maps):
            found = tuple(d for d, (n, m) in enumerate(zip(shape_of(v), full, strict=True)) if n == 1 < m)
        if found and set(found) < set(axes):
            return found
        if name in maps:
            todo += [a for a in call.args if hasattr(a, "struct_info") and hasattr(a.struct_info, "shape")]
    return ()


def reduced(v: Any, value: Callable[[Any], Any], maps: frozenset[str]) -> bool:
    """Is ``v`` made from a reduction, by maps and views?"""
    for _ in range(STEPS):
        call = value(v)
        name = op_name(call)
        if name in REDUCING:
            return True
        if name not in maps and name not in ("expand_dims", "reshape", "squeeze"):
            return False
        inner = [a for a in call.args if hasattr(a, "name_hint")]
        if not inner:
            return False
        v = inner[0]
    return False
