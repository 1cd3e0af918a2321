"""``redfuser doctor``: what this machine has, against what was tested."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from redfuser import doctor as doctor_


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def doctor(as_json: bool) -> None:
    """Check this machine: versions against the tested matrix, compilers, GPU, effective settings and where they came from.
    Exit code 1 when something that is needed is wrong."""
    findings = doctor_.examine()
    if as_json:
        click.echo(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        mark = {"fine": "ok", "note": "--", "wrong": "!!"}
        width = max(len(f.topic) for f in findings)
        for f in findings:
            click.echo(f"{mark[f.status]}  {f.topic:<{width}}  {f.what}" + (f"    {f.help}" if f.help else ""))
    if any(f.status == "wrong" for f in findings):
        raise click.exceptions.Exit(1)
