"""How much analysis a partition may do: counted, not timed, so that the same model gives the same partition everywhere.

What is counted are the expression nodes that evaluating a candidate region visits (:mod:`redfuser.partition.evaluate`),
about 75,000 a second. A verdict is remembered by the structure of the region, so equal layers cost nothing: what runs into
these limits is a recurrence that was unrolled, whose every step is another region, or a program of very many kinds of rows.
What is not analysed stays with torch, and the report says so (RF308).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from redfuser.partition.graph import Unit
from redfuser.target import TARGETS, Target

REGION = 48
"""Units of one region; of a group of maps, those that torch starts a kernel for."""
NEAR = 10
"""Reductions that are looked at, nearest first, each time that one is looked for."""
SEED = 60_000
"""Nodes visited for one cascade."""
WHOLE, MODULE = 250_000, 40_000
"""Nodes visited for a whole model, and for each further kind of reduction that a module of its own has (a stage of other
extents, a shifted window): the steps of a loop that was unrolled are all of one module."""
CASCADES = 128
"""Distinct cascades of a model."""
VAIN, LONG = 2, 10_000
"""Seeds of one operation that may come to nothing after that many nodes each."""
BESIDE = 4
"""The part of a model's work, one in so many, that products leave to norms and softmaxes: an unrolled loop is mostly products,
which a library has, and the norms around it are what nobody else makes kernels of."""
LATER = 20_000
"""Nodes that there are at least, each time that regions which were given up are grown again: what is known of the others costs
nothing, and without any they would all be lost with those."""
DERIVED = 1_500
"""Nodes that deriving one distinct cascade counts for."""
ROUNDS = 32
"""Times that what the algebra refused is grown again."""


REFERENCE = replace(TARGETS["sm_90a"], wgmma=False, tma=False, vector=0.0)
"""What a partition is modelled for where its target is none of the table: a CPU, where a product stays the library's."""


def allowed(units: list[Unit]) -> int:
    """Nodes that may be visited for a model of these operations."""
    some = [u for u in units if u.reducing]
    return WHOLE + MODULE * max(0, min(len({id(u.lifted) for u in some}), len({u.provenance.module for u in some})) - 1)


class Spent(Exception):
    """No work is left for this cascade, or for the model."""


@dataclass(slots=True)
class Work:
    """What is left. ``machine``: what costs are modelled for. ``kept``: of it, what products may not take; ``floor``: what the
    seed may not. ``short``: seeds that were given up, or grew less than they might
    have, for want of it. ``vain``: by operation, how many seeds took long and came to nothing; after a few the others of that
    operation are not tried, so that an unrolled loop leaves something for the rest of the model."""

    machine: Target = REFERENCE
    left: int = WHOLE
    here: int = SEED
    kept: int = 0
    floor: int = 0
    short: set[int] = field(default_factory=set)
    vain: Counter[int] = field(default_factory=Counter)

    def begin(self, product: bool = False) -> None:
        self.here, self.floor = SEED, self.kept if product else 0

    def hopeless(self, kind: int) -> bool:
        return self.left < self.floor or self.vain[kind] >= VAIN

    def end(self, kind: int, grown: bool) -> None:
        self.vain[kind] += not grown and self.here < SEED - LONG

    def more(self) -> None:
        """Before regions that were given up are grown again, smaller."""
        self.left = max(self.left, LATER)

    def charge(self, nodes: int) -> None:
        self.left -= nodes
        self.here -= nodes
        if self.left < self.floor or self.here < 0:
            raise Spent
