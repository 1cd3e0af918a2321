"""Measure a folder on this machine's device, and write records as they come. Needs no compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redfuser.autotune import adopt, measure, records
from redfuser.autotune.measure import InChild, Measurer
from redfuser.autotune.records import Record


def measured(folder: Path, arch: str, effort: str, budget_s: float, store: Path, into: Path | None,
             tell: Callable[[str], None] = lambda text: None, measurer: Measurer | None = None) -> list[Record]:
    """The records of the folder, after as much was measured as ``budget_s`` seconds allow. into: a folder that gets each record
    as soon as it is made; store: what tuners of this machine wait for each other by. Raises TuningError RF708 without the
    device."""
    device = measure.for_device(arch)
    with measurer_of(arch, measurer) as run, measure.alone(store):
        for event in measure.run(folder, run, device, effort, budget_s, tell, measure.machine()):
            found = [r for r in adopt.adopted(folder)[1] if r.key == event.kernel and r.device == device]
            if into is not None:
                records.add(into, found)
            for row in adopt.table(found):
                tell(f"    model {row[2]} ms, best {row[3]}, unfused {row[4]}: {row[7]}")
            if not found:
                tell(f"    {adopt.undecided(event)}")
    return adopt.adopted(folder)[1]


@contextmanager
def measurer_of(arch: str, given: Measurer | None = None) -> Iterator[Measurer]:
    """The one that is given, or one of this machine's device, whose process ends with it."""
    if given is not None:
        yield given
        return
    own = in_child(arch)
    try:
        yield own
    finally:
        own.close()


def in_child(arch: str) -> InChild:
    """The measurer of this machine's device."""
    return InChild("cpu" if arch == "cpu" else "cuda")
