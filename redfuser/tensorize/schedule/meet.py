"""Rows that warps of a block reduce together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.target import Target
from redfuser.tensorize.ir.nodes import For, If, ReduceTile, TileKernel, TileStmt
from redfuser.tensorize.model.told import told


@dataclass(frozen=True, slots=True)
class MeetAtOnce:
    """Warps that have elements of the same rows meet once for all rows of a thread::

        reduce sum w -> t clear   -->   reduce sum w -> t clear 8 at once

    Requires CUDA and a tile laid out as told, of whose rows a thread has several: how many it has where TileLang chooses is
    nobody's to say. Adds no rounding; in which order threads join what they have is theirs, as before."""

    target: Target

    def __call__(self, kernel: TileKernel) -> TileKernel:
        beside = {n: d.beside for n, d in told(kernel).items() if d.beside > 1} if self.target.kind == "cuda" else {}
        return replace(kernel, body=_met(kernel.body, beside)) if beside else kernel


def _met(body: tuple[TileStmt, ...], beside: dict[str, int]) -> tuple[TileStmt, ...]:
    found: list[TileStmt] = []
    for s in body:
        if isinstance(s, (For, If)):
            s = replace(s, body=_met(s.body, beside))
        elif isinstance(s, ReduceTile) and s.src in beside:
            s = replace(s, at_once=beside[s.src])
        found.append(s)
    return tuple(found)
