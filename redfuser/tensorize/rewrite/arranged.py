"""A kernel with its axes: what the passes over axes take and give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from redfuser.acrf.expr import Expr, Index
from redfuser.strategies.program import Kernel


@dataclass(frozen=True, slots=True)
class Arranged:
    """extents: of all axes. stores: by block name, the tensor it writes and where, in axes of the kernel. origin: what a name
    was called before its short axes went. inside: what holds of the row's elements, and not of its padding, where that is not
    what comes behind them."""

    kernel: Kernel
    extents: dict[str, int]
    stores: Mapping[str, tuple[str, tuple[Expr, ...]]]
    origin: Mapping[str, str] = field(default_factory=dict)
    inside: Expr | None = None


def as_realised(kernel: Kernel, extents: dict[str, int]) -> Arranged:
    """A kernel of a segment program, whose results are stored at their own axes."""
    named = {n: b for b in (*kernel.body, *kernel.tail) for n in b.names}
    return Arranged(kernel, extents, {t.name: (t.name, tuple(map(Index, named[t.name].axes))) for t in kernel.writes
                                      if t.name in named})
