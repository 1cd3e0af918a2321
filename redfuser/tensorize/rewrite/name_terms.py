"""What extrema are taken of, named."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Cast, Expr, Load, Op, Ref
from redfuser.strategies.names import fresh
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.algebra import replace_exprs
from redfuser.tensorize.rewrite.facts import (
    Facts,
    Meanings,
    Setting,
    is_contraction,
    is_copy,
    is_value,
    learn,
    names_taken,
)
from redfuser.tensorize.rewrite.simplify import is_a_name, under_casts


@dataclass(frozen=True, slots=True)
class NameTerms:
    """What an extremum is taken of has a name where it is computed, so that it is evaluated once for all who read it::

        m = m max max[l] x * w; t = t sum sum[l] exp(x * w - m)
        -->
        m_term = x * w; m = m max max[l] m_term; t = t sum sum[l] exp(m_term - m)

    Adds no rounding."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        n = at.roles.segment
        facts, taken = learn(kernel, at), names_taken(kernel)
        k = 0
        while k < len(kernel.body):
            b, k = kernel.body[k], k + 1
            if b.role != "reduce" or b.reducer is None or b.reducer.kind not in ("max", "min") or n is None:
                continue
            (e,) = b.exprs
            across = facts.level(e) == at.row | {n}
            if facts.one_for_all_rows(e) or (across and isinstance(e, (Op, Cast)) and not isinstance(under_casts(e), Load)):
                name, level = fresh(f"{b.name}_term", taken), facts.level(e) | at.row
                kernel = named(kernel, facts, k - 1, e, facts.value(name, e, level, (*b.axes, n)))
                facts, k = learn(kernel, at), k + 1
        return kernel


def named(kernel: Kernel, facts: Facts, k: int, e: Expr, term: Block) -> Kernel:
    """``kernel`` with ``term`` in front of its block number ``k``, which with all that follow reads it for ``e``."""
    known: dict[Expr, Expr] = {e: Ref(term.name, e.dtype)}
    stands = Meanings(kernel)

    def reading(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        out: list[Block] = []
        for b in blocks:
            exprs = b.exprs if is_copy(b) or is_contraction(b) else tuple(replace_exprs(stands(x), known) for x in b.exprs)
            if exprs != b.exprs and is_value(b) and b.name not in facts.at.written and is_a_name(b, exprs[0]):
                stands.stand(b.name, exprs[0])
            else:
                out.append(replace(b, exprs=exprs))
        return tuple(out)

    body = (*kernel.body[:k], term, *reading(kernel.body[k:]))
    # a second visit of the row is another segment
    return replace(kernel, body=body, tail=reading(kernel.tail) if facts.at.resident else kernel.tail)
