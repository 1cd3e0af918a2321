"""The algebra engine: expression IR, derivation of mergeable states, certificates, refusals.

    from redfuser.acrf import fuse, parse_cascade
    fused = fuse(parse_cascade(text))           # Fused or NotFusable

Here lie the IR, its text and the state; beside them three rooms: ``facts`` knows expressions, ``derive`` makes states with
them, ``check`` judges states and knows neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {"fuse": "derive.fuse", "mapped": "derive.mapped", "key_of": "derive.fuse",
         "parse_cascade": "text", "parse_expr": "text",
         "Fused": "state", "NotFusable": "state", "State": "state", "Accumulator": "state", "Certificate": "state",
         "Cascade": "cascade"}
"""Where the names lie. Loaded when asked for: the checker's process need not hold the deriver."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


__all__ = sorted(_HOME)
