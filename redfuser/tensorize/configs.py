"""Tile configurations: what a tuner may choose, kept apart from what the mathematics fixes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class TileConfig:
    """One way to tile a program.

    rows: points of the row axis per block. segment: elements of the r-axis per step (ignored for a resident row, which
    is one segment). threads per block, without a producer warp group. stages: segments in flight. weights: how the left
    operand of a second contraction gets there, ``registers`` (needs rows / 16 >= warps) or ``shared``.
    warp_specialized: allow the producer warp group (Hopper, stages >= 1). reverse: visit the blocks with the longest
    range first. raster: blocks of this many columns share L2. tf32: allow TF32 for contractions of f32 operands.
    """

    rows: int = 128
    segment: int = 128
    threads: int = 256
    stages: int = 2
    weights: Literal["registers", "shared"] = "registers"
    warp_specialized: bool = True
    reverse: bool = True
    raster: int = 0
    tf32: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
