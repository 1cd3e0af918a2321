"""The index-expression dataflow graph of a Relax function: tensors defined by lifted statements, edges = indexed loads.

A :class:`Unit` is one Relax binding (kernels replace whole bindings); it holds the statements its op lifts to. A
:class:`Node` is one tensor: a parameter, the result of an op nobody can look into, or one lifted statement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from redfuser.acrf.affine import Indices
from redfuser.acrf.cascade import Let, Provenance, Reduce, Stmt
from redfuser.acrf.expr import BYTES, Const, Expr, Load, Op, walk
from redfuser.acrf.lift import Lifted
from redfuser.acrf.lift_expr import Unliftable, data_dependent, short_dtype, static
from redfuser.partition.legalise import Legaliser, op_name
from redfuser.partition.meanings import scalar
from redfuser.partition.positions import slides
from redfuser.partition.running import KINDS, running
from redfuser.tvm_compat import TensorStructInfo, TupleStructInfo, relax

CHAIN = 64
"""Maps in a row that cost nothing to read through; a longer chain is cut by one that does."""


@dataclass(eq=False, slots=True)
class Node:
    """A tensor. ``stmt`` is None for a parameter or an opaque result; ``var`` is the Relax variable it is the value of,
    empty for an intermediate inside one op. ``lead`` is the node that stands for its statement (``topk`` has two)."""

    key: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    stmt: Stmt | None = None
    unit: Unit | None = None
    var: str = ""
    lead: Node | None = None
    escapes: bool = False
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
    it; to all others it is a gap."""

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

    def readers(self, n: Node) -> list[Unit]:
        """Units with ``n`` among their operands, in program order."""
        if not self.reading:
            for u in self.units:
                for a in dict.fromkeys(u.args):
                    self.reading.setdefault(a, []).append(u)
        return self.reading.get(n, [])

    def reset(self) -> None:
        """Reachability as it was before regions were fenced off."""
        reach(self.units)


def build_graph(module: Any, provenance: dict[str, Provenance], weights: frozenset[str] = frozenset()) -> Graph:
    """Lift every binding of ``module["main"]``. Ops that do not lift become boundaries, never an error. ``weights`` are
    the parameters of ``main`` that do not change from call to call."""
    return _Builder(module, provenance, weights).build()


class _Builder:
    def __init__(self, module: Any, provenance: dict[str, Provenance], weights: frozenset[str]) -> None:
        self.weights = weights
        self.func = module["main"]
        self.legaliser = Legaliser(module)
        self.provenance = provenance
        self.graph = Graph([], [], {}, [])
        self.tensors: dict[Any, Any] = {}

    def build(self) -> Graph:
        for p in self.func.params:
            if isinstance(p.struct_info, TensorStructInfo):
                node = self.boundary(p.name_hint, p.struct_info)
                node.weight = p.name_hint in self.weights
                self.graph.inputs.append(node)
                self.bind(p, node)
        body = self.func.body
        if isinstance(body, relax.SeqExpr):
            for block in body.blocks:
                for b in block.bindings:
                    self.binding(b.var, b.value if hasattr(b, "value") else None)
            body = body.body
        for node in self.flatten(self.value(body)):
            node.escapes = True
        connect(self.graph.units)
        for u in self.graph.units:
            classify(u)
        return self.graph

    def flatten(self, value: Any) -> list[Node]:
        if isinstance(value, Node):
            return [value]
        return [n for v in value or () for n in self.flatten(v)]

    def bind(self, var: Any, value: Any) -> None:
        self.tensors[var] = value
        if isinstance(value, Node):
            self.graph.values[var.name_hint] = value
            if value.var.endswith("]"):  # the field of a tuple takes the name it is first bound to
                value.var = var.name_hint

    def value(self, e: Any) -> Any:
        if isinstance(e, relax.Var):
            return self.tensors[e]
        if isinstance(e, relax.Tuple):
            return tuple(self.value(f) for f in e.fields)
        if isinstance(e, relax.TupleGetItem):
            return self.value(e.tuple_value)[e.index]
        return None

    def binding(self, var: Any, value: Any) -> None:
        if isinstance(value, (relax.Var, relax.Tuple, relax.TupleGetItem)):
            self.bind(var, self.value(value))
            return
        origin = self.provenance.get(var.name_hint, Provenance())
        unit = Unit(len(self.graph.units), op_name(value), var.name_hint, provenance=origin)
        self.graph.units.append(unit)
        if isinstance(value, relax.Constant) and not len(value.struct_info.shape):
            self.constant(unit, var, value)
            return
        try:
            lowered = self.legaliser.lower(value)
            unit.args = tuple(self.tensors[a] for a in lowered.args)
            self.lifted(unit, var, lowered.lifted)
        except Unliftable as e:
            unit.gap = e.construct
            unit.symbol = symbol_of(value)
            unit.nodes.clear()
            unit.args = tuple(n for v in relax.analysis.free_vars(value) for n in self.flatten(self.tensors.get(v)))
            self.bind(var, self.opaque(unit, var.name_hint, var.struct_info))
            if unit.op in KINDS and len(unit.nodes) == 1:
                self.scan(unit, value)

    def scan(self, unit: Unit, call: Any) -> None:
        (node,) = unit.nodes
        found = running(call, unit.op, [(n.shape, n.dtype) for n in unit.args], (node.shape, node.dtype))
        if isinstance(found, str):
            unit.gap = found
            return
        unit.scan = node.stmt = found
        unit.buffers = {"@0": unit.args[0]}
        unit.extents = dict(zip(found.axes, node.shape, strict=True))

    def constant(self, unit: Unit, var: Any, value: Any) -> None:
        try:
            dtype = short_dtype(value.struct_info.dtype)
        except Unliftable as e:
            unit.gap = e.construct
            self.bind(var, self.opaque(unit, var.name_hint, var.struct_info))
            return
        stmt = Let("out", (), Const(scalar(value), dtype))
        node = self.node(var.name_hint, dtype, (), stmt, unit)
        node.var = var.name_hint
        self.bind(var, node)

    def lifted(self, unit: Unit, var: Any, lifted: Lifted) -> None:
        unit.lifted = lifted
        unit.extents = {a.name: int(a.extent) for a in lifted.axes}
        unit.buffers = {f"@{i}": n for i, n in enumerate(unit.args)}
        for s in lifted.stmts:
            lead: Node | None = None
            for name in s.names:
                shape = tuple(unit.extents[a] for a in s.axes)
                dtype = s.expr.dtype if isinstance(s, Let) else s.dtype
                if name == "indices" and isinstance(s, Reduce) and s.reducer.kind == "topk":
                    dtype = "i64"
                n = self.node(f"{var.name_hint}.{name}", dtype, shape, s, unit)
                lead = n.lead = lead or n
                unit.buffers[name] = n
        results = [unit.buffers[o] for o in lifted.outputs]
        for i, n in enumerate(results):
            n.var = n.name = var.name_hint if len(results) == 1 else f"{var.name_hint}[{i}]"
        self.bind(var, results[0] if len(results) == 1 else tuple(results))

    def opaque(self, unit: Unit, name: str, info: Any) -> Any:
        if isinstance(info, TupleStructInfo):
            return tuple(self.opaque(unit, f"{name}[{i}]", f) for i, f in enumerate(info.fields))
        if not isinstance(info, TensorStructInfo):
            return None
        node = self.boundary(name, info)
        node.unit = unit
        unit.nodes.append(node)
        return node

    def boundary(self, name: str, info: Any) -> Node:
        try:
            shape = tuple(static(e) for e in info.shape) if info.shape is not None else ()
            dtype = short_dtype(info.dtype)
        except Unliftable:
            shape, dtype = (), str(info.dtype)
        node = self.node(name, dtype, shape, None, None)
        node.var = name
        return node

    def node(self, name: str, dtype: str, shape: tuple[int, ...], stmt: Stmt | None, unit: Unit | None) -> Node:
        node = Node(len(self.graph.nodes), name, dtype, shape, stmt, unit)
        node.lead = node
        self.graph.nodes.append(node)
        if unit is not None:
            unit.nodes.append(node)
        return node


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


def classify(u: Unit) -> None:
    """Which pointwise units cost nothing to read through.

    * no data: index arithmetic and constants only (an ``arange`` mask);
    * view: one load at a rearranged index, and widening casts of it;
    * cheap: at most eight operations on one tensor no larger than the result (a broadcast scale, an ALiBi slope), or on
      several that have half its elements together (two document numbers compared): recomputing reads no more.
    """
    u.slides = any(convolves(n.stmt, u.extents) for n in u.nodes)
    producers = {id(n): n for n in u.args}
    u.has_data = bool(u.gap) or any(n.unit is None or n.unit.has_data for n in producers.values())
    u.gathers = any(data_dependent(n.stmt.expr) for n in u.nodes if n.stmt is not None and loads_by_data(u))
    for n in u.nodes:
        n.weight = all(a.weight for a in u.args)
    u.piecewise = any(_joins(x) for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr))
    if not u.pointwise or u.gathers:
        return
    data = [n for n in producers.values() if n.unit is None or n.unit.has_data]
    ops = sum(1 for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr) if _computes(x))
    out = max((n.bytes for n in u.results), default=0)
    loads = [x for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr) if isinstance(x, Load)]
    elements = max((prod(n.shape) for n in u.results), default=0)
    small = len(u.results) == 1 and (
        all(min(n.bytes, elements * BYTES.get(n.dtype, 8)) <= out for n in data) if len(data) <= 1
        else 2 * sum(prod(n.shape) for n in data) <= elements)
    u.is_view = small and ops == 0 and len(loads) == len(u.nodes) == len(data) and _no_narrowing(u)
    u.is_view = u.is_view or (len(data) == 1 and ops == 0 and len(u.results) > 1)  # a split
    u.is_cheap = u.is_view or not u.has_data or (small and ops <= 8 and len(loads) <= 8)
    u.chain = 1 + max((p.chain for p in u.producers if p.is_cheap), default=0)
    if u.chain > CHAIN:
        u.is_cheap = u.is_view = False
        u.chain = 0


def convolves(s: Stmt | None, extents: dict[str, int]) -> bool:
    """Does a sum take its operand through a window that slides?"""
    return isinstance(s, Reduce) and s.reducer.kind == "sum" and any(
        slides(Indices(extents), e, s.over) for x in walk(s.expr) if isinstance(x, Load) for e in x.indices)


def loads_by_data(u: Unit) -> bool:
    """Some argument of the unit is integer data, so a position may depend on it."""
    return any(n.dtype in ("i64", "i32") and (n.unit is None or n.unit.has_data) for n in u.args)


def _joins(e: Expr) -> bool:
    """A choice between tensors by position (a concatenation): cheaper as a copy than inside a loop."""
    if not (isinstance(e, Op) and e.name == "select"):
        return False
    cond, x, y = ([n for n in walk(a) if isinstance(n, Load)] for a in e.args)
    return not cond and bool(x) and bool(y)


def _computes(e: Expr) -> bool:
    """An arithmetic node on values (index arithmetic, casts and loads are free)."""
    return isinstance(e, Op) and not (e.dtype in ("i64", "i32") and all(not isinstance(x, Load) for x in walk(e)))


def _no_narrowing(u: Unit) -> bool:
    return all(BYTES[n.dtype] <= BYTES[u.results[0].dtype] for n in u.args)


def symbol_of(call: Any) -> str:
    """The packed function that a call names; empty for a call of anything else."""
    named = call.args[0] if isinstance(call, relax.Call) and len(call.args) else None
    return str(named.global_symbol) if isinstance(named, relax.ExternFunc) else ""


def provenance_of(u: Unit) -> Provenance:
    return u.provenance if u.provenance.op else Provenance(u.op, u.var)
