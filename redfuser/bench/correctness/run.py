"""Run what was built: every program on every draw, against eager torch and float64 on the same machine."""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from redfuser.bench import provenance
from redfuser.bench.correctness import digest
from redfuser.bench.correctness.build import STANDS, paths, read
from redfuser.bench.correctness.examine import examine
from redfuser.bench.correctness.steady import REPEATS, TOOLS, sanitized, unsteady
from redfuser.bench.correctness.supervise import supervise
from redfuser.runtime import trial
from workloads.correctness import Program, draw, draws

RIGHT, WRONG, REFUSED, FAILED, NOT_RUN = "right", "wrong", "refused", "failed to build", "not run"
INTERPRETED = "right in the interpreter"
"""Of a program whose texts are others than those that ran on a device."""


def run(programs: Sequence[Program], folder: Path, device: str, output: Path, jobs: int, limit_s: float,
        tell: Callable[[str], None], since: Sequence[dict[str, Any]] = (), any_runtime: bool = False) -> list[dict[str, Any]]:
    """A row per program, appended to ``output`` as it comes; programs whose artifact was judged there before are not run
    again. Rows in the programs' order. since: rows of an earlier table; those that were right, of the same bytes and the same
    runtime (any_runtime: or another), stand, and say when they were made."""
    records = {p.name: _read(folder, p) for p in programs}
    rows = {r["program"]: {**r, **_built(record)} for r in since if (record := records.get(r["program"])) is not None
            and _stands(r, record, any_runtime)}
    rows |= {r["program"]: r for r in rows_of(output) if _same(r, records.get(r["program"]))}
    waiting = []
    with output.open("a") as file:
        def keep(row: dict[str, Any]) -> None:
            rows[row["program"]] = row
            file.write(json.dumps(row, sort_keys=True) + "\n")
            file.flush()

        for p in programs:
            if p.name in rows and rows[p.name]["verdict"] != NOT_RUN:
                continue
            record = records[p.name]
            if record is not None and record["status"] == "built":
                waiting.append(p)
            else:
                keep(unbuilt(p, record))
        options = {"folder": str(folder), "device": device}
        by = {p.name: p for p in programs}
        for n, answer in enumerate(supervise("run", [p.name for p in waiting], options, jobs, limit_s), 1):
            program = by[answer["program"]]
            record = records[program.name]
            assert record is not None
            row = judged(program, record, answer)
            keep(row)
            tell(f"[{n}/{len(waiting)}] {program.name}: {row['verdict']} {row['why'][:200]}".rstrip())
    return [rows[p.name] for p in programs if p.name in rows]


def watched(rows: list[dict[str, Any]], folder: Path, output: Path, jobs: int,
            tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """The rows, those of programs with roles with what each tool of compute-sanitizer found in one run (``sanitized``; empty:
    nothing). Those that have been watched before are not watched again, and what stands from an earlier table is not here."""
    by = {r["program"]: r for r in rows}
    waiting = [n for n, r in by.items() if r["verdict"] == RIGHT and set(r.get("schedules", ())) - {"auto"}
               and "sanitized" not in r and paths(folder, n)[0].exists()]
    found: dict[str, dict[str, str]] = {}
    with output.open("a") as file:
        for name, tool, what in sanitized(waiting, TOOLS, folder, jobs):
            found.setdefault(name, {})[tool] = what
            if what:
                tell(f"{name}: {tool}: {what}")
            if len(found[name]) == len(TOOLS):
                by[name] = {**by[name], "sanitized": found[name]}
                file.write(json.dumps(by[name], sort_keys=True) + "\n")
                file.flush()
    return list(by.values())


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file; a line that was cut short is passed over, and so is a table's heading."""
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if "program" in found:
            yield found


def _same(row: dict[str, Any], record: dict[str, Any] | None) -> bool:
    return record is not None and row.get("key") == record.get("key")


def _stands(row: dict[str, Any], record: dict[str, Any], any_runtime: bool) -> bool:
    same = all(row.get(k) and row[k] == record.get(k) for k in ("runs", "ran")) and "repeats" in row
    return bool(row["verdict"] == RIGHT and same
                and (any_runtime or row.get("runtime") == digest.runtime()))


def _built(record: dict[str, Any]) -> dict[str, Any]:
    """What a row says of the build."""
    return {k: record.get(k, "") for k in ("key", "target", "lowering", "commit", "runs", "compiler", "checks", "ran")}


def _read(folder: Path, program: Program) -> dict[str, Any] | None:
    """A program's record, with what its artifact runs."""
    found = read(folder, program)
    return None if found is None else {**found, "ran": digest.ran(paths(folder, program.name)[0]) or found.get("ran", "")}


def unbuilt(program: Program, record: dict[str, Any] | None) -> dict[str, Any]:
    """The row of a program of which there is no artifact."""
    base = {**_origin(program, record or {}), "draws": 0, "bad": [], "ratio": None, "exceptions": {}}
    if record is None:
        return {**base, "verdict": NOT_RUN, "code": "", "why": "not built", "partly": [], "strategies": []}
    if record["status"] == STANDS:
        why = "not built: an earlier table speaks of it, which was not given or does not hold"
        return {**base, "verdict": NOT_RUN, "code": "", "why": why, "partly": [], "strategies": []}
    verdict = REFUSED if record["status"] == "refused" else FAILED
    return {**base, "verdict": verdict, "code": record["code"], "why": record["why"], "partly": record.get("refused", []),
            "strategies": []}


def _origin(program: Program, record: dict[str, Any]) -> dict[str, Any]:
    """Which program a row is of, and what code it was built by."""
    return {"program": program.name, "family": program.family, **_built(record), "runtime": digest.runtime(),
            "time": provenance.now()}


def judged(program: Program, record: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """A child's answer as a row. A process that died while it ran a program is a wrong result of that program."""
    base = {**_origin(program, record), "code": "", "partly": [*record["refused"], *answer.get("distrusted", ())],
            "strategies": record["strategies"], "fused": record["fused"], "cascades": record["cascades"]}
    if "lost" in answer:
        return {**base, "verdict": WRONG, "why": answer["lost"], "draws": 0, "bad": [], "ratio": None, "exceptions": {}}
    why = "; ".join(f"{b['draw']} output {b['output']}: {b['why']}" for b in answer["bad"][:3])
    more = len(answer["bad"]) - 3
    return {**base, "verdict": WRONG if answer["bad"] else RIGHT, "why": why + (f"; and {more} more" if more > 0 else ""),
            **{k: answer[k] for k in ("draws", "bad", "ratio", "exceptions")},
            **{k: answer[k] for k in ("schedules", "repeats") if k in answer}}


# -- in the child ------------------------------------------------------------------------------------------------------


def warm(device: str) -> None:
    """What the first program would pay for: torch's libraries on the device. Many children that start at once take a minute."""
    if device != "cpu":
        x = torch.ones(64, 64, device=device)
        (x @ x).double().softmax(-1).sum().item()


@contextlib.contextmanager
def loaded(program: Program, folder: Path, device: str) -> Iterator[Any]:
    """The model of a program's artifact, its kernels finished here where they are text."""
    import redfuser
    from redfuser import finish

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.rf"
        path.write_bytes(gzip.decompress(paths(folder, program.name)[0].read_bytes()))
        finish.file(path)
        model = redfuser.load(str(path))
        yield model.to(device) if device != "cpu" else model


def one(program: Program, folder: Path, device: str) -> dict[str, Any]:
    """Load a program's artifact and judge it on every draw."""
    with loaded(program, folder, device) as model:
        found = examine(program, model, device)
    schedules = sorted({str(k.config.get("schedule", "")) for k in model.kernels.values()} - {""})
    if found.get("poisoned"):
        return {**found, "schedules": schedules, "repeats": 0}
    what = next(iter(draws(program)))
    args = tuple(t.to(device) for t in draw(program, what))
    why, excused = unsteady(model, program.fn, args)
    if why and not excused:
        found["bad"].append({"draw": what, "output": 0, "why": why})
    elif why:
        found["exceptions"]["as unsteady"] = 1
    return {**found, "schedules": schedules, "repeats": REPEATS, "distrusted": distrusted(model, device)}


def distrusted(model: Any, device: str) -> list[str]:
    """Kernels that the trial before first use would put torch in the place of."""
    tried = trial.all_of(model, device) if device != "cpu" else ()
    return [f"{name} RF807 {why}" for name, verdict, why in tried if verdict == "wrong"]


def once(program: Program, folder: Path, device: str) -> dict[str, Any]:
    """Load a program's artifact and run it on one draw: for a tool that watches."""
    with loaded(program, folder, device) as model:
        model(*(t.to(device) for t in draw(program, next(iter(draws(program))))))
        torch.cuda.synchronize()
    return {}


# -- without a device --------------------------------------------------------------------------------------------------


def interpret_all(programs: Sequence[Program], target: str, only: Sequence[str], jobs: int, limit_s: float,
                  tell: Callable[[str], None], since: Path | None = None) -> list[dict[str, Any]]:
    """A row per program, its tile programs run in the interpreter (:mod:`redfuser.bench.correctness.interpret`). since: an
    earlier table (its JSON lines) of a device: what was right there and would be built of the same texts stands; of the rest,
    what is right now is :data:`INTERPRETED`."""
    rows = {}
    by, earlier = {p.name: p for p in programs}, {r["program"]: r for r in rows_of(since)} if since is not None else {}
    code, commit = digest.lowering(), provenance.commit()
    options = {"target": target, "draws": list(only), "since": str(since or "")}
    for n, answer in enumerate(supervise("interpret", [p.name for p in programs], options, jobs, limit_s), 1):
        program = by[answer["program"]]
        record = {"target": target, "lowering": code, "commit": commit, "refused": [], "strategies": [], "fused": 0,
                  "cascades": 0, "status": "refused", **answer}
        if answer.get("status") == STANDS:
            row = {**earlier[program.name], "lowering": code, "checks": answer["checks"], "key": digest.key(program, target)}
        else:
            row = unbuilt(program, record) if "code" in answer else judged(program, record, answer)
            row["verdict"] = INTERPRETED if since is not None and row["verdict"] == RIGHT else row["verdict"]
        rows[program.name] = row
        tell(f"[{n}/{len(programs)}] {program.name}: {row['verdict']} {row['code']} {row['why'][:200]}".rstrip())
    return [rows[p.name] for p in programs]
