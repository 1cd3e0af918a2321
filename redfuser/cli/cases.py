"""Which cases a command of ``redfuser bench`` is about, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redfuser.errors import InputError

if TYPE_CHECKING:
    from workloads.case import Case

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


def choose(workload: str, shapes: str, among: Path | None = None) -> list[Case]:
    """Cases by families (``mha``, ``norms``, ``all``) and by shape set or names; of a folder of problems in KernelBench's form,
    by patterns as of ``bench suite``. among: a folder of artifacts, no case that it lacks. Raises InputError RF194 for
    unknown ones."""
    import redfuser.bench  # noqa: F401 (it says where the workloads are)
    import workloads
    from redfuser.bench.baselines import is_built

    if workload not in ("all", *workloads.FAMILIES) and Path(workload).is_dir():
        from redfuser.bench.suite.cases import cases as problems

        return problems(Path(workload), "" if shapes in ("paper", "all") else shapes, among)
    cases = workloads.all_cases()
    if workload != "all":
        families = list(dict.fromkeys(c.workload for c in cases))
        asked = [w.strip() for w in workload.split(",")]
        if unknown := [w for w in asked if w not in families]:
            raise InputError("RF194", f"no workload {', '.join(map(repr, unknown))}", help=f"all, {', '.join(families)}")
        cases = [c for c in cases if c.workload in asked]
    sets = list(dict.fromkeys(s for c in cases for s in c.sets))
    chosen: list[Case] = []
    for word in filter(None, (w.strip() for w in shapes.split(","))):
        found = [c for c in cases if word in (*c.sets, c.name, "all")]
        if not found:
            raise InputError("RF194", f"{workload} has no shape or set of shapes {word!r}",
                             help=f"sets: {', '.join(sets)}; shapes: {', '.join(c.name for c in cases[:40])}")
        chosen += [c for c in found if c not in chosen]
    return [c for c in chosen if among is None or is_built(among, c.workload, c.name)]


def progress(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else (lambda text: click.echo(text, err=True))
