"""The outer graph: what is not fused, as straight-line torch source. ``emit`` needs TVM; the emitted text needs torch."""

from __future__ import annotations

from typing import Any

from redfuser.outer.graph import OuterGraph

__all__ = ["OuterGraph", "emit", "emit_region"]


def __getattr__(name: str) -> Any:
    if name in ("emit", "emit_region"):
        from redfuser.outer import source

        globals()[name] = getattr(source, name)
        return globals()[name]
    raise AttributeError(name)
