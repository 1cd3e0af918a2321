"""Sums of what does not change."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import f32, op
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.algebra import fold, simplify
from redfuser.tensorize.rewrite.facts import Meanings, Setting, is_copy, learn


@dataclass(frozen=True, slots=True)
class CountRepeats:
    """A sum of what does not vary along a row held on chip is that, times the number of elements::

        reduce c = c sum sum[l] g; finalize y = x / c    -->    finalize y = x / (1024.0 * g)

    A row in segments counts each of them when it is laid out. One rounding takes the place of many."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        if not at.resident or at.roles.segment is None:
            return kernel
        facts, stands = learn(kernel, at), Meanings(kernel)
        count = f32(float(at.roles.extents[at.roles.segment]))

        def kept(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
            out: list[Block] = []
            for b in blocks:
                if facts.counted(b):
                    stands.stand(b.name, fold(op("mul", count, stands(b.exprs[0]))))
                elif stands.known and not is_copy(b):
                    out.append(replace(b, exprs=tuple(simplify(stands(e)) for e in b.exprs)))
                else:
                    out.append(b)
            return tuple(out)

        body, tail = kept(kernel.body), kept(kernel.tail)
        return replace(kernel, init=tuple(b for b in kernel.init if b.name not in stands.known), body=body, tail=tail)
