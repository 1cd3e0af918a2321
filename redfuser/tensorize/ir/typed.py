"""One type in every operation, and the type of each load that of its buffer.

A half that is kept in a single-precision tile is read as what it is there; what such a tile and a half are combined to is
computed in single precision and rounded as the operation says::

    p: f32;  x[i, j] * p[i, j]  of f16    -->    f16(f32(x[i, j]) * p[i, j])

The same value: a sum, difference, product, quotient or root of two halves in single precision, rounded to half, is the one
rounded once (24 bits are more than 2 * 11 + 2).
"""

from __future__ import annotations

from collections.abc import Mapping

from redfuser.acrf.expr import COMPARISONS, FLOATS, Cast, Const, Expr, Load, Op, map_children

HALF = ("f16", "bf16")
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
            values = done[1:] if name == "select" else done
            kinds = {a.dtype for a in values}
            if kinds == {"i32", "i64"}:
                return Op(name, tuple(Cast(a, "i64") if a.dtype == "i32" else a for a in done),
                          d if name in COMPARISONS else "i64")
            if len(kinds) < 2 or not kinds <= FLOATS:
                kept = d if d not in FLOATS or not kinds & FLOATS else values[-1].dtype
                same = Op(name, tuple(done), kept)
                return same if kept == d or name in EXACT or d not in HALF else Cast(same, d)
            wide = Op(name, tuple(a if a.dtype not in FLOATS else widened(a) for a in done),
                      d if name in COMPARISONS else "f32")
            return wide if d not in HALF or name in EXACT else Cast(wide, d)
    return map_children(e, lambda kid: typed(kid, homes))


def widened(e: Expr) -> Expr:
    """A float in single precision."""
    return e if e.dtype == "f32" else Const(e.value, "f32") if isinstance(e, Const) and _short(e) else Cast(e, "f32")


def _short(c: Const) -> bool:
    """Is the number one of bfloat16's, and so of every float's that it may be called?"""
    mantissa, _ = abs(c.value).as_integer_ratio() if c.value == c.value and abs(c.value) != float("inf") else (1, 1)
    return mantissa == 0 or (mantissa // (mantissa & -mantissa)).bit_length() <= 8
