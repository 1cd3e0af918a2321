"""What TVM's simplifier makes of expressions of floats, asked of TVM itself: ``python -m tests.codegen.simplified`` asks TileLang's."""

from __future__ import annotations

import itertools
import math
import operator
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from redfuser.acrf.expr import Const, Expr, Load, Op, loads_of, map_children
from redfuser.acrf.unfolded import unfolded

SPECIAL = tuple(map(np.float32, (math.nan, math.inf, -math.inf, -1.5, 0.0, 1.0, 1e8, 1e-8)))
X, Y = Load("x", (), "f32"), Load("y", (), "f32")
_ARITHMETIC, _ORDERS, _LOGIC = ("add", "sub", "mul", "div"), ("lt", "le", "gt", "ge", "eq", "ne"), ("and", "or", "eq", "ne")


def drawn(r: random.Random, depth: int) -> Expr:
    """A float: few leaves, so that what makes a simplifier go wrong comes up. No operation is of constants alone: those are
    folded before anything is printed."""
    kind = r.random()
    if depth == 0 or kind < 0.15:
        return r.choice((X, Y, X, Y, Const(0.0, "f32"), Const(1.0, "f32")))
    if kind < 0.6:
        name, operands = r.choice(_ARITHMETIC), (drawn(r, depth - 1), drawn(r, depth - 1))
        if name == "div":  # by what has no sign of zero of its own: that is not kept
            operands = (operands[0], drawn(r, 0))
        return Op(name, operands if any(map(loads_of, operands)) else (X, operands[1]), "f32")
    if kind < 0.65:
        return Op("neg", (drawn(r, depth - 1),), "f32")
    return Op("select", (condition(r, depth - 1), drawn(r, depth - 1), drawn(r, depth - 1)), "f32")


def condition(r: random.Random, depth: int) -> Expr:
    kind = r.random()
    if depth <= 0 or kind < 0.4:
        operands = (drawn(r, max(depth - 1, 0)), drawn(r, max(depth - 1, 0)))
        return Op(r.choice(_ORDERS), operands if any(map(loads_of, operands)) else (X, operands[1]), "bool")
    if kind < 0.65:
        return Op("not", (condition(r, depth - 1),), "bool")
    return Op(r.choice(_LOGIC), (condition(r, depth - 1), condition(r, depth - 1)), "bool")


def samples(count: int) -> Iterator[Expr]:
    r = random.Random(5)
    for n in range(count):
        yield drawn(r, 2 + n % 3)


def written(e: Expr) -> Expr:
    """As the printers write it: every operation unfolded, from the outside."""
    while isinstance(e, Op) and (other := unfolded(e)) is not e:
        e = other
    return map_children(e, written)


_VALUES: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or,
    "not": np.logical_not, "neg": np.negative, "isnan": np.isnan, "abs": np.abs, "select": np.where}


def value(e: Expr, x: Any, y: Any) -> Any:
    match e:
        case Const(value=v, dtype=d):
            return np.float32(v) if d == "f32" else np.bool_(v)
        case Load(tensor=n):
            return x if n == "x" else y
        case Op(name=n, args=args):
            return _VALUES[n](*(value(a, x, y) for a in args))
    return value(e.arg, x, y)  # type: ignore[union-attr]  # a cast to what holds it


def unsigned(v: Any) -> Any:
    """The sign of a zero times a number is not kept, nor that of an infinity made of it."""
    return np.where(np.isinf(v), np.inf, v)


def wrong(tirx: Any, analyzer: Any, count: int, write: Callable[[Expr], Expr] = written) -> list[str]:
    """Of ``count`` drawn expressions, those whose simplified form is another function of x and y."""
    x, y = tirx.Var("x", "float32"), tirx.Var("y", "float32")
    grid = np.array(list(itertools.product(SPECIAL, SPECIAL)), np.float32).T
    bad = []
    for e in samples(count):
        try:
            found = analyzer.simplify(_built(tirx, write(e), x, y))
        except Exception as error:
            bad.append(f"{e}  cannot be written  {str(error).splitlines()[-1]}")
            continue
        with np.errstate(all="ignore"):
            mine, text, theirs = (np.broadcast_to(v, 64) for v in (
                value(e, *grid), value(write(e), *grid), _read(found, *grid)))
        if not np.array_equal(text, theirs, equal_nan=True):
            bad.append(f"{e}  is written  {found}")
        if not np.array_equal(unsigned(mine), unsigned(text), equal_nan=True):
            bad.append(f"{e}  is unfolded to  {write(e)}")
    return bad


def _built(t: Any, e: Expr, x: Any, y: Any) -> Any:
    match e:
        case Const(value=v, dtype=d):
            return t.const(v, "float32" if d == "f32" else "bool")
        case Load(tensor=n):
            return x if n == "x" else y
        case Op(name=n, args=args):
            made = [_built(t, a, x, y) for a in args]
            match n:
                case "select":
                    return t.Select(*made)
                case "isnan":
                    return t.isnan(made[0])
                case "abs":
                    return t.abs(made[0])
                case "neg":
                    return -made[0]
                case "not":
                    return t.Not(made[0])
                case "add" | "sub" | "mul" | "div":
                    return getattr(operator, "truediv" if n == "div" else n)(*made)
            return getattr(t, {"and": "And", "or": "Or"}.get(n, n.upper()))(*made)
    return t.Cast("int32", _built(t, e.arg, x, y))  # type: ignore[union-attr]


def _read(e: Any, x: Any, y: Any) -> Any:
    """The value of one of TVM's expressions."""
    kind = type(e).__name__
    names = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge", "EQ": "eq",
             "NE": "ne", "And": "and", "Or": "or"}
    match kind:
        case "Var":
            return x if e.name == "x" else y
        case "FloatImm":
            return np.float32(e.value)
        case "IntImm":
            return np.bool_(e.value) if str(e.dtype) == "bool" else np.int32(e.value)
        case "Not":
            return np.logical_not(_read(e.a, x, y))
        case "Cast":
            return np.asarray(_read(e.value, x, y)).astype(str(e.dtype))
        case "Select":
            return np.where(_read(e.condition, x, y), _read(e.true_value, x, y), _read(e.false_value, x, y))
        case "Call":
            f = {"isnan": np.isnan, "fabs": np.abs}[str(e.op.name).rpartition(".")[2]]
            return f(_read(e.args[0], x, y))
    return _VALUES[names[kind]](_read(e.a, x, y), _read(e.b, x, y))


if __name__ == "__main__":
    import tilelang  # noqa: F401
    from tilelang import tvm

    for line in wrong(tvm.tirx, tvm.arith.Analyzer(), int(sys.argv[1])):
        print(line)
