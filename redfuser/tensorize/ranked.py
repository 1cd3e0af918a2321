"""Configurations in the order of the model of resources. Of products there are dozens of tilings: the model says of each from
extents alone what it would take, and of the best again from their tile programs."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import log

from redfuser.errors import LoweringError
from redfuser.strategies.program import Program
from redfuser.target import Target
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import TileKernel
from redfuser.tensorize.model import Sketch, predicted, sketched, uneven
from redfuser.tensorize.tiles import tensorize

LOOKED = 4
"""Tilings of products with roles, and as many without, whose tile programs are looked at."""
AHEAD = 2
"""Configurations with roles in front of those without, at most: the compiler may refuse them."""
LARGE = 100
"""Statements of a program that is lowered once: what is listed first is the first. Of a row walked by threads, once for as many
elements as a thread may take: with registers for fewer blocks, 512 moments of inertia of 8192 take 24.6 us for 21.4."""
TIE, ROWS_TIE = 1.009, 1.06
"""Predictions that differ by less say nothing: the one listed first is the first. Of rows that memory bounds they say less."""
NOT_FOR_IT = ("RF499", "RF410")
"""A schedule that a kernel has no roles for, and one that has no room."""


def ranked(program: Program, space: list[TileConfig], target: Target, sketch: Sketch | None = None) -> list[TileConfig]:
    """``space`` by what the model predicts of each tile program; those that a sketch leaves behind come last, and are looked at
    while nothing else is left. Left out are such as the kernel has no roles for or no room, as there is no layout for, or that
    come to the same; what else is wrong with one is said where it is tried. Raises LoweringError where none is left: RF452
    where some lack a layout alone, else RF410 where some lack room."""
    ahead, rest = space, []  # type: list[TileConfig], list[TileConfig]
    if sketch is not None:
        times = {c: t.total for c in space if (t := sketched(sketch, c, target)) is not None}
        order = sorted(times, key=times.__getitem__) or space
        plain = [c for c in order if c.schedule == "auto"]
        first = plain[:LOOKED]
        if sketch.narrowed:  # how many steps of a segment are left of a row a sketch does not know, so one of each is looked at
            first += {c.segment: c for c in reversed(plain) if all(c.segment != f.segment for f in first)}.values()
        ahead, rest = [*[c for c in order if c.schedule != "auto"][:LOOKED], *first], [c for c in plain if c not in first]
    made: list[tuple[TileKernel, ...]] = []
    found: dict[TileConfig, float] = {}
    lacking: dict[str, LoweringError] = {}
    looked = deque(sorted(ahead, key=space.index))
    while looked or (rest and not found):
        c = looked.popleft() if looked else rest.pop(0)
        try:
            tiles = tensorize(program, c, target)
        except LoweringError as error:
            if error.code not in NOT_FOR_IT:
                found[c] = float("inf")
                continue
            lacking.setdefault(error.code, error)
            if error.code == "RF410" and c.columns and c.stages > 2:  # results that are staged need room as well
                looked.append(replace(c, stages=c.stages - 1))
            continue
        if len(list(every(tiles.kernels[0].body))) > LARGE:
            if not c.by_thread:
                return space
            looked, rest = deque(x for x in looked if x.by_thread), [x for x in (*looked, *rest) if not x.by_thread]
        if why := next(filter(None, (uneven(k, target) for k in tiles.kernels)), ""):
            lacking["RF452"] = LoweringError("RF452", f"{tiles.name}: no tiles for {target.arch}", why=f"TileLang lacks {why}")
            looked += [rest.pop(0)] if rest else []
            continue
        if tiles.kernels not in made:
            made.append(tiles.kernels)
            found[c] = predicted(tiles, target) or float("inf")
    if not found:
        raise next(lacking[code] for code in ("RF452", *NOT_FOR_IT[::-1]) if code in lacking)
    best, tie = min(found.values()), log(TIE if sketch is not None else ROWS_TIE)
    near = sorted(found, key=lambda c: int(log(found[c] / best) / tie) if found[c] < float("inf") else 1 << 30)
    roles = [c for c in near if c.schedule != "auto"][:AHEAD]
    return [*(c for c in near if c.schedule == "auto" or c in roles), *rest]
