"""What a kernel under construction holds: where each name lives, and the statements and tiles of one scope."""

from __future__ import annotations

from dataclasses import dataclass, field

from redfuser.acrf.expr import Expr
from redfuser.tensorize.ir.nodes import TileStmt
from redfuser.tensorize.ir.parts import Slice

HALF = ("f16", "bf16")


@dataclass(slots=True)
class Value:
    """Where a name lives: in a buffer whose dimensions run along ``axes``, or nowhere (``expr`` is evaluated where it is
    read)."""

    axes: tuple[str, ...]
    dtype: str
    buffer: str = ""
    expr: Expr | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """pieces: tiles of one type that a matrix unit takes, whose sum is the operand. finite: the first of them with 0 for NaN
    and infinities; itself where that is not told apart."""

    pieces: tuple[Value, ...]
    finite: Value

    @property
    def dtype(self) -> str:
        return self.pieces[0].dtype


@dataclass(frozen=True, slots=True)
class Depth:
    """The part of a contraction's own axis that one operand tile holds: ``size`` elements from ``origin``, a step of a loop
    where ``chunked``."""

    axis: str
    size: int
    origin: Expr
    chunked: bool = False


@dataclass(slots=True)
class Scope:
    """A statement list under construction, and the loads it holds as tiles: staged, by tensor, indices and part of a
    contraction; slices, by rectangle; split, by tile its pieces. ``segment``: first r-axis element. ``product``: the only step
    of a walk, a product in a loop of its own: what follows has the tile of its sums, and threads read and write as it lies."""

    stmts: list[TileStmt] = field(default_factory=list)
    staged: dict[tuple[str, tuple[Expr, ...], str], Value] = field(default_factory=dict)
    slices: dict[tuple[Slice, bool], str] = field(default_factory=dict)
    split: dict[str, Operand] = field(default_factory=dict)
    segment: Expr | None = None
    product: bool = False
