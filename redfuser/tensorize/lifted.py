"""Maxima that start below every finite score instead of at -inf, so that no step has to ask whether one was seen.

Only where the scores' dtypes and constants bound them (:mod:`magnitude`): a row may be hidden by -1e38 as well as by
-inf, and bfloat16 reaches that by itself. Elsewhere a maximum starts at -inf, and one test per row guards its shift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redfuser.acrf.expr import Expr, Op, Ref, f32, op, refs_of
from redfuser.strategies.program import Block
from redfuser.tensorize import rewrite
from redfuser.tensorize.magnitude import LEAST

if TYPE_CHECKING:
    from redfuser.tensorize.prepare import Preparation

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


def restore_maxima(work: Preparation) -> list[Block]:
    """After the walk a lifted maximum is the real one again: -inf where nothing was seen."""
    out: list[Block] = []
    read = {r for b in work.kernel.tail for e in b.exprs for r in refs_of(e)}
    for name in sorted(work.lifted & read):
        real = work.fresh(f"{name}_seen")
        m = Ref(name, "f32")
        value = Op("select", (op("eq", m, f32(LEAST)), rewrite.NEG_INF, m), "f32")
        work.levels[real] = frozenset({"m"})
        work.lets[real] = value
        work.rename(m, Ref(real, "f32"))
        out.append(Block("finalize", (real,), (), (value,), "f32"))
    work.started_low, work.lifted = frozenset(work.lifted), set()
    return out
