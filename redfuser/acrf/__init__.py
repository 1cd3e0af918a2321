"""The algebra engine: expression IR, derivation of mergeable states, certificates, refusals.

    from redfuser.acrf import fuse, parse_cascade
    fused = fuse(parse_cascade(text))           # Fused or NotFusable
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Not lazy: loading the module redfuser.acrf.fuse would otherwise put itself where the function of that name belongs.
from redfuser.acrf.fuse import fuse as fuse

_HOME = {"longest_prefix": "fuse", "key_of": "fuse", "parse_cascade": "text", "parse_expr": "text",
         "Fused": "state", "NotFusable": "state", "State": "state", "Accumulator": "state", "Certificate": "state",
         "Cascade": "expr"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


__all__ = sorted([*_HOME, "fuse"])
