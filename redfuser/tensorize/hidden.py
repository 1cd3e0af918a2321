"""What data may hide, before there is any: whether the steps of a row are listed before they are walked.

A mask that depends on data (documents, padding, lengths) often hides whole steps of a walk, and two small kernels find out
which (:mod:`redfuser.tensorize.summary`). The model of resources knows what those take, and not what they spare.
"""

from __future__ import annotations

from dataclasses import replace

from redfuser.errors import LoweringError
from redfuser.strategies.program import Program
from redfuser.target import Target
from redfuser.tensorize.config import TileConfig, walks
from redfuser.tensorize.configs import configs
from redfuser.tensorize.model import predicted, time_of
from redfuser.tensorize.tiles import tensorize

HIDDEN = 1 / 8
"""The part of the steps that data is taken to hide where it may. Two documents of one length hide half of them, padding to
random lengths a quarter; a mask that hides nothing pays for the list (docs/decisions/0027)."""

NOT_FOR_IT = ("RF484", "RF499", "RF410")
"""No steps to list, no roles for it, no room."""


def listed_first(program: Program, target: Target) -> list[TileConfig]:
    """:func:`redfuser.tensorize.configs`, and in front of them the first with a walk of listed steps where data may hide whole
    steps and the list takes less than :data:`HIDDEN` of them. Kernels without roles walk all: TileLang's own pipeline has no
    names for what it reads from memory (:mod:`redfuser.codegen.numbers`)."""
    legal = configs(program, target)
    first = legal[0]
    found = walks([first])[-1]
    if first.schedule == "auto" or first == found:
        return legal
    try:
        *lists, _ = tensorize(program, found, target).kernels
        walked, usual = (predicted(tensorize(program, c, target), target) for c in (replace(found, walk="all"), first))
    except LoweringError as error:  # what else is wrong with it is said where it is tried
        return legal if error.code in NOT_FOR_IT else [found, *legal]
    times = [time_of(k, target) for k in lists]
    if walked is None or usual is None or None in times:
        return legal
    return [found, *legal] if sum(t.total for t in times if t) + walked * (1 - HIDDEN) < usual else legal
