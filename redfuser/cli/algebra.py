"""``redfuser algebra FILE``: derive and prove the fusion of cascades given as text."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from redfuser.cli.console import COVERAGE, ERROR, USAGE, internal
from redfuser.errors import InputError, InternalError, RedFuserError
from redfuser.users import missing_extra

BEGIN = "begin with: cascade NAME(x: f32[L]) over l"


@dataclass(frozen=True)
class Outcome:
    """What became of one cascade: ``status`` fused, refused, violated or error, as data and as text for people.
    ``seconds``: deriving it and checking it."""

    status: str
    data: dict[str, Any]
    text: str = ""
    error: RedFuserError | None = None
    seconds: tuple[float, float] | None = field(default=None, compare=False)

    @property
    def exit_code(self) -> int:
        if isinstance(self.error, InternalError):
            return ERROR
        return {"fused": 0, "refused": COVERAGE, "error": USAGE, "violated": ERROR}[self.status]


@click.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print data, one object per cascade.")
@click.option("--casts", type=click.Choice(["preserve", "elide"]), default="preserve", show_default=True,
              help="May roundings move to running results?")
@click.option("-q", "--quiet", is_flag=True, help="No timings.")
def algebra(file: str, as_json: bool, casts: str, quiet: bool) -> None:
    """Say for every cascade in FILE (- reads standard input) whether it fuses, how, and why that is right.

    A fused cascade is printed with its decomposition, its state (init, step, merge, finalize), what is deferred and what
    is rebased, and its side conditions; then its certificate is checked by code that shares nothing with the deriver. A
    refused one is printed with the condition that failed, why, and what would help. One that cannot be read is an error
    with its place, and the others are still told.

    Exit code: 0 all fused; 3 some were refused; 2 some could not be read, or wrong usage; 1 a certificate does not hold, or
    another bug of ours. The gravest decides: 1, 2, 3, 0.
    """
    outcomes = []
    for outcome in _outcomes(file, casts):
        outcomes.append(outcome)
        if not as_json:
            _tell(outcome, first=len(outcomes) == 1, quiet=quiet)
    if as_json:
        click.echo(json.dumps([o.data for o in outcomes], indent=2, allow_nan=False))
    codes = {o.exit_code for o in outcomes}
    sys.exit(next(code for code in (ERROR, USAGE, COVERAGE, 0) if code in codes))


def _tell(o: Outcome, first: bool, quiet: bool) -> None:
    if o.error is not None:
        click.echo(o.error.render(), err=True)
        return
    click.echo(o.text if first else "\n" + o.text)
    if o.seconds is not None and not quiet:
        click.echo(f"{o.data['name']}: derived in {o.seconds[0]:.2f} s, checked in {o.seconds[1]:.2f} s", err=True)


def _outcomes(file: str, casts: str) -> Iterator[Outcome]:
    """One per cascade of the file, in order; never an exception of its own, and never none."""
    from redfuser.acrf.text import read_cascades

    name = "<stdin>" if file == "-" else click.format_filename(file)
    try:
        text = _read(file, name)
        found = 0
        for found, cascade in enumerate(read_cascades(text, name), 1):  # noqa: B007 (counted on purpose)
            yield _error(cascade) if isinstance(cascade, RedFuserError) else _one(cascade, casts)
        if not found:
            raise InputError("RF184", f"{name} holds no cascade", help=BEGIN)
    except RedFuserError as e:
        yield _error(e)
    except ModuleNotFoundError as e:
        yield _error(missing_extra(e) or internal(e))
    except Exception as e:
        yield _error(internal(e))


def _read(file: str, name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode()
    except UnicodeDecodeError as e:
        raise InputError("RF184", f"{name} cannot be read", why=f"byte {e.start} is no UTF-8 ({e.reason})",
                         help="give a text file in UTF-8") from None
    except (OSError, ValueError) as e:
        raise InputError("RF184", f"{name} cannot be read", why=getattr(e, "strerror", None) or str(e),
                         help="give a text file in UTF-8, or - for standard input") from None


def _one(cascade: Any, casts: str) -> Outcome:
    """Derive, check, and describe one cascade."""
    try:
        return _derived(cascade, casts)
    except RedFuserError as e:
        return _error(e, cascade.name)
    except RecursionError:
        return _error(InputError("RF180", f"the cascade {cascade.name} nests too deeply to be derived",
                                 help="give inner expressions statements of their own"), cascade.name)
    except ModuleNotFoundError as e:
        return _error(missing_extra(e) or internal(e), cascade.name)
    except Exception as e:
        return _error(internal(e), cascade.name)


def _derived(cascade: Any, casts: str) -> Outcome:
    from redfuser.acrf.check.verify import check
    from redfuser.acrf.derive.fuse import fuse
    from redfuser.acrf.describe import describe
    from redfuser.acrf.serial import fused_to_json, refusal_to_json
    from redfuser.acrf.state import NotFusable
    from redfuser.recheck import unprovable

    data: dict[str, Any] = {"name": cascade.name, "casts": casts}
    started = time.perf_counter()
    result = fuse(cascade, casts)
    derived = time.perf_counter()
    violations = [] if isinstance(result, NotFusable) else check(result)
    seconds = derived - started, time.perf_counter() - derived
    if not isinstance(result, NotFusable) and (reason := unprovable(violations)) is not None:
        result = NotFusable(reason.code, cascade.name, reason.condition, reason.why, reason.help)
    text = describe(result, cascade.name)
    if isinstance(result, NotFusable):
        return Outcome("refused", data | {"status": "refused", **refusal_to_json(result)}, text)
    data |= {"status": "violated" if violations else "fused", "violations": violations, **fused_to_json(result)}
    verdict = ["  checked  holds"]
    if violations:
        verdict = ["  checked  VIOLATED: a bug in redfuser, please report it", *(f"    {v}" for v in violations)]
    return Outcome(data["status"], data, "\n".join([text, *verdict]), seconds=seconds)


def _error(e: RedFuserError, name: str | None = None) -> Outcome:
    data = {"name": name, "status": "error", "code": e.code, "what": getattr(e, "short", e.what), "source": e.where,
            "line": getattr(e, "line", None), "column": getattr(e, "column", None), "why": e.why, "help": e.help}
    return Outcome("error", data, error=e)
