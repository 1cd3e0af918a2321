"""``redfuser compile MODEL -o OUT``: compile for one target or several, check coverage, save one file."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from redfuser.cli.console import COVERAGE, Failure, overwrites, report_json, step, writable
from redfuser.errors import ArtifactError, InputError


class Percent(click.ParamType):
    """``90%`` or ``90``; the value is a fraction."""

    name = "percent"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%?", str(value))
        if not found or float(found[1]) > 100:
            self.fail(f"{value!r} is not a percentage", param, ctx)
        return float(found[1]) / 100


@click.command("compile")
@click.argument("model")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to save the compiled model.")
@click.option("--target", help="cpu, cuda (this machine's GPU), sm_80, sm_86, sm_89, sm_90a, sm_100, sm_120, gfx942, gfx90a; "
              "several with commas between: the file has the kernels of each, and loading picks.")
@click.option("--casts", type=click.Choice(["preserve", "elide"]), default="preserve", show_default=True,
              help="Whether roundings between reductions may move.")
@click.option("--fallback", type=click.Choice(["warn", "error", "allow"]), help="What to do when one does not fuse.")
@click.option("--require", type=Percent(), help="Exit with 3 when fewer cascades fuse than this, e.g. 90%.")
@click.option("--check", is_flag=True, help="Check against float64 on the example inputs; exit with 4 outside the rule.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def compile_(model: str, output: Path | None, target: str | None, casts: str, fallback: str | None, require: float | None,
             check: bool, as_json: bool, quiet: bool) -> None:
    """Compile MODEL: a .pt2 file, an .onnx file, or module:function that returns (model, args)."""
    import redfuser
    from redfuser import settings
    from redfuser.api import architecture
    from redfuser.cli import models

    s = settings.load(target=target, fallback=fallback)
    targets = tuple(dict.fromkeys(architecture(t.strip()) for t in s.target.split(",")))
    if output is not None:
        writable(output)
    if output is not None and overwrites(output, model):
        raise ArtifactError("RF607", f"{output} would be written over", why="it is the model", help="name another")
    with step(f"loading {model}", quiet):
        named = models.load(model)
    made = []
    for at in targets:
        with step(f"compiling for {at}", quiet), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RF108 ", RuntimeWarning)  # the report below says it
            made.append(redfuser.compile(named.model, named.args, named.kwargs, target=at, casts=casts,
                                         fallback="error" if s.fallback == "error" else "allow", check=check))
    reports = [replace(c.report, model=named.name) for c in made]  # these say what did not fuse: no warning beside them
    texts = [report_json(r) if as_json else r.summary() for r in reports]
    click.echo(f"[{', '.join(texts)}]" if as_json and len(texts) > 1 else "\n".join(texts))
    report = min(reports, key=lambda r: r.coverage)
    if require is not None and report.coverage < require:
        raise Failure(InputError("RF195", f"{report.coverage:.0%} of the cascades fuse for {report.target}, {require:.0%} are "
                                 "required", why="; ".join(f"{c.name} {c.reason.code}" for c in report.refused if c.reason),
                                 help=f"redfuser explain {model} --target {report.target}"), COVERAGE)
    if output is not None:
        with step(f"saving {output}", quiet):
            made[0].save(str(output), made[1:])
        if waiting := sum(not spec.finished for c in made for spec in c.kernels.values()):
            click.echo(f"{waiting} kernels are HIP text: `redfuser build {output}` compiles them where ROCm is", err=True)
