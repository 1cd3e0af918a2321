"""As many blocks as the machine runs at once, each of which computes several tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from redfuser.acrf.expr import Const, Expr, Index, Op
from redfuser.acrf.index import i64, iadd, ifloordiv, imod, imul
from redfuser.target import Target
from redfuser.tensorize.ir.effects import Names
from redfuser.tensorize.ir.flight import Let
from redfuser.tensorize.ir.nodes import For, TileKernel


@dataclass(frozen=True, slots=True)
class Persist:
    """Tiles of equal work are dealt out in turns to one block a multiprocessor, which starts once::

        grid (i < 4, h < 96)                 grid (worker < 132)
          body                        -->      for turn in 0 .. (515 - worker) // 132:
                                                 let tile = turn * 132 + worker
                                                 let i = tile % 4;  let h = tile // 4
                                                 body

    Requires more tiles than multiprocessors, and loops whose bounds are numbers: unequal tiles are better started longest
    first, by the hardware. Changes no value."""

    target: Target

    def __call__(self, kernel: TileKernel) -> TileKernel:
        tiles, workers = prod(n for _, n in kernel.grid), self.target.sms
        loops = [s for s in kernel.body if isinstance(s, For)]
        if tiles <= workers or kernel.raster or any(
                not (isinstance(s.start, Const) and isinstance(s.stop, Const)) for s in loops):
            return kernel
        names = Names(kernel)
        worker, turn, tile = map(names.fresh, ("worker", "turn", "tile"))
        rest: Expr = Index(tile)
        lets = [Let(tile, iadd(imul(Index(turn), workers), Index(worker)))]
        for k, (v, n) in enumerate(kernel.grid):
            last = k == len(kernel.grid) - 1
            lets.append(Let(v, rest if last else imod(rest, n)))
            rest = rest if last else ifloordiv(rest, n) if k == 0 else _divided(rest, n)
        lets += [Let(n, e) for n, e in kernel.lets]
        stop = ifloordiv(Op("sub", (i64(tiles + workers - 1), Index(worker)), "i64"), workers)
        return replace(kernel, grid=((worker, workers),), lets=(), body=(For(turn, i64(0), stop, (*lets, *kernel.body)),))


def _divided(e: Expr, n: int) -> Expr:
    """A quotient divided once more."""
    match e:
        case Op(name="floordiv", args=(x, Const(value=k))):
            return ifloordiv(x, int(k) * n)
    return ifloordiv(e, n)
