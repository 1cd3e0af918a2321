"""``redfuser check``: hold every kernel of a saved model against the torch code it stands for, on this machine."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from redfuser.cli import console
from redfuser.cli.console import NUMERICS


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--device", help="Where to run: cpu, cuda, cuda:1; by default where the file's kernels run.")
@click.option("--json", "as_json", is_flag=True, help="The verdicts as JSON.")
def check(file: str, device: str | None, as_json: bool) -> None:
    """Try the kernels of FILE (what `redfuser compile -o FILE` wrote) on drawn inputs and hold them to the numerics rule beside
    the unfused code. Exit code 4 when one is wrong. Loading a model onto a GPU does the same once for each kernel."""
    import redfuser
    from redfuser.runtime import patience, trial

    where = console.device(device) if device is not None else None
    model = redfuser.load(file)
    rows: list[dict[str, Any]] = []
    hangs = False
    try:
        for name, verdict, why in trial.all_of(model, where):
            rows.append({"kernel": name, "verdict": verdict, "why": why})
    except patience.Hang:
        hangs = True
        rows += [{"kernel": name, "verdict": "not tried", "why": "the device is held by the kernel before it"}
                 for name in list(model.kernels)[len(rows):]]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    for row in () if as_json else rows:
        click.echo(f"{row['kernel']}: {row['verdict']}" + (f"  {row['why']}" if row["why"] else ""))
    if hangs:  # an orderly end would wait for the device
        sys.stdout.flush()
        os._exit(NUMERICS)
    if any(row["verdict"] == "wrong" for row in rows):
        sys.exit(NUMERICS)
