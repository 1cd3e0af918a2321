"""Index arithmetic with constants folded; all of it is i64."""

from __future__ import annotations

from redfuser.acrf.expr import Const, Expr, Index, Load, Op


def i64(value: int) -> Const:
    return Const(int(value), "i64")


def iadd(a: Expr, b: Expr) -> Expr:
    """a + b on indices, with constants folded."""
    match a, b:
        case Const(value=x), Const(value=y):
            return i64(int(x) + int(y))
        case Const(value=0), _:
            return b
        case _, Const(value=0):
            return a
        case _, Const(value=y) if y < 0:
            return Op("sub", (a, i64(-int(y))), "i64")
    return Op("add", (a, b), "i64")


def imul(a: Expr, k: int) -> Expr:
    if isinstance(a, Const):
        return i64(int(a.value) * k)
    return i64(0) if k == 0 else a if k == 1 else Op("mul", (a, i64(k)), "i64")


def ifloordiv(a: Expr, k: int) -> Expr:
    if isinstance(a, Const):
        return i64(int(a.value) // k)
    return a if k == 1 else Op("floordiv", (a, i64(k)), "i64")


def imin(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return i64(min(int(a.value), int(b.value)))
    return a if a == b else Op("min", (a, b), "i64")


def imax(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return i64(max(int(a.value), int(b.value)))
    return a if a == b else Op("max", (a, b), "i64")


def at(buffer: str, dtype: str, *axes: str) -> Expr:
    """The element of ``buffer`` at the given loop variables."""
    return Load(buffer, tuple(Index(a) for a in axes), dtype)
