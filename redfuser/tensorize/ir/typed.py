"""One type in every operation, and the type of each load that of its buffer.

A half that is kept in a single-precision tile is read as what it is there; what such a tile and a half are combined to is
computed in single precision and rounded as the operation says::

    p: f32;  x[i, j] * p[i, j]  of f16    -->    f16(f32(x[i, j]) * p[i, j])

What the program computes in single precision of two halves is computed there as well. A sum, difference, product, quotient or
root of two halves in single precision, rounded to half, is the one rounded once (24 bits are more than 2 * 11 + 2).
"""

from __future__ import annotations

from collections.abc import Mapping

from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Load, Op, map_children

EXACT = frozenset({"select", "max", "min", "neg", "abs", "floor", "ceil", "round"})
"""Operations whose result is a value of the operands' own type."""


def typed(e: Expr, homes: Mapping[str, str]) -> Expr:
    """``e`` with one type in every operation. homes: the types of buffers and parameters."""
    match e:
        case Load(tensor=n, indices=indices):
            return Load(n, tuple(typed(i, homes) for i in indices), homes[n])
        case Cast(arg=x, dtype=d):
            x = typed(x, homes)
            return x if x.dtype == d else Cast(x, d)
        case Op(name=name, args=args, dtype=d):
            done = [typed(a, homes) for a in args]
            kinds = {a.dtype for a in (done[1:] if name == "select" else done)}
            if kinds == {"i32", "i64"}:
                kinds, done = {"i64"}, [Cast(a, "i64") if a.dtype == "i32" else a for a in done]
            if not kinds <= FLOATS:
                return Op(name, tuple(done), next(iter(kinds)) if name in EXACT and len(kinds) == 1 else d)
            free = name in EXACT or d not in FLOATS  # a choice, a sign, a comparison: as well in one type as in another
            t = _common(kinds if free else {*kinds, d})
            found = Op(name, tuple(widened(a, t) if a.dtype in FLOATS else a for a in done), t if d in FLOATS else d)
            return found if free or t == d else Cast(found, d)
    return map_children(e, lambda kid: typed(kid, homes))


def _common(kinds: set[str]) -> str:
    """The type that numbers of all these types are computed in."""
    return next(iter(kinds)) if len(kinds) == 1 else "f64" if "f64" in kinds else "f32"


def widened(e: Expr, dtype: str) -> Expr:
    """A float in a type no narrower."""
    return e if e.dtype == dtype else Const(e.value, dtype) if isinstance(e, Const) and _short(e) else Cast(e, dtype)


def _short(c: Const) -> bool:
    """Is the number one of bfloat16's, and so of every float's that it may be called?"""
    mantissa, _ = abs(c.value).as_integer_ratio() if c.value == c.value and abs(c.value) != float("inf") else (1, 1)
    return mantissa == 0 or (mantissa // (mantissa & -mantissa)).bit_length() <= 8
