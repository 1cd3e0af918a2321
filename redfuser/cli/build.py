"""``redfuser build FILE``: compile what another machine left as text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to write; by default FILE itself.")
def build(file: Path, output: Path | None) -> None:
    """Finish the kernels of FILE (what `redfuser compile --target gfx942 -o FILE` wrote) with this machine's ROCm toolchain."""
    from redfuser.codegen import hip
    from redfuser.runtime import archive

    models = [archive.read(file, arch=arch, device="cpu") for arch in archive.architectures(file)]
    waiting = [spec for model in models for spec in model.kernels.values() if not spec.finished]
    done = {(spec.arch, spec.name): hip.finish(spec) for spec in waiting}
    for spec in done.values():
        used = ", ".join(f"{r.get('registers', '?')} registers, {r.get('spill_bytes', '?')} B spilled" for r in spec.resources)
        click.echo(f"{spec.name} for {spec.arch}: {used}")
    if not waiting:
        click.echo(f"every kernel of {file} is built")
    if waiting or output is not None:
        archive.write(output or file, [replace(m, kernels={n: done.get((s.arch, s.name), s) for n, s in m.kernels.items()})
                                       for m in models])
