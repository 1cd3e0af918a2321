"""Guards written by hand: a choice of 0 where a result is infinite or NaN."""

from __future__ import annotations

from redfuser.acrf.expr import FLOATS, Const, Expr, Op

INF = float("inf")


def unguarded(e: Expr) -> Expr:
    """x of ``select(x == -inf, 0, x)``, as of any choice of 0 for an x that is infinite or NaN; anything else as it is."""
    if isinstance(e, Op) and e.name == "select" and e.dtype in FLOATS:
        for x, instead, side in ((e.args[1], e.args[2], True), (e.args[2], e.args[1], False)):
            if isinstance(instead, Const) and instead.value == 0.0 and _of_finite(e.args[0], x) is side:
                return x
    return e


def _of_finite(e: Expr, x: Expr) -> bool | None:
    """What a condition is for every finite x, where that is one of the two."""
    match e:
        case Op(name="not", args=(a,)):
            found = _of_finite(a, x)
            return None if found is None else not found
        case Op(name="and" | "or", args=args):
            sides, decisive = [_of_finite(a, x) for a in args], e.name == "or"
            return decisive if decisive in sides else None if None in sides else not decisive
        case Op(name="isnan", args=(a,)) if a == x:
            return False
        case Op(name="eq" | "ne", args=(a, b)) if a == b == x:
            return e.name == "eq"
        case Op(name="eq" | "ne", args=(a, Const(value=v)) | (Const(value=v), a)) if abs(v) == INF and a in (
                x, Op("abs", (x,), x.dtype)):
            return e.name == "ne"
    return None
