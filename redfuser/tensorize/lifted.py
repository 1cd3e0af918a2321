"""Maxima that start below every finite score instead of at -inf, so that no step has to ask whether one was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, Ref, f32, op, refs_of, substitute, walk
from redfuser.strategies.program import Block
from redfuser.tensorize import rewrite

if TYPE_CHECKING:
    from redfuser.tensorize.prepare import Preparation

LEAST = f32(-1e30)
"""Below every finite score of half-precision operands, and finite after any scale a score is given."""


def unguard(work: Preparation, e: Expr) -> Expr:
    """``select(m == -inf, 0, m) --> m`` for a maximum that is never -inf."""
    match e:
        case Op(name="select", args=(c, _, m)):
            found = rewrite.guard_of(c)
            if found and found[1] and _never_empty(work, found[0]):
                return m
    return e


def _never_empty(work: Preparation, m: Expr) -> bool:
    rest = rewrite.positive_scale(m)[1]
    return isinstance(rest, Ref) and rest.name.partition("@")[0] in work.lifted


def liftable(work: Preparation, e: Expr) -> bool:
    """Made of half-precision contractions, constants, positions and -inf masks: finite and moderate, or -inf."""
    match e:
        case Const(value=v):
            return not v > 1e20
        case Ref(name=n):
            return n in work.contractions or (n in work.lets and liftable(work, work.lets[n]))
        case Op(name="select", args=(_, x, y)):
            return liftable(work, x) and liftable(work, y)
        case Op(name="exp2" | "exp" | "tanh"):
            return not any(isinstance(x, Load) for x in walk(e))
        case Op(name="add" | "sub" | "mul" | "div" | "neg" | "max" | "min", args=args):
            return all(liftable(work, x) for x in args)
        case Cast(arg=x):
            return x.dtype in ("f16", "bf16", "f32") and liftable(work, x)
    return False


def restore_maxima(work: Preparation) -> list[Block]:
    """After the walk a lifted maximum is the real one again: -inf where nothing was seen."""
    out: list[Block] = []
    read = {r for b in work.kernel.tail for e in b.exprs for r in refs_of(e)}
    for name in sorted(work.lifted & read):
        real = work.fresh(f"{name}_seen")
        m = Ref(name, "f32")
        value = Op("select", (op("eq", m, LEAST), rewrite.NEG_INF, m), "f32")
        work.levels[real] = frozenset({"m"})
        work.lets[real] = value
        work.subs = {k: substitute(v, {name: Ref(real, "f32")}) for k, v in {name: m, **work.subs}.items()}
        out.append(Block("finalize", (real,), (), (value,), "f32"))
    work.started_low, work.lifted = frozenset(work.lifted), set()
    return out
