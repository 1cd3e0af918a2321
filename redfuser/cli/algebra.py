"""``redfuser algebra FILE``: derive and prove the fusion of cascades given as text."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from redfuser.cli.console import COVERAGE, guard


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print data, one object per cascade.")
@click.option("--casts", type=click.Choice(["preserve", "elide"]), default="preserve", show_default=True,
              help="May roundings move to running results?")
def algebra(file: str, as_json: bool, casts: str) -> None:
    """Say for every cascade in FILE (- reads standard input) whether it fuses, how, and why that is right.

    A fused cascade is printed with its decomposition, its state (init, step, merge, finalize), what is deferred and what
    is rebased, and its side conditions; then its certificate is checked by code that shares nothing with the deriver. A
    refused one is printed with the condition that failed, why, and what would help.

    Exit code: 0 all fused, 3 some were refused, 1 an error, 2 wrong usage.
    """
    with guard():
        results = [_one(cascade, casts) for cascade in _read(file)]
    if as_json:
        click.echo(json.dumps([r["data"] for r in results], indent=2))
    else:
        click.echo("\n\n".join(r["text"] for r in results))
    broken = [v for r in results for v in r["data"].get("violations", [])]
    if broken:
        sys.exit(1)
    if any(r["data"]["status"] == "refused" for r in results):
        sys.exit(COVERAGE)


def _read(file: str) -> list[Any]:
    from redfuser.acrf.text import parse_cascades
    from redfuser.errors import InputError

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError("RF184", f"{file} cannot be read", why=str(e), help="give a text file in UTF-8") from None
    name = "<stdin>" if file == "-" else file
    cascades = parse_cascades(text, name)
    if not cascades:
        raise InputError("RF184", f"{name} holds no cascade", help="begin with: cascade NAME(x: f32[L]) over l")
    return cascades


def _one(cascade: Any, casts: str) -> dict[str, Any]:
    """Derive, check, and describe one cascade, as text and as data."""
    from redfuser.acrf.describe import describe
    from redfuser.acrf.fuse import fuse
    from redfuser.acrf.serial import fused_to_json, refusal_to_json
    from redfuser.acrf.state import NotFusable
    from redfuser.acrf.verify import check

    started = time.perf_counter()
    result = fuse(cascade, casts)
    derived = time.perf_counter() - started
    text = describe(result, cascade.name)
    data: dict[str, Any] = {"name": cascade.name, "casts": casts}
    if isinstance(result, NotFusable):
        return {"text": text, "data": data | {"status": "refused", **refusal_to_json(result)}}
    violations = check(result)
    seconds = time.perf_counter() - started - derived
    verdict = [f"  checked  holds (derived in {derived:.2f} s, checked in {seconds:.2f} s)"]
    if violations:
        verdict = ["  checked  VIOLATED: a bug in redfuser, please report it", *(f"    {v}" for v in violations)]
    data |= {"status": "fused", "violations": violations, **fused_to_json(result)}
    return {"text": "\n".join([text, *verdict]), "data": data}
