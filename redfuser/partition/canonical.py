"""A checked draft to a :class:`Cascade` in canonical form: two layers that compute the same thing give the same text.

Shared sub-expressions become named statements (no exponential growth), constants leave sums of products, input tensors
are viewed so that their index maps are affine where that is possible, and everything is named by its role: ``b g h i``
p-axes, ``l`` the r-axis, ``c`` inner axes, ``e`` columns, ``k`` top-k; ``s`` inner contractions, ``p`` producers, ``m``
``t`` ``o`` .. reductions, ``u`` ``w`` values in between, ``y`` outputs, ``x0 x1 ..`` inputs in order of first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from redfuser.acrf.affine import Indices, axes_of
from redfuser.acrf.cascade import Axis, Cascade, Let, Provenance, Reduce, Stmt, Tensor
from redfuser.acrf.expr import Cast, Expr, Index, Load, Op, Ref, map_children
from redfuser.acrf.index import i64
from redfuser.partition.bounded import bounded
from redfuser.partition.drafted import Draft, R, Sink
from redfuser.partition.evaluate import pure_index
from redfuser.partition.fold import constant_apart, fold
from redfuser.partition.graph import Node
from redfuser.partition.loops import Slices
from redfuser.partition.positions import layout, through_view, views
from redfuser.partition.values import Instance
from redfuser.partition.weighed import Interner, Weighed

_ROLE = {"max": "m", "min": "n", "sum": "t", "prod": "r", "any": "any_", "all": "all_", "argmax": "a", "argmin": "a"}


@dataclass(frozen=True, slots=True)
class Outlined:
    """``inputs``: cascade tensor -> Relax variable (its row-major elements viewed with the tensor's shape); ``outputs``:
    cascade output -> Relax variable (the statement's axes, row-major, viewed with the variable's shape);
    ``reductions``: statement -> the node that it is the value of."""

    cascade: Cascade
    inputs: dict[str, str]
    outputs: dict[str, str]
    reductions: dict[str, Node]


def outline(d: Draft, name: str, slices: Slices | None = None) -> Outlined:
    """slices: read those of the program's slices that have what the cascade reads, in their tensors' stead."""
    return _Outliner(d, slices).run(name)


class _Outliner:
    def __init__(self, d: Draft, slices: Slices | None) -> None:
        self.d, self.slices = d, slices
        self.intern = Interner()
        self.names: dict[Node, str] = {}
        self.inputs: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        self.loads: dict[str, Node] = {n.name: n for n in d.external}
        self.axis_names: dict[str, str] = {}
        self.stmts: list[Stmt] = []
        self.let_names: dict[int, str] = {}
        self.scale: dict[Node, Expr] = {}
        self.used: set[str] = set()
        self.memo: dict[int, Expr] = {}
        self.views: dict[str, tuple[int, ...]] = {}
        self.ranks: dict[Node, str] = {}

    def run(self, name: str) -> Outlined:
        d = self.d
        order = list(d.ev.instances.values())
        self.name_axes(order)
        bodies: list[tuple[Instance, Expr]] = []
        first: dict[tuple[object, ...], Node] = {}
        for inst in order:
            body = self.intern(bounded(self.prepare(self.body(inst)), self.ix, lambda n: self.loads[n].shape))
            assert isinstance(inst.node.stmt, Reduce)
            key = (inst.node.stmt.reducer, frozenset(inst.axes), inst.over, inst.node.dtype, id(body))
            if (same := first.setdefault(key, inst.node)) is inst.node:
                bodies.append((inst, body))
                continue
            for mine, other in zip(self.siblings(inst.node), self.siblings(same), strict=True):
                self.names[mine] = self.stmt_name(other)
            if same in self.scale:
                self.scale[inst.node] = self.scale[same]
        sinks = [(s, self.intern(self.prepare(s.value.expr))) for s in d.sinks if s.value is not None]
        roots = [b for _, b in bodies] + [e for _, e in sinks]
        self.views = views(self.ix, {t: n.shape for t, n in self.loads.items()}, roots)
        self.forced = {id(e): s for s, e in sinks if isinstance(e, (Op, Cast))}
        self.weighed = Weighed(roots, frozenset(self.forced), self.axes_of_name, self.row_names,
                               frozenset(self.axis_names[a] for a in d.p_axes))
        outputs: dict[str, str] = {}
        for inst, body in bodies:
            self.reduction(inst, body)
        for s, e in sinks:
            outputs[self.result(s, e, outputs)] = s.node.var
        cascade = Cascade(name, tuple(self.tensors.values()), self.axes_used(), "l", tuple(self.stmts), tuple(outputs))
        return Outlined(cascade, self.inputs, outputs, {name: node for node, name in self.names.items()})

    # -- axes ----------------------------------------------------------------------------------------------------------

    def name_axes(self, order: list[Instance]) -> None:
        d = self.d
        p = list(d.p_axes)
        names = {1: ["i"], 2: ["b", "i"], 3: ["b", "h", "i"], 4: ["b", "g", "h", "i"]}.get(
            len(p), [f"b{n}" for n in range(len(p) - 1)] + ["i"] if p else [])
        self.axis_names = dict(zip(p, names, strict=True)) | {R: "l"}
        counters = {"e": count(), "c": count(), "k": count()}

        def fresh(stem: str) -> str:
            return f"{stem}{next(counters[stem]) or ''}"

        for inst in order:
            topk = isinstance(inst.node.stmt, Reduce) and inst.node.stmt.reducer.kind == "topk"
            for a in inst.axes:
                if a not in self.axis_names:
                    self.axis_names[a] = fresh("k" if topk and a in axes_of(inst.indices[-1]) else "e")
            if topk and not axes_of(inst.indices[-1]):  # k = 1: the position is 0, the axis of ranks remains
                self.ranks[inst.node] = fresh("k")
        columns = [("e", a) for s in d.sinks for e in s.at for a in sorted(axes_of(e))]
        for stem, a in [*(("c", inst.over) for inst in order), *columns]:
            if a not in self.axis_names:
                self.axis_names[a] = fresh(stem)
        self.extents = {new: d.extents[old] for old, new in self.axis_names.items()} | dict.fromkeys(self.ranks.values(), 1)
        self.ix = Indices(self.extents)
        self.renaming: dict[str, Expr] = {old: Index(new) for old, new in self.axis_names.items()}

    def axes_used(self) -> tuple[Axis, ...]:
        used = dict.fromkeys(a for s in self.stmts for a in (*s.axes, *([s.over] if isinstance(s, Reduce) else ())))
        return tuple(Axis(a, self.extents[a]) for a in used)

    def position(self, e: Expr) -> Expr:
        """An index at the final axes; what it reads of reductions, by statement name."""
        def go(x: Expr) -> Expr:
            if isinstance(x, Index):
                return self.renaming.get(x.axis, x)
            return self.reference(x) if isinstance(x, Ref) else map_children(x, go)

        return self.ix.simplify(go(e))

    # -- expressions ---------------------------------------------------------------------------------------------------

    def body(self, inst: Instance) -> Expr:
        """The map of a reduction; for a sum of products its constant factors are left to the readers."""
        e = inst.body.expr
        if not inst.contraction or e.dtype not in ("f32", "f64"):
            return e
        product, scale = constant_apart(e)
        if scale is not None:
            self.scale[inst.node] = scale
        return product

    def prepare(self, e: Expr) -> Expr:
        """Rename axes; turn placeholder references into references by statement name."""
        if id(e) in self.memo:
            return self.memo[id(e)]
        self.intern.keep.append(e)
        got: Expr
        if isinstance(e, (Op, Index)) and pure_index(e):
            got = self.position(e)
        elif isinstance(e, Load):
            got = replace(e, indices=tuple(self.position(i) for i in e.indices))
            got = got if self.slices is None else self.slices.read(got, self.loads)
        elif isinstance(e, Ref):
            got = self.reference(e)
        else:
            got = map_children(e, self.prepare)
            if isinstance(got, Op):
                got = fold(got)
        self.memo[id(e)] = got
        return got

    def reference(self, e: Ref) -> Expr:
        node = next(n for inst in self.d.ev.instances.values() for n in self.siblings(inst.node) if n.name == e.name)
        ref: Expr = Ref(self.stmt_name(node), e.dtype)
        lead = node.lead or node
        return Op("mul", (ref, self.scale[lead]), e.dtype) if lead in self.scale else ref

    def siblings(self, node: Node) -> list[Node]:
        return [n for n in (node.unit.nodes if node.unit else []) if n.lead is node]

    def stmt_name(self, node: Node) -> str:
        if node not in self.names:
            inst = next(i for i in self.d.ev.instances.values() if i.node is (node.lead or node))
            assert isinstance(node.stmt, Reduce)
            kind = node.stmt.reducer.kind
            if kind == "topk":
                stem = "v" if (node.lead or node) is node else "j"
            else:
                stem = "s" if inst.over != R else "o" if kind == "sum" and inst.contraction else _ROLE[kind]
            self.names[node] = self.unique(stem)
        return self.names[node]

    def unique(self, stem: str) -> str:
        names = (f"{stem}{n or ''}" for n in count())
        name = next(n for n in names if n not in self.used and n not in self.extents)
        self.used.add(name)
        return name

    # -- naming shared expressions -------------------------------------------------------------------------------------

    def stmt_axes(self, node: Node) -> tuple[str, ...]:
        inst = next(i for i in self.d.ev.instances.values() if i.node is (node.lead or node))
        rank = (self.ranks[inst.node],) if inst.node in self.ranks else ()
        return tuple(self.axis_names[a] for a in inst.axes if self.d.extents[a] > 1) + rank

    def axes_of_name(self, name: str) -> tuple[str, ...]:
        return self.stmt_axes(next(n for n, own in self.names.items() if own == name))

    def row_names(self) -> set[str]:
        """Of the statements that reduce the row."""
        return {self.stmt_name(i.node) for i in self.d.rows}

    def emit(self, e: Expr, root: bool = False) -> Expr:
        """The expression as it is printed: named parts are references; input tensors have their final names."""
        if not root and self.weighed.worth_naming(e):
            return self.named(e)
        if isinstance(e, Load):
            return self.load(e)
        return map_children(e, self.emit) if isinstance(e, (Op, Cast)) else e

    def named(self, e: Expr) -> Expr:
        if id(e) not in self.let_names:
            if id(e) in self.forced:
                name = self.output(self.forced[id(e)], e)
            else:
                body = bounded(self.emit(e, root=True), self.ix, lambda n: tuple(map(int, self.tensors[n].shape)))
                dependent = bool(self.weighed.refs[id(e)] & self.row_names())
                stem = ("w" if "l" in self.weighed.free[id(e)] else "u") if dependent else "p"
                name = self.unique(stem)
                axes = tuple(a for a in self.axis_order() if a in self.weighed.free[id(e)] and (
                    self.extents[a] > 1 or a in self.ranks.values()))  # that of a top-1's rank is kept
                self.stmts.append(Let(name, axes, body))
            self.let_names[id(e)] = name
        return Ref(self.let_names[id(e)], e.dtype)

    def axis_order(self) -> list[str]:
        p = [self.axis_names[a] for a in self.d.p_axes]
        rest = [a for a in self.extents if a not in p and a != "l"]
        return [*p, "l", *rest]

    # -- statements ----------------------------------------------------------------------------------------------------

    def reduction(self, inst: Instance, body: Expr) -> None:
        stmt = inst.node.stmt
        assert isinstance(stmt, Reduce)
        expr = self.emit(body)
        names = tuple(self.stmt_name(n) for n in self.siblings(inst.node))
        origin = inst.node.unit.provenance if inst.node.unit else Provenance()
        self.stmts.append(Reduce(names, self.stmt_axes(inst.node), stmt.reducer, self.axis_names[inst.over], expr, stmt.dtype,
                                 origin))

    def output(self, s: Sink, e: Expr) -> str:
        """The statement that holds a result; a reduction is its own result when its axes are in the result's order."""
        if id(e) in self.let_names:
            return self.let_names[id(e)]
        axes = self.result_axes(s, e)
        if isinstance(e, Ref) and self.axes_of_stmt(e.name) == axes:
            return e.name
        name = self.unique("y")
        self.let_names[id(e)] = name
        body = self.emit(e, root=True)
        self.stmts.append(Let(name, axes, body, s.node.unit.provenance if s.node.unit else Provenance()))
        return name

    def result(self, s: Sink, e: Expr, taken: Mapping[str, str]) -> str:
        """The statement of one result: a copy, where the value is another result already or lies in another order."""
        name, axes = self.output(s, e), self.result_axes(s, e)
        if name not in taken and self.axes_of_stmt(name) == axes:
            return name
        copy = self.unique("y")
        self.stmts.append(Let(copy, axes, Ref(name, e.dtype), s.node.unit.provenance if s.node.unit else Provenance()))
        return copy

    def result_axes(self, s: Sink, e: Expr) -> tuple[str, ...]:
        ranks = tuple(a for a in self.ranks.values() if a in self.weighed.free[id(e)])
        at = layout(self.d.ev.ix, s.at, s.node.shape) or []  # slowest first; draft.check made sure that it is affine
        return tuple(self.axis_names[a] for a in at) + ranks

    def axes_of_stmt(self, name: str) -> tuple[str, ...]:
        return next(st.axes for st in self.stmts if name in st.names)

    # -- input tensors -------------------------------------------------------------------------------------------------

    def load(self, e: Load) -> Expr:
        node = self.loads[e.tensor]
        name = next((n for n, v in self.inputs.items() if v == node.var), None)
        view = self.views.get(e.tensor)
        if name is None:
            name = self.unique(f"x{len(self.inputs)}")
            self.inputs[name] = node.var
            self.tensors[name] = Tensor(name, node.dtype, view or node.shape or (1,))
        indices = through_view(self.ix, e, node.shape, view) if view else e.indices or (i64(0),)
        return Load(name, tuple(self.gather(i) for i in indices), e.dtype)

    def gather(self, e: Expr) -> Expr:
        """Positions that are themselves loads keep their tensors' final names."""
        return self.load(e) if isinstance(e, Load) else map_children(e, self.gather)
