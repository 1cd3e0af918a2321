"""Blocks that nothing asks for end at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Const, Expr, Load, op
from redfuser.errors import LoweringError
from redfuser.tensorize.ir.nodes import Stop, TileKernel
from redfuser.tensorize.ir.parts import Param


@dataclass(frozen=True, slots=True)
class OnlyAsked:
    """Blocks of tiles that nothing asks for end at once::

        roles: ..    -->    stop if rows_again[b, i_block] == i32(0)
                            roles: ..

    Requires that somebody else has stored what they would, and that blocks do not work in clusters, of which all would have to
    end: LoweringError RF484."""

    asked: Param
    at: tuple[Expr, ...]

    def __call__(self, kernel: TileKernel) -> TileKernel:
        if kernel.cluster > 1:
            raise LoweringError("RF484", f"{kernel.name}: no block of a cluster ends alone", help="every step is made")
        stop = Stop(op("eq", Load(self.asked.name, self.at, "i32"), Const(0, "i32")))
        inputs = [p for p in kernel.params if not p.out]
        return replace(kernel, body=(stop, *kernel.body), params=(
            *inputs, self.asked, *(p for p in kernel.params if p.out)))
