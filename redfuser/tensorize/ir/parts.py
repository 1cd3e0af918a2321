"""What statements of tiles touch: parameters, storage of a block, barriers, and rectangular parts of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from redfuser.acrf.expr import Expr, print_expr
from redfuser.sizes import shape_text

LANES, RUN = 4, 2
"""Threads that hold a row of what a product accumulates between them, and neighbours of a row that one of them has: column j is
held by thread ``j // RUN % LANES``."""
Scope = Literal["shared", "fragment", "local"]
Policy = Literal["rows", "cols", "square"]


def index_text(e: Expr) -> str:
    """The text of an index, whose bare integers are i64."""
    return print_expr(e, 0, True)


SCANS = ("sum", "prod", "max", "min")
"""What tiles are scanned by."""


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter: a view (a contiguous reshape) of a tensor argument. ``tensor`` names the argument. span: the least
    and the greatest whole number that an element of it is, which whoever writes it keeps and whoever reads it counts on
    (:mod:`redfuser.tensorize.ir.spans`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    out: bool = False
    span: tuple[int, int] | None = None

    def __str__(self) -> str:
        kept = f" in {self.span[0]} .. {self.span[1]}" if self.span is not None else ""
        return f"{self.name}: {self.dtype}{shape_text(self.shape)}{' out' if self.out else ''}{kept}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """On-chip storage of a block."""

    name: str
    scope: Scope
    dtype: str
    shape: tuple[int, ...]
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.scope} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a slice: ``size`` elements from ``start``; size 0 is a point, which drops the dimension."""

    start: Expr
    size: int = 0

    def __str__(self) -> str:
        return f"{index_text(self.start)} +: {self.size}" if self.size else index_text(self.start)


@dataclass(frozen=True, slots=True)
class Slice:
    """A rectangular part of a parameter or buffer; no dims means all of it."""

    buffer: str
    dims: tuple[Dim, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.dims if d.size)

    def __str__(self) -> str:
        return f"{self.buffer}[{', '.join(map(str, self.dims))}]" if self.dims else self.buffer


@dataclass(frozen=True, slots=True)
class Barrier:
    """Where roles wait for each other: a ring of ``slots``, each of which counts phases. A phase is over when ``arrivals`` of
    them have come (a fetch that signals is one, and so is an ``arrive`` of one warp group, of each of its threads or
    of one for all). Phases are counted from 0."""

    name: str
    slots: int
    arrivals: int
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.name}: barrier[{self.slots}] of {self.arrivals}"


@dataclass(frozen=True, slots=True)
class At:
    """One slot of a barrier."""

    barrier: str
    slot: Expr

    def __str__(self) -> str:
        return f"{self.barrier}[{index_text(self.slot)}]"
