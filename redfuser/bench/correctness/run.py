"""Run what was built: every program on every draw, against eager torch and float64 on the same machine."""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from redfuser import numerics
from redfuser.bench import provenance
from redfuser.bench.correctness import digest
from redfuser.bench.correctness.build import STANDS, paths, read
from redfuser.bench.correctness.judge import HIDDEN, Verdict, judge, words
from redfuser.bench.correctness.steady import REPEATS, TOOLS, repeated, sanitized
from redfuser.bench.correctness.supervise import supervise
from redfuser.errors import RedFuserError
from redfuser.unseen import unseen
from workloads.correctness import Program, draw, draws

SEEDS = 18
"""Draws of one kind that a verdict outside the numerics rule is made on. Over nine the largest of few results can be luck: a
cosine whose RMS error is .87 of eager's was outside by 2 %."""

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
    nothing). Those that have been watched before are not watched again."""
    by = {r["program"]: r for r in rows}
    waiting = [n for n, r in by.items() if r["verdict"] == RIGHT and set(r.get("schedules", ())) - {"auto"}
               and "sanitized" not in r]
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
    base = {**_origin(program, record), "code": "", "partly": record["refused"], "strategies": record["strategies"],
            "fused": record["fused"], "cascades": record["cascades"]}
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
    if why := repeated(model, tuple(t.to(device) for t in draw(program, what))):
        found["bad"].append({"draw": what, "output": 0, "why": why})
    return {**found, "schedules": schedules, "repeats": REPEATS}


def once(program: Program, folder: Path, device: str) -> dict[str, Any]:
    """Load a program's artifact and run it on one draw: for a tool that watches."""
    with loaded(program, folder, device) as model:
        model(*(t.to(device) for t in draw(program, next(iter(draws(program))))))
        torch.cuda.synchronize()
    return {}


def examine(program: Program, ours: Callable[..., Any], device: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """``ours`` on every draw (or those in ``only``): how many, what is bad, the worst ratio, exceptions by name."""
    bad: list[dict[str, Any]] = []
    exceptions: dict[str, int] = {}
    worst, count = 0.0, 0
    names = [d for d in draws(program) if not only or d in only]
    for what in names:
        args = tuple(t.to(device) for t in draw(program, what))
        count += 1
        try:
            with torch.no_grad():
                result = ours(*args)
            if device != "cpu":
                torch.cuda.synchronize()
        except Exception as e:
            bad.append({"draw": what, "output": 0, "why": f"{type(e).__name__}: {str(e)[:300]}"})
            if not isinstance(e, RedFuserError) and device != "cpu":
                return {"draws": count, "bad": bad, "ratio": worst, "exceptions": exceptions, "poisoned": True}
            continue
        with torch.no_grad():
            found = [_again(program, ours, what, v, device) for v in _judged(program, result, args)]
        for v in found:
            if v.why:
                bad.append({"draw": what, "output": v.output, "why": v.why})
            else:
                worst = max(worst, v.ratio) if v.ratio != float("inf") else worst
            for name, n in v.exceptions.items():
                exceptions[name] = exceptions.get(name, 0) + n
    return {"draws": count, "bad": bad, "ratio": worst, "exceptions": exceptions}


def _again(program: Program, ours: Callable[..., Any], what: str, verdict: Verdict, device: str) -> Verdict:
    """A verdict outside the numerics rule, held to it on further draws as well; any other as it is."""
    if not verdict.why or verdict.check is None:
        return verdict
    checks = [verdict.check]
    for seed in range(1, SEEDS):
        args = tuple(t.to(device) for t in draw(program, what, seed))
        other = next(v for v in _judged(program, ours(*args), args) if v.output == verdict.output)
        if other.check is None:
            return other if other.why else verdict
        checks.append(other.check)
    whole = numerics.pooled(checks)
    why = "" if whole.passed else f"{words(verdict.check)}; over {SEEDS} draws, in units of storing: {words(whole)}"
    return Verdict(verdict.output, why, whole.ratio, verdict.exceptions, whole)


def _judged(program: Program, result: Any, args: tuple[torch.Tensor, ...]) -> list[Verdict]:
    """Against eager as torch runs it; where that is attention by a library kernel, also against torch's own composition of
    it (rows that see nothing differ between torch's backends), and against torch on the CPU (an infinity in a row makes all of
    an RMS norm NaN on a GPU, and on a CPU what the formula says): right by one is right. What a mask hides may be as if it
    were not there, element by element (:mod:`redfuser.unseen`)."""
    truth = numerics.reference(program.fn, args)
    eager = program.fn(*args)
    found = judge(result, eager, truth, args, program.ranked, lambda: numerics.moved(program.fn, args))
    if not any(v.why for v in found):
        return found
    with sdpa_kernel(SDPBackend.MATH):
        composed = program.fn(*args)
    found = _either(found, judge(result, composed, truth, args, program.ranked))
    if any(v.why for v in found) and any(t.is_cuda for t in args):
        there = tuple(t.cpu() for t in args)
        ours = tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, result)
        found = _either(found, judge(ours, program.fn(*there), numerics.reference(program.fn, there), there, program.ranked,
                                     lambda: numerics.moved(program.fn, there)))
    hidden = _hidden(program, args) if any(v.why for v in found) else []
    for other in (eager, composed) if hidden else ():
        changed, exact, spared = _spared(result, other, truth, hidden)
        again = judge(result, changed, exact, args, program.ranked)
        found = _either(found, [replace(v, exceptions={**v.exceptions, HIDDEN: n}) if n else v for v, n in zip(again, spared)])
    return found


def _either(found: list[Verdict], again: list[Verdict]) -> list[Verdict]:
    return [a if v.why and not a.why else v for v, a in zip(found, again)] if len(found) == len(again) else found


@dataclass(frozen=True)
class Hidden:
    """Per result: where it sees nothing of one input's NaN and infinities, and eager's and the exact results without them."""

    where: list[torch.Tensor]
    eager: list[torch.Tensor]
    exact: list[torch.Tensor]


def _hidden(program: Program, args: tuple[torch.Tensor, ...]) -> list[Hidden]:
    def without(i: int, number: float, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return tuple(torch.where(a.isfinite(), a.to(dtype), number) if k == i else a for k, a in enumerate(args))

    def exact(i: int, number: float) -> list[Any]:
        results = numerics.tensors(numerics.reference(program.fn, without(i, number, torch.float64)))
        return [r.double().cpu().numpy() if r.is_floating_point() else r.cpu().numpy() for r in results]

    odd = [i for i, a in enumerate(args) if a.dtype in numerics.PROMOTED and not bool(a.isfinite().all())]
    return [Hidden([torch.from_numpy(np.asarray(w)) for w in where],
                   numerics.tensors(program.fn(*without(i, 0.0, args[i].dtype))),
                   [torch.from_numpy(np.asarray(r)) for r in results]) for i, where, results in unseen(exact, odd)]


def _spared(result: Any, eager: Any, truth: Any,
            hidden: list[Hidden]) -> tuple[list[torch.Tensor], list[torch.Tensor], list[int]]:
    """Eager and exact results, where ours is finite and hidden from an input's NaN and infinities as they are without
    them; and of how many elements per result that excuses eager's NaN or infinity."""
    ours, theirs, exact = (numerics.tensors(t) for t in (result, eager, truth))
    counts = []
    for n, x in enumerate(ours):
        y = theirs[n]
        for h in hidden if x.is_floating_point() else ():
            here = h.where[n].to(x.device) & x.double().isfinite()
            theirs[n] = torch.where(here, h.eager[n], theirs[n])
            exact[n] = torch.where(here.to(exact[n].device), h.exact[n].to(exact[n]), exact[n])
        counts.append(int((y.double().isfinite() != theirs[n].double().isfinite()).sum()) if x.is_floating_point() else 0)
    return theirs, exact, counts


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
