"""What a kernel under construction holds: where each name lives, and the statements and tiles of one scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redfuser.acrf.expr import Expr
from redfuser.tensorize.ir.nodes import Slice, TileStmt

HALF = ("f16", "bf16")


@dataclass(slots=True)
class Value:
    """Where a name lives: in a buffer whose dimensions run along ``axes``, or nowhere (``expr`` is evaluated where it is
    read)."""

    axes: tuple[str, ...]
    dtype: str
    buffer: str = ""
    expr: Expr | None = None


@dataclass(slots=True)
class Scope:
    """A statement list under construction, and the loads it holds as tiles. ``segment``: first r-axis element."""

    stmts: list[TileStmt] = field(default_factory=list)
    staged: dict[tuple[str, tuple[Expr, ...], str], Value] = field(default_factory=dict)
    slices: dict[tuple[Slice, bool], str] = field(default_factory=dict)
    split: dict[str, Any] = field(default_factory=dict)
    segment: Expr | None = None
