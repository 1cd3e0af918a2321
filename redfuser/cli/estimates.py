"""``redfuser bench model, expect, targets, suite``: what is planned, built and compared without timing our kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redfuser.cli.cases import FILE, choose, progress
from redfuser.cli.console import NUMERICS, print_table
from redfuser.errors import InputError

if TYPE_CHECKING:
    from workloads.correctness import Program


@click.command("model")
@click.argument("where", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--keep", type=FILE, help="Write what was said of the kernels in WHERE as JSON lines, which WHERE may be later.")
@click.option("--times", "times_", type=FILE, help="A file of measurements (bench run --json) to compare predicted times with.")
@click.option("--candidates", "candidates_", type=FILE, multiple=True, help="Files of measured configurations to rank.")
@click.option("--fit", is_flag=True, help="Fit the estimate of registers anew to WHERE and --candidates, families held out.")
@click.option("--target", default="sm_90a", show_default=True, help="Whose kernels in WHERE.")
@click.option("--part", default="H200", show_default=True, help="With --times and --candidates: what was measured on.")
@click.option("--worst", default=10, show_default=True, help="So many of the kernels that are missed by most.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def model(where: Path | None, keep: Path | None, times_: Path | None, candidates_: tuple[Path, ...], fit: bool, target: str,
          part: str, worst: int, quiet: bool) -> None:
    """The model of resources against ptxas, over the artifacts in a folder or the kernels of a file, and against measured
    times."""
    from redfuser.bench import model as model_
    from redfuser.target import PARTS

    if part not in PARTS:
        raise InputError("RF496", f"unknown part {part!r}", help=f"one of: {', '.join(PARTS)}")
    if where is not None:
        found = list(model_.built(where, target))
        if not found:
            raise InputError("RF194", f"{where} holds no artifact that says of which tile program its kernels are",
                             help="redfuser bench build and redfuser bench correctness --build write such")
        if keep:
            keep.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in model_.said(where, target)))
        print_table("The model against ptxas", *model_.table(found))
        print_table("Registers missed by most", ["kernel", "kind", "model", "ptxas", "error"], model_.worst(found, worst))
        if fit:
            from redfuser.bench import fitting

            print_table("Registers fitted anew", *fitting.table(list(fitting.known(where, candidates_, target))))
    for path in candidates_:
        print_table(f"{path.parent.name}, {part}, ms", model_.CANDIDATES, model_.candidates(path, PARTS[part]))
    if times_ is not None:
        pairs = model_.times(times_, PARTS[part], progress(quiet))
        print_table(f"Predicted and measured, {part}, ms", ["case", "model", "measured", "model / measured"],
                    [[case, f"{p:.4f}", f"{m:.4f}", f"{p / m:.2f}"] for case, p, m in pairs])
        click.echo(f"rank correlation {model_.rank([(p, m) for _, p, m in pairs]):.3f} over {len(pairs)} cases")


@click.command("expect")
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
    for e in modelled.expect(choose(workload, shapes), chosen, progress(quiet)):
        found.append(e)
        if output:
            with output.open("a", encoding="utf-8") as file:
                file.write(e.json() + "\n")
    head, lines = modelled.table(found, chosen)
    if markdown:
        click.echo(rows.grid(head, lines))
    else:
        print_table("modelled, not measured: ms (what bounds it, share of the data sheet's floor)", head, lines)


@click.command("targets")
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
    rows = breadth.sweep(chosen, archs, output, progress(quiet))
    if markdown:
        click.echo(breadth.markdown(rows))
        return
    print_table("programs by targets", *breadth.table(rows))
    print_table("The model against the compilers", breadth.COLUMNS, breadth.kernels(rows))


@click.command("suite")
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
    rows = suite_.run(suite_.problems(folder, only), at, other, jobs, limit, output, progress(quiet))
    if markdown:
        click.echo(suite_.markdown(rows, other))
    else:
        print_table("", *suite_.table(rows, other))
        for line in suite_.summary(rows, other):
            click.echo(line)
    if any(r["status"] == "wrong" or r.get("untrue") for r in rows):
        raise click.exceptions.Exit(NUMERICS)
