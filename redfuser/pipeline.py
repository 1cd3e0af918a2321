"""The stages, top to bottom: import, partition (which lifts, derives and proves), realise each distinct cascade, emit the
outer graph. Everything else is detail of one of these lines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redfuser.describe import describe
from redfuser.kernels import Produced, produce
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
        disable: bool = False, verify: bool = False, name: str = "model") -> Compilation:
    """``arch``: ``cpu`` or an architecture of :data:`redfuser.target.TARGETS`. build=False stops before binaries.
    verify=True re-checks every certificate with code that shares nothing with the deriver (InternalError RF901)."""
    from redfuser import frontend, outer, partition

    trace = Trace()
    imported = trace.run("import", frontend.import_model, model, args, kwargs)
    found = trace.run("partition", partition.partition, imported, casts)
    if verify:
        trace.run("certificates", recheck, found.regions)
    produced = trace.run("kernels", realise_all, () if disable else found.regions, arch, build)
    kept = [r for r in found.regions if r.name in produced and produced[r.name].reason is None]
    names = {r.name: produced[r.name].name for r in kept}
    graph = trace.run("outer graph", outer.emit, imported, kept, names) if build else None
    report = describe(name, arch, imported, found, produced, trace.seconds)
    return Compilation(imported, found, produced, graph, report)


def realise_all(regions: Any, arch: str, build: bool) -> dict[str, Produced]:
    """One kernel per distinct cascade text; regions that are equal up to their names share it."""
    done: dict[str, Produced] = {}
    produced = {}
    for region in regions:
        key = region.key
        if key not in done:
            done[key] = produce(f"k{len(done)}_{region.cascade.name}", region.fused, arch, build=build)
        produced[region.name] = done[key]
    return produced


def recheck(regions: Any) -> None:
    """Hold every distinct fusion against its certificate. Raises InternalError RF901 naming what does not hold."""
    from redfuser.acrf import verify
    from redfuser.errors import InternalError

    for region in {r.key: r for r in regions}.values():
        if broken := verify.check(region.fused):
            raise InternalError("RF901", f"the certificate of {region.name} does not hold", why="; ".join(broken[:3]),
                                help="this is a defect of RedFuser: please report the cascade that `explain` prints")
