"""From what was measured in a folder to records, and the table that people read of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from redfuser.autotune import folder as folders
from redfuser.autotune.device import part_of
from redfuser.autotune.folder import Event, Kernel, Manifest
from redfuser.autotune.judge import UNFUSED, best, faster, steady
from redfuser.autotune.records import Record

COLUMNS = ["kernel", "candidates", "model, ms", "best, ms", "unfused, ms", "model / best", "unfused / best", "decision"]


def adopted(folder: Path) -> tuple[Manifest, list[Record], list[str]]:
    """The manifest, a record per kernel that was measured, the last where it was more than once; and for each other kernel why
    there is none. Raises TuningError RF707."""
    manifest = folders.read(folder)
    events = {(e.kernel, e.device): e for e in folders.events(folder, manifest) if not e.lost}
    found, none = [], []
    for kernel in manifest.kernels:
        of = [e for (key, _), e in events.items() if key == kernel.key]
        made = [r for e in of if (r := record(kernel, e, manifest)) is not None]
        found += made
        if not made:
            none.append(f"{kernel.of}: {undecided(of[-1]) if of else 'not measured'}")
    return manifest, found, none


def undecided(event: Event) -> str:
    """Why a measurement decides nothing."""
    if not set(event.samples) - {UNFUSED}:
        return event.why or "no fused candidate was timed"
    return "too noisy to decide, the device was not alone: measure again"


def record(kernel: Kernel, event: Event, manifest: Manifest) -> Record | None:
    """The decision on one kernel; None where there is nothing to decide by. Where the model's own choice was lost or wrong, the
    fastest of what is left stands for it: it would have been passed over."""
    samples = event.samples
    known = [c for c in kernel.candidates if c.id in samples]
    if UNFUSED not in samples or not known:
        return None
    first = kernel.first if kernel.first in samples else known[0].id
    chosen = best(samples, first)
    by = {c.id: c for c in known}
    if not (steady(samples[chosen]) and steady(samples[UNFUSED])):
        return None
    times = {name: samples[of].rounded for name, of in (("choice", chosen), ("model", first), (UNFUSED, UNFUSED))}
    return Record(kernel.key, kernel.of, kernel.takes, kernel.arch, part_of(event.device), event.device,
                  faster(samples[chosen], samples[UNFUSED]), by[chosen].choice, by[first].choice, times, len(known),
                  len(event.wrong), by[chosen].text, {**manifest.versions, **event.machine}, event.date, kernel.command,
                  event.effort)


def table(records: Sequence[Record]) -> list[list[str]]:
    """A row per record (:data:`COLUMNS`)."""
    rows = []
    for r in sorted(records, key=lambda r: (r.of, r.place)):
        ours, model, unfused = (r.times[n].ms for n in ("choice", "model", UNFUSED))
        decided = f"{r.choice}" if r.fuse else "unfused"
        rows.append([r.of, str(r.candidates), f"{model:.4f}", f"{ours:.4f}", f"{unfused:.4f}", f"{model / ours:.3f}",
                     f"{unfused / ours:.2f}", decided + (", the model's" if r.fuse and r.choice == r.model else "")])
    return rows


def summary(records: Sequence[Record]) -> str:
    """How good the untuned choice is: geometric mean and worst of its time over the best, and how often unfused won."""
    if not records:
        return "nothing was measured"
    def over(name: str, of: Iterable[Record]) -> list[float]:
        return [r.times[name].ms / r.times["choice"].ms for r in of]

    ratios, fused = over("model", records), [r for r in records if r.fuse]
    text = (f"{len(records)} kernels: the model's choice takes {_geomean(ratios):.3f} times the best measured (geomean; worst "
            f"{max(ratios):.3f}); {len(records) - len(fused)} stay unfused")
    return text + (f", the others are {_geomean(over(UNFUSED, fused)):.2f} times as fast as torch (geomean)" if fused else "")


def markdown(records: Sequence[Record]) -> str:
    """The table and its summary for docs/results."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *table(records)]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) + f"\n\n{summary(records)}.\n"


def _geomean(values: Iterable[float]) -> float:
    found = list(values)
    return math.exp(sum(map(math.log, found)) / len(found)) if found else float("nan")
