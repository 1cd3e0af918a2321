"""``redfuser bench correctness``: build, run and interpret the correctness programs."""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redfuser.cli import console
from redfuser.cli.console import NUMERICS
from redfuser.errors import InputError

if TYPE_CHECKING:
    from workloads.correctness import Program

FOLDER = click.Path(file_okay=False, path_type=Path)


def choose(only: str, sample: int, seeds: str = "") -> list[Program]:
    """The programs whose family or name matches one of the comma-separated patterns, families taking turns; ``sample``: so
    many of them, spread over the list. seeds: instead of those listed, the programs drawn from ``first:end``. Raises InputError
    RF194 when a pattern matches nothing or ``seeds`` is no range, or an empty one."""
    from workloads.correctness import all_programs, drawn

    drawing = range(*map(int, seeds.split(":"))) if re.fullmatch(r"\d+:\d+", seeds) else range(0)
    if seeds and not drawing:
        raise InputError("RF194", f"--seeds {seeds!r} is no range of seeds", help="first:end, as in 1000:1200")
    programs = [drawn.program(n) for n in drawing] if seeds else all_programs()
    chosen = programs
    if only:
        patterns = [w.strip() for w in only.split(",") if w.strip()]
        chosen = [p for p in programs if any(_matches(p, w) for w in patterns)]
        for w in patterns:
            if not any(_matches(p, w) for p in programs):
                raise InputError("RF194", f"no correctness program matches {w!r}",
                                 help=", ".join(dict.fromkeys(p.family for p in programs)))
    families: dict[str, list[Program]] = {}
    for p in chosen:
        families.setdefault(p.family, []).append(p)
    turns = [p for row in itertools.zip_longest(*families.values()) for p in row if p is not None]
    return turns[::max(1, len(turns) // sample)][:sample] if sample else turns


def _matches(program: Program, pattern: str) -> bool:
    return program.family == pattern or fnmatch.fnmatchcase(program.name, pattern) or (
        "*" not in pattern and pattern in program.name)


@click.command("correctness")
@click.option("--build", "building", type=FOLDER, help="Build the programs into this folder. Needs compilers, no GPU.")
@click.option("--run", "running", type=FOLDER, help="Run what was built there and judge it. Needs torch and the device.")
@click.option("--interpret", is_flag=True, help="Judge tile programs in the interpreter. Needs neither nvcc nor a GPU.")
@click.option("--list", "listing", is_flag=True, help="Name the programs.")
@click.option("--only", default="", help="Families, or patterns of names, comma-separated.")
@click.option("--sample", default=0, help="So many programs, spread over the list.")
@click.option("--seeds", default="", help="first:end; the programs drawn from these seeds in place of those listed.")
@click.option("--draws", default="", help="With --interpret: only these draws, comma-separated.")
@click.option("--target", default="sm_90a", show_default=True, help="With --build and --interpret: one that `compile` takes.")
@click.option("--device", help="With --run: cuda or cpu; default: cuda where there is one.")
@click.option("--jobs", default=0, help="Processes; default: the cores, at most 4 with --run.")
@click.option("--limit", "limit_s", default=300.0, show_default=True, help="Seconds for one program.")
@click.option("--since", type=FOLDER, help="A table: what was right in it stands, and is not built, run or interpreted again.")
@click.option("--any-runtime", is_flag=True, help="With --since: also rows under another runtime; the table counts them.")
@click.option("--sanitize", is_flag=True, help="With --run: right programs with roles once under compute-sanitizer.")
@click.option("--table", type=FOLDER, help="Write correctness.jsonl and README.md there; with --run, default: DIR/table.")
def correctness(building: Path | None, running: Path | None, interpret: bool, listing: bool, only: str, sample: int, seeds: str,
                draws: str, target: str, device: str | None, jobs: int, limit_s: float, since: Path | None, any_runtime: bool,
                sanitize: bool, table: Path | None) -> None:
    """Hold small programs to float64 and eager torch. Exit code 4 when one is wrong."""
    from redfuser.api import architecture

    if building is not None or interpret:
        architecture(target)  # an unknown one is refused once, not for each program
    programs = choose(only, sample, seeds)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if listing:
        for p in programs:
            click.echo(p.name)
    elif building is not None:
        from redfuser.bench.correctness.build import build
        from redfuser.bench.correctness.table import JSONL

        earlier = since / JSONL if since is not None else None
        _show_build(build(programs, target, building, jobs or cores, limit_s, click.echo, earlier))
    elif running is not None:
        if not running.is_dir():
            raise InputError("RF194", f"no folder {running}", help="--build DIR makes one")
        from redfuser.bench import provenance
        from redfuser.bench.correctness.run import run, watched
        from redfuser.bench.correctness.table import JSONL, read

        device = console.device(device)
        rows_before = read(since / JSONL)[1] if since is not None else ()
        begun = provenance.now()
        output = running / f"rows-{device}.jsonl"
        jobs = jobs or min(4, cores)
        rows = run(programs, running, device, output, jobs, limit_s, click.echo, rows_before, any_runtime)
        if sanitize:
            rows = watched(rows, running, output, jobs, click.echo)
        _finish(rows, device, table or running / "table", begun)
    elif interpret:
        from redfuser.bench.correctness.run import interpret_all
        from redfuser.bench.correctness.table import JSONL

        earlier = since / JSONL if since is not None else None
        rows = interpret_all(programs, target, [d for d in draws.split(",") if d], jobs or cores, limit_s, click.echo, earlier)
        _finish(rows, "cpu", table, earlier=earlier)
    else:
        raise InputError("RF194", "nothing to do", help="--build DIR, --run DIR, --interpret or --list")


def _show_build(records: Iterable[dict[str, Any]]) -> None:
    from collections import Counter

    found = Counter((r["status"], r["code"]) for r in records)
    click.echo(", ".join(f"{n} {status}{' ' + code if code else ''}" for (status, code), n in found.most_common()))


def _finish(rows: list[dict[str, Any]], device: str, folder: Path | None, since: str = "", earlier: Path | None = None) -> None:
    from redfuser.bench.correctness import table

    if folder is not None:
        head = table.heading(device, rows, since)
        if earlier is not None:  # the machine and the time of what ran
            head = {**head, **{k: v for k, v in table.read(earlier)[0].items() if k in ("machine", "time", "since")}}
        table.write(folder, head, rows)
    click.echo(table.summary(rows))
    for r in rows:
        if r["verdict"] == table.WRONG:
            click.echo(f"WRONG {r['program']}: {r['why'][:300]}")
    if any(r["verdict"] == table.WRONG for r in rows):
        raise click.exceptions.Exit(NUMERICS)
