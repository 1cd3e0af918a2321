"""The index-expression dataflow graph of a Relax function: tensors defined by lifted statements, edges = indexed loads.

A :class:`Unit` is one Relax binding (kernels replace whole bindings); it holds the statements its op lifts to. A
:class:`Node` is one tensor: a parameter, the result of an op nobody can look into, or one lifted statement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from redfuser.acrf.cascade import Provenance, Reduce, Stmt
from redfuser.acrf.expr import BYTES
from redfuser.acrf.lift import Lifted
from redfuser.tvm_compat import relax


@dataclass(eq=False, slots=True)
class Node:
    """A tensor. ``stmt`` is None for a parameter or an opaque result; ``var`` is the Relax variable it is the value of,
    empty for an intermediate inside one op. ``lead`` is the node that stands for its statement (``topk`` has two). ``lined``:
    it is a result of the program whose elements lie in order."""

    key: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    stmt: Stmt | None = None
    unit: Unit | None = None
    var: str = ""
    lead: Node | None = None
    escapes: bool = False
    lined: bool = False
    weight: bool = False

    @property
    def bytes(self) -> int:
        return prod(self.shape) * BYTES.get(self.dtype, 8)

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, slots=True)
class Unit:
    """One binding. ``gap`` says why an op could not be lifted (its nodes are then boundaries); ``symbol`` is the torch call
    that it makes, where it is one. ``scan``: what it computes along its rows, of its operand ``@0``, for those that look into
    it; to all others it is a gap. ``window``: the axes of its result along
    which the places slide that a map reads of one tensor, more than two for an element."""

    index: int
    op: str
    var: str
    nodes: list[Node] = field(default_factory=list)
    buffers: dict[str, Node] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)
    args: tuple[Node, ...] = ()
    gap: str = ""
    symbol: str = ""
    provenance: Provenance = field(default_factory=Provenance)
    consumers: list[Unit] = field(default_factory=list)
    producers: list[Unit] = field(default_factory=list)
    has_data: bool = True
    is_view: bool = False
    is_cheap: bool = False
    chain: int = 0
    gathers: bool = False
    piecewise: bool = False
    slides: bool = False
    window: frozenset[str] = frozenset()
    lifted: Lifted | None = None
    scan: Reduce | None = None
    ancestors: int = 0
    descendants: int = 0

    @property
    def reducing(self) -> bool:
        return not self.gap and any(isinstance(n.stmt, Reduce) for n in self.nodes)

    @property
    def pointwise(self) -> bool:
        return not self.gap and not self.reducing

    @property
    def on_activations(self) -> bool:
        """Every operand depends on the call's inputs, not on weights alone."""
        return all(not n.weight for n in self.args)

    @property
    def results(self) -> list[Node]:
        return [n for n in self.nodes if n.var]

    def __repr__(self) -> str:
        return self.var


@dataclass(slots=True)
class Graph:
    """Units in topological order; ``values`` maps Relax variable names to nodes (aliases share one)."""

    units: list[Unit]
    nodes: list[Node]
    values: dict[str, Node]
    inputs: list[Node]
    reading: dict[Node, list[Unit]] = field(default_factory=dict)
    variables: dict[str, Node] = field(default_factory=dict)

    def readers(self, n: Node) -> list[Unit]:
        """Units with ``n`` among their operands, in program order."""
        if not self.reading:
            for u in self.units:
                for a in dict.fromkeys(u.args):
                    self.reading.setdefault(a, []).append(u)
        return self.reading.get(n, [])

    def live(self, wanted: set[str], produced: set[str]) -> set[str]:
        """Variables that the outer program still computes: kernel inputs, model outputs, and what those need."""
        self.variables = self.variables or {n.var: n for n in self.nodes if n.var}
        out: set[str] = set()
        todo = [self.variables[v] for v in wanted] + [n for n in self.nodes if n.escapes]
        while todo:
            n = todo.pop()
            if n.var in out or n.var in produced:
                continue
            out.add(n.var)
            if n.unit is not None:
                out.add(n.unit.var)
                todo += n.unit.args
        return out

    def fixed(self) -> set[Unit]:
        """What depends on no input of the model: the outer graph computes it once and keeps it."""
        found: set[Unit] = set()
        for u in self.units:
            if all(n.unit in found for n in u.args):
                found.add(u)
        return found

    def reset(self) -> None:
        """Reachability as it was before regions were fenced off."""
        reach(self.units)


def connect(units: list[Unit]) -> None:
    """Producer and consumer lists; reachability."""
    for u in units:
        u.producers = list(dict.fromkeys(n.unit for n in u.args if n.unit is not None))
        for p in u.producers:
            p.consumers.append(u)
    reach(units)


def reach(units: list[Unit]) -> None:
    """Ancestors and descendants, as bit masks over unit indices."""
    for u in units:
        u.ancestors = u.descendants = 0
    for u in units:
        for p in u.producers:
            u.ancestors |= p.ancestors | 1 << p.index
    for u in reversed(units):
        for c in u.consumers:
            u.descendants |= c.descendants | 1 << c.index


def symbol_of(call: Any) -> str:
    """The packed function that a call names; empty for a call of anything else."""
    named = call.args[0] if isinstance(call, relax.Call) and len(call.args) else None
    return str(named.global_symbol) if isinstance(named, relax.ExternFunc) else ""


def provenance_of(u: Unit) -> Provenance:
    return u.provenance if u.provenance.op else Provenance(u.op, u.var)
