"""``redfuser bench``: list, build, run, report, plot, compare, expect, targets, suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redfuser.cli import console
from redfuser.cli.cases import FILE, FOLDER, choose, progress
from redfuser.cli.console import NUMERICS, REGRESSION, print_table
from redfuser.cli.correctness import correctness
from redfuser.cli.estimates import expect, model, suite, targets_
from redfuser.errors import InputError

if TYPE_CHECKING:
    from redfuser.bench.rows import Row


@click.group()
def bench() -> None:
    """Build and measure the workloads against what a user would run instead."""


@bench.command("list")
@click.argument("workload", default="all")
@click.option("--shapes", default="all", show_default=True, help="Sets or names, comma-separated; all.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON lines.")
def list_(workload: str, shapes: str, as_json: bool) -> None:
    """The workloads and their shapes, with operations and minimal bytes."""
    cases = choose(workload, shapes)
    if as_json:
        for c in cases:
            click.echo(json.dumps({"case": str(c), "dtype": c.dtype, "params": dict(c.params), "flops": c.flops,
                                   "bytes": c.bytes, "sets": c.sets, "note": c.note}))
        return
    print_table("", ["case", "dtype", "GFLOP", "MB", "sets", "note"],
                [[str(c), c.dtype, f"{c.flops / 1e9:.2f}", f"{c.bytes / 1e6:.1f}", " ".join(c.sets), c.note] for c in cases])


@bench.command("build")
@click.argument("workload")
@click.option("--shapes", default="paper", show_default=True, help="Sets or names, comma-separated.")
@click.option("--target", required=True, help="cpu, or an architecture: sm_80 ... gfx90a.")
@click.option("-o", "--output", required=True, type=FOLDER, help="Folder for the artifacts.")
@click.option("--handwritten/--no-handwritten", default=True, help="Build the hand-written TileLang baselines too.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def build(workload: str, shapes: str, target: str, output: Path, handwritten: bool, quiet: bool) -> None:
    """Compile the cases into artifacts that `bench run --artifacts` measures elsewhere. Needs compilers, no GPU."""
    from redfuser.bench.build import build as build_

    outcomes = []
    for outcome in build_(choose(workload, shapes), target, output, handwritten, progress(quiet)):
        outcomes.append(outcome)
        where = outcome.path.relative_to(output) if outcome.path else "FAILED"
        click.echo(f"{outcome.case}  {outcome.what}  {where}" + (f"  {outcome.why}" if outcome.why else ""))
    if any(o.path is None and o.what == "redfuser" for o in outcomes):
        raise click.exceptions.Exit(1)


@bench.command("run")
@click.argument("workload")
@click.option("--shapes", default="paper", show_default=True, help="Sets or names, comma-separated.")
@click.option("--baseline", "baselines", default="eager", show_default=True,
              help="Comma-separated: eager, inductor, max-autotune, flash, cudnn, efficient, flex, flex+mask, handwritten.")
@click.option("--ours/--no-ours", default=True, help="Measure RedFuser too.")
@click.option("--artifacts", type=FOLDER, help="Pre-built artifacts; without them each case is compiled here.")
@click.option("--built", is_flag=True, help="With --artifacts: only the cases that are among them.")
@click.option("--device", help="cuda or cpu; default: cuda where there is one.")
@click.option("--budget", default=0.3, show_default=True, help="Seconds per variant and method.")
@click.option("--jobs", default=1, show_default=True, help="Make so many cases ready at once, then time them one by one.")
@click.option("--limit", default=600.0, show_default=True, help="With --jobs: seconds for making a case ready.")
@click.option("--json", "output", type=FILE, help="Append a JSON line per case and variant.")
@click.option("--resume", is_flag=True, help="Skip cases whose rows stand in that file already.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def run(workload: str, shapes: str, baselines: str, ours: bool, artifacts: Path | None, built: bool, device: str | None,
        budget: float, jobs: int, limit: float, output: Path | None, resume: bool, dry_run: bool, quiet: bool) -> None:
    """Measure the cases: checked against float64, timed interleaved. Exit code 4 when a result of ours is outside the rule."""
    from redfuser.bench import rows
    from redfuser.bench.baselines import BASELINES

    cases = choose(workload, shapes, artifacts if built else None)
    names = [n for n in (w.strip() for w in baselines.split(",")) if n and n != rows.OURS]
    unknown = [n for n in names if n not in BASELINES]
    if unknown:
        raise InputError("RF194", f"no baseline {', '.join(unknown)}", help=", ".join(n for n in BASELINES if n != rows.OURS))
    variants = ([rows.OURS] if ours else []) + names
    if dry_run:
        for c in cases:
            click.echo(f"{c}  {', '.join(variants)}")
        return
    from redfuser.bench import runner, together

    device = console.device(device)
    done = frozenset(r["group"] for r in rows.read(output) if r["status"] != "failed") if output and resume else frozenset()
    measured: list[Row] = []
    options = runner.Options(tuple(variants), device, artifacts, budget, done)
    blocks = runner.run(cases, options, progress(quiet)) if jobs <= 1 else \
        together.run(cases, options, jobs, limit, progress(quiet))
    try:
        for block in blocks:
            measured += block
            if output:
                rows.append(output, block)
    except KeyboardInterrupt:
        click.echo("interrupted; finished cases are kept", err=True)
    _show(measured)
    if any(r["variant"] == rows.OURS and r["passed"] is False for r in measured):
        raise click.exceptions.Exit(NUMERICS)


@bench.command("report")
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--markdown", is_flag=True, help="As Markdown, for docs/results/.")
def report(files: tuple[Path, ...], markdown: bool) -> None:
    """A table of measurements: the last row of each case and variant."""
    found = _read(files)
    if markdown:
        from redfuser.bench import written

        click.echo(written.markdown(found))
    else:
        _show(found)


@bench.command("compare")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--tolerance", default=0.03, show_default=True, help="Relative difference that counts.")
def compare(old: Path, new: Path, tolerance: float) -> None:
    """Compare two files of measurements. Exit code 5 when one of ours became slower beyond its spread."""
    from redfuser.bench import rows

    found = rows.compare(_read((old,)), _read((new,)), tolerance)
    print_table("", ["case", "variant", "old ms", "new ms", "change", "verdict"],
                [[case, variant, f"{a:.4f}", f"{b:.4f}", f"{100 * (b / a - 1):+.1f} %", verdict]
                 for case, variant, a, b, verdict in found])
    if any(variant == rows.OURS and verdict == "slower" for _, variant, _, _, verdict in found):
        raise click.exceptions.Exit(REGRESSION)


@bench.command("plot")
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("-o", "--output", required=True, type=FOLDER, help="Folder for the pictures.")
def plot(files: tuple[Path, ...], output: Path) -> None:
    """Pictures of measurements (PNG): speed-ups by family as bars, and where the cases lie under the roof."""
    from redfuser.bench import plot as plot_

    written = plot_.write(_read(files), output)
    if not written:
        raise InputError("RF196", "nothing there can be drawn", help="measure with baselines, or on a device with a roof")
    for path in written:
        click.echo(path)


for _command in (correctness, model, expect, targets_, suite):
    bench.add_command(_command)


def _read(files: tuple[Path, ...]) -> list[Row]:
    from redfuser.bench import rows

    found: list[Row] = []
    for path in files:
        if not path.exists():
            raise InputError("RF196", f"no file {path}")
        measured = rows.read(path)
        if not measured:
            raise InputError("RF196", f"{path} holds no measurements",
                             help="redfuser bench run WORKLOAD --json FILE writes some")
        found += measured
    return found


def _show(measured: list[Row]) -> None:
    from redfuser.bench import rows

    if not measured:
        click.echo("nothing measured", err=True)
        return
    columns, cells = rows.table(measured)
    print_table("milliseconds, the smaller of events (cold L2) and CUDA graph; (x): its time over ours", columns, cells)
    for note in rows.footnotes(measured):
        click.echo(f"* {note}")
