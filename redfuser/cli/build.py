"""``redfuser build FILE``: compile what another machine left as text."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to write; by default FILE itself.")
def build(file: Path, output: Path | None) -> None:
    """Finish the kernels of FILE (what `redfuser compile --target gfx942 -o FILE` wrote) with this machine's ROCm toolchain."""
    from redfuser import finish
    from redfuser.cli.console import writable

    if output is not None:
        writable(output)
    done = finish.file(file, output)
    for spec in done:
        used = ", ".join(f"{r.get('registers', '?')} registers, {r.get('spill_bytes', '?')} B spilled" for r in spec.resources)
        click.echo(f"{spec.name} for {spec.arch}: {used}")
    if not done:
        click.echo(f"every kernel of {file} is built")
