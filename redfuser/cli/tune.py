"""``redfuser tune``: measure which kernels are fastest, here or elsewhere, and remember it as records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redfuser.cli.cases import progress
from redfuser.cli.console import print_table, step

if TYPE_CHECKING:
    from redfuser.autotune.prepare import Wanted
    from redfuser.autotune.records import Record
    from redfuser.settings import Settings

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("model", required=False)
@click.option("--workload", help="Instead of a MODEL: a family of `redfuser bench list`, or all.")
@click.option("--shapes", default="paper", show_default=True, help="With --workload: sets or names, comma-separated.")
@click.option("--target", help="cpu, cuda (this machine's GPU), sm_80, sm_86, sm_89, sm_90a, sm_100, sm_120, gfx942, gfx90a.")
@click.option("--casts", type=click.Choice(["preserve", "elide"]), default="preserve", show_default=True,
              help="Whether roundings between reductions may move.")
@click.option("--prepare", "prepare_", type=FOLDER, help="Only build the candidates, into this folder; needs no GPU.")
@click.option("--measure", "measure_", type=FOLDER, help="Only measure what is in this folder; needs no compiler.")
@click.option("--adopt", "adopt_", type=FOLDER, help="Only write records of what was measured in this folder.")
@click.option("--to", "to", default="user", show_default=True, help="Where records go: user, project, or a folder.")
@click.option("--effort", type=click.Choice(["quick", "full"]), default="quick", show_default=True,
              help="How many candidates, and how long each is measured.")
@click.option("--budget", type=click.FloatRange(min=0), help="Seconds to measure for; the rest is left for the next time.")
@click.option("--markdown", is_flag=True, help="The table as Markdown, for docs/results/.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def tune(model: str | None, workload: str | None, shapes: str, target: str | None, casts: str, prepare_: Path | None,
         measure_: Path | None, adopt_: Path | None, to: str, effort: str, budget: float | None, markdown: bool,
         quiet: bool) -> None:
    """Measure the kernels of MODEL (a .pt2 file, an .onnx file, or module:function) beside their unfused regions and remember
    the fastest. On one machine in one go; or prepared where the compilers are, measured where the GPU is, adopted at home."""
    from redfuser import settings

    chosen = settings.load(target=target, tuning_budget=budget)
    alone = [x for x in (prepare_, measure_, adopt_) if x is not None]
    source = (model is not None) + (workload is not None)
    if len(alone) > 1 or source != (measure_ is None and adopt_ is None):
        raise click.UsageError("give MODEL or --workload, to tune or to --prepare; or --measure DIR, or --adopt DIR, alone")
    if measure_ is not None:
        _measure(measure_, effort, chosen, markdown, quiet)
    elif adopt_ is not None:
        _adopt(adopt_, to, chosen, markdown)
    else:
        _tune(model, workload, shapes, casts, prepare_, to, effort, chosen, markdown, quiet)


def _tune(model: str | None, workload: str | None, shapes: str, casts: str, folder: Path | None, to: str, effort: str,
          chosen: Settings, markdown: bool, quiet: bool) -> None:
    import tempfile

    from redfuser.api import architecture
    from redfuser.autotune import measure, prepare
    from redfuser.autotune import tune as tuning

    arch, tell = architecture(chosen.target), progress(quiet)
    what = model or f"--workload {workload} --shapes {shapes}"
    command = f"redfuser tune {what} --target {arch}" + (f" --casts {casts}" if casts != "preserve" else "") + (
        f" --effort {effort}" if effort != "quick" else "")
    if folder is None:
        measure.for_device(arch)  # what cannot be measured is said before anything is built
    kernels = _kernels(model, workload, shapes, arch, casts, chosen.verify, tell, quiet)
    if folder is not None:
        with step(f"building candidates for {arch}", quiet):
            manifest = prepare.prepare(folder, kernels, arch, effort, command, chosen.verify, tell)
        click.echo(f"{folder}: {len(manifest.kernels)} kernels, {sum(len(k.candidates) for k in manifest.kernels)} candidates; "
                   "`redfuser tune --measure` it where the GPU is")
        return
    with tempfile.TemporaryDirectory(prefix="redfuser-tune-") as scratch:
        found = tuning.tuned(Path(scratch), kernels, arch, effort, chosen.tuning_budget, _into(to, chosen), command, chosen,
                             tell)
    _show(found, markdown)


def _kernels(model: str | None, workload: str | None, shapes: str, arch: str, casts: str, verify: str,
             tell: Callable[[str], None], quiet: bool) -> list[Wanted]:
    from redfuser.autotune import tune as tuning
    from redfuser.cli import models

    def plan(name: str, program: Any, args: Any, kwargs: Any) -> list[Wanted]:
        with step(f"analysing {name}", quiet):
            kernels, none = tuning.plan(program, args, kwargs, arch, casts, verify, name)
        for why in none:
            tell(why)
        return kernels

    if model is not None:
        with step(f"loading {model}", quiet):
            loaded = models.load(model)
        return plan(loaded.name, loaded.model, loaded.args, loaded.kwargs)
    from redfuser.cli.cases import choose

    return [w for c in choose(workload or "", shapes) for w in plan(str(c), c.build(), c.inputs("cpu", 0), None)]


def _measure(folder: Path, effort: str, chosen: Settings, markdown: bool, quiet: bool) -> None:
    from redfuser.autotune import folder as folders
    from redfuser.autotune import measure

    arch = folders.read(folder).arch
    try:
        found = measure.measured(folder, arch, effort, chosen.tuning_budget, chosen.cache_dir, None, progress(quiet))
    except KeyboardInterrupt:
        click.echo("interrupted; what was measured is kept", err=True)
        return
    _show(found, markdown)


def _adopt(folder: Path, to: str, chosen: Settings, markdown: bool) -> None:
    from redfuser.autotune import adopt, records

    _, found, none = adopt.adopted(folder)
    for path in records.add(_into(to, chosen), found):
        click.echo(f"{path}: {len(found)} records", err=True)
    for why in none:
        click.echo(f"no record of {why}", err=True)
    _show(found, markdown)


def _into(to: str, chosen: Settings) -> Path:
    from redfuser.autotune import lookup

    if to == "project":
        return lookup.project_folder() or Path.cwd() / lookup.PROJECT
    return lookup.user_folder(chosen) if to == "user" else Path(to)


def _show(found: list[Record], markdown: bool) -> None:
    from redfuser.autotune import adopt

    if markdown:
        click.echo(adopt.markdown(found))
        return
    if found:
        print_table("", adopt.COLUMNS, adopt.table(found))
    click.echo(adopt.summary(found))
