"""``REDFUSER_TRACE=DIR``: every compile leaves a folder with what each stage made of the model, to read and to report.

    DIR/0003-Block-sm_90a/import.txt, report.txt, report.json, graph.py, error.txt (when it failed)
    DIR/0003-Block-sm_90a/k0_attn/1-cascade.txt, 2-fused.txt, 3-program.txt, 4-passes.txt, 5-tiles.txt, 6-source.py

Texts only: the model's code and shapes, and none of its weights.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redfuser.errors import InputError
from redfuser.report import Report

logger = logging.getLogger("redfuser.dump")


class Dump:
    """One compile's folder; without one (``folder`` is None) every call is nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def text(self, name: str, text: str) -> None:
        if self.folder is not None:
            path = self.folder / name
            try:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text.rstrip() + "\n", encoding="utf-8")
            except OSError as error:  # a full disk must not cost the compile
                logger.warning("%s could not be written: %s", path, error)

    def imported(self, imported: Any) -> None:
        """The normal form, before anything is looked for in it."""
        if self.folder is not None:
            notes = "".join(f"# {note}\n" for note in imported.notes)
            self.text("import.txt", notes + imported.mod.script(show_meta=False))

    def result(self, report: Report, produced: Iterable[Any], graph: Any) -> None:
        """The report, the outer graph, and what became of each distinct cascade, stage by stage; of one that is refused, as
        far as it came."""
        for made in {p.name: p for p in produced}.values():
            for i, (stage, text) in enumerate(made.stages.items(), 1):
                self.text(f"{_plain(made.name)}/{i}-{stage}.{'py' if stage in ('source', 'tir') else 'txt'}", text)
        self.text("report.txt", report.summary())
        self.text("report.json", json.dumps(report.to_json(), indent=2))
        if graph is not None:
            self.text("graph.py", graph.source)


@contextmanager
def dumping(root: Path | None, name: str, arch: str) -> Iterator[Dump]:
    """A dump in a new folder under ``root``, which also gets the trace of what went wrong. Raises InputError RF191 where it
    cannot be written."""
    if root is None:
        yield Dump(None)
        return
    dump = Dump(_fresh(root, f"{_plain(name)}-{arch}"))
    try:
        yield dump
    except Exception as error:
        dump.text("error.txt", "".join(traceback.format_exception(error)))
        raise


def _fresh(root: Path, name: str) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(found[1]) for p in root.iterdir() if (found := re.match(r"(\d{4,})-", p.name))), default=0)
        while True:
            folder = root / f"{number:04}-{name}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
    except OSError as error:
        raise InputError("RF191", f"trace cannot be {str(root)!r}", where="REDFUSER_TRACE", why=str(error),
                         help="name a folder that can be written, or unset it") from error


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)[:80].strip("._") or "model"
