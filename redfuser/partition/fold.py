"""Local normal forms of scalar expressions: constants folded, masks brought into one spelling.

Models spell the same mask in many ways; the algebra and the loop-range analysis want one. What changes values, and where:

* ``x + select(c, 0, k)`` with ``k <= -1e30`` (or ``-inf``) becomes ``select(c, x, k)``: equal unless ``|x|`` is within
  rounding of ``k`` (> 1e22 in float32), or ``x`` at a masked position is NaN or +inf. What ``x`` is known to be there is
  added: where two masks of the least float hide one element, the program has -inf.
* ``x / k`` with ``k`` a power of two becomes ``x * (1/k)``, where that is a normal number of the type: exact.
* ``x * 1``, ``x + 0``, ``x - 0``, ``x / 1``: dropped (``-0.0 + 0.0`` keeps its sign).
* ``pow(x, 2)``, ``pow(x, 1/2)``, ``pow(x, -1/2)``: ``x * x``, ``sqrt``, ``rsqrt``.
* a cast to a wider float and back: dropped.
Everything else is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from redfuser.acrf.check.domains import NUMPY
from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, Ref, op
from redfuser.acrf.fold import identity, normal, power_of_two
from redfuser.dtypes import FLOATS, widens

_NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16}
_FLIP = {"lt": ("le", True), "le": ("lt", True), "gt": ("le", False), "ge": ("lt", False), "eq": ("ne", False),
         "ne": ("eq", False)}
_COMPUTE: dict[str, Callable[..., float]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "neg": lambda x: -x, "min": min, "max": max, "sqrt": np.sqrt}


def fold(e: Expr) -> Expr:
    """One step at the root; the children are already folded."""
    if isinstance(e, Cast):
        return fold_cast(e)
    if not isinstance(e, Op):
        return e
    args = e.args
    if (value := compute(e)) is not None:
        return value
    if (pushed := into_select(e)) is not None:
        return pushed
    if (same := identity(e)) is not e:
        return same
    match e.name, args:
        case "add", (x, y):
            return add(x, y, e.dtype)
        case "sub", (x, Const(value=v)) if v == 0:
            return x
        case "mul", (Const() as k, x) if not isinstance(x, Const):
            return fold(Op("mul", (x, k), e.dtype))
        case "mul", (Op(name="mul", args=(x, Const(value=v))), Const(value=w)) if (
                e.dtype in FLOATS and w > 0 and power_of_two(w) and normal(v * w, e.dtype)):
            return Op("mul", (x, Const(v * w, e.dtype)), e.dtype)
        case "div", (x, Const(value=v)) if (
                e.dtype in FLOATS and v > 0 and power_of_two(v) and normal(1.0 / v, e.dtype)):
            return fold(Op("mul", (x, Const(1.0 / v, e.dtype)), e.dtype))
        case "pow", (x, Const(value=v)) if v in (2, 1, 0.5, -0.5, 3):
            return {2: lambda: op("mul", x, x), 1: lambda: x, 0.5: lambda: op("sqrt", x), -0.5: lambda: op("rsqrt", x),
                    3: lambda: op("mul", op("mul", x, x), x)}[v]()
        case "pow", (Const(value=v), x) if v == 2:
            return op("exp2", x)
        case "and", (x, y):
            return conjunction(x, y)
        case "or", (x, y):
            return negate(conjunction(negate(x), negate(y))) if Const in (type(x), type(y)) else e
        case "not", (x,):
            return negate(x)
        case "gt" | "ge", (x, y):
            return fold(Op({"gt": "lt", "ge": "le"}[e.name], (y, x), "bool"))
        case "lt" | "ne" | "eq" | "le", (Const(value=v), Const(value=w)):
            return Const({"lt": v < w, "ne": v != w, "eq": v == w, "le": v <= w}[e.name], "bool")
        case "lt" | "ne" | "eq" | "le", (x, y):
            return truth(e)
        case "select", (c, x, y):
            return select(c, x, y, e.dtype)
    return e


def fold_cast(e: Cast) -> Expr:
    match e.arg:
        case x if x.dtype == e.dtype:
            return x
        case Const(value=v) if e.dtype in _NUMPY and not (isinstance(v, float) and e.arg.dtype not in _NUMPY):
            return Const(float(_NUMPY[e.dtype](v)), e.dtype)
        case Const(value=v) if e.dtype == "bool":
            return Const(bool(v), "bool")
        case Const(value=v) if e.dtype in ("i64", "i32") and math.isfinite(v):
            return Const(int(v), e.dtype)
        case Cast(arg=x, dtype=mid) if x.dtype == e.dtype and exact(x.dtype, mid):
            return x
        case Cast(arg=x) if x.dtype == "bool" and e.dtype != "bool":
            return fold_cast(Cast(x, e.dtype))
        case Cast(arg=x, dtype=mid) if exact(x.dtype, mid) and exact(mid, e.dtype):
            return Cast(x, e.dtype)
        case Op(name="select", args=(c, Const() as x, Const() as y)):
            return select(c, fold_cast(Cast(x, e.dtype)), fold_cast(Cast(y, e.dtype)), e.dtype)
        case x if x.dtype == "bool" and e.dtype in ("f32", "f64", "f16") and not isinstance(x, Load):
            return Op("select", (x, Const(1.0, e.dtype), Const(0.0, e.dtype)), e.dtype)
    return e


def exact(source: str, target: str) -> bool:
    """Does a cast between floats lose nothing?"""
    return source in FLOATS and target in FLOATS and source != target and widens(source, target)


def compute(e: Op) -> Const | None:
    """Arithmetic on constants, in the dtype of the program."""
    if e.name not in _COMPUTE or e.dtype not in _NUMPY or not all(isinstance(a, Const) for a in e.args):
        return None
    with np.errstate(all="ignore"):
        values = [_NUMPY[e.dtype](a.value) for a in e.args if isinstance(a, Const)]
        return Const(float(_NUMPY[e.dtype](_COMPUTE[e.name](*values))), e.dtype)


def into_select(e: Op) -> Expr | None:
    """``(1 - select(c, 1, 0)) * k`` folds branch by branch, as long as the branches stay constants."""
    if e.name not in _COMPUTE:
        return None
    picks = [a for a in e.args if isinstance(a, Op) and a.name == "select" and all(isinstance(b, Const) for b in a.args[1:])]
    if len(picks) != 1 or not all(isinstance(a, Const) or a is picks[0] for a in e.args):
        return None
    sides = []
    for b in (1, 2):
        got = compute(Op(e.name, tuple(a.args[b] if a is picks[0] else a for a in e.args), e.dtype))
        if got is None:
            return None
        sides.append(got)
    return select(picks[0].args[0], sides[0], sides[1], e.dtype)


def add(x: Expr, y: Expr, dtype: str) -> Expr:
    for a, b in ((x, y), (y, x)):
        if isinstance(b, Const) and b.value == 0:
            return a
        if isinstance(b, Op) and b.name == "select" and _visible(b, -6e4 if dtype == "f16" else -1e30) == 1:
            return _masked(a, b, dtype)
    return Op("add", (x, y), dtype)


def _visible(mask: Expr, least: float) -> float:
    """How often a choice among constants is 0; NaN unless all others are ``least`` or less."""
    match mask:
        case Const(value=v):
            return 1 if v == 0 else 0 if v <= least else math.nan
        case Op(name="select", args=(_, x, y)):
            return _visible(x, least) + _visible(y, least)
    return math.nan


def _masked(x: Expr, mask: Expr, dtype: str) -> Expr:
    """``x + mask``: ``x`` where the mask is 0, elsewhere what the mask makes of any ``x``."""
    match mask:
        case Op(args=(c, one, other)):
            return select(c, _masked(x, one, dtype), _masked(x, other, dtype), dtype)
        case Const(value=v) if v != 0:
            return _hidden(x, mask)
    return x


def _hidden(x: Expr, k: Const) -> Expr:
    """``x + k`` for a ``k`` beside which only the constants in ``x`` count."""
    match x:
        case Const(value=v):
            with np.errstate(over="ignore"):
                return Const(float(NUMPY[k.dtype](v) + NUMPY[k.dtype](k.value)), k.dtype)
        case Op(name="select", args=(c, one, other)):
            return select(c, _hidden(one, k), _hidden(other, k), k.dtype)
    return k


def select(c: Expr, x: Expr, y: Expr, dtype: str) -> Expr:
    """The constant of a mask on the right (``select(keep, x, -inf)``); nested masks joined."""
    if isinstance(c, Const):
        return x if c.value else y
    if x == y:
        return x
    if isinstance(x, Const) and not isinstance(y, Const):
        return select(negate(c), y, x, dtype)
    if isinstance(x, Const) and isinstance(y, Const) and isinstance(c, Op) and c.name == "not":
        return select(c.args[0], y, x, dtype)
    if isinstance(x, Const) and isinstance(y, Const) and x.value < y.value and isinstance(c, Op) and c.name in _FLIP:
        return Op("select", (negate(c), y, x), dtype)
    if isinstance(x, Op) and x.name == "select" and isinstance(y, Const) and x.args[2] == y:
        return Op("select", (conjunction(x.args[0], c), x.args[1], y), dtype)
    return Op("select", (c, x, y), dtype)


def conjunction(x: Expr, y: Expr) -> Expr:
    for a, b in ((x, y), (y, x)):
        if isinstance(a, Const):
            return b if a.value else a
    return x if x == y else Op("and", (x, y), "bool")


def negate(c: Expr) -> Expr:
    """Logical negation; integer comparisons flip (floats do not: NaN)."""
    match c:
        case Const(value=v):
            return Const(not v, "bool")
        case Op(name="not", args=(x,)):
            return x
        case Op(name=n, args=(x, y)) if n in _FLIP and x.dtype not in FLOATS:
            name, swap = _FLIP[n]
            return Op(name, (y, x) if swap else (x, y), "bool")
        case Op(name="and", args=(x, y)) if simple(x) and simple(y):
            return Op("or", (negate(x), negate(y)), "bool")
        case Op(name="or", args=(x, y)):
            return conjunction(negate(x), negate(y))
    return Op("not", (c,), "bool")


def simple(c: Expr) -> bool:
    return isinstance(c, (Load, Ref, Const)) or (isinstance(c, Op) and c.name in _FLIP)


def truth(e: Op) -> Expr:
    """``0 < i64(c)``, ``i64(c) != 0``, ``c == false`` and the like are ``c`` or ``not c``."""
    x, y = e.args
    for pick, other, left in ((x, y, True), (y, x, False)):
        match pick, other:
            case Op(name="select", args=(c, Const(value=p), Const(value=q))), Const(value=k):
                got = [_holds(e.name, (v, k) if left else (k, v)) for v in (q, p)]
                return Const(got[0], "bool") if got[0] == got[1] else c if got[1] else negate(c)
    sides = [a.arg if isinstance(a, Cast) and a.arg.dtype == "bool" else a for a in (x, y)]
    if not any(s is not a for s, a in zip(sides, (x, y), strict=True)) and "bool" not in (x.dtype, y.dtype):
        return e
    for cond, other, left in ((sides[0], y, True), (sides[1], x, False)):
        if cond.dtype != "bool" or not isinstance(other, Const) or isinstance(cond, Const):
            continue
        k = int(other.value)
        got = [_holds(e.name, (b, k) if left else (k, b)) for b in (0, 1)]
        return Const(got[0], "bool") if got[0] == got[1] else cond if got[1] else negate(cond)
    return e


def _holds(name: str, pair: tuple[float, float]) -> bool:
    x, y = pair
    return {"lt": x < y, "le": x <= y, "eq": x == y, "ne": x != y}[name]


def constant_apart(e: Expr) -> tuple[Expr, Expr | None]:
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
