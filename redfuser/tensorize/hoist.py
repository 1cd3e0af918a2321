"""Parts of a tile's expression that depend on the row alone become row values: one evaluation per row, not per element."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref, f32, map_children, op, walk
from redfuser.strategies.program import Block, Kernel
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
        e = _reciprocals(e, work.level, b.name in work.halved)

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
        case Op(name="select", args=(c, _, Ref())) if rewrite.guard_of(c):
            return _row_value(work, x, b, out)
    return x


def _worth_a_row_value(work: Preparation, e: Expr) -> bool:
    ops = [x for x in walk(e) if isinstance(x, Op)]
    return bool(work.level(e)) and (len(ops) > 1 or any(x.name in COSTLY for x in ops))


def read_as_half(kernel: Kernel) -> frozenset[str]:
    """The names that every reader rounds to half precision at once."""
    exprs = [e for b in (*kernel.init, *kernel.body, *kernel.tail) for e in b.exprs]
    half = Counter(x.arg.name for e in exprs for x in walk(e) if _half(x) and isinstance(x.arg, Ref))
    reads = Counter(x.name for e in exprs for x in walk(e) if isinstance(x, Ref))
    kept = {t.name for t in kernel.writes}
    return frozenset(n for n, times in half.items() if times == reads[n] and n not in kept)


def _half(e: Expr) -> TypeGuard[Cast]:
    return isinstance(e, Cast) and e.dtype in ("f16", "bf16")


def _reciprocals(e: Expr, level: Callable[[Expr], frozenset[str]], halved: bool) -> Expr:
    """``x / y --> x * (1 / y)`` where y varies along fewer axes and the result is rounded to half precision: one division
    per row instead of one per element. A quotient that is kept in single precision is as IEEE has it."""

    def rule(x: Expr) -> Expr:
        if isinstance(x, Op) and x.name == "div" and x.dtype == "f32" and not isinstance(x.args[1], Const) \
                and level(x.args[1]) <= {"m"} and not level(x.args[0]) <= {"m"}:
            return op("mul", x.args[0], op("div", f32(1.0), x.args[1]))
        return x

    def rounded(x: Expr) -> Expr:
        return rewrite.rewrite_bottom_up(x, rule) if halved or _half(x) else x

    return rewrite.rewrite_bottom_up(e, rounded)


def _row_name(e: Expr, b: Block) -> str:
    match e:
        case Op(name="div", args=(one, Ref(name=n))) if rewrite.is_const(one, 1.0):
            return f"{n.partition('@')[0]}_inverse"
        case Op(name="select", args=(c, _, Ref(name=n))) if rewrite.guard_of(c):
            return f"{n}_finite"
    return f"{b.name.partition('@')[0]}_row"
