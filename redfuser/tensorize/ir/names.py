"""Names that a kernel does not use yet."""

from __future__ import annotations

from redfuser.strategies.names import fresh
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import For, Parallel, TileKernel


class Names:
    """The names taken in a kernel."""

    def __init__(self, kernel: TileKernel) -> None:
        self.taken = {"T", *(p.name for p in kernel.params), *(b.name for b in kernel.buffers),
                      *(v for v, _ in kernel.grid), *(n for n, _ in kernel.lets)}
        for s in every(kernel.body):
            if isinstance(s, For):
                self.taken.add(s.var)
            elif isinstance(s, Parallel):
                self.taken |= set(s.vars)

    def fresh(self, stem: str) -> str:
        """``stem``, numbered until it is free; taken from now on."""
        return fresh(stem, self.taken)
