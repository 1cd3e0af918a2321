"""Scans as statements: ``cumsum`` and ``cumprod`` along rows, which TVM lowers to a loop that nothing is read off."""

from __future__ import annotations

from typing import Any

from redfuser.acrf.cascade import Reduce, Reducer
from redfuser.acrf.expr import BYTES, FLOATS, Cast, Expr, Index, Load

KINDS = {"relax.cumsum": "sum", "relax.cumprod": "prod"}
Operand = tuple[tuple[int, ...], str]
"""A tensor's shape and dtype."""


def running(call: Any, name: str, args: list[Operand], result: Operand) -> Reduce | str:
    """What a scan computes, over its operand ``@0``; or why it stays torch's call."""
    kind, (shape, dtype) = KINDS.get(name, ""), result
    rank = len(shape)
    axis = getattr(call.attrs, "axis", None)
    axis = int(axis) % rank if axis is not None and rank else None
    if not kind or len(args) != 1 or args[0][0] != shape or not rank or bool(getattr(call.attrs, "exclusive", False)):
        return "a scan of a kind that has no statement"
    if axis != rank - 1 and any(n > 1 for n in shape[(axis or 0) + 1:]):
        return "it is a scan along an axis whose elements lie apart in memory; a kernel scans along rows"
    if shape[-1] <= 1 or 0 in shape or axis != rank - 1:
        return "it is a scan of one element, or of none"
    if dtype not in ("f32", "i64", "i32"):
        return f"it is a scan in {dtype}; tiles are scanned in float32 and in integers of 32 and 64 bits"
    names = tuple(f"a{k}" for k in range(rank))
    x: Expr = Load("@0", tuple(map(Index, names)), args[0][1])
    if x.dtype != dtype and ((x.dtype in FLOATS) != (dtype in FLOATS) or x.dtype not in BYTES):
        return "a scan that converts its operand between floats and integers"
    x = x if x.dtype == dtype else Cast(x, dtype)
    return Reduce(("out",), names, Reducer(kind), names[-1], x, dtype)
