"""The axes of values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Ref, walk
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.rewrite.facts import Setting, is_value, learn


@dataclass(frozen=True, slots=True)
class OwnAxes:
    """A value has those of the tile's axes that it varies along, unless it is a result::

        producer w[i, l] = f32(x[l])    -->    producer w[l] = f32(x[l])

    Adds no rounding."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        gathered = {x.name for b in (*kernel.body, *kernel.tail) for e in b.exprs for x in walk(e)
                    if isinstance(x, Ref) and x.indices}

        def narrow(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
            out = list(blocks)
            for k, b in enumerate(out):
                if is_value(b) and b.name not in at.written and b.name not in gathered:
                    level = facts.level(b.exprs[0])
                    out[k] = replace(b, axes=tuple(a for a in b.axes if a in level or a not in at.roles.tiled))
            return tuple(out)

        while True:  # a value that no longer varies along an axis may be what another had it from
            facts = learn(kernel, at)
            after = replace(kernel, body=narrow(kernel.body), tail=narrow(kernel.tail))
            if after == kernel:
                return kernel
            kernel = after
