"""What may be chosen for a fusion on a target: strategy, splits, configuration. The model's own choice comes first, the others
as the model ranks them; what it finds far behind is left out before anything is compiled.

The strategies are those that realise; splits are the model's, halved and doubled; configurations are those of
:func:`redfuser.tensorize.configs` for each. Where the model has the steps of a row listed, because data may hide some, so does
every candidate, and where it has not none: what is measured on drawn data says nothing of what other data hides. Whether to
fuse at all is the last choice, and nothing here: the unfused region is measured beside whatever this lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from redfuser.acrf.state import Fused
from redfuser.autotune.records import Choice, text_of
from redfuser.errors import InputError, LoweringError
from redfuser.target import Target, target
from redfuser.untuned import asked_for, untuned

WITHIN = {"quick": 1.6, "full": 4.0}
"""Candidates that the model finds so many times slower than its best are left out. It is right within 1.35 for products and
attention, and off by up to 1.7 for rows of a few microseconds (docs/results/h200-2026-11-22-choice)."""
MOST = {"quick": 6, "full": 14}
"""Candidates of a kernel that are built."""
LOOKED = 8
"""Configurations of one program that are looked at."""
FACTORS = (1, 0.5, 2, 0.25, 4)
"""Splits tried, times the model's."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice. seconds: what the model predicts, None where it does not know. rank: its place among the configurations of
    its program; ``own``: of the program that the model chose."""

    choice: Choice
    seconds: float | None
    rank: int
    own: bool


def candidates(fused: Fused, arch: str, effort: str) -> list[Candidate]:
    """The model's choice and its next in line, then what else is worth a measurement, best first. Raises LoweringError where
    the model's own choice does not lower."""
    found = list(_all(fused, arch))
    known = [c.seconds for c in found if c.seconds is not None]
    limit = WITHIN[effort] * min(known, default=0.0)
    worth = [c for c in found if c.seconds is None or c.seconds <= limit or (c.own and c.rank < 2)]
    first = [c for c in worth if c.own and c.rank < 2]
    heads = [c for c in worth if not c.own and c.rank == 0]
    order = sorted(worth, key=lambda c: (c not in first, c not in heads, c.seconds or 0.0, c.rank))
    kept = order[:MOST[effort]]
    return [*first, *sorted((c for c in kept if c not in first), key=lambda c: (c.seconds or 0.0, c.rank))]


def _all(fused: Fused, arch: str) -> Iterator[Candidate]:
    """All that differ in their text."""
    chosen, program = untuned(fused, arch)
    texts: set[str] = set()
    yield from _of(program, chosen, arch, True, texts)
    others: list[tuple[str, int]] = []
    if chosen != "map":
        others = [(s, 1) for s in ("single", "resident") if s != chosen]
        around = program.splits if chosen == "multi" else 2
        counts = [n for f in FACTORS if (n := round(around * f)) > 1] if arch != "cpu" else []  # one core has nothing to share
        others += [("multi", n) for n in counts if (chosen, program.splits) != ("multi", n)]
    for strategy, splits in others:
        try:
            yield from _of(asked_for(fused, arch, strategy, splits), strategy, arch, False, texts)
        except (LoweringError, InputError):
            continue


def _of(program: Any, strategy: str, arch: str, own: bool, texts: set[str]) -> Iterator[Candidate]:
    if arch == "cpu":
        yield Candidate(Choice(strategy, program.splits), None, 0, own)
        return
    from redfuser.tensorize.config import walks
    from redfuser.tensorize.hidden import walked_first

    machine = target(arch)
    known = walks(walked_first(program, machine))
    for rank, config in enumerate([c for c in known if c.walk == known[0].walk][:LOOKED]):
        found = _lowered(program, config, machine)
        if found is not None and found[0] not in texts:
            texts.add(found[0])
            yield Candidate(Choice(strategy, program.splits, config.to_json()), found[1], rank, own)


def _lowered(program: Any, config: Any, machine: Target) -> tuple[str, float | None] | None:
    """A digest of the text, and what the model predicts; None for what does not lower."""
    from redfuser.codegen.tilelang import print_program
    from redfuser.tensorize import tensorize
    from redfuser.tensorize.model import predicted

    try:
        tiles = tensorize(program, config, machine)
        return text_of(print_program(tiles, machine.kind)), predicted(tiles, machine)
    except LoweringError:
        return None
