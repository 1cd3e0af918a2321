"""Parts of a tile's expression that depend on the row alone become row values: one evaluation per row, not per element."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from redfuser.acrf.expr import Const, Expr, Op, Ref, f32, map_children, op, walk
from redfuser.strategies.program import Block
from redfuser.tensorize import rewrite

if TYPE_CHECKING:
    from redfuser.tensorize.prepare import Preparation

COSTLY = frozenset({"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "div", "tanh", "sigmoid", "erf", "pow", "select",
                    "sin", "cos"})


def hoist(work: Preparation, e: Expr, b: Block, out: list[Block], level: frozenset[str]) -> Expr:
    """Move costly parts that only depend on the row out of a tile's expression, into a row value of their own."""
    if level <= {"m"}:
        return rewrite.rewrite_bottom_up(e, lambda x: _shifts(work, x, b, out))
    if not work.exact:
        e = _reciprocals(e, work.level)

    def go(x: Expr) -> Expr:
        if isinstance(x, Op) and x.dtype == "f32" and work.per_row(x) and _worth_a_row_value(work, x):
            return _row_value(work, x, b, out)
        return map_children(x, go)

    return go(e)


def _row_value(work: Preparation, x: Expr, b: Block, out: list[Block]) -> Expr:
    if x not in work.row_values:
        name = work.fresh(_row_name(x, b))
        work.levels[name] = frozenset({"m"})
        work.lets[name] = x
        axes = tuple(a for a in b.axes if work.roles.letter(a) in ("", "m"))
        out.append(Block("producer", (name,), axes, (x,), "f32"))
        work.row_values[x] = name
    return Ref(work.row_values[x], "f32")


def _shifts(work: Preparation, x: Expr, b: Block, out: list[Block]) -> Expr:
    """A guarded reference, scaled, is a row value of its own: the tile's expression needs the same one."""
    match x:
        case Op(name="mul", args=(Op(name="select", args=(c, _, Ref())), Const())) if rewrite.guard_of(c):
            return _row_value(work, x, b, out)
    return x


def _worth_a_row_value(work: Preparation, e: Expr) -> bool:
    ops = [x for x in walk(e) if isinstance(x, Op)]
    return bool(work.level(e)) and (len(ops) > 1 or any(x.name in COSTLY for x in ops))


def _reciprocals(e: Expr, level: Callable[[Expr], frozenset[str]]) -> Expr:
    """``x / y --> x * (1 / y)`` where y varies along fewer axes: one division per row instead of one per element."""

    def rule(x: Expr) -> Expr:
        if isinstance(x, Op) and x.name == "div" and x.dtype == "f32" and not isinstance(x.args[1], Const) \
                and level(x.args[1]) <= {"m"} and not level(x.args[0]) <= {"m"}:
            return op("mul", x.args[0], op("div", f32(1.0), x.args[1]))
        return x

    return rewrite.rewrite_bottom_up(e, rule)


def _row_name(e: Expr, b: Block) -> str:
    match e:
        case Op(name="div", args=(one, Ref(name=n))) if rewrite.is_const(one, 1.0):
            return f"{n.partition('@')[0]}_inverse"
        case Op(name="mul", args=(Op(name="select", args=(c, _, Ref(name=n))), Const())) if rewrite.guard_of(c):
            return f"{n}_shift"
        case Op(name="select", args=(c, _, Ref(name=n))) if rewrite.guard_of(c):
            return f"{n}_finite"
        case Op(name="select", args=(Op(name="lt", args=(Op(name="abs"), _)), Const(), Const())):
            return "row_factor"
    return f"{b.name.partition('@')[0]}_row"
