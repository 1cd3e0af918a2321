"""The outer graph: what is not fused, as straight-line torch source. ``emit`` needs TVM; the emitted text needs torch."""

from __future__ import annotations

from typing import Any

from redfuser.outer.graph import OuterGraph

__all__ = ["OuterGraph", "emit"]


def __getattr__(name: str) -> Any:
    if name == "emit":
        from redfuser.outer.source import emit

        globals()["emit"] = emit
        return emit
    raise AttributeError(name)
