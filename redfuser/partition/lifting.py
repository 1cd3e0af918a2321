"""A Relax function as the dataflow graph of its lifted statements. Scans are written here: TVM lowers ``cumsum`` and
``cumprod`` to a loop that nothing is read off."""

from __future__ import annotations

from math import prod
from typing import Any

from redfuser.acrf.affine import Indices, axes_of
from redfuser.acrf.cascade import Let, Provenance, Reduce, Reducer, Stmt
from redfuser.acrf.expr import BYTES, FLOATS, Cast, Const, Expr, Index, Load, Op, walk
from redfuser.acrf.lift import Lifted
from redfuser.acrf.lift_expr import Unliftable, data_dependent, short_dtype, static
from redfuser.partition.few import write_out
from redfuser.partition.graph import Graph, Node, Unit, connect, symbol_of
from redfuser.partition.legalise import Legaliser, op_name
from redfuser.partition.meanings import scalar
from redfuser.partition.positions import by_data, slides
from redfuser.tvm_compat import TensorStructInfo, TupleStructInfo, relax

PLACED = ("i64", "i32", "bool")
KINDS = {"relax.cumsum": "sum", "relax.cumprod": "prod"}
Operand = tuple[tuple[int, ...], str]
"""A tensor's shape and dtype."""


def build_graph(module: Any, provenance: dict[str, Provenance], weights: frozenset[str] = frozenset(),
                written: bool = False, lined: tuple[bool, ...] = ()) -> Graph:
    """Lift every binding of ``module["main"]``. Ops that do not lift become boundaries, never an error. ``weights`` are
    the parameters of ``main`` that do not change from call to call. written: as :class:`Legaliser` has it; lined: of each
    result, whether its elements lie in order."""
    return _Builder(module, provenance, weights, written).build(lined)


class _Builder:
    """Binding by binding: what each op lifts to, and which tensors it reads."""

    def __init__(self, module: Any, provenance: dict[str, Provenance], weights: frozenset[str],
                 written: bool) -> None:
        self.weights = weights
        self.func = module["main"]
        self.legaliser = Legaliser(module, written)
        self.provenance = provenance
        self.graph = Graph([], [], {}, [])
        self.tensors: dict[Any, Any] = {}

    def build(self, lined: tuple[bool, ...]) -> Graph:
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
        made = self.flatten(self.value(body))
        for node, in_order in zip(made, lined if len(lined) == len(made) else (False,) * len(made), strict=True):
            node.escapes = True
            node.lined |= in_order
        connect(self.graph.units)
        write_out(self.graph)
        for u in self.graph.units:
            classify(u)
        for u in places(self.graph):
            u.is_cheap = True
        return self.graph

    def flatten(self, value: Any) -> list[Node]:
        return [value] if isinstance(value, Node) else [n for v in value or () for n in self.flatten(v)]

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


def running(call: Any, name: str, args: list[Operand], result: Operand) -> Reduce | str:
    """What a scan computes, over its operand ``@0``; or why it stays torch's call."""
    kind, (shape, dtype) = KINDS.get(name, ""), result
    rank = len(shape)
    axis = getattr(call.attrs, "axis", None)
    axis = int(axis) % rank if axis is not None and rank else None
    if not kind or len(args) != 1 or args[0][0] != shape or not rank or bool(getattr(call.attrs, "exclusive", False)):
        return "a scan of a kind that has no statement"
    if axis is None or shape[axis] <= 1 or 0 in shape:
        return "it is a scan of one element, or of none"
    if dtype not in ("f32", "i64", "i32"):
        return f"it is a scan in {dtype}; tiles are scanned in float32 and in integers of 32 and 64 bits"
    names = tuple(f"a{k}" for k in range(rank))
    x: Expr = Load("@0", tuple(map(Index, names)), args[0][1])
    if x.dtype != dtype and ((x.dtype in FLOATS) != (dtype in FLOATS) or x.dtype not in BYTES):
        return "a scan that converts its operand between floats and integers"
    x = x if x.dtype == dtype else Cast(x, dtype)
    return Reduce(("out",), names, Reducer(kind), names[axis], x, dtype)


CHAIN = 64
"""Maps in a row that cost nothing to read through; a longer chain is cut by one that does."""


def classify(u: Unit) -> None:
    """Which pointwise units cost nothing to read through.

    * no data: index arithmetic and constants only (an ``arange`` mask);
    * view: one load at a rearranged index, and widening casts of it;
    * cheap: at most eight operations on one tensor no larger than the result (a broadcast scale, an ALiBi slope), or on
      several that have half its elements together (two document numbers compared): recomputing reads no more.
    """
    u.slides = any(convolves(n.stmt, u.extents) for n in u.nodes)
    u.window = frozenset(a for n in u.nodes if isinstance(n.stmt, Let) for a in window(n.stmt.expr))
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


def window(e: Expr) -> set[str]:
    """The axes along which the places slide that a map reads of one tensor, where they are more than two."""
    places: dict[str, set[tuple[Expr, ...]]] = {}
    for x in walk(e):
        if isinstance(x, Load):
            places.setdefault(x.tensor, set()).add(x.indices)
    read = [list(zip(*some, strict=True)) for some in places.values() if len(some) > 2]
    return {a for dims in read for d in dims if len(set(d)) > 1 for i in d for a in axes_of(i)}


def loads_by_data(u: Unit) -> bool:
    """Some argument of the unit is integer data, so a position may depend on it."""
    return any(n.dtype in ("i64", "i32") and (n.unit is None or n.unit.has_data) for n in u.args)


def places(graph: Graph) -> set[Unit]:
    """Maps of integers that nobody reads but as places of what is taken there: their reader computes them for itself."""
    found: set[Unit] = set()
    for u in reversed(graph.units):
        whole = u.pointwise and u.has_data and not u.gathers and all(n.dtype in PLACED and not n.escapes for n in u.results)
        if whole and u.consumers and all(c in found or (c.gathers and not tables(c) & set(u.results)) for c in u.consumers):
            found.add(u)
    return found


def tables(u: Unit) -> set[Node]:
    """What it reads at places that data say."""
    reads = [x for n in u.nodes if n.stmt is not None for x in walk(n.stmt.expr)] if u.gathers else []
    return {u.buffers[x.tensor] for x in reads if isinstance(x, Load) and by_data(x.indices)}


def lies(n: Node) -> Node:
    """The tensor behind permuted views of one: its elements are at the same places, by other axes."""
    while n.unit is not None and len(n.unit.nodes) == 1 and n.stmt is not None and isinstance(x := n.stmt.expr, Load) and all(
            isinstance(i, Index) for i in x.indices) and len(set(x.indices)) == len(x.indices):
        n = n.unit.args[0]
    return n


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
