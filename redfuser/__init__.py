"""RedFuser: a compiler that fuses cascaded reductions.

    compiled = redfuser.compile(model, args)      # called like the model; .report .source() .stages() .save(path)
    report   = redfuser.explain(model, args)      # what fuses, what does not, and why; builds nothing
    kernel   = redfuser.kernel(fn).bind(*args)    # one cascade, to look at and to call
    compiled = redfuser.load(path)                # needs no compiler

The names are imported when they are first used: ``import redfuser`` alone loads neither torch nor a compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redfuser.api import compile, explain, load
    from redfuser.errors import RedFuserError
    from redfuser.report import Report
    from redfuser.subgraph import kernel

__version__ = "0.1.0"

_HOMES = {
    "compile": "redfuser.api",
    "explain": "redfuser.api",
    "kernel": "redfuser.subgraph",
    "load": "redfuser.api",
    "Report": "redfuser.report",
    "RedFuserError": "redfuser.errors",
}
__all__ = ["RedFuserError", "Report", "compile", "explain", "kernel", "load"]


if not TYPE_CHECKING:  # for whoever checks types, there is no name but these

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'redfuser' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
