"""Where along the segment a contribution matters: the conditions without which it is neutral."""

from __future__ import annotations

from redfuser.acrf.expr import Expr
from redfuser.strategies.alive import TRUE, alive_where
from redfuser.strategies.program import Kernel
from redfuser.tensorize.rewrite.facts import Facts


def alive(kernel: Kernel, facts: Facts) -> tuple[Expr, ...]:
    """Per reduction along the segment, a condition without which its contribution is neutral."""
    return tuple(TRUE if facts.counted(b) else alive_where(facts.lets, b.reducer, b.exprs[0])
                 for b in kernel.body if b.role == "reduce")
