"""``redfuser bench``: list, build, run, report, plot, compare, expect, targets, suite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redfuser.cli.console import NUMERICS, REGRESSION, print_table
from redfuser.cli.correctness import correctness
from redfuser.errors import InputError

if TYPE_CHECKING:
    from redfuser.bench.rows import Row
    from workloads.case import Case
    from workloads.correctness import Program

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


def choose(workload: str, shapes: str, among: Path | None = None) -> list[Case]:
    """Cases by families (``mha``, ``norms``, ``all``) and by shape set or names; of a folder of problems in KernelBench's form,
    by patterns as of ``bench suite``. among: a folder of artifacts, no case that it lacks. Raises InputError RF194 for
    unknown ones."""
    import redfuser.bench  # noqa: F401 (it says where the workloads are)
    import workloads
    from redfuser.bench.baselines import is_built

    if workload not in ("all", *workloads.FAMILIES) and Path(workload).is_dir():
        from redfuser.bench.suite.cases import cases as problems

        return problems(Path(workload), "" if shapes in ("paper", "all") else shapes, among)
    cases = workloads.all_cases()
    if workload != "all":
        families = list(dict.fromkeys(c.workload for c in cases))
        asked = [w.strip() for w in workload.split(",")]
        if unknown := [w for w in asked if w not in families]:
            raise InputError("RF194", f"no workload {', '.join(map(repr, unknown))}", help=f"all, {', '.join(families)}")
        cases = [c for c in cases if c.workload in asked]
    sets = list(dict.fromkeys(s for c in cases for s in c.sets))
    chosen: list[Case] = []
    for word in filter(None, (w.strip() for w in shapes.split(","))):
        found = [c for c in cases if word in (*c.sets, c.name, "all")]
        if not found:
            raise InputError("RF194", f"{workload} has no shape or set of shapes {word!r}",
                             help=f"sets: {', '.join(sets)}; shapes: {', '.join(c.name for c in cases[:40])}")
        chosen += [c for c in found if c not in chosen]
    return [c for c in chosen if among is None or is_built(among, c.workload, c.name)]


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


@bench.command("model")
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--times", "times_", type=FILE, help="A file of measurements (bench run --json) to compare predicted times with.")
@click.option("--candidates", "candidates_", type=FILE, help="A file of measured configurations to rank.")
@click.option("--target", default="sm_90a", show_default=True, help="Whose kernels in FOLDER.")
@click.option("--part", default="H200", show_default=True, help="With --times and --candidates: what was measured on.")
@click.option("--worst", default=10, show_default=True, help="So many of the kernels that are missed by most.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def model(folder: Path | None, times_: Path | None, candidates_: Path | None, target: str, part: str, worst: int,
          quiet: bool) -> None:
    """The model of resources against ptxas, over the artifacts in FOLDER, and against measured times."""
    from redfuser.bench import model as model_
    from redfuser.target import PARTS

    if part not in PARTS:
        raise InputError("RF496", f"unknown part {part!r}", help=f"one of: {', '.join(PARTS)}")
    if folder is not None:
        found = list(model_.built(folder, target))
        if not found:
            raise InputError("RF194", f"{folder} holds no artifact that says of which tile program its kernels are",
                             help="redfuser bench build and redfuser bench correctness --build write such")
        print_table("The model against ptxas", *model_.table(found))
        print_table("Registers missed by most", ["kernel", "kind", "model", "ptxas", "error"], model_.worst(found, worst))
    if candidates_ is not None:
        print_table(f"Candidates, {part}, ms", model_.CANDIDATES, model_.candidates(candidates_, PARTS[part]))
    if times_ is not None:
        pairs = model_.times(times_, PARTS[part], _progress(quiet))
        print_table(f"Predicted and measured, {part}, ms", ["case", "model", "measured", "model / measured"],
                    [[case, f"{p:.4f}", f"{m:.4f}", f"{p / m:.2f}"] for case, p, m in pairs])
        click.echo(f"rank correlation {model_.rank([(p, m) for _, p, m in pairs]):.3f} over {len(pairs)} cases")


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
    for outcome in build_(choose(workload, shapes), target, output, handwritten, _progress(quiet)):
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
    import torch

    from redfuser.bench import runner, together

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    done = frozenset(r["group"] for r in rows.read(output) if r["status"] != "failed") if output and resume else frozenset()
    measured: list[Row] = []
    options = runner.Options(tuple(variants), device, artifacts, budget, done)
    blocks = runner.run(cases, options, _progress(quiet)) if jobs <= 1 else \
        together.run(cases, options, jobs, limit, _progress(quiet))
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

    for path in (old, new):
        if not path.exists():
            raise InputError("RF196", f"no file {path}")
    found = rows.compare(rows.read(old), rows.read(new), tolerance)
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


@bench.command("expect")
@click.argument("workload")
@click.option("--shapes", default="paper", show_default=True, help="Sets or names, comma-separated.")
@click.option("--part", "parts", default="", help="Parts, comma-separated (MI300X, MI308X, A10 ...); default: all.")
@click.option("--json", "output", type=FILE, help="Append a JSON line per case and part.")
@click.option("--markdown", is_flag=True, help="As Markdown, for docs/results/.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def expect(workload: str, shapes: str, parts: str, output: Path | None, markdown: bool, quiet: bool) -> None:
    """What the model of resources expects of the cases on parts that are not here. Planned, not built; never measured."""
    from redfuser.bench import modelled, rows
    from redfuser.target import PARTS

    chosen = [p for p in (w.strip() for w in parts.split(",")) if p] or list(PARTS)
    if unknown := [p for p in chosen if p not in PARTS]:
        raise InputError("RF496", f"unknown part {unknown[0]!r}", help=f"one of: {', '.join(PARTS)}")
    found = []
    for e in modelled.expect(choose(workload, shapes), chosen, _progress(quiet)):
        found.append(e)
        if output:
            with output.open("a", encoding="utf-8") as file:
                file.write(e.json() + "\n")
    head, lines = modelled.table(found, chosen)
    if markdown:
        click.echo(rows.grid(head, lines))
    else:
        print_table("modelled, not measured: ms (what bounds it, share of the data sheet's floor)", head, lines)


@bench.command("targets")
@click.option("--target", "targets", default="", help="Architectures, comma-separated; default: all.")
@click.option("--only", default="", help="Families of `bench correctness --list`, or patterns of names; default: all.")
@click.option("--each", default=1, show_default=True, help="So many programs of each family, the first ones.")
@click.option("--json", "output", type=FILE, help="Append a JSON line per program and target; those that stand there are kept.")
@click.option("--markdown", is_flag=True, help="As Markdown, for docs/results/.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def targets_(targets: str, only: str, each: int, output: Path | None, markdown: bool, quiet: bool) -> None:
    """Build small programs for every architecture: what each came to, and its kernels beside the model. Runs nothing."""
    from redfuser.api import architecture
    from redfuser.bench import breadth
    from redfuser.cli.correctness import choose as programs
    from redfuser.target import TARGETS

    archs = [architecture(t) for t in (w.strip() for w in targets.split(",")) if t] or list(TARGETS)
    families: dict[str, list[Program]] = {}
    for program in programs(only, 0):
        families.setdefault(program.family, []).append(program)
    chosen = [p for family in families.values() for p in family[:each]]
    rows = breadth.sweep(chosen, archs, output, _progress(quiet))
    if markdown:
        click.echo(breadth.markdown(rows))
        return
    print_table("programs by targets", *breadth.table(rows))
    print_table("The model against the compilers", breadth.COLUMNS, breadth.kernels(rows))


@bench.command("suite")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Patterns of level1/23_Softmax, comma-separated.")
@click.option("--target", default="cpu", show_default=True, help="What is built and run.")
@click.option("--planned", default="sm_90a", show_default=True, help="What is planned for too; builds nothing.")
@click.option("--jobs", default=2, show_default=True, help="Processes at once.")
@click.option("--limit", default=300.0, show_default=True, help="Seconds for a problem.")
@click.option("--json", "output", type=FILE, help="Append a JSON line per problem; those that stand there are kept.")
@click.option("--markdown", is_flag=True, help="As Markdown, for docs/results/.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def suite(folder: Path, only: str, target: str, planned: str, jobs: int, limit: float, output: Path | None, markdown: bool,
          quiet: bool) -> None:
    """Problems in KernelBench's form: compiled, run at small sizes against eager, and their reports against what ran. Runs the
    code in FOLDER. Exit code 4 when a result or a report is wrong."""
    from redfuser.api import architecture
    from redfuser.bench.suite import run as suite_

    at, other = architecture(target), architecture(planned)
    rows = suite_.run(suite_.problems(folder, only), at, other, jobs, limit, output, _progress(quiet))
    if markdown:
        click.echo(suite_.markdown(rows, other))
    else:
        print_table("", *suite_.table(rows, other))
        for line in suite_.summary(rows, other):
            click.echo(line)
    if any(r["status"] == "wrong" or r.get("untrue") for r in rows):
        raise click.exceptions.Exit(NUMERICS)


bench.add_command(correctness)


def _read(files: tuple[Path, ...]) -> list[Row]:
    from redfuser.bench import rows

    found: list[Row] = []
    for path in files:
        if not path.exists():
            raise InputError("RF196", f"no file {path}")
        found += rows.read(path)
    return found


def _progress(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else (lambda text: click.echo(text, err=True))


def _show(measured: list[Row]) -> None:
    from redfuser.bench import rows

    if not measured:
        click.echo("nothing measured", err=True)
        return
    columns, cells = rows.table(measured)
    print_table("milliseconds, the smaller of events (cold L2) and CUDA graph; (x): its time over ours", columns, cells)
    for note in rows.footnotes(measured):
        click.echo(f"* {note}")
