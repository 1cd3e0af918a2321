"""Guards written by hand: a choice of 0 where a result is infinite or NaN, and a clamp of it."""

from __future__ import annotations

from redfuser.acrf.expr import FLOATS, Const, Expr, Op, map_children, op
from redfuser.dtypes import LARGEST

INF = float("inf")


def unguarded(e: Expr) -> Expr:
    """x of ``select(x == -inf, 0, x)``, as of any choice of 0 for an x that is infinite or NaN; anything else as it is."""
    return _guarded(e)[0]


def above(e: Expr) -> Expr:
    """x of a choice as :func:`unguarded` sees, 0 where that is +inf if the choice is: what is left of it where x is -inf, which
    has guards of its own."""
    x, at_top = _guarded(e)
    return e if x is e else x if at_top else Op("select", (op("eq", x, Const(INF, x.dtype)), Const(0.0, x.dtype), x), x.dtype)


def unclamped(e: Expr) -> Expr:
    """Without clamps at the largest finite number, which change infinities only."""
    if isinstance(e, Op) and e.name in ("min", "max") and e.dtype in LARGEST:
        for value, limit in (e.args, e.args[::-1]):
            sign, limit = (-1, limit.args[0]) if isinstance(limit, Op) and limit.name == "neg" else (1, limit)
            if isinstance(limit, Const) and sign * limit.value * (1 if e.name == "min" else -1) >= LARGEST[e.dtype]:
                return unclamped(value)
    return map_children(e, unclamped)


def _guarded(e: Expr) -> tuple[Expr, bool]:
    """x, and whether it stays where it is +inf."""
    if isinstance(e, Op) and e.name == "select" and e.dtype in FLOATS:
        for x, instead, side in ((e.args[1], e.args[2], True), (e.args[2], e.args[1], False)):
            if isinstance(instead, Const) and instead.value == 0.0 and _holds(e.args[0], x, 0.0) is side:
                return x, _holds(e.args[0], x, INF) is side
    return e, True


def _holds(e: Expr, x: Expr, at: float) -> bool | None:
    """What a condition is where x is +inf, or for every finite x, where it is the same for all of them."""
    match e:
        case Op(name="not", args=(a,)):
            found = _holds(a, x, at)
            return None if found is None else not found
        case Op(name="and" | "or", args=args):
            sides, decisive = [_holds(a, x, at) for a in args], e.name == "or"
            return decisive if decisive in sides else None if None in sides else not decisive
        case Op(name="isnan", args=(a,)) if a == x:
            return False
        case Op(name="eq" | "ne", args=(a, b)) if a == b == x:
            return e.name == "eq"
        case Op(name="eq" | "ne", args=(a, Const(value=v)) | (Const(value=v), a)) if abs(v) == INF and a in (
                x, Op("abs", (x,), x.dtype)):
            return (e.name == "eq") is (v == at)
    return None
