"""One way to tile a program: what a tuner may choose, kept apart from what the mathematics fixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from redfuser.strategies.program import Kernel
from redfuser.strategies.select import FEW, OWN
from redfuser.tensorize.axes import neighbours

Schedule = Literal["auto", "overlap", "overlap-lanes", "persistent", "persistent-lanes", "relay"]
Walk = Literal["all", "listed", "needed"]


@dataclass(frozen=True, slots=True)
class TileConfig:
    """One way to tile a program.

    rows: points of the row axis per block. segment: elements of the r-axis per step (a resident row is one segment, of
    this width where that is more than the row). threads per block, without a producer warp group. stages: segments in
    flight. weights: how the left operand of a second contraction gets there, ``registers`` (needs rows / 16 >= warps)
    or ``shared``. warp_specialized: a producer warp group (Hopper, stages >= 1), else every warp copies. reverse: visit
    the blocks with the longest range first. raster: blocks of this many columns share L2. tf32: f32
    operands go to the matrix units as they are, which CUDA's round to TF32 and CDNA's do not. pieces: take f32 operands apart
    into bfloat16 (:mod:`redfuser.tensorize.pieces`). chunk: elements of a contraction's own axis per step, 0 for all of them at
    once. columns: the widest tile of a column axis, 0
    for all of it; where that is less than all, blocks share the columns and each computes what the rows need by itself.
    schedule: who waits for whom, one of :data:`redfuser.tensorize.schedule.SCHEDULES`. walk: the steps of a row that are made,
    ``all`` that positions leave, those of them that are ``listed`` by a kernel before, which looks at the data
    (:mod:`redfuser.tensorize.summary`), or, where a mask hides to a number, as if it hid to -inf, and the others where a row
    has ``needed`` them (:mod:`redfuser.tensorize.needed`).
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
    pieces: bool = False
    chunk: int = 0
    columns: int = 0
    schedule: Schedule = "auto"
    walk: Walk = "all"

    def for_kernel(self, kernel: Kernel) -> TileConfig:
        """The second and third kernels of a split program do little; they take what suits a row walk."""
        if kernel.kind == "combine":  # neighbours of a row in one access of each thread
            flat = min(len(t.shape) for t in kernel.reads)
            widest = max((int(t.shape[-1]) for t in kernel.reads if len(t.shape) > flat), default=1)
            return replace(self, rows=max(1, min(4, 512 // widest)), segment=1, threads=128, stages=0, warp_specialized=False,
                           schedule="auto")
        if kernel.kind == "merge" and self.by_thread and int(kernel.reads[-1].shape[-1]) == self.threads:
            return replace(self, rows=1, segment=self.threads, stages=0, warp_specialized=False, schedule="auto")
        if kernel.kind == "merge":  # a warp or more for a row of partials, which are what it reads last
            width = 1 << max(5, (int(kernel.reads[-1].shape[-1]) - 1).bit_length())
            return replace(self, rows=max(1, 128 // width), segment=width, threads=128, stages=0, warp_specialized=False,
                           schedule="auto")
        if kernel.kind == "map" and self.by_thread and self.threads > OWN:  # visited by all threads that have walked it
            return replace(self, rows=1, segment=self.threads * self.segment)
        if kernel.kind == "map" and not kernel.spread and not kernel.scans:
            lines = self.rows >= FEW and any(neighbours(kernel, a) for a in kernel.grid)  # rows that are read together
            rows, segment = (min(self.rows, 32), self.segment) if lines else (1, 1024)
            return replace(self, rows=rows, segment=segment, threads=128, stages=0, warp_specialized=False,
                           schedule="auto")
        return self

    @property
    def by_thread(self) -> bool:
        """Does every thread walk a part of a row of its own?"""
        return self.rows == self.threads

    @property
    def persistent(self) -> bool:
        """Does a block compute several tiles?"""
        return self.schedule.startswith("persistent")

    @property
    def lanes(self) -> bool:
        """Do threads keep their parts of a total to themselves?"""
        return self.schedule.endswith("lanes")

    def to_json(self) -> dict[str, Any]:
        """As plain data; a walk of all steps is not mentioned, as before there was another."""
        data = asdict(self)
        if self.walk == "all":
            del data["walk"]
        return data

    def __str__(self) -> str:
        how = "warp-specialised" if self.warp_specialized else "one role"
        how = how if self.schedule == "auto" else f"roles, {self.schedule}"
        walk = WALKS[self.walk]
        return (f"{self.rows} rows x {self.segment}, {self.threads} threads, {self.stages} stages, {how}, "
                f"weights in {self.weights}{walk}")


WALKS: dict[Walk, str] = {"all": "", "listed": ", listed steps", "needed": ", hidden steps where a row needs them"}
"""What is said of a walk."""


def walked(config: TileConfig, walk: Walk) -> TileConfig:
    """The same with another walk, a block for each tile unless it is the walk of all steps."""
    one = config.schedule if walk == "all" else _ONE_TILE.get(config.schedule, config.schedule)
    return replace(config, walk=walk, schedule=one)


def walks(legal: Sequence[TileConfig]) -> list[TileConfig]:
    """Configurations, and behind them the same with the other walks: what may be asked for and measured beside what the model
    chooses among."""
    return list(dict.fromkeys((*legal, *(walked(c, w) for w in WALKS if w != "all" for c in legal))))


_ONE_TILE: dict[Schedule, Schedule] = {"persistent": "overlap", "persistent-lanes": "overlap-lanes"}
