"""Shapes that broadcast, and constants that change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def unit_insertions(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes of ``new`` at which a 1 was inserted into ``old``; ``None`` if that is not how they differ."""
    if len(new) <= len(old):
        return None
    axes, i = [], 0
    for axis, extent in enumerate(new):
        if i < len(old) and extent == old[i]:
            i += 1
        elif extent == 1:
            axes.append(axis)
        else:
            return None
    return tuple(axes) if i == len(old) and axes else None


def numpy_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that numpy broadcasting gives (the shapes are known to be compatible)."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((e for e in extents if e != 1), 1) for extents in zip(*padded, strict=True))


def changes_nothing(name: str, constant: Any, dtype: str, on_right: bool) -> bool:
    """Whether ``x op constant`` is exactly ``x`` (x + 0.0 is not: it turns -0.0 into 0.0)."""
    integral = not dtype.startswith(("float", "bfloat"))
    match name:
        case "multiply":
            return bool(constant == 1) and dtype != "bool"
        case "divide":
            return on_right and constant == 1 and not integral
        case "subtract":
            return on_right and constant == 0
        case "add":
            return integral and dtype != "bool" and constant == 0
        case "logical_and":
            return bool(constant)
        case "logical_or":
            return not constant
    return False
