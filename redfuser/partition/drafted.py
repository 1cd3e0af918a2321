"""What evaluating a set of units as one cascade comes to: a draft of the region, or why it is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from redfuser.acrf.expr import Expr, Load
from redfuser.partition.evaluate import Evaluator, shared_walk
from redfuser.partition.graph import Node, Unit
from redfuser.partition.positions import axes_in
from redfuser.partition.values import Instance, Value
from redfuser.partition.work import REFERENCE
from redfuser.target import Target

R = "l"


@dataclass(frozen=True, slots=True)
class Reject:
    """Why a set of units is not one cascade: a code, the tensor it is about, and the failed condition.

    ``rows`` are the reductions that were found to run over one common r-axis all the same: with two of them or more,
    what is given up is a cascade, not a mere neighbourhood."""

    code: str
    node: Node | None
    condition: str
    why: str = ""
    help: str = ""
    rows: frozenset[Node] = frozenset()


NOTHING = Reject("RF435", None, "an axis has no elements", "there is nothing to compute")


@dataclass(slots=True)
class Sink:
    """A tensor that leaves the region, at the position it is evaluated."""

    node: Node
    axes: list[str]
    at: tuple[Expr, ...]
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a region's growth: reductions that ``join`` with the maps in between, a map that comes to ``follow`` the
    results, maps that ``lead`` to the row."""

    kind: Literal["join", "follow", "lead"]
    units: frozenset[Unit]


@dataclass(slots=True)
class Draft:
    """``steps``: how the region grew from its first reduction, in order; what :mod:`redfuser.partition.smaller` undoes.
    ``machine``: what its costs are modelled for."""

    units: frozenset[Unit]
    ev: Evaluator
    sinks: list[Sink]
    rows: list[Instance]
    inner: list[Instance]
    p_axes: tuple[str, ...]
    extents: dict[str, int]
    external: dict[Node, set[tuple[Expr, ...]]] = field(default_factory=dict)
    machine: Target = REFERENCE
    steps: tuple[Step, ...] = ()

    @property
    def row_map(self) -> bool:
        """An output that carries the r-axis and depends on a reduction."""
        return any(R in axes_in(s.at) and s.value is not None and self.depends(s.value) for s in self.sinks)

    def loaded(self) -> set[Node]:
        """The tensors outside that it loads: fewer than were looked at on the way, where a product takes from memory what
        another reader would compute."""
        values = [*(s.value for s in self.sinks if s.value), *(i.body for i in (*self.rows, *self.inner))]
        names = {x.tensor for v in values for x in shared_walk(v.expr) if isinstance(x, Load)}
        return {n for n in self.external if n.name in names}

    def depends(self, v: Value) -> bool:
        rows = {r.node for r in self.rows}
        return any((n.lead or n) in rows for n, _ in v.sites)


@dataclass(frozen=True, slots=True)
class Cut:
    """``joining`` was not taken into the cascade grown from ``seed``. ``cascade``: the two reduce over one common r-axis,
    so a cascade was cut in two."""

    seed: Unit
    joining: Unit
    reason: Reject
    cascade: bool = False
