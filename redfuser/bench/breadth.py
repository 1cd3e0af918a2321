"""Small programs of many families for many architectures, built where a compiler is: what came of each, and its kernels beside
the model of resources. Nothing is run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from redfuser.bench import provenance
from redfuser.bench.correctness.build import FAILED, compiled
from redfuser.bench.rows import grid, lines
from redfuser.errors import RedFuserError
from redfuser.target import Target, target
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.model import needs
from workloads.correctness import Program

Row = dict[str, Any]
COLUMNS = ["kernel", "target", "shared: model", "launch", "registers: model", "compiler", "error", "spilled bytes"]


def sweep(programs: Sequence[Program], targets: Sequence[str], output: Path | None,
          tell: Callable[[str], None]) -> list[Row]:
    """A row for each program and target, those of ``output`` kept and new ones appended to it."""
    rows = lines(output) if output is not None else []
    known = {(r["program"], r["target"]) for r in rows}
    for arch in targets:
        for program in (p for p in programs if (p.name, arch) not in known):
            row = one(program, arch)
            rows.append(row)
            tell(f"{arch} {program.name}: {row['status']} {row['code']} ({row['seconds']} s)")
            if output is not None:
                with output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, sort_keys=True) + "\n")
    return rows


def one(program: Program, arch: str) -> Row:
    """status: ``built`` (``text``: HIP that no compiler here finishes), ``refused`` with the code of why it stays with torch,
    or ``failed`` with that of what a compiler said."""
    began = time.perf_counter()
    row: Row = {"family": program.family, "program": program.name, "target": arch, "commit": provenance.commit()}
    try:
        done = compiled(program, arch)
    except RedFuserError as error:
        code, why, kernels = error.code, error.why or error.what, []
    else:
        kernels = [k for made in {p.name: p for p in done.produced.values()}.values() if made.spec is not None
                   for k in _kernels(made, target(arch))]
        left = [c.reason for c in done.report.refused if c.reason]
        notes = [n for n in done.report.notes if n.code]
        code = "" if kernels else left[0].code if left else notes[0].code if notes else "none found"
        why = "" if kernels else left[0].why or left[0].condition if left else notes[0].text if notes else ""
        row["partly"] = sorted({r.code for r in left}) if kernels else []
        row["passed over"] = sorted(n.code for n in notes if "passed over" in n.text)
    status = ("built" if all(k["finished"] for k in kernels) else "text") if kernels else \
        "failed" if FAILED.fullmatch(code) else "refused"
    return {**row, "status": status, "code": code, "why": why[:300], "kernels": kernels,
            "seconds": round(time.perf_counter() - began, 1)}


def _kernels(made: Any, at: Target) -> Iterator[Row]:
    """What the model says of each kernel, and what was asked for and reported: registers of both kinds together."""
    tiles = parse(made.stages["tiles"]).kernels
    said: Sequence[Mapping[str, int]] = made.spec.resources or [{} for _ in tiles]
    for kernel, launch, report in zip(tiles, made.spec.launches, said, strict=True):
        wanted = needs(kernel, at)
        own = report["registers"] + report.get("accumulator_registers", 0) if "registers" in report else None
        yield {"name": kernel.name, "threads": launch.block[0], "finished": made.spec.finished,
               "shared": [wanted.shared, launch.shared_bytes + report.get("static_shared_bytes", 0)],
               "registers": [wanted.registers, own], "spilled": report.get("spill_bytes")}


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Programs by targets."""
    targets = list(dict.fromkeys(r["target"] for r in rows))
    found = {(r["program"], r["target"]): r for r in rows}
    programs = dict.fromkeys(r["program"] for r in rows)
    return ["program", *targets], [[p, *(_cell(found.get((p, t))) for t in targets)] for p in programs]


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    partly = f", in part ({', '.join(row['partly'])})" if row.get("partly") else ""
    return f"{row['status']} {row['code']}".strip() + partly


def kernels(rows: Sequence[Row]) -> list[list[str]]:
    """A line for every kernel of which a compiler said something."""
    return [[f"{r['program']} {k['name']}", r["target"], str(k["shared"][0]), str(k["shared"][1]), str(k["registers"][0]),
             str(k["registers"][1]), f"{k['registers'][0] / k['registers'][1] - 1:+.0%}", str(k["spilled"])]
            for r in rows for k in r["kernels"] if k["registers"][1]]


def markdown(rows: Sequence[Row]) -> str:
    """Both tables, and what was said of what was not built."""
    head, lines = table(rows)
    parts = [grid(head, lines), grid(COLUMNS, kernels(rows))]
    left = [[r["program"], r["target"], r["code"], r["why"].strip().splitlines()[0][:160] if r["why"].strip() else ""]
            for r in rows if not r["kernels"]]
    return "\n\n".join(parts + ([grid(["not built", "target", "code", "why"], left)] if left else []))
