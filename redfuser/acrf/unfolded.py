"""Floats written so that TVM's simplifier (0.25, and TileLang's) leaves them what they are.

The simplifier takes floats for numbers, so it changes what NaN, an infinity or a rounding decides::

    0 * x, 0 / x                 -->  0                    x is NaN or infinite
    x / 0                        -->  an error             an infinity, or NaN
    x - x                        -->  0                    the same
    x + y - x, x + 1 - 1         -->  y, x                 the sum was rounded
    select(c, x, y) - x          -->  select(c, 0, y - x)  x is NaN or infinite
    x == x, x != x               -->  true, false          NaN
    not (x < y)                  -->  y <= x               NaN is neither
    x < y or y <= x              -->  true                 the same
    select(x < y, a, select(y <= x, b, c))  -->  select(x < y, a, b)       what lies behind a choice is simplified knowing
                                                                           that its condition, as it reads it, does not hold

(And its LLVM code generator compares truth values as floats, which LLVM refuses: they are compared as integers.)
Both printers ask here for what they print, so no text has such a form; a test asks the simplifiers themselves.
"""

from __future__ import annotations

import math

from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, walk

_ORDERS = frozenset({"lt", "le", "gt", "ge"})


def unfolded(e: Op) -> Op:
    """An operation of the same value whose outermost form the simplifier does not know; ``e`` itself where it is harmless."""
    while (other := _once(e)) is not e:
        e = other
    return e


def _once(e: Op) -> Op:
    match e:
        case Op(name="mul" | "div" | "sub" as n, args=(x, y), dtype=d) if d in FLOATS:
            return _arithmetic(e, n, _bare(x), _bare(y))
        case Op(name="eq" | "ne" as n, args=(x, y)) if x.dtype in FLOATS and _bare(x) == _bare(y):
            nan = Op("isnan", (x if x.dtype in ("f32", "f64") else Cast(x, "f32"),), "bool")
            return nan if n == "ne" else Op("not", (nan,), "bool")
        case Op(name="eq" | "ne" as n, args=(x, y)) if x.dtype == y.dtype == "bool":
            return Op(n, (Cast(x, "i32"), Cast(y, "i32")), "bool")
        case Op(name="not", args=(c,)) if _ordered(c):
            return _opposite(c)
        case Op(name="select", args=(Op(name="not", args=(c,)), x, y), dtype=d) if _ordered(c):
            return Op("select", (c, y, x), d)
        case Op(name="select", args=(c, x, y), dtype=d) if _ordered(c) and _compares(y):
            return Op("select", (_hidden(c), x, y), d)
        case Op(name="or", args=(x, y)) if _ordered(x) and _compares(y):
            return Op("or", (_hidden(x), y), "bool")
    return e


def _arithmetic(e: Op, name: str, x: Expr, y: Expr) -> Op:
    """x, y: the operands as the simplifier sees them."""
    (left, right), d = e.args, e.dtype
    zero = Const(0.0, d)
    match name, x, y:
        case "div", _, Const(value=0 as v):
            return Op("mul", (left, Const(math.copysign(math.inf, v), d)), d)
        case "div", Const(value=0), _:
            return Op("select", (Op("gt", (Op("abs", (right,), d), zero), "bool"), zero, Const(math.nan, d)), d)
        case ("mul", Const(value=0), _) | ("mul", _, Const(value=0)):
            other = right if isinstance(x, Const) and x.value == 0 else left
            return Op("select", (Op("lt", (Op("abs", (other,), d), Const(math.inf, d)), "bool"), zero, Const(math.nan, d)), d)
    return Op("add", (left, Op("neg", (right,), d)), d) if name == "sub" and _parts(x) & _parts(y) else e


def _opposite(c: Expr) -> Op:
    return Op("select", (c, Const(False, "bool"), Const(True, "bool")), "bool")


def _hidden(c: Expr) -> Op:
    return Op("not", (_opposite(c),), "bool")


def _ordered(c: Expr) -> bool:
    """Does the simplifier read an order of floats in a condition, whose negation it takes for the opposite order? (That of an
    equality is the inequality, for floats as well.)"""
    match c:
        case Op(name=n, args=(x, _)) if n in _ORDERS:
            return x.dtype in FLOATS
        case Op(name="and" | "or" | "not", args=args):
            return any(map(_ordered, args))
    return False


def _compares(e: Expr) -> bool:
    return any(isinstance(x, Op) and x.name in _ORDERS | {"eq", "ne"} and x.args[0].dtype in FLOATS for x in walk(e))


def _parts(e: Expr) -> frozenset[Expr]:
    """What a value may be, or be a sum with: the simplifier takes differences into choices, and then takes them away."""
    match _bare(e):
        case Const(value=0):
            return frozenset()
        case Op(name="sub", args=(x, y), dtype=d):
            return _parts(x) | {_bare(e), _bare(Op("neg", (y,), d))}
        case Op(name="select", args=(_, x, y)) | Op(name="add", args=(x, y)):
            return _parts(x) | _parts(y) | {_bare(e)}
    return frozenset({_bare(e)})


def _bare(e: Expr) -> Expr:
    """Without what the simplifier drops first: factors of one, zeros added, casts to what it is, choices of the same."""
    match e:
        case Op(name="mul" | "div", args=(x, Const(value=1))) | Op(name="mul", args=(Const(value=1), x)):
            return _bare(x)
        case Op(name="add" | "sub", args=(x, Const(value=0))) | Op(name="add", args=(Const(value=0), x)):
            return _bare(x)
        case Cast(arg=x, dtype=d) if x.dtype == d:
            return _bare(x)
        case Op(name="select", args=(_, x, y)) if _bare(x) == _bare(y):
            return _bare(x)
        case Op(name="neg", args=(x,), dtype=d) if d in FLOATS:
            x = _bare(x)
            return Const(-x.value, d) if isinstance(x, Const) else Op("neg", (x,), d)
    return e
