"""The order in which blocks start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from redfuser.acrf.expr import Expr, Index, walk
from redfuser.acrf.index import i64, iadd, ifloordiv, imod, imul
from redfuser.tensorize.ir.effects import Names
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, TileKernel
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


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """Where one operand of a loop's products moves with the first axis of a grid and the other with the second, blocks go along
    the second in groups of the first, so that what they read at a time fits the second cache::

        grid (i < 128, j < 16)                     grid (block < 2048)
          for k:                            -->      let i = block // 256 * 16 + block % 16;  let j = block % 256 // 16
            gemm x[i, k], w[j, k]^T -> o             for k: ...

    A group is a divisor of the first axis, half to twice as large as wanted; without one all stays. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        loops = [s for s in kernel.body if isinstance(s, For)]
        if kernel.raster or len(kernel.grid) < 2 or len(loops) != 1 or not _crossed(kernel, loops[0]):
            return kernel
        (first, rows), (second, columns), *more = kernel.grid
        group = min((g for g in range(GROUP // 2, 2 * GROUP) if rows % g == 0), key=lambda g: abs(g - GROUP), default=rows)
        if group == rows:
            return kernel
        block = Names(kernel).fresh("block")
        lets = ((first, iadd(imul(ifloordiv(Index(block), columns * group), group), imod(Index(block), group))),
                (second, ifloordiv(imod(Index(block), columns * group), group)))
        return replace(kernel, grid=((block, rows * columns), *more), lets=(*lets, *kernel.lets))


def _crossed(kernel: TileKernel, loop: For) -> bool:
    """Products of two tiles that the loop brings, of which either moves with one of the first two axes alone."""
    axes = [v for v, _ in kernel.grid[:2]]
    moves = {s.dst.buffer: {x.axis for d in s.src.dims for x in walk(d.start) if isinstance(x, Index)} & set(axes)
             for s in loop.body if isinstance(s, Copy)}
    products = [s for s in loop.body if isinstance(s, Gemm)]
    return bool(products) and all([moves.get(s.a.buffer), moves.get(s.b.buffer)] in (
        [{axes[0]}, {axes[1]}], [{axes[1]}, {axes[0]}]) for s in products)
