"""Evaluate tensors of the graph at index expressions: pointwise tensors are substituted into their readers.

``value(node, indices)`` is the expression for one element: a load for a tensor outside the region, the substituted body
for a pointwise tensor, a placeholder reference for a reduction (with its indices, so that two uses can be compared).
Everything is memoised on (node, simplified indices), so shared tensors are evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from types import MappingProxyType

from redfuser.acrf.affine import Indices, axes_of
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Index, Load, Op, Ref, map_children
from redfuser.dtypes import INTS
from redfuser.partition.epilogue import contracts, rounds, scales_rows
from redfuser.partition.fold import fold
from redfuser.partition.graph import Node, Unit
from redfuser.partition.values import Instance, Pick, R, Site, Value
from redfuser.partition.work import Work

COLUMNS = 256
"""Of a tile at most: for these a map of the row is computed once."""


class Evaluator:
    """Evaluation within a region. ``inside``: its units; ``raxis``: the axis name of every reduction node;
    ``ix``: the simplifier, whose extents must cover every axis used; ``written``: tensors outside that are read from memory
    wherever they are read; ``picked``: elements of rows that are taken as the row is made, by the reduction that takes each."""

    def __init__(self, inside: frozenset[Unit], raxis: Callable[[Node], str], ix: Indices, work: Work | None = None,
                 written: frozenset[Node] = frozenset(), picked: Mapping[Site, Pick] = MappingProxyType({})) -> None:
        self.inside, self.raxis, self.ix, self.work, self.written, self.picked = inside, raxis, ix, work, written, picked
        self.memo: dict[tuple[Node, tuple[Expr, ...], bool], Value] = {}
        self.instances: dict[Site, Instance] = {}
        self.open: list[Site] = []
        self.depends: dict[Unit, bool] = {}
        self.lets: dict[Site, Value] = {}
        self.external: dict[Node, set[tuple[Expr, ...]]] = {}

    # -- tensors -------------------------------------------------------------------------------------------------------

    def value(self, node: Node, indices: tuple[Expr, ...], scope: frozenset[str] = frozenset(),
              strict: bool = False) -> Value:
        """One element. ``scope``: axes in scope at the reader; ``strict``: the reader is a contraction, whose operands
        must be plain tensors (a pointwise prologue on an operand that is read many times is computed outside)."""
        key = (node, indices, strict and self.reused(indices, scope))
        if key not in self.memo:
            self.memo[key] = self.fresh(node, indices, scope, strict)
        return self.memo[key]

    def twice(self, results: Iterable[Value]) -> frozenset[Node]:
        """Tensors outside that a contraction takes from memory and another reader computes for itself."""
        some = {n for n, _, strict in self.memo if not strict and n in self.external and n.unit is not None
                and n.unit not in self.inside} - self.written
        read = [*results, *(i.body for i in self.instances.values())] if some else []
        loads = [{x.tensor for x in shared_walk(v.expr) if isinstance(x, Load)} for v in read]
        return frozenset(n for v, names in zip(read, loads, strict=True) for n, _ in v.sites
                         if n in some and n.name not in names)

    def reused(self, indices: tuple[Expr, ...], scope: frozenset[str]) -> bool:
        mine: set[str] = set()
        for i in indices:
            mine |= axes_of(i)
        return bool(scope - mine)

    def fresh(self, node: Node, indices: tuple[Expr, ...], scope: frozenset[str], strict: bool) -> Value:
        here: Site = (node, indices)
        if node.stmt is None or node.unit is None or node in self.written or not self.through(
                node.unit, indices, scope, strict):
            self.external.setdefault(node, set()).add(indices)
            return Value(Load(node.name, indices, node.dtype), frozenset({here}))
        if isinstance(node.stmt, Reduce):
            return self.reduction(node, indices)
        env = dict(zip(node.stmt.axes, indices, strict=True))
        body = self.body(node.stmt.expr, env, node.unit, scope, strict)
        if not node.unit.has_data:
            return body
        got = Value(body.expr, body.sites | {here})
        self.lets[here] = got
        return got

    def through(self, unit: Unit, indices: tuple[Expr, ...], scope: frozenset[str], strict: bool) -> bool:
        if unit.gap:
            return False
        if unit not in self.inside:
            operand = strict and unit.has_data and matrix(unit) and self.reused(indices, scope)
            return unit.is_view or (unit.is_cheap and not operand)
        if unit.reducing or not strict or unit.is_view or not unit.has_data or not matrix(unit):
            return True
        if self.dependent(unit) or not self.reused(indices, scope - {R}):  # once for each row
            return True
        return scales(unit) or self.weighs(unit, indices, scope) or (
            all(contracts(u) for u in self.inside if u.reducing) and (rounds(unit) or scales_rows(unit)))

    def weighs(self, unit: Unit, indices: tuple[Expr, ...], scope: frozenset[str]) -> bool:
        """Is it made once for all columns of a tile, and read by a sum beside the region's product of float32 numbers?"""
        missing = scope.difference(*(axes_of(e) for e in indices))
        products = [u for u in self.inside if contracts(u)]
        few = prod(self.ix.extents[a] for a in missing) <= COLUMNS and len(products) == 1
        return few and products[0].nodes[-1].dtype == "f32" and any(self.summed(u) for u in unit.consumers)

    def summed(self, unit: Unit) -> bool:
        """A sum of the region, or a map that leads to one."""
        if unit not in self.inside or contracts(unit):
            return False
        return unit.reducing or any(map(self.summed, unit.consumers))

    def dependent(self, unit: Unit) -> bool:
        """True when the unit reads a reduction of the region."""
        if unit not in self.depends:
            self.depends[unit] = any(p in self.inside and (p.reducing or self.dependent(p)) for p in unit.producers)
        return self.depends[unit]

    def reduction(self, node: Node, indices: tuple[Expr, ...]) -> Value:
        lead = node.lead or node
        site: Site = (lead, indices)
        if site in self.picked:
            return self.pick(self.picked[site])
        if site not in self.instances:
            if site in self.open:
                raise RecursionError("a reduction reads itself")
            self.open.append(site)
            self.instances[site] = self.instance(lead, indices)
            self.open.pop()
        return Value(Ref(node.name, node.dtype, indices), frozenset({(node, indices)}))

    def pick(self, p: Pick) -> Value:
        """``sum[r] select(r == where, s[i, r], 0)``: the element of a row at a place that data decide."""
        at = tuple(Index(p.over) if k == p.axis else e for k, e in enumerate(p.indices))
        mine = tuple(e for k, e in enumerate(p.indices) if k != p.axis)
        row = self.reduction(p.row, at)
        here = Op("eq", (Index(p.over), p.indices[p.axis]), "bool")
        if (p.node, mine) not in self.instances:
            body = Op("select", (here, row.expr, Const(0.0, p.node.dtype)), p.node.dtype)
            self.instances[p.node, mine] = Instance(p.node, mine, p.over, Value(body, row.sites), False)
        return Value(Ref(p.node.name, p.node.dtype, mine), frozenset({(p.node, mine)}))

    def instance(self, node: Node, indices: tuple[Expr, ...]) -> Instance:
        stmt, unit, over = node.stmt, node.unit, self.raxis(node)
        assert isinstance(stmt, Reduce) and unit is not None
        axes = stmt.axes[:-1] if stmt.reducer.kind == "topk" else stmt.axes
        env: dict[str, Expr] = dict(zip(axes, indices, strict=False))
        env[stmt.over] = Index(over)
        scope = frozenset(a for e in env.values() for a in axes_of(e) if self.ix.extents[a] > 1)
        body = self.body(stmt.expr, env, unit, scope, False)
        contraction = stmt.reducer.kind == "sum" and self.is_contraction(body.expr, scope)
        if contraction:
            body = self.body(stmt.expr, env, unit, self.row_scope(body.expr, scope, over), True)
        return Instance(node, indices, over, body, contraction)

    def is_contraction(self, e: Expr, scope: frozenset[str]) -> bool:
        """A product of two values, one of which is used at every value of an axis it does not have."""
        while isinstance(e, Cast):
            e = e.arg
        if not (isinstance(e, Op) and e.name == "mul"):
            return False
        free = [f for f in map(self.axes_read, factors(e)) if f]
        return len(free) > 1 and any(scope - f for f in free)

    def row_scope(self, e: Expr, scope: frozenset[str], over: str) -> frozenset[str]:
        """Axes along which re-reading an operand costs: without the columns, when a factor depends on a reduction (the
        row is computed once for all columns of a tile)."""
        row = [self.axes_read(f) or set() for f in factors(e) if any(isinstance(x, Ref) for x in shared_walk(f))]
        return scope & frozenset({over}.union(*row)) if row else scope

    def axes_read(self, e: Expr) -> set[str] | None:
        """Axes that a factor depends on; None for a factor without data."""
        out: set[str] = set()
        data = False
        for x in shared_walk(e):
            if isinstance(x, (Load, Ref)):
                data = True
                out.update(a for i in x.indices for a in axes_of(i))
            elif isinstance(x, Index):
                out.add(x.axis)
        return out if data else None

    # -- expressions ---------------------------------------------------------------------------------------------------

    def body(self, e: Expr, env: dict[str, Expr], unit: Unit, scope: frozenset[str], strict: bool) -> Value:
        sites: set[Site] = set()
        done: dict[int, Expr] = {}
        at_axis: dict[str, Expr] = {}

        def go(x: Expr) -> Expr:
            if id(x) not in done:
                done[id(x)] = step(x)
            return done[id(x)]

        def step(x: Expr) -> Expr:
            match x:
                case Const():
                    return x
                case Index(axis=a):
                    if a not in at_axis:
                        at_axis[a] = self.ix.simplify(env[a])
                    return at_axis[a]
                case Load(tensor=t, indices=kids):
                    at = tuple(self.position(go(k)) for k in kids)
                    got = self.value(unit.buffers[t], at, scope, strict)
                    sites.update(got.sites)
                    return got.expr
                case Op() | Cast():
                    return self.tidy(map_children(x, go))
            raise TypeError(f"not an expression: {x!r}")

        got = go(e)
        if self.work is not None:
            self.work.charge(len(done))
        return Value(got, frozenset(sites))

    def position(self, e: Expr) -> Expr:
        return self.ix.simplify(e)

    def tidy(self, e: Expr) -> Expr:
        """Normal form of index arithmetic, folding of constants and masks elsewhere."""
        if e.dtype in INTS and (e in self.ix.simple or pure_index(e)):
            return self.ix.simplify(e)
        if isinstance(e, Op) and e.name in ("lt", "le", "gt", "ge", "eq", "ne") and all(
                a.dtype in INTS and pure_index(a) for a in e.args):
            return self.ix.compare(e.name, *e.args)
        return fold(e)


def pure_index(e: Expr) -> bool:
    """Integer arithmetic over axes and constants only."""
    match e:
        case Const() | Index():
            return e.dtype in INTS
        case Op(name=n, args=args):
            return n in ("add", "sub", "mul", "floordiv", "mod", "min", "max", "neg") and all(map(pure_index, args))
        case Cast(arg=x, dtype=d):
            return d in ("i64", "i32") and pure_index(x)
    return False


def matrix(unit: Unit) -> bool:
    """Some result has two axes or more: as an operand it is worth its own pass; a vector is not."""
    return any(sum(e > 1 for e in n.shape) > 1 for n in unit.results)


def scales(unit: Unit) -> bool:
    """``x * constant`` or ``x / constant`` in float32 or float64: the constant can leave a sum of products."""
    if len(unit.nodes) != 1 or unit.nodes[0].dtype not in ("f32", "f64") or unit.nodes[0].stmt is None:
        return False
    match unit.nodes[0].stmt.expr:
        case Op(name="mul" | "div", args=(Load(), Const())) | Op(name="mul", args=(Const(), Load())):
            return True
    return False


def factors(e: Expr) -> list[Expr]:
    """What a product is made of, casts and their roundings looked through."""
    while isinstance(e, Cast) and e.dtype in FLOATS:
        e = e.arg
    return factors(e.args[0]) + factors(e.args[1]) if isinstance(e, Op) and e.name == "mul" else [e]


def shared_walk(e: Expr) -> Iterable[Expr]:
    """Walk values, not index positions, visiting each shared object once."""
    seen: set[int] = set()
    todo = [e]
    while todo:
        x = todo.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        yield x
        todo += list(x.args) if isinstance(x, Op) else [x.arg] if isinstance(x, Cast) else []
