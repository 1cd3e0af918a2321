"""``redfuser inspect FILE``: what a saved model holds, and which part of it this machine runs. Nothing of it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from redfuser.cli.console import as_json, print_table


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "json_", is_flag=True, help="The same as JSON.")
def inspect(file: Path, json_: bool) -> None:
    """Say for which architectures FILE has kernels, what fused for each, and which of them loading it here takes."""
    from redfuser.runtime import archive

    found = archive.architectures(file)
    parts = [archive.read(file, arch=arch, device="cpu" if n == 0 else "meta") for n, arch in enumerate(found)]
    first = parts[0]
    weights = sum(t.numel() * t.element_size() for t in first.constants.values())
    held: dict[str, Any] = {
        "file": str(file), "bytes": file.stat().st_size, "here": archive.here(found),
        "inputs": [[s.name, s.dtype, list(s.shape)] for s in first.signature.inputs],
        "weights": {"tensors": len(first.constants), "bytes": weights},
        "kernels": [{"arch": arch, "kernels": len(p.kernels), "waiting": sum(not k.finished for k in p.kernels.values()),
                     "bytes": sum(len(b) for k in p.kernels.values() for b in k.binaries),
                     "cascades": len(p.report.cascades), "fused": len(p.report.fused), "maps": len(p.report.maps)}
                    for arch, p in zip(found, parts, strict=True)]}
    if json_:
        click.echo(as_json(held))
        return
    click.echo(f"{file}  {held['bytes'] / 1e6:.1f} MB, {len(first.constants)} weights of {weights / 1e6:.1f} MB")
    click.echo("inputs " + ", ".join(f"{name}: {dtype}{shape}" for name, dtype, shape in held["inputs"]))
    print_table("", ["kernels for", "kernels", "kB", "cascades fused", "maps", "here"],
                [[k["arch"], f"{k['kernels']}" + (f", {k['waiting']} are text" if k["waiting"] else ""),
                  f"{k['bytes'] / 1e3:.0f}", f"{k['fused']} of {k['cascades']}", str(k["maps"]),
                  "loaded" if k["arch"] == held["here"] else ""]
                 for k in held["kernels"]])
    if not held["here"]:
        click.echo("this machine runs none of them")
