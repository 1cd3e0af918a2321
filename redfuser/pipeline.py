"""The stages, top to bottom: import, partition (which lifts and derives), re-check each distinct certificate, realise each
distinct cascade, emit the outer graph. Everything else is detail of one of these lines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redfuser import settings, turns
from redfuser.describe import describe
from redfuser.dump import Dump, dumping
from redfuser.kernels import Produced, produce_all
from redfuser.recheck import Verdict, recheck, refused
from redfuser.report import Report

log = logging.getLogger("redfuser.pipeline")
T = TypeVar("T")


@dataclass(slots=True)
class Trace:
    """Seconds per stage, in order; every stage logs when it ends."""

    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, stage: str, f: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        start = time.perf_counter()
        out = f(*args, **kwargs)
        self.seconds[stage] = time.perf_counter() - start
        log.info("%s: %.2f s", stage, self.seconds[stage])
        return out


@dataclass(frozen=True, slots=True)
class Compilation:
    """A model, compiled: the outer graph (None when only planned), a kernel per distinct cascade, and the report."""

    imported: Any
    partition: Any
    produced: dict[str, Produced]
    graph: Any
    report: Report


def run(model: Any, args: Any = None, kwargs: Any = None, *, arch: str, casts: str = "preserve", build: bool = True,
        disable: bool = False, verify: str = "1", name: str = "model") -> Compilation:
    """``arch``: ``cpu`` or an architecture of :data:`redfuser.target.TARGETS`. build=False stops before binaries.
    verify: the setting of that name (:func:`redfuser.recheck.recheck`); under ``strict`` a certificate that does not hold
    is an InternalError RF901, otherwise its region stays unfused with that reason."""
    with turns.taken(), dumping(settings.current().trace, name, arch) as dump:
        done = _run(model, args, kwargs, arch, casts, build, disable, verify, name, dump)
        dump.result(done.report, done.produced.values(), done.graph)
        return done


def _run(model: Any, args: Any, kwargs: Any, arch: str, casts: str, build: bool, disable: bool, verify: str,
         name: str, dump: Dump) -> Compilation:
    from redfuser import frontend, outer, partition

    trace = Trace()
    imported = trace.run("import", frontend.import_model, model, args, kwargs)
    dump.imported(imported)
    found = trace.run("partition", partition.partition, imported, casts)
    regions = () if disable else found.regions
    verdicts = trace.run("certificates", recheck, regions, verify)
    produced = trace.run("kernels", realise_all, regions, verdicts, arch, build)
    kept = [r for r in found.regions if r.name in produced and produced[r.name].reason is None]
    names = {r.name: produced[r.name].name for r in kept}
    graph = trace.run("outer graph", outer.emit, imported, kept, names) if build else None
    report = describe(name, arch, imported, found, produced, verdicts, trace.seconds)
    return Compilation(imported, found, produced, graph, report)


def realise_all(regions: Any, verdicts: dict[str, Verdict], arch: str, build: bool) -> dict[str, Produced]:
    """One kernel per distinct cascade text; regions that are equal up to their names share it. What was checked and does
    not hold gets none."""
    distinct = {region.key: region for region in reversed(regions)}
    named = {key: f"k{i}_{distinct[key].cascade.name}" for i, key in enumerate(dict.fromkeys(r.key for r in regions))}
    reasons = {key: refused(verdicts[key]) for key in named}
    sound = [key for key in named if reasons[key] is None]
    made = produce_all([(named[key], distinct[key].fused) for key in sound], arch, build=build)
    done = dict(zip(sound, made)) | {key: Produced(named[key], reason=why) for key, why in reasons.items() if why}
    return {region.name: done[region.key] for region in regions}
