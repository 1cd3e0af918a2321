"""What nobody reads left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.tensorize.ir.effects import reads, writes
from redfuser.tensorize.ir.nodes import Parallel, TileKernel


@dataclass(frozen=True, slots=True)
class DropUnused:
    """Tiles that are computed and not read, as a term is whose extremum is taken in half precision, and buffers that no
    statement touches::

        parallel i < 64, j < 64: x_tile[i, j] = abs(f32(y[i, j]))
        parallel i < 64, j < 64: z_tile[i, j] = abs(y[i, j])         -->    parallel i < 64, j < 64: z_tile[i, j] = abs(y[i, j])
        reduce max z_tile -> m clear                                        reduce max z_tile -> m clear
    """

    def __call__(self, kernel: TileKernel) -> TileKernel:
        own, read = {b.name for b in kernel.buffers}, {n for s in kernel.body for n in reads(s)}
        body = tuple(s for s in kernel.body if not (isinstance(s, Parallel) and writes(s) <= own - read))
        used = {n for s in body for n in (*reads(s), *writes(s))}
        return replace(kernel, body=body, buffers=tuple(b for b in kernel.buffers if b.name in used))
