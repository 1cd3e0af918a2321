"""What every command shares: progress on stderr, data on stdout, errors as text and exit codes, never a stack trace."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import click

from redfuser import progress
from redfuser.errors import ArtifactError, InputError, InternalError, NumericsError, RedFuserError
from redfuser.page import finite
from redfuser.report import Report
from redfuser.reported import CascadeReport
from redfuser.users import missing_extra, refused_by_machine

ERROR, USAGE, COVERAGE, NUMERICS, REGRESSION = 1, 2, 3, 4, 5
"""Exit codes beside 0: an error; wrong usage (click's); coverage below --require; outside the numerics rule; slower."""


class Failure(click.ClickException):
    """A coded error on its way out: its text on stderr, its exit code to the shell."""

    def __init__(self, error: RedFuserError, exit_code: int | None = None) -> None:
        super().__init__(error.render())
        self.code = exit_code or (NUMERICS if isinstance(error, NumericsError) else ERROR)

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self.code

    def show(self, file: object = None) -> None:
        click.echo(self.message, err=True)


@contextmanager
def guard() -> Iterator[None]:
    """Turn any exception into a :class:`Failure`; one of ours keeps its code, any other is RF900 with a repro folder."""
    try:
        yield
    except RedFuserError as e:
        raise Failure(e) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        raise click.Abort() from None
    except BrokenPipeError:
        raise click.exceptions.Exit(0) from None
    except Exception as e:
        told = missing_extra(e) if isinstance(e, ModuleNotFoundError) else refused_by_machine(e)
        raise Failure(told or internal(e)) from None


def internal(error: Exception) -> InternalError:
    """RF900 for an exception that is not ours, with a folder that holds the command, the versions and the trace."""
    from redfuser.doctor import installed

    try:
        folder = Path(tempfile.mkdtemp(prefix="redfuser-bug-"))
        told = {"command": " ".join(["redfuser", *sys.argv[1:]]) + "\n",
                "traceback": "".join(traceback.format_exception(error)),
                "versions": "".join(f"{k} {v}\n" for k, v in installed().items())}
        for name, text in told.items():
            (folder / f"{name}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
        next_ = f"report it with {folder} (it holds the command and the trace, no weights)"
    except OSError as refused:
        next_ = f"run it again with TMPDIR at a folder that can be written ({refused}), and report what it leaves there"
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return InternalError("RF900", f"internal error: {what}", why="this is our bug, not yours", help=next_)


def device(name: str | None) -> str:
    """The device that is asked for; a GPU where there is one, when none is. Raises InputError RF104 and RF191."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    found = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if not found:
        raise InputError("RF191", f"--device cannot be {name!r}", help="cpu, cuda, or one of several GPUs: cuda:1")
    if name != "cpu" and int(found[1] or 0) >= (there := torch.cuda.device_count()):
        raise InputError("RF104", f"there is no {name} on this machine", why=f"torch sees {there} GPUs")
    return name


def complete_streams() -> None:
    """A daemon's or a job's standard streams may be closed, and are None then: what is said goes nowhere, and their numbers to
    no other file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (as long as the process)


def writable(output: Path) -> None:
    """Raise ArtifactError RF607 for a place where no model can be written, before anything is compiled for it. A file is put in
    the place of what has its name: of a device (/dev/null) or a pipe nothing would be left."""
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise ArtifactError("RF607", f"{output} cannot be written", why=f"{output.parent} is no folder that can be written",
                            help="name another, before anything is compiled")
    if output.exists() and not output.is_file():
        raise ArtifactError("RF607", f"{output} cannot be written", why="it is a device, a pipe or a folder, and no file",
                            help="name a file, or leave -o out to see the report alone")


def overwrites(output: Path, model: str) -> bool:
    """Whether what is written would take the place of the model that it is made of."""
    return output.exists() and Path(model).exists() and output.samefile(model)


def as_json(data: Any) -> str:
    """JSON that every reader takes: what is not finite (an error ratio against an exact baseline) is null."""
    return json.dumps(finite(data), indent=2, allow_nan=False)


def kernel(report: Report, c: CascadeReport) -> dict[str, str] | None:
    """What the target gets for a cascade, and in which language."""
    language, text = report.kernel_text(c)
    return {"language": language, "kernel": text} if text else None


def report_json(report: Report, texts: bool = False) -> str:
    """Everything that the report's text says: its data, and the sums the text gives. texts: the kernels too, by name."""
    totals = {"opaque": sum(o.count for o in report.opaque), "roundings": sum(len(c.roundings) for c in report.cascades),
              "bytes_saved": report.bytes_saved}
    kernels = {c.kernel: kernel(report, c) for c in (*report.cascades, *report.maps) if c.kernel} if texts else {}
    return as_json({**report.to_json(), "totals": totals, **({"kernels": kernels} if texts else {})})


EVERY_S, EVERY_LIVE_S = 5.0, 0.1
"""Between two lines of progress, and between two changes of one on a terminal."""


@contextmanager
def step(text: str, quiet: bool = False) -> Iterator[None]:
    """One line of progress on stderr, with the seconds it took: how far it is while it runs, on a terminal as it goes,
    elsewhere a line every few seconds. What a model's own code prints meanwhile is no data: it goes to stderr too."""
    with redirect_stdout(sys.stderr), _timed(text, quiet):
        yield


@contextmanager
def _timed(text: str, quiet: bool) -> Iterator[None]:
    if quiet:
        yield
        return
    started = time.perf_counter()
    live = sys.stderr.isatty()
    if live:
        click.echo(f"{text} ...", err=True, nl=False)
    told = [started]

    def far(what: str) -> None:
        now = time.perf_counter()
        if now - told[0] >= (EVERY_LIVE_S if live else EVERY_S):
            told[0] = now
            line = f"\r{text} ... {what}\033[K" if live else f"{text} ... {what} ({now - started:.0f} s)"
            click.echo(line, err=True, nl=not live)

    try:
        with progress.heard(far):
            yield
    except BaseException:
        if live:
            click.echo(f"\r{text} ... failed\033[K", err=True)
        raise
    took = f"{time.perf_counter() - started:.1f} s"
    click.echo(f"\r{text} ... {took}\033[K" if live else f"{text} ... {took}", err=True)


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table on stdout: by rich on a terminal, aligned plain text in a pipe or where rich is missing."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            table = Table(title=title, title_justify="left")
            for i, column in enumerate(columns):
                table.add_column(column, justify="left" if i == 0 else "right", no_wrap=i == 0)
            for row in rows:
                table.add_row(*row)
            Console().print(table)
            return
    widths = [max(len(r[i]) for r in [columns, *rows]) for i in range(len(columns))]
    if title:
        click.echo(title)
    for row in [columns, *rows]:
        cells = [f"{c:<{w}}" if i == 0 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        click.echo("  ".join(cells).rstrip())
