"""Operands in a type that no matrix unit takes exactly, as sums of bfloat16 pieces, a product for each pair that counts::

    x_piece = bf16(x);  x_rest = bf16(x - f32(x_piece));  x_last = bf16(x - f32(x_piece) - f32(x_rest))

A piece has at most 2^-8 of the one before, so that the products left out are below 2^-22 of the whole. An infinity or a NaN
is in the first piece alone, and only the product of first pieces reads it there: in the others it would make a NaN of an
infinity (``inf * 0``, ``inf - inf``).
"""

from __future__ import annotations

import math

from redfuser.acrf.expr import Cast, Const, Expr, Op, f32, op
from redfuser.tensorize.builder import Builder, Operand, Scope, Value
from redfuser.tensorize.ir.nodes import Assign

COUNT = {"f32": 3, "f16": 2, "bf16": 1, "e4m3": 1, "e5m2": 1}
"""Pieces of bfloat16 (8 bits and a sign) whose sum is a number of the type."""


def whole(v: Value) -> Operand:
    """An operand that is one tile."""
    return Operand((v,), v)


def products(a: Operand, b: Operand) -> list[tuple[Value, Value]]:
    """The pairs of pieces whose products add up to the product, the smallest first."""
    most = max(len(a.pieces), len(b.pieces)) - 1
    pairs = [(i, j) for i in range(len(a.pieces)) for j in range(len(b.pieces)) if i + j <= most]

    def piece(x: Operand, i: int, other: int) -> Value:
        return x.finite if i == 0 and other else x.pieces[i]

    return [(piece(a, i, j), piece(b, j, i)) for i, j in sorted(pairs, key=sum, reverse=True)]


def split(work: Builder, src: Value, home: Scope, beside: bool = False) -> Operand:
    """``src``, a tile in shared memory, in pieces beside it; once per tile. beside: the other operand has several pieces, whose
    rests must not meet the infinities of this one though it is one piece."""
    if src.buffer in home.split:
        return home.split[src.buffer]
    count, own = COUNT[src.dtype], src.dtype == "bf16"
    if own and not beside:
        return whole(src)
    stem, points, here = src.buffer.removesuffix("_shared"), work.points(src.axes), work.here

    def tile(name: str) -> Value:
        return Value(src.axes, "bf16", work.buffer(f"{stem}_{name}", "shared", "bf16", work.shape(src.axes)))

    def wide(e: Expr) -> Expr:
        return e if e.dtype == "f32" else Cast(e, "f32")

    tiles = [src] if own else [tile(n) for n in ("piece", "rest", "last")[:count]]
    body = [] if own else [Assign(tiles[0].buffer, points, Cast(here(src), "bf16"))]
    finite = tiles[0]
    if count > 1 or beside:
        finite = tile("finite")
        first = wide(here(tiles[0]))
        settled = op("lt", op("abs", first), f32(math.inf))  # not first - first == 0, which TVM takes for true
        body.append(Assign(finite.buffer, points, Op("select", (settled, here(tiles[0]), Const(0.0, "bf16")), "bf16")))
        left: Expr = Op("select", (settled, op("sub", wide(here(src)), first), f32(0.0)), "f32")
        for before, v in zip([None, *tiles[1:]], tiles[1:], strict=False):
            left = left if before is None else op("sub", left, wide(here(before)))
            body.append(Assign(v.buffer, points, Cast(left, "bf16")))
    home.stmts.append(work.parallel(src.axes, tuple(body)))
    home.split[src.buffer] = Operand(tuple(tiles), finite)
    return home.split[src.buffer]
