"""Build programs: one artifact and one small record per program, or the code of why there is none."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from redfuser.bench import provenance
from redfuser.bench.correctness import digest
from redfuser.bench.correctness.digest import key, lowering
from redfuser.bench.correctness.supervise import supervise
from redfuser.errors import RedFuserError
from workloads.correctness import Program, draw

FAILED = re.compile(r"RF45\d|RF463")
"""Codes of builds that failed; every other code is a refusal."""

STANDS = "stands"
"""The status of a program that was not built, since an earlier table has a row of what would be."""


def paths(folder: Path, name: str) -> tuple[Path, Path]:
    """(artifact, record) of a program."""
    stem = re.sub(r"[^A-Za-z0-9.+]+", "_", name)[:80] + "-" + hashlib.sha256(name.encode()).hexdigest()[:8]
    return folder / f"{stem}.rf.gz", folder / f"{stem}.json"


def build(programs: Sequence[Program], target: str, folder: Path, jobs: int, limit_s: float,
          tell: Callable[[str], None], since: Path | None = None) -> list[dict[str, Any]]:
    """Build what is not in ``folder`` yet as it stands now; the records of all, in the programs' order. What is there and
    would be built of the same texts is kept: its record says since which commit, and that it is of the lowering as it is.
    since: an earlier table (its JSON lines); what was right in it and would be built of the same texts by the same compilers is
    not built (:data:`STANDS`)."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [p for p in programs if (read(folder, p) or {}).get("key") != key(p, target)]
    tell(f"{len(programs)} programs, {len(programs) - len(waiting)} built before")
    by = {p.name: p for p in programs}
    started, built_by = time.perf_counter(), {"lowering": lowering(), "commit": provenance.commit()}
    for n, answer in enumerate(supervise("build", [p.name for p in waiting], {"target": target, "folder": str(folder),
                                                                             "since": str(since or "")}, jobs, limit_s), 1):
        program = by[answer["program"]]
        if "lost" in answer:
            answer = {"status": "failed", "code": "lost", "why": answer["lost"]}
        record = {"program": program.name, "family": program.family, "key": key(program, target), "target": target,
                  **built_by, **answer}
        paths(folder, program.name)[1].write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        why = f" {record['code']} {record['why'][:150]}" if record["status"] not in ("built", STANDS) else ""
        tell(f"[{n}/{len(waiting)} {time.perf_counter() - started:.0f} s] {program.name}: {record['status']}{why}")
    return [r for p in programs if (r := read(folder, p)) is not None]


def read(folder: Path, program: Program) -> dict[str, Any] | None:
    try:
        found = json.loads(paths(folder, program.name)[1].read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def one(program: Program, target: str, folder: Path, since: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Build one program into ``folder`` (in a child process). ``status``: built, refused, failed, or :data:`STANDS` where
    ``since``, its row of an earlier table, speaks of what would be built."""
    from redfuser.runtime.model import CompiledModel

    artifact = paths(folder, program.name)[0]
    if (kept := _kept(program, target, folder)) is not None:
        return kept
    if since is not None and (same := standing(program, target, since)) is not None:
        return same
    artifact.unlink(missing_ok=True)
    started = time.perf_counter()
    try:
        done = compiled(program, target)
    except RedFuserError as e:
        return {"status": _status(e.code), "code": e.code, "why": e.render()[:600]}
    built = time.perf_counter()
    report = done.report
    refused = [(c.name, c.reason.code, c.reason.why or c.reason.condition) for c in report.refused if c.reason]
    record: dict[str, Any] = {
        "fused": len(report.fused), "cascades": len(report.cascades),
        "refused": [f"{name} {code} {why[:200]}" for name, code, why in refused]
        + sorted({f"{n.code} {n.text[:200]}" for n in report.notes if "not joined" in n.text}),
        "strategies": sorted({f"{c.strategy}{c.splits if c.splits > 1 else ''}" for c in (*report.fused, *report.maps)}),
        "roundings": sorted({r for c in report.fused for r in c.roundings}),
        "opaque": sorted({o.op for o in report.opaque}),
        "stages": {k: round(v, 2) for k, v in report.timings.items()}, "seconds": round(built - started, 2),
        "notes": sorted({f"{n.code} {n.text[:160]}".strip() for n in report.notes}),
    }
    if not (report.fused or report.maps):
        code = refused[0][1] if refused else next((n.code for n in report.notes if n.code), "none found")
        why = refused[0][2] if refused else "; ".join(record["notes"][:2]) or "no cascade was found"
        return {"status": _status(code), "code": code, "why": why[:600], **record}
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "model.rf"
        CompiledModel.from_compilation(done).save(whole)
        artifact.write_bytes(gzip.compress(whole.read_bytes(), 6, mtime=0))
    return {"status": "built", "code": "", "why": "", "bytes": artifact.stat().st_size, "runs": digest.runs(done, target),
            "compiler": digest.compiler(), "checks": digest.checks(), **record}


def _kept(program: Program, target: str, folder: Path) -> dict[str, Any] | None:
    """What is said of the artifact that is there, where the program as it is now gives the same texts."""
    found = read(folder, program)
    if found is None or found["status"] != "built" or found["target"] != target or not paths(folder, program.name)[0].exists():
        return None
    if found.get("compiler") != digest.compiler():
        return None
    if not _alike(program, target, found):
        return None
    return {**found, "checks": digest.checks(), "lowering": lowering(), "key": key(program, target)}


def standing(program: Program, target: str, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of a program of which an earlier table's row speaks: nothing is built, and what ran is what that row ran."""
    if row.get("target") != target or row.get("compiler") != digest.compiler() or not _alike(program, target, row):
        return None
    kept = {k: row[k] for k in ("runs", "ran", "compiler", "fused", "cascades", "strategies")}
    return {"status": STANDS, "code": "", "why": "", "refused": row["partly"], "checks": digest.checks(), **kept}


def _alike(program: Program, target: str, earlier: Mapping[str, Any]) -> bool:
    """Whether the program gives the texts that ``earlier`` was of, now. Its kernels are checked again where the checks are
    other ones."""
    verify = "0" if earlier.get("checks") == digest.checks() else None
    try:
        return bool(digest.runs(compiled(program, target, build=False, verify=verify), target) == earlier.get("runs"))
    except RedFuserError:
        return False


def compiled(program: Program, target: str, build: bool = True, verify: str | None = None) -> Any:
    """The compilation of a program, its kernels in the form that it forces. verify: in place of the setting."""
    from redfuser import pipeline, settings
    from redfuser.api import architecture
    from redfuser.kernels import produce

    arch, verify = architecture(target), verify or settings.load().verify
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = pipeline.run(program.fn, draw(program, "normal"), arch=arch, build=build, verify=verify, name=program.name)
    if not (program.strategy or program.roles or program.walk):
        return done
    forced = {}
    cascades = list(done.report.cascades)
    for region in done.partition.regions:
        made = done.produced[region.name]
        if made.reason is not None:
            continue
        other = produce(made.name, region.called, arch, build=build, strategy=program.strategy or None,
                        splits=program.splits or None, verify=verify,
                        order=partial(asked, program) if program.roles or program.walk else list)
        if other.reason is not None:
            raise RedFuserError(other.reason.code, other.reason.condition, why=other.reason.why)
        forced[region.name] = other
        at = next(i for i, c in enumerate(cascades) if c.name == region.name)
        cascades[at] = replace(cascades[at], strategy=other.strategy, splits=other.splits, config=other.config)
    return replace(done, produced={**done.produced, **forced}, report=replace(done.report, cascades=tuple(cascades)))


def asked(program: Program, legal: Sequence[Any]) -> list[Any]:
    """Of the configurations that there are, those that a program asks for, the first to be tried first."""
    from redfuser.tensorize.config import walks

    found = [c for c in walks(legal) if c.walk == (program.walk or "all")]
    return sorted(found, key=lambda c: c.schedule == "auto") if program.roles else found


def _status(code: str) -> str:
    return "failed" if FAILED.fullmatch(code) else "refused"
