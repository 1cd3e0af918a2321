"""What an evaluated tensor is: an expression with the places it reads, reductions that it is made of, picks among results."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from redfuser.acrf.affine import axes_of
from redfuser.acrf.cascade import Reduce, Reducer
from redfuser.acrf.expr import FLOATS, Const, Expr, Index, Load, walk
from redfuser.partition.graph import Node, Unit

R = "l"
"""The r-axis of a draft's row."""
Site = tuple[Node, tuple[Expr, ...]]
"""A tensor at a position: what two reductions must have in common to share an axis."""


@dataclass(slots=True)
class Value:
    """An evaluated element: its expression, and every site read on the way (inside reductions excluded)."""

    expr: Expr
    sites: frozenset[Site]


@dataclass(slots=True)
class Instance:
    """A reduction evaluated at ``indices``, over axis ``over``; ``body`` is its map at that point."""

    node: Node
    indices: tuple[Expr, ...]
    over: str
    body: Value
    contraction: bool

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes the result depends on, in the order of its indices."""
        seen: list[str] = []
        for i in self.indices:
            seen += sorted(a for a in axes_of(i) if a not in seen)
        return tuple(seen)


@dataclass(frozen=True, slots=True)
class Pick:
    """An element of ``row`` at ``indices``, of which that of ``axis`` depends on data, as a reduction over ``over``, the axis
    along which the row is made; ``node``: that reduction's result."""

    row: Node
    indices: tuple[Expr, ...]
    axis: int
    over: str
    node: Node


def picks(instances: Collection[Instance], over: str) -> Iterator[Pick]:
    """Elements that data take from rows of contractions which run along ``over``."""
    rows = [i for i in instances if i.contraction and i.over != over]
    for i in instances:
        loads = [k for k, e in enumerate(i.indices) if any(isinstance(x, Load) for x in walk(e))]
        if len(loads) == 1 and i.node.dtype in FLOATS and any(
                j.node is i.node and all(e == (Index(over) if k in loads else own)
                                         for k, (e, own) in enumerate(zip(j.indices, i.indices, strict=True))) for j in rows):
            (axis,), unit = loads, i.node.unit
            axes = tuple(f"d{k}" for k in range(len(i.indices) - 1))
            stmt = Reduce((f"{i.node.name}_at",), axes, Reducer("sum"), over, Const(0.0, i.node.dtype), i.node.dtype)
            shape = tuple(n for k, n in enumerate(i.node.shape) if k != axis)
            node = Node(i.node.key, f"{i.node.name}_at", i.node.dtype, shape, stmt)
            node.lead = node
            node.unit = Unit(unit.index, "pick", "", [node], extents=unit.extents, provenance=unit.provenance) if unit else None
            yield Pick(i.node, i.indices, axis, over, node)
