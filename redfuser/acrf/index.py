"""Index arithmetic with constants folded; all of it is i64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from redfuser.acrf.expr import Const, Expr, Index, Load, Op, map_children

_OPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "min": min, "max": max,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b}


@lru_cache(maxsize=4096)
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
        case _, Op(name="neg", args=(y,)):
            return i64(0) if a == y else Op("sub", (a, y), "i64")
        case _, Const(value=y) if y < 0:
            return Op("sub", (a, i64(-int(y))), "i64")
    return Op("add", (a, b), "i64")


def isub(a: Expr, b: Expr) -> Expr:
    return iadd(a, imul(b, -1))


def imul(a: Expr, k: int) -> Expr:
    if isinstance(a, Const):
        return i64(int(a.value) * k)
    return i64(0) if k == 0 else a if k == 1 else Op("neg", (imul(a, -k),), "i64") if k < 0 else Op("mul", (a, i64(k)), "i64")


def ifloordiv(a: Expr, k: int) -> Expr:
    if isinstance(a, Const):
        return i64(int(a.value) // k)
    return a if k == 1 else Op("floordiv", (a, i64(k)), "i64")


def imod(a: Expr, k: int) -> Expr:
    if isinstance(a, Const):
        return i64(int(a.value) % k)
    return i64(0) if k == 1 else Op("mod", (a, i64(k)), "i64")


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


def value(e: Expr, at: Mapping[str, int]) -> int:
    """An index expression where its variables are known. Raises KeyError for an operation that indices do not have."""
    match e:
        case Const(value=v):
            return int(v)
        case Index(axis=a):
            return at[a]
        case Op(name="neg", args=(x,)):
            return -value(x, at)
        case Op(name=n, args=(x, y)):
            return int(_OPS[n](value(x, at), value(y, at)))
    raise KeyError(str(e))


def placed(e: Expr, var: str, where: Expr) -> Expr:
    """``e`` with an expression in a variable's place, constants folded."""
    if isinstance(e, Index):
        return where if e.axis == var else e
    done = map_children(e, lambda x: placed(x, var, where))
    match done:
        case Op(name="add", args=(x, y), dtype="i64"):
            return iadd(x, y)
        case Op(name=n, args=(Const(), Const()), dtype="i64") if n in _OPS and done != e:
            return i64(value(done, {}))
    return done
