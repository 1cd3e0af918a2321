"""Parts of a tile's expression that depend on the row alone become row values: one evaluation per row, not per element."""

from __future__ import annotations

from collections.abc import Callable

from redfuser.acrf.expr import Const, Expr, Op, Ref, f32, map_children, op, walk
from redfuser.strategies.program import Block
from redfuser.tensorize import rewrite
from redfuser.tensorize.facts import Facts, rounds_to_half

COSTLY = frozenset({"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "div", "tanh", "sigmoid", "erf", "pow", "select",
                    "sin", "cos"})


def hoist(work: Facts, e: Expr, b: Block, out: list[Block], level: frozenset[str]) -> Expr:
    """Move costly parts that only depend on the row out of a tile's expression, into a row value of their own."""
    if level <= work.row:
        return rewrite.rewrite_bottom_up(e, lambda x: _shifts(work, x, b, out))
    if not work.exact:
        e = _reciprocals(e, work.per_row, b.name in work.halved)

    def go(x: Expr) -> Expr:
        if isinstance(x, Op) and x.dtype == "f32" and work.per_row(x) and _worth_a_row_value(work, x):
            return _row_value(work, x, b, out)
        return map_children(x, go)

    return go(e)


def _row_value(work: Facts, x: Expr, b: Block, out: list[Block]) -> Expr:
    if x not in work.row_values:
        name = work.fresh(_row_name(x, b))
        work.levels[name] = work.row
        work.lets[name] = x
        axes = tuple(a for a in b.axes if a == work.roles.rows or a not in work.roles.tiled)
        out.append(Block("producer", (name,), axes, (x,), "f32"))
        work.row_values[x] = name
    return Ref(work.row_values[x], "f32")


def _shifts(work: Facts, x: Expr, b: Block, out: list[Block]) -> Expr:
    """A guarded reference, scaled, is a row value of its own: the tile's expression needs the same one."""
    match x:
        case Op(name="select", args=(c, _, Ref())) if rewrite.guard_of(c):
            return _row_value(work, x, b, out)
    return x


def _worth_a_row_value(work: Facts, e: Expr) -> bool:
    ops = [x for x in walk(e) if isinstance(x, Op)]
    return bool(work.level(e)) and (len(ops) > 1 or any(x.name in COSTLY for x in ops))


def _reciprocals(e: Expr, per_row: Callable[[Expr], bool], halved: bool) -> Expr:
    """``x / y --> x * (1 / y)`` where y varies along fewer axes and the result is rounded to half precision: one division
    per row instead of one per element. A quotient that is kept in single precision is as IEEE has it."""

    def rule(x: Expr) -> Expr:
        if isinstance(x, Op) and x.name == "div" and x.dtype == "f32" and not isinstance(x.args[1], Const) \
                and per_row(x.args[1]) and not per_row(x.args[0]):
            return op("mul", x.args[0], op("div", f32(1.0), x.args[1]))
        return x

    def rounded(x: Expr) -> Expr:
        return rewrite.rewrite_bottom_up(x, rule) if halved or rounds_to_half(x) else x

    return rewrite.rewrite_bottom_up(e, rounded)


def _row_name(e: Expr, b: Block) -> str:
    match e:
        case Op(name="div", args=(one, Ref(name=n))) if rewrite.is_const(one, 1.0):
            return f"{n.partition('@')[0]}_inverse"
        case Op(name="select", args=(c, _, Ref(name=n))) if rewrite.guard_of(c):
            return f"{n}_finite"
    return f"{b.name.partition('@')[0]}_row"
