"""The constant factors of a product, which a sum of it need not carry."""

from __future__ import annotations

from redfuser.acrf.expr import Cast, Const, Expr, Op
from redfuser.dtypes import FLOATS, widens
from redfuser.partition.fold import fold


def apart(e: Expr) -> tuple[Expr, Expr | None]:
    """``e`` as a product without constants and the constant that it is multiplied by: ``f32(x) * 0.125 * f32(y)`` is ``f32(x) *
    f32(y)`` and 0.125. As it is, and None, where there are none, or nothing else."""
    kept: list[Expr] = []
    constants: list[Expr] = []
    for f in unrounded_factors(e):
        divided = isinstance(f, Op) and f.name == "div" and isinstance(f.args[1], Const) and f.dtype in ("f32", "f64")
        (constants if isinstance(f, Const) or divided else kept).append(f)
    scale: Expr | None = None
    for f in constants:
        if isinstance(f, Op):
            kept.append(f.args[0])
            f = Op("div", (Const(1.0, f.dtype), f.args[1]), f.dtype)
        scale = f if scale is None else fold(Op("mul", (scale, f), e.dtype))
    if scale is None or not kept:
        return e, None
    out, *others = [k if k.dtype == e.dtype else Cast(k, e.dtype) for k in kept]
    for k in others:
        out = Op("mul", (out, k), e.dtype)
    return out, fold(scale)


def unrounded_factors(e: Expr) -> list[Expr]:
    """The factors of a product in single or double precision: what is rounded to a narrower type is one factor."""
    while isinstance(e, Cast) and e.arg.dtype in FLOATS and widens(e.arg.dtype, e.dtype):
        e = e.arg
    if isinstance(e, Op) and e.name == "mul" and e.dtype in ("f32", "f64"):
        return unrounded_factors(e.args[0]) + unrounded_factors(e.args[1])
    return [e]
