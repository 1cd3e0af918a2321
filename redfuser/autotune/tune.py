"""Prepare, measure and adopt in one, on a machine that has both compilers and the device."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from redfuser import pipeline
from redfuser.autotune import lookup, measure, prepare, records
from redfuser.autotune.device import here as device_here
from redfuser.autotune.measure import Measurer
from redfuser.autotune.records import Record
from redfuser.settings import Settings


def plan(model: Any, args: Any, kwargs: Any, arch: str, casts: str, verify: str,
         name: str) -> tuple[list[prepare.Wanted], list[str]]:
    """The kernels that the model of resources makes of a model, to be measured."""
    done = pipeline.run(model, args, kwargs, arch=arch, casts=casts, build=False, verify=verify, name=name)
    return prepare.wanted(done, name)


def tuned(folder: Path, kernels: Sequence[prepare.Wanted], arch: str, effort: str, budget_s: float, into: Path, command: str,
          settings: Settings, tell: Callable[[str], None] = lambda text: None,
          measurer: Measurer | None = None) -> list[Record]:
    """Build, measure and write records into the folder ``into``, kernel by kernel, the costliest first: an interrupt, or the
    end of ``budget_s`` seconds (building included), keeps what is done. Raises TuningError RF708 without the device."""
    measure.for_device(arch)
    until, found = time.monotonic() + budget_s, list[Record]()
    with measure.measurer_of(arch, measurer) as run:
        for i, w in enumerate(sorted(kernels, key=lambda w: -w.seconds)):
            if (left := until - time.monotonic()) <= 0:
                tell(f"{measure.SPENT} the budget of {budget_s:g} s is spent: {len(kernels) - i} of {len(kernels)} are left")
                break
            prepare.prepare(folder, [w], arch, effort, command, settings.verify, tell)
            found = measure.measured(folder, arch, effort, left, settings.cache_dir, into, tell, run)
    return found


def here(model: Any, args: Any, kwargs: Any, arch: str, casts: str, settings: Settings, name: str,
         measurer: Measurer | None = None) -> None:
    """What ``tuning="quick"`` and ``"full"`` do before a compile: measure those kernels of which no record speaks, into the
    user's records. Without the device, a warning: records and the model decide."""
    if not device_here(arch):
        warnings.warn(f"RF708 nothing here runs kernels for {arch}: nothing is measured, records and the model of resources "
                      "decide", RuntimeWarning, stacklevel=3)
        return
    kernels, _ = plan(model, args, kwargs, arch, casts, settings.verify, name)
    known = lookup.look_up(settings, arch)
    new = [w for w in kernels if known is None or records.key(w.fused, arch) not in known.found]
    if not new:
        return
    with tempfile.TemporaryDirectory(prefix="redfuser-tune-") as scratch:
        tuned(Path(scratch), new, arch, settings.tuning, settings.tuning_budget, lookup.user_folder(settings),
              f'redfuser.compile({name}, tuning="{settings.tuning}")', settings, measurer=measurer)
