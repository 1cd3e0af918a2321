"""What a mask may hide, before there is any data: whether the steps of a row are listed before they are walked, or walked as
far as positions leave them and all of them where a row asks for it.

A mask that depends on data (documents, padding, lengths) often hides whole steps of a walk, and two small kernels find out
which (:mod:`redfuser.tensorize.summary`). The model of resources knows what those take, and not what they spare. One that hides
to a number hides steps that another kernel walks where they count (:mod:`redfuser.tensorize.needed`), which is hardly
anywhere: the model knows what the first spares, and takes that one for a launch whose blocks all end at once.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from redfuser.errors import LoweringError
from redfuser.strategies.program import Program
from redfuser.target import Target
from redfuser.tensorize.config import TileConfig, walked
from redfuser.tensorize.configs import configs
from redfuser.tensorize.model import predicted, time_of
from redfuser.tensorize.needed import asking
from redfuser.tensorize.ranked import TIE
from redfuser.tensorize.schedule import SCHEDULES
from redfuser.tensorize.tiles import tensorize

HIDDEN = 1 / 8
"""The part of the steps that data is taken to hide where it may. Two documents of one length hide half of them, padding to
random lengths a quarter; a mask that hides nothing pays for the list (docs/decisions/0027)."""
LOOKED = 2
"""Configurations whose shorter walk is looked at."""
WORTH = 7 / 8
"""Of the walk of all steps, what the other must take less than: walking every tile twice takes half as long again as once."""

NOT_FOR_IT = ("RF484", "RF499", "RF410")
"""No steps to list or to leave, no roles for it, no room."""


def walked_first(program: Program, target: Target) -> list[TileConfig]:
    """:func:`redfuser.tensorize.configs`, and in front of them the first with another walk where the model finds one faster."""
    legal = configs(program, target)
    found = _listed(program, legal[0], target) or _needed(program, legal, target)
    return [*((found,) if found else ()), *legal]


def _listed(program: Program, first: TileConfig, target: Target) -> TileConfig | None:
    """``first`` with a walk of listed steps where data may hide whole steps and the list takes less than :data:`HIDDEN` of
    them. Kernels without roles walk all: TileLang's own pipeline has no names for what it reads from memory
    (:mod:`redfuser.codegen.numbers`)."""
    found = walked(first, "listed")
    if first.schedule == "auto":
        return None
    try:
        *lists, _ = tensorize(program, found, target).kernels
        one, usual = (predicted(tensorize(program, c, target), target) for c in (replace(found, walk="all"), first))
    except LoweringError as error:  # what else is wrong with it is said where it is tried
        return None if error.code in NOT_FOR_IT else found
    times = [time_of(k, target) for k in lists]
    if one is None or usual is None or None in times:
        return None
    return found if sum(t.total for t in times if t) + one * (1 - HIDDEN) < usual else None


def _needed(program: Program, legal: list[TileConfig], target: Target) -> TileConfig | None:
    """One of the first with a walk of the steps that positions leave, and of all where a row needs them, where that takes less
    than :data:`WORTH` of the first's time if none does. Among equals the schedule decides that is listed first, as ever: which
    is best for tiles of equal work is not best for others."""
    if isinstance(asking(program), str):
        return None
    times: dict[TileConfig, float] = {}
    for c in dict.fromkeys(walked(c, "needed") for c in legal[:LOOKED]):
        try:
            times[c] = predicted(tensorize(program, c, target), target) or inf
        except LoweringError as error:
            if error.code not in NOT_FOR_IT:
                return c
    usual, least = predicted(tensorize(program, legal[0], target), target), min(times.values(), default=inf)
    best = min((c for c in times if times[c] <= least * TIE), key=lambda c: [*SCHEDULES].index(c.schedule), default=None)
    return best if usual is not None and least < usual * WORTH else None
