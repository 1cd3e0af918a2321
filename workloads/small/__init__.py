"""Small programs as people write them between the large layers of a model: losses, statistics, retrieval, pictures, routing,
pairs. None was written for what a compiler does; each is one or a few kernels, and is to be no slower than torch.compile's."""

from __future__ import annotations

from workloads.case import Case
from workloads.small import (
    alongside,
    behind,
    factors,
    halfway,
    held,
    lines,
    losses,
    mixed,
    movement,
    octets,
    pairs,
    pictures,
    sequences,
    special,
    spellings,
    states,
    turned,
)
from workloads.small.spec import Program


def programs() -> list[Program]:
    """All of them, in order."""
    modules = (losses, pairs, pictures, sequences, mixed, states, behind, factors, lines, alongside, held, special,
               octets, turned, spellings, movement, halfway)
    return [p for m in modules for p in m.PROGRAMS.found]


def cases() -> list[Case]:
    return [p.case() for p in programs()]
