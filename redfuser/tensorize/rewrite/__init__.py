"""What is done to a kernel's mathematics before it has tiles, as a list: each pass takes a kernel of a segment program and
gives one that computes the same, and is in a file of its own; those over axes come first. A new one is a file and a line here;
``tests/tensorize/test_passes.py`` evaluates the kernel after every pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from redfuser.strategies.program import Kernel
from redfuser.tensorize.rewrite.arranged import Arranged, as_realised
from redfuser.tensorize.rewrite.base_two import BaseTwo
from redfuser.tensorize.rewrite.count import CountRepeats
from redfuser.tensorize.rewrite.facts import Setting
from redfuser.tensorize.rewrite.guards import ShiftGuards
from redfuser.tensorize.rewrite.hoist import HoistRows
from redfuser.tensorize.rewrite.hyperbolic import Hyperbolic
from redfuser.tensorize.rewrite.mask_tail import MaskTail
from redfuser.tensorize.rewrite.name_terms import NameTerms
from redfuser.tensorize.rewrite.own_axes import OwnAxes
from redfuser.tensorize.rewrite.quotients import Quotients
from redfuser.tensorize.rewrite.reciprocals import Reciprocals
from redfuser.tensorize.rewrite.resident import DropNeutral
from redfuser.tensorize.rewrite.scales import FactorScales
from redfuser.tensorize.rewrite.simplify import Simplify
from redfuser.tensorize.rewrite.split_groups import SplitGroups
from redfuser.tensorize.rewrite.take_apart import TakeApart


class AxisPass(Protocol):
    """A pass as below that changes axes, before it is decided what each of them becomes."""

    def __call__(self, at: Arranged) -> Arranged: ...


class Pass(Protocol):
    """A frozen dataclass whose docstring shows ``before --> after``, what it requires and which roundings it adds. One that
    does not apply returns what it was given."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel: ...


PASSES: tuple[Pass, ...] = (
    DropNeutral(), Simplify(), OwnAxes(), FactorScales(), Simplify(), CountRepeats(), MaskTail(), NameTerms(), ShiftGuards(),
    BaseTwo(), Hyperbolic(), Quotients(), Reciprocals(), HoistRows())
AXES: tuple[AxisPass, ...] = (TakeApart(), SplitGroups())
"""What comes before them."""

Watcher = Callable[[str, Kernel], None]
"""Told of each pass that changed something: its name, and the kernel after it."""


def arrange(kernel: Kernel, extents: dict[str, int], watch: Watcher | None = None) -> Arranged:
    """``kernel`` after every pass over its axes."""
    done = as_realised(kernel, extents)
    if watch is not None:
        watch("realised", kernel)
    for p in AXES:
        before, done = done.kernel, p(done)
        if watch is not None and str(done.kernel) != str(before):
            watch(type(p).__name__, done.kernel)
    return done


def rewritten(kernel: Kernel, at: Setting, watch: Watcher | None = None) -> Kernel:
    """``kernel`` after every pass in order."""
    if watch is not None:
        watch("along its axes", kernel)
    for p in PASSES:
        before, kernel = kernel, p(kernel, at)
        if watch is not None and str(kernel) != str(before):
            watch(type(p).__name__, kernel)
    return kernel


__all__ = ["AXES", "PASSES", "Arranged", "AxisPass", "Pass", "Setting", "Watcher", "arrange", "as_realised", "rewritten"]
