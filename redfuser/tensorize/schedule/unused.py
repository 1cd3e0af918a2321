"""Buffers that no statement touches left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.tensorize.ir.effects import reads, writes
from redfuser.tensorize.ir.nodes import TileKernel


@dataclass(frozen=True, slots=True)
class DropUnused:
    """``x_tile: fragment f32[64, 64]`` with no statement that reads or writes it    -->    nothing."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        used = {n for s in kernel.body for n in (*reads(s), *writes(s))}
        return replace(kernel, buffers=tuple(b for b in kernel.buffers if b.name in used))
