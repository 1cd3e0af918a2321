"""What is done to a kernel's tiles after they are laid out, as a list: each pass takes a kernel and gives one that computes
the same, and is in a file of its own. A new one is a file and a line here; ``tests/tensorize/test_passes.py`` runs every pass
over the corpus with the verifier and the interpreter before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from redfuser.target import Target
from redfuser.tensorize.config import Schedule
from redfuser.tensorize.ir.nodes import TileKernel
from redfuser.tensorize.schedule.ask_early import AskEarly
from redfuser.tensorize.schedule.asked import OnlyAsked
from redfuser.tensorize.schedule.carry import Carry
from redfuser.tensorize.schedule.cluster import Cluster
from redfuser.tensorize.schedule.grid import FoldGrid
from redfuser.tensorize.schedule.in_flight import KeepInFlight
from redfuser.tensorize.schedule.in_place import ReuseInPlace
from redfuser.tensorize.schedule.join_rows import JoinRows
from redfuser.tensorize.schedule.lanes import SumByLane
from redfuser.tensorize.schedule.listed import ListSteps
from redfuser.tensorize.schedule.meet import MeetAtOnce
from redfuser.tensorize.schedule.narrow import NarrowTiles
from redfuser.tensorize.schedule.order import GroupBlocks, OrderBlocks
from redfuser.tensorize.schedule.panels import SendPanels
from redfuser.tensorize.schedule.part_columns import PartColumns
from redfuser.tensorize.schedule.peel import Peel
from redfuser.tensorize.schedule.persistent import Persist
from redfuser.tensorize.schedule.positions import AddPositions
from redfuser.tensorize.schedule.prefetch import Prefetch
from redfuser.tensorize.schedule.relay import Relay
from redfuser.tensorize.schedule.repeats import NameRepeats
from redfuser.tensorize.schedule.share_rows import ShareRows
from redfuser.tensorize.schedule.skew import Skew
from redfuser.tensorize.schedule.specialise import Specialise
from redfuser.tensorize.schedule.stage_in_place import StageInPlace
from redfuser.tensorize.schedule.transpose import TransposeTiles
from redfuser.tensorize.schedule.turns import TakeTurns
from redfuser.tensorize.schedule.unused import DropUnused


class Pass(Protocol):
    """A frozen dataclass whose docstring shows ``before --> after``, what it requires and which roundings it adds. One that
    does not apply returns what it was given."""

    def __call__(self, kernel: TileKernel) -> TileKernel: ...


PASSES: tuple[Pass, ...] = (FoldGrid(), ReuseInPlace(), NarrowTiles(), ReuseInPlace(), JoinRows(), NameRepeats(), DropUnused(),
                             AskEarly(), TransposeTiles())
MET: tuple[Pass, ...] = (ShareRows(),)
"""Behind them, where products are those of single warps or waves."""
REGROUPS = frozenset({SumByLane.__name__})
"""Passes that add the same terms in another order: what they keep is the digits in float64, not the bits."""
LEAVES_OUT = frozenset({ListSteps.__name__, OnlyAsked.__name__})
"""Passes after which something that counts for nothing is not read: where that is no number, or infinite, a result may be what
a mask says it is (docs/algebra.md) where it was not before."""

Watcher = Callable[[str, TileKernel], None]
"""Told of each pass that changed something: its name, and the kernel after it."""


def _overlap(target: Target) -> tuple[Pass, ...]:
    return (OrderBlocks(), GroupBlocks(), StageInPlace(), SendPanels(), Specialise(target), Skew(), KeepInFlight(), Peel(),
            TakeTurns(), AddPositions())


def _persistent(target: Target) -> tuple[Pass, ...]:
    return (OrderBlocks(), GroupBlocks(), SendPanels(), Persist(target), Specialise(target), Skew(), Carry(), KeepInFlight(),
            TakeTurns(), AddPositions())


def _relay(target: Target) -> tuple[Pass, ...]:
    return OrderBlocks(), PartColumns(), StageInPlace(), Relay(target), Cluster()


SCHEDULES: dict[Schedule, Callable[[Target], tuple[Pass, ...]]] = {
    "auto": lambda target: (),
    "overlap": _overlap,
    "overlap-lanes": lambda target: (SumByLane(target), *_overlap(target)),
    "persistent": _persistent,
    "persistent-lanes": lambda target: (SumByLane(target), *_persistent(target)),
    "relay": _relay,
}
"""What a configuration may ask for beyond those: TileLang's own pipeliner, or roles with waits of our own, a block for each
tile or one for several; ``lanes``: with totals that threads keep to themselves; ``relay``: one group weighs what others add."""


def passes(schedule: Schedule, target: Target) -> tuple[Pass, ...]:
    """All passes of a kernel, in order."""
    return (*PASSES, *(MET if not target.wgmma else ()), Prefetch(target.prefetch),
            *SCHEDULES[schedule](target), MeetAtOnce(target))


def scheduled(kernel: TileKernel, through: tuple[Pass, ...] = PASSES, watch: Watcher | None = None) -> TileKernel:
    """``kernel`` after every pass in order."""
    if watch is not None:
        watch("laid out", kernel)
    for p in through:
        before, kernel = kernel, p(kernel)
        if watch is not None and str(kernel) != str(before):
            watch(type(p).__name__, kernel)
    return kernel


__all__ = ["LEAVES_OUT", "PASSES", "REGROUPS", "SCHEDULES", "Pass", "Watcher", "passes", "scheduled"]
