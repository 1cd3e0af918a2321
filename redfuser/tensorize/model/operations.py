"""Instructions for one value: of the CUDA cores, and of the special function units."""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, walk
from redfuser.tensorize.ir.tangents import computed_half, tangent

COST = {"div": (8, 1), "sqrt": (8, 1), "rsqrt": (4, 1), "exp2": (1, 1), "exp": (3, 1), "log": (3, 1), "log2": (2, 1),
        "tanh": (10, 2), "tangent": (1, 1), "sigmoid": (10, 2), "erf": (20, 1), "sin": (20, 0), "cos": (20, 0), "pow": (20, 2),
        "erfc": (30, 2), "atan2": (30, 1), "lgamma": (60, 2)}
"""Instructions of the CUDA cores and of the special function units for one value; any other operation is one of the former, a
product that is added to something none. ``tangent``: the hardware's, of a number times a constant."""


def operations(e: Expr, exact: bool, hardware: bool = False, flat: bool = False, along: str = "") -> tuple[float, float]:
    """Instructions for one value; those of indices count for nothing. hardware: tangents of what was rounded to half precision
    are the hardware's; flat: of other numbers too. along: the axis of neighbours, where a condition of positions is one
    comparison for as many of them as it holds of, since loops are unrolled."""
    core, special = 0.0, 0.0
    for x in _values(e, hardware, flat, along):
        if along and isinstance(x, Op) and x.dtype == "bool" and (alike := _alike(x, along)):
            core += 1.0 / alike
        elif isinstance(x, Op):
            c, f = (4, 1) if x.name == "div" and not exact else COST.get(x.name, (1, 0))
            joined = x.name in ("add", "sub") and any(isinstance(k, Op) and k.name == "mul" for k in x.args)
            core, special = core + (0.5 if x.dtype == "i64" else c - joined), special + f
        elif isinstance(x, Cast):
            core += 0.5
    return max(core, 1.0), special


def _values(e: Expr, hardware: bool, flat: bool, along: str) -> Iterator[Expr]:
    """All parts but loads. Of two positions that are added (``AddPositions``) each is converted once a row."""
    if hardware and (x := _tangent(e, flat)) is not None:
        yield Op("tangent", (x,), "f32")
        yield from _values(x, hardware, flat, along)
        return
    yield e
    match e:
        case Op(dtype="bool") if along and _alike(e, along):
            return
        case Op(name="add", args=(Cast(arg=x, dtype="f32"), Cast(arg=y, dtype="f32"))) if x.dtype == y.dtype == "i64":
            return
    for k in e.args if isinstance(e, Op) else (e.arg,) if isinstance(e, Cast) else ():
        yield from _values(k, hardware, flat, along)


def _alike(e: Expr, along: str) -> int:
    """For how many neighbours along an axis a condition of positions is one (of positions in whole accesses, several), 0 of one
    that data decide."""
    def within(x: Expr, run: int) -> Iterator[int]:
        if x == Index(along):
            yield run
        if isinstance(x, Op):
            by = x.args[-1]
            for k in x.args:
                yield from within(k, int(by.value) if x.name == "floordiv" and isinstance(by, Const) else run)

    return 0 if any(isinstance(x, Load) for x in walk(e)) else min(within(e, 1), default=1)


def _tangent(e: Expr, flat: bool) -> Expr | None:
    """What a hyperbolic tangent is of, in either spelling, where the hardware's own is near enough."""
    match e:
        case Op(name="tanh", dtype="f32", args=(x,)) if any(map(computed_half, walk(x))):
            return x
    found = tangent(e, flat)
    return None if found is None else found[0]
