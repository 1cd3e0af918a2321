"""The order in which blocks of unequal work start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from redfuser.acrf.expr import Expr, Index
from redfuser.tensorize.ir.index import i64, iadd, ifloordiv, imod, imul
from redfuser.tensorize.ir.names import Names
from redfuser.tensorize.ir.nodes import For, TileKernel
from redfuser.tensorize.schedule.counts import counts

GROUP = 16
"""Rows of blocks that are walked together: what they read at a time fits the second cache, and they fill the machine."""


@dataclass(frozen=True, slots=True)
class OrderBlocks:
    """Where the first axis of a grid says how long a block runs, blocks start longest first, in groups along the others::

        grid (i < 16, h < 32)                      grid (block < 512)
          let i_block = 15 - i              -->      let i = block % 256 // 16;  let h = block // 256 * 16 + block % 16
          for k in 0 .. i_block + 1: ...             let i_block = 15 - i
                                                     for k in 0 .. i_block + 1: ...

    Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        loops = [s for s in kernel.body if isinstance(s, For)]
        others = prod(n for _, n in kernel.grid[1:])
        if kernel.raster or others == 1 or len(loops) != 1 or len(counts(kernel, loops[0])) < 2:
            return kernel
        group = next(g for g in range(min(GROUP, others), 0, -1) if others % g == 0)
        (first, extent), *more = kernel.grid
        block = Names(kernel).fresh("block")
        at = imod(Index(block), extent * group)
        flat: Expr = iadd(imul(ifloordiv(Index(block), extent * group), group), imod(Index(block), group))
        if group == others:
            flat = imod(Index(block), group)
        lets: list[tuple[str, Expr]] = [(first, ifloordiv(at, group))]
        step = 1
        for k, (v, n) in enumerate(more):
            e = ifloordiv(flat, step)
            lets.append((v, e if k == len(more) - 1 else imod(e, n)))
            step *= n
        lets = [(v, i64(0) if dict(kernel.grid)[v] == 1 else e) for v, e in lets]
        return replace(kernel, grid=((block, extent * others),), lets=(*lets, *kernel.lets))
