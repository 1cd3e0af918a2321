"""``redfuser explain MODEL``: every cascade, fused or refused with its reason. Needs no GPU and builds nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from redfuser.cli.console import as_json as json_
from redfuser.cli.console import kernel, overwrites, report_json, step
from redfuser.errors import InputError
from redfuser.report import Report
from redfuser.reported import CascadeReport


@click.command()
@click.argument("model")
@click.option("--op", "op", help="One cascade by name, or the cascades of an op (aten.softmax.int): everything about it.")
@click.option("--target", help="The target the strategies are chosen for.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write it as one page that needs no network.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def explain(model: str, op: str | None, target: str | None, as_json: bool, html: Path | None, quiet: bool) -> None:
    """Say what fuses in MODEL (a .pt2 file, an .onnx file, or module:function) and why the rest does not."""
    import redfuser
    from redfuser import settings
    from redfuser.cli import models

    if html is not None and not os.access(html.parent, os.W_OK | os.X_OK):
        raise _unwritable(html, f"{html.parent} is no folder that can be written")
    if html is not None and overwrites(html, model):
        raise _unwritable(html, "it is the model")
    with step(f"loading {model}", quiet):
        named = models.load(model)
    with step("analysing", quiet):
        report = replace(redfuser.explain(named.model, named.args, named.kwargs, target=settings.load(target=target).target,
                                           texts=op is not None or as_json or html is not None), model=named.name)
    if html is not None:
        try:
            html.write_text(report.to_html(), encoding="utf-8")
        except OSError as error:
            raise _unwritable(html, str(error)) from error
    if op is None:
        click.echo(report_json(report, texts=True) if as_json else report.summary())
        return
    known = (*report.cascades, *report.maps)
    chosen = [c for c in known if op == c.name or any(op == o.name for o in c.ops)
              or (c.reason is not None and op == c.reason.op)]
    if not chosen:
        names = ", ".join(c.name for c in known)
        raise InputError("RF194", f"no cascade {op!r} in {model}", help=f"there are {names}" if names else "there are none")
    if as_json:
        wanted = {c.name for c in chosen}
        data = report.to_json()
        click.echo(json_([{**c, "text": kernel(report, report.cascade(c["name"]))}
                          for c in (*data["cascades"], *data["maps"]) if c["name"] in wanted]))
        return
    click.echo("\n\n".join("\n".join((detail(c), *_kernel(report, c))) for c in chosen))


def _unwritable(html: Path, why: str) -> InputError:
    return InputError("RF191", f"the page cannot be written to {html}", why=why, help="name a file that can be written")


def _kernel(report: Report, c: CascadeReport) -> list[str]:
    text = kernel(report, c)
    return [f"kernel for {report.target}, {text['language']}:", text["kernel"]] if text else []


def detail(c: CascadeReport) -> str:
    """Everything about one cascade: its text, its fused form or the reason against it, the ops it replaces."""
    head = f"{c.name}: " + ("fused" if c.fused else "kept unfused")
    if c.strategy:
        head += f", {c.strategy}" + (f" x{c.splits}" if c.splits > 1 else "")
    if c.kernel:
        head += f", kernel {c.kernel}"
    parts = [head]
    if c.certificate:
        parts.append(f"certificate: derived, {c.certificate}")
    if c.reason:
        parts.append(str(c.reason))
    if c.prefix:
        parts.append("fuses up to: " + ", ".join(c.prefix))
    if c.traffic:
        t = c.traffic
        parts.append(f"traffic: {t.unfused} B unfused, {t.fused} B fused ({t.ratio:.1f}x less, predicted)")
    if c.measured:
        parts.append(f"time: {c.measured.whole}")
    if c.modelled:
        parts.append("time, modelled and not measured:\n" + "\n".join(f"  {m}" for m in c.modelled))
    if c.ops:
        parts.append("replaces:\n" + "\n".join(f"  {o}" for o in c.ops))
    if c.cascade:
        parts.append(c.cascade)
    if c.fused_form:
        parts.append(c.fused_form)
    if c.roundings:
        parts.append("roundings moved:\n" + "\n".join(f"  {r}" for r in c.roundings))
    return "\n".join(parts)
