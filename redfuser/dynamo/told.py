"""What was done with each graph: one line in the log, one object to look at. Nothing is done in silence."""

from __future__ import annotations

import logging
import threading
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Literal

from redfuser.errors import LoweringError
from redfuser.report import Report

log = logging.getLogger("redfuser.dynamo")
KEPT = 1000
_kept: deque[GraphReport] = deque(maxlen=KEPT)
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One graph of torch.compile. ``graph``: torch's own name of it (``0/0``: frame and recompile). came: ``compiled`` now,
    out of the ``store``, ``given back`` to another backend, or ``views`` of its inputs only, which torch returns. code and
    note: why it was given back. report: the fusion report. seconds: what that took here."""

    graph: str
    came: Literal["compiled", "store", "given back", "views"]
    shapes: str = ""
    code: str = ""
    note: str = ""
    report: Report | None = None
    key: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        head = f"graph {self.graph}{self.shapes and ' ' + self.shapes}"
        if self.came == "given back":
            return f"{self.code} {head} {self.note}"
        if self.report is None:
            return f"{head}: only views of its inputs"
        found = self.report
        words = f"{len(found.fused)} of {len(found.cascades)} cascades fused"
        words += f", {len(found.maps)} map kernels" if found.maps else ""
        words += "".join(f", {c.name} {c.reason.code}" for c in found.refused[:4] if c.reason)
        words += f", {len(found.refused) - 4} more not" if len(found.refused) > 4 else ""
        came = "compiled" if self.came == "compiled" else "from the store"
        return f"{head}: {words} for {found.target}, {came} in {self.seconds:.2f} s"


def tell(found: GraphReport, fallback: str = "allow") -> None:
    """Keep the report and log its line. What was given back is a warning or an error where ``fallback`` says so; raises
    LoweringError then."""
    with _lock:
        _kept.append(found)
    if found.came == "given back" and fallback == "error":
        raise LoweringError(found.code, str(found).removeprefix(found.code + " "), help="fallback='warn' gives it back")
    log.info("%s", found)
    if found.came == "given back" and fallback == "warn":
        warnings.warn(str(found), RuntimeWarning, stacklevel=2)


def all_of_them() -> list[GraphReport]:
    with _lock:
        return list(_kept)


def clear() -> None:
    with _lock:
        _kept.clear()
