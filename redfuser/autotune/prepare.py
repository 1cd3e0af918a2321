"""Every candidate of every kernel of a model, built into a folder (:mod:`redfuser.autotune.folder`), on a machine with
compilers and without a GPU.

A candidate goes the way of any kernel (:func:`redfuser.kernels.produce`): lowered, checked against its cascade, built. What the
model finds far behind is left out before that; what needs more of the machine than it should, after: spilled registers beside a
candidate that has none, and a text that another candidate has as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from redfuser import outer, progress, turns
from redfuser.artifact import KernelSpec, save_kernel
from redfuser.autotune import folder as folders
from redfuser.autotune import records
from redfuser.autotune.folder import Built, Kernel, Manifest
from redfuser.autotune.space import Candidate, candidates
from redfuser.describe import versions
from redfuser.errors import LoweringError, TuningError
from redfuser.kernels import produce
from redfuser.plan import Produced
from redfuser.tensorize.config import walks


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kernel to prepare: its name, its fusion, the torch code it stands for, how often its model calls it, and the modelled
    seconds of all these calls."""

    of: str
    fused: Any
    region: str
    uses: int
    seconds: float = 0.0


def wanted(done: Any, name: str) -> tuple[list[Wanted], list[str]]:
    """The distinct kernels of a planned compilation (:class:`redfuser.pipeline.Compilation`), and of those that cannot be
    measured why."""
    kept: dict[str, list[Any]] = {}
    for r in done.partition.parts:
        if done.produced[r.name].reason is None:
            kept.setdefault(r.key, []).append(r)
    found, none = [], []
    for regions in kept.values():
        text = outer.emit_region(done.imported, regions[0])
        if text is None:
            none.append(f"{name} {regions[0].name}: no torch code says what it stands for, so nothing would be held to it")
        else:
            seconds = sum(m.seconds for m in done.produced[regions[0].name].modelled)
            found.append(Wanted(f"{name} {regions[0].name}", regions[0].fused, text, len(regions), len(regions) * seconds))
    return found, none


def prepare(folder: Path, kernels: Sequence[Wanted], arch: str, effort: str, command: str, verify: str = "1",
            tell: Callable[[str], None] = lambda text: None) -> Manifest:
    """Build the candidates of ``kernels`` into ``folder``, beside what is there of other kernels. Raises TuningError RF707 for
    a folder of another architecture."""
    before = folders.read(folder) if (folder / folders.MANIFEST).exists() else None
    if before is not None and before.arch != arch:
        raise TuningError("RF707", f"{folder} holds candidates for {before.arch}", help=f"name another folder for {arch}")
    chosen = [(w, records.key(w.fused, arch), _candidates(w, arch, effort)) for w in kernels]
    jobs = [(n, i) for n, (_, _, found) in enumerate(chosen) for i in range(len(found))]
    made: dict[tuple[int, int], Produced] = {}

    def one(job: tuple[int, int]) -> None:
        w, _, found = chosen[job[0]]
        with turns.taken():
            made[job] = _produced(w, found[job[1]], arch, verify)
        progress.tell("building candidates", len(made), len(jobs))

    if arch == "cpu" or len(jobs) < 2:
        for job in jobs:
            one(job)
    else:
        from redfuser.codegen.pool import default_pool

        with turns.given_up(), ThreadPoolExecutor(min(default_pool().size + 1, len(jobs))) as threads:
            list(threads.map(one, jobs))
    new = []
    for n, (w, key, found) in enumerate(chosen):
        kernel, specs = _kernel(w, key, arch, command, [(c, made[n, i]) for i, c in enumerate(found)])
        if not kernel.candidates:
            tell(f"{w.of}: none of {len(found)} candidates is left: {'; '.join(kernel.left[:2])}")
            continue
        for built in kernel.candidates:
            save_kernel(specs[built.id], folders.place(folder, kernel, built.id))
        (folders.place(folder, kernel) / folders.REGION).write_text(w.region, encoding="utf-8")
        tell(f"{w.of}: {len(kernel.candidates)} candidates" + (f", {len(kernel.left)} left out" if kernel.left else ""))
        new.append(kernel)
    old = before.kernels if before is not None else ()
    manifest = Manifest(arch, effort, folders.merged([*old, *new]), versions())
    folders.write(folder, manifest)
    return manifest


def _candidates(w: Wanted, arch: str, effort: str) -> list[Candidate]:
    with turns.taken():
        try:
            return candidates(w.fused, arch, effort)
        except LoweringError:
            return []


def _produced(w: Wanted, candidate: Candidate, arch: str, verify: str) -> Produced:
    c = candidate.choice
    return produce("tuned", w.fused, arch, strategy=c.strategy, splits=c.splits, verify=verify,
                   order=lambda legal: [x for x in walks(legal) if x.to_json() == c.config])


def _kernel(w: Wanted, key: str, arch: str, command: str,
            made: Sequence[tuple[Candidate, Produced]]) -> tuple[Kernel, dict[str, KernelSpec]]:
    """The kernel's entry in the manifest, and its candidates' specs by name."""
    left: list[str] = []
    built: dict[str, tuple[Built, KernelSpec]] = {}
    texts: set[str] = set()
    for i, (c, p) in enumerate(made):
        if p.spec is None:
            why = p.reason.why or p.reason.condition if p.reason is not None else ""
            left.append(f"{c.choice}: {p.reason.code if p.reason else ''} {why.strip().splitlines()[0][:200] if why else ''}")
            continue
        text = records.text_of(p.stages.get("source", p.stages.get("tir", "")))
        if text in texts:
            left.append(f"{c.choice}: the text of another candidate")
            continue
        texts.add(text)
        most = {n: max((r.get(n, 0) for r in p.spec.resources), default=0) for n in ("registers", "spill_bytes")}
        shared = max((launch.shared_bytes for launch in p.spec.launches), default=0)
        built[str(i)] = Built(str(i), c.choice, c.seconds, c.own, most["registers"], most["spill_bytes"], shared, text), p.spec
    kernel = Kernel(key, w.of, records.takes(w.fused), arch, w.uses, tuple(b for b, _ in built.values()), tuple(left),
                    command)
    dropped = list(_spilling(kernel)) if built else []
    left += [f"{b.choice}: {b.spills} bytes of registers in memory" for b in dropped]
    kernel = replace(kernel, candidates=tuple(b for b in kernel.candidates if b not in dropped), left=tuple(left))
    return kernel, {b.id: built[b.id][1] for b in kernel.candidates}


def _spilling(kernel: Kernel) -> Iterator[Built]:
    """Candidates that keep registers in memory where others do not; the model's own is measured all the same."""
    if all(b.spills for b in kernel.candidates):
        return
    yield from (b for b in kernel.candidates if b.spills and b.id != kernel.first)
