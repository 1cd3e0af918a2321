"""The stages, top to bottom: import, partition (which lifts and derives), realise each distinct cascade and re-check its
certificate while compilers work, emit the outer graph. Everything else is detail of one of these lines.

A region of which nothing comes (no certificate that holds, no tile form, no configuration that fits, a check that fails, a
binary that does not build) goes back to the partition, which answers with the next smaller regions, down to single cascades.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from redfuser import progress, settings, turns
from redfuser.acrf.state import NotFusable
from redfuser.autotune.lookup import Records
from redfuser.describe import describe
from redfuser.dump import Dump, dumping
from redfuser.errors import InputError
from redfuser.kernels import produce_all, with_hip
from redfuser.plan import Produced
from redfuser.recheck import Verdict, recheck, refused
from redfuser.report import Report
from redfuser.reported import Reason
from redfuser.target import TARGETS
from redfuser.untuned import abreast, holds, priced
from redfuser.whole import parts_of_one_call

log = logging.getLogger("redfuser.pipeline")
T = TypeVar("T")
HERE = ("RF440", "RF450", "RF458", "RF459", "RF460", "RF704")
"""Reasons that are about this machine or target, not about a region: a smaller region would meet them too. Of one that was
measured, the whole of it ran faster as torch code: that is what is known, and of its parts nothing is."""
ROUNDS = 32
"""Times that refused regions are answered with smaller ones; after that they stay with torch."""


@dataclass(slots=True)
class Trace:
    """Seconds per stage, in order; every stage logs when it ends. A stage that runs again adds to its time."""

    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, stage: str, f: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        start = time.perf_counter()
        out = f(*args, **kwargs)
        spent = time.perf_counter() - start
        self.seconds[stage] = self.seconds.get(stage, 0.0) + spent
        log.info("%s: %.2f s", stage, spent)
        return out


@dataclass(frozen=True, slots=True)
class Compilation:
    """A model, compiled: the outer graph (None when only planned), a kernel per distinct cascade and group of maps, and the
    report.
    references: by kernel, the torch code it stands for (:func:`redfuser.outer.emit_region`)."""

    imported: Any
    partition: Any
    produced: dict[str, Produced]
    graph: Any
    report: Report
    references: dict[str, str] = field(default_factory=dict)


def run(model: Any, args: Any = None, kwargs: Any = None, *, arch: str, casts: str = "preserve", build: bool = True,
        disable: bool = False, verify: str = "1", name: str = "model", records: Records | None = None,
        texts: bool = False) -> Compilation:
    """``arch``: ``cpu`` or an architecture of :data:`redfuser.target.TARGETS`. build=False stops before binaries.
    verify: the setting of that name (:func:`redfuser.recheck.recheck`); under ``strict`` a certificate that does not hold
    is an InternalError RF901, otherwise its region gives way to smaller ones. records: tuning records, which beat the model of
    resources (:func:`redfuser.autotune.lookup.look_up`). texts: lower planned kernels to what the
    target's compiler is given, where that is another text than TileLang's (HIP)."""
    with turns.taken(), dumping(settings.current().trace, name, arch) as dump:
        done = _run(model, args, kwargs, arch, casts, build, disable, verify, name, records, texts, dump)
        dump.result(done.report, done.produced.values(), done.graph)
        return done


def _run(model: Any, args: Any, kwargs: Any, arch: str, casts: str, build: bool, disable: bool, verify: str,
         name: str, records: Records | None, texts: bool, dump: Dump) -> Compilation:
    from redfuser import frontend, outer, partition

    trace = Trace()
    imported = trace.run("import", frontend.import_model, model, args, kwargs)
    _of_its_shapes(model, imported, args, kwargs)
    if arch in TARGETS and TARGETS[arch].kind == "cuda" and not disable:
        imported = trace.run("layout", frontend.laid_out, imported)
    dump.imported(imported)

    def inside(found: Any) -> set[str]:
        return {v for r in found.parts for v in r.covered} - {v for r in found.parts for v in r.outputs.values()}

    def searched(program: Any) -> tuple[Any, Any]:
        search = partition.Partitioner(program, casts, arch, maps=arch != "cpu", holds=lambda fused: holds(fused, arch),
                                       priced=lambda fused: priced(fused, arch),
                                       measured=lambda fused: records is not None and records.fuses(fused, arch),
                                       abreast=abreast)
        return search, trace.run("partition", search.run)

    search, found = searched(imported)
    machine = TARGETS.get(arch)
    proposed, scaled = imported, dict[str, str]()
    if machine and not disable:
        proposed, scaled = frontend.row_scales(imported, casts, partial(partition.scaling_pays, machine))
    imported = imported if scaled else proposed
    if scaled and not scaled.keys() & inside(found):  # rows that are written, each for products
        other = searched(proposed)
        if inside(other[1]).issuperset(scaled.values()):
            imported, (search, found) = proposed, other
    made = Realised(arch, build, verify, search.settles, records)
    for turn in range(0 if disable else ROUNDS + 1):
        trace.run("certificates and kernels", made.realise, found.parts)
        if not (failed := made.failed(found.parts)) or turn == ROUNDS:
            break
        search.give_up(failed)
        made.forget(search.again)
        found = trace.run("partition", search.run)
    known: tuple[Any, ...] = (*found.parts, *found.refusals, *found.unmapped)
    produced = {x.name: made.kernels[x.key] for x in known if x.key in made.kernels}
    kept = [r for r in found.parts if r.name in produced and produced[r.name].reason is None]
    names = {r.name: produced[r.name].name for r in kept}
    left = parts_of_one_call(imported, kept, names, search.declined)
    produced |= {name: Produced(produced[name].name, reason=why) for name, why in left.items()}
    kept = [r for r in kept if r.name not in left]
    if texts and arch in TARGETS and TARGETS[arch].kind == "hip":
        produced = trace.run("texts", with_hip, produced)
    graph = trace.run("outer graph", outer.emit, imported, kept, names) if build else None
    report = describe(name, arch, imported, found, produced, made.verdicts, trace.seconds, built=build)
    if records is not None and records.notes:
        report = replace(report, notes=(*report.notes, *records.notes))
    alike = {names[r.name]: r for r in kept}
    references = {k: text for k, r in alike.items() if (text := outer.emit_region(imported, r)) is not None} if build else {}
    return Compilation(imported, found, produced, graph, report, references)


def _of_its_shapes(model: Any, imported: Any, args: Any, kwargs: Any) -> None:
    """Raise InputError (RF117, RF502, RF504, RF505, RF511, RF514) for example arguments beside a model that has shapes of its
    own (exported, ONNX, Relax), where they are not of these."""
    import torch

    from redfuser.frontend.module import as_call
    from redfuser.runtime.signature import of_imported

    none = all(x is None or (isinstance(x, (tuple, list, dict)) and not x) for x in (args, kwargs))  # bind() gives them empty
    if none or (callable(model) and not isinstance(model, torch.export.ExportedProgram)):
        return
    signature = of_imported(imported, 0)
    try:
        signature.check(signature.bind(*as_call(args, kwargs)), None)
    except InputError as error:
        why = error.why or "an exported program, an ONNX and a Relax model have shapes of their own"
        raise InputError(error.code, error.what, where="the example arguments", why=why,
                         help="export it for these arguments, or leave them out") from error


@dataclass(slots=True)
class Realised:
    """A verdict and a kernel per distinct cascade text, however often it is met; regions that are equal up to their names
    share both. What was checked and does not hold gets no kernel. settles: has a cascade, by its key, another state?"""

    arch: str
    build: bool
    verify: str
    settles: Callable[[str], bool] = lambda _: False
    records: Records | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    kernels: dict[str, Produced] = field(default_factory=dict)
    named: int = 0

    def realise(self, regions: Any) -> None:
        new = {r.key: r for r in reversed(regions) if r.key not in self.kernels}
        order = [key for key in dict.fromkeys(r.key for r in regions) if key in new]
        named = {key: f"k{i}_{new[key].cascade.name}" for i, key in enumerate(order, self.named)}
        self.named += len(order)
        wanted = [(named[key], new[key].called) for key in order]
        made = produce_all(wanted, self.arch, build=self.build, verify=self.verify, records=self.records,
                           refused=lambda names: self.refused({named[key]: new[key] for key in order if named[key] in names}))
        self.kernels |= dict(zip(order, made, strict=True))

    def forget(self, keys: Collection[str]) -> None:
        """What is known of these cascades: they come back with another state."""
        self.kernels = {k: v for k, v in self.kernels.items() if k not in keys}
        self.verdicts = {k: v for k, v in self.verdicts.items() if k not in keys}

    def refused(self, regions: dict[str, Any]) -> dict[str, Reason]:
        """By the kernel's name, why there must be none: its certificate was asked for and does not hold."""
        found: dict[str, Reason] = {}
        for n, (name, r) in enumerate(regions.items(), 1):
            turns.passed_on()
            progress.tell("checking certificates", n, len(regions))
            self.verdicts |= recheck([r], self.verify, another=self.settles)
            if (why := refused(self.verdicts[r.key])) is not None:
                found[name] = why
        return found

    def failed(self, regions: Any) -> dict[str, NotFusable]:
        """Regions, by name, that a smaller one may succeed."""
        reasons: dict[str, Reason | None] = {r.name: self.kernels[r.key].reason for r in regions}
        return {name: NotFusable(why.code, "", why.condition, why.why, why.help) for name, why in reasons.items()
                if why is not None and why.code not in HERE}
