"""Launch grids of at most three axes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Expr, Index, Op
from redfuser.acrf.index import i64, ifloordiv
from redfuser.tensorize.ir.nodes import TileKernel

MOST = 3


@dataclass(frozen=True, slots=True)
class FoldGrid:
    """Axes beyond the second become one, taken apart by ``let``::

        grid (i < 8, h < 16, b < 4, s < 2)    -->    grid (i < 8, h < 16, h_b_s ...);  let b = h_b_s mod 4 ...

    A launch has three. A kernel without an axis gets one of extent 1."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        if not kernel.grid:
            return replace(kernel, grid=(("one", 1),))
        if len(kernel.grid) <= MOST:
            return kernel
        folded, total = kernel.grid[MOST - 1:], 1
        name = "_".join(a for a, _ in folded)
        lets: list[tuple[str, Expr]] = []
        for k, (axis, extent) in enumerate(folded):
            e = ifloordiv(Index(name), total)
            lets.append((axis, e if k == len(folded) - 1 else Op("mod", (e, i64(extent)), "i64")))
            total *= extent
        return replace(kernel, grid=(*kernel.grid[:MOST - 1], (name, total)), lets=(*kernel.lets, *lets))
