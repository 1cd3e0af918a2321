"""Lift TensorIR to mathematics: one scheduled-nothing PrimFunc (a legalised Relax op) becomes Let and Reduce statements.

A block without reduction axes is a ``Let`` over its axes; a block with them is a ``Reduce`` (several reduction axes are
flattened, row-major, into one). Index expressions keep their affine / floordiv / mod form; casts are kept (a cast is a
rounding, part of the program). Buffers are read as :class:`Load` by buffer name, parameters and intermediates alike: the
partition resolves them.

Before / after (``relax.nn.softmax``)::

    with T.init(): m[i] = T.float32(-3.40282e38)           m[i]    = max[k] x[i, k]
    m[i] = T.max(m[i], x[i, k])                        --> e[i, k] = exp(x[i, k] - m[i])
    e[i, k] = T.exp(x[i, k] - m[i]) ...                    ...

The initial value of a reduction is checked to be the neutral element. TVM spells the neutral element of ``max`` as the
lowest finite number; that is read as ``-inf`` (they differ only for rows that hold nothing above it).

Only structure is inspected, never names: nodes are recognised by their class, calls by the intrinsic they call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isinf
from typing import Any

from redfuser.acrf.cascade import Axis, Let, Reduce, Reducer, Stmt, Tensor
from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, walk
from redfuser.acrf.lift_expr import Expressions, Unliftable, short_dtype, static
from redfuser.dtypes import INTS, LARGEST, TABLE


@dataclass(frozen=True, slots=True)
class Lifted:
    """The statements of one PrimFunc. ``params`` are the input buffers in order, ``outputs`` the result buffers (each is
    the name of a statement); ``axes`` has the extent of every axis used. All extents are static."""

    params: tuple[Tensor, ...]
    axes: tuple[Axis, ...]
    stmts: tuple[Stmt, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        head = f"lifted({', '.join(map(str, self.params))}) -> {', '.join(self.outputs)}"
        return "\n".join([head, *(f"  {s}" for s in self.stmts)])


def lift_primfunc(func: Any, outputs: int = 1) -> Lifted:
    """Lift a TIR PrimFunc whose last ``outputs`` parameters are its results. Raises :class:`Unliftable`."""
    return _Lifter(func, outputs).lift()


class _Lifter(Expressions):
    def __init__(self, func: Any, outputs: int) -> None:
        super().__init__()
        self.func = func
        buffers = [func.buffer_map[p] for p in func.params]
        self.inputs = buffers[: len(buffers) - outputs]
        self.results = buffers[len(buffers) - outputs:]
        for i, b in enumerate(buffers):
            self.names[b] = f"p{i}"
        self.axes: list[Axis] = []
        self.stmts: list[Stmt] = []

    def lift(self) -> Lifted:
        params = tuple(Tensor(self.names[b], short_dtype(b.dtype), self.shape(b)) for b in self.inputs)
        self.visit(self.func.body)
        written = {n for s in self.stmts for n in s.names}
        outputs = tuple(self.names[b] for b in self.results)
        if missing := [o for o in outputs if o not in written]:
            raise Unliftable(f"result {missing[0]} is not written by a single block")
        return Lifted(params, tuple(self.axes), tuple(self.stmts), outputs)

    # -- statements ----------------------------------------------------------------------------------------------------

    def visit(self, stmt: Any) -> None:
        match type(stmt).__name__:
            case "SBlockRealize" | "BlockRealize":
                block = stmt.block
                if len(block.iter_vars) == 0:
                    self.visit(block.body)
                    return
                self.block(block)
            case "SeqStmt":
                for s in stmt.seq:
                    self.visit(s)
            case "For":
                self.visit(stmt.body)
            case kind if kind.startswith("AllocBuffer") or kind == "DeclBuffer":
                self.visit(stmt.body)
            case kind:
                raise Unliftable(f"statement {kind}")

    def block(self, block: Any) -> None:
        spatial: list[Any] = []
        reduce_: list[Any] = []
        for iv in block.iter_vars:
            (reduce_ if int(iv.iter_type) == 2 else spatial).append(iv)
        taken = {int(iv.iter_type) for iv in block.iter_vars}
        if taken - {0, 2}:
            raise Unliftable("an axis that is neither spatial nor a reduction")
        names = []
        stores = self.stores(block.body)
        scalar = all(len(s.buffer.shape) == 0 for s in stores) and all(static(iv.dom.extent) == 1 for iv in spatial)
        for iv in spatial:
            if scalar:  # a block needs an axis, a tensor of rank 0 has none
                self.vars[iv.var] = Const(0, "i64")
                continue
            names.append(self.axis(iv.dom.extent))
            self.vars[iv.var] = Index(names[-1])
        if not reduce_:
            if len(stores) != 1:
                raise Unliftable("a pointwise block that writes several buffers")
            self.let(stores[0], names)
            return
        over = self.flatten(reduce_)
        if block.init is None:
            raise Unliftable("a reduction without an initial value")
        inits = {s.buffer: s.value for s in self.stores(block.init)}
        if len(stores) == 1:
            self.reduce(stores[0], names, over, inits)
        else:
            self.arg_reduce(stores, names, over, inits)

    def stores(self, stmt: Any) -> list[Any]:
        """The BufferStores of a block body, its let-bound variables recorded for inlining."""
        match type(stmt).__name__:
            case "BufferStore":
                return [stmt]
            case "SeqStmt":
                return [s for part in stmt.seq for s in self.stores(part)]
            case "LetStmt":
                self.lets[stmt.var] = stmt.value
                return self.stores(stmt.body)
            case "Bind":
                self.lets[stmt.var] = stmt.value
                return []
            case kind:
                raise Unliftable(f"statement {kind} in a block")

    def let(self, store: Any, axes: list[str]) -> None:
        self.check_destination(store, axes)
        expr = self.expr(store.value)
        self.stmts.append(Let(self.name(store.buffer), tuple(axes), expr))

    def reduce(self, store: Any, axes: list[str], over: str, inits: dict[Any, Any]) -> None:
        self.check_destination(store, axes)
        value, target = store.value, store.buffer
        kind, operand = self.split_reduction(value, target)
        dtype = short_dtype(target.dtype)
        check_neutral(kind, self.expr(inits[target]), dtype)
        name = self.name(target)
        expr = self.expr(operand)
        if any(isinstance(x, Load) and x.tensor == name for x in walk(expr)):
            raise Unliftable("a reduction whose map reads its own accumulator")
        self.stmts.append(Reduce((name,), tuple(axes), Reducer(kind), over, expr, dtype))

    def split_reduction(self, value: Any, target: Any) -> tuple[str, Any]:
        kinds = {"Add": "sum", "Mul": "prod", "Max": "max", "Min": "min", "And": "all", "Or": "any"}
        kind = kinds.get(type(value).__name__)
        if kind is None and type(value).__name__ == "Call" and value.op.name in ("tirx.bitwise_or", "tir.bitwise_or"):
            kind, sides = "any", tuple(value.args)
        elif kind is None and type(value).__name__ == "Call" and value.op.name in ("tirx.bitwise_and", "tir.bitwise_and"):
            kind, sides = "all", tuple(value.args)
        elif kind is None:
            raise Unliftable(f"reduction operator {type(value).__name__}")
        else:
            sides = (value.a, value.b)
        for mine, other in (sides, sides[::-1]):
            if type(mine).__name__ == "BufferLoad" and mine.buffer.same_as(target):
                return kind, other
        raise Unliftable("a reduction that does not combine with its accumulator")

    def arg_reduce(self, stores: list[Any], axes: list[str], over: str, inits: dict[Any, Any]) -> None:
        """``(index, value)`` pairs: index = select(acc better or tie and lower, acc index, k); lowest index wins."""
        if len(stores) != 2:
            raise Unliftable("a reduction with more than two results")
        for s in stores:
            self.check_destination(s, axes)
        index, value = (self.name(s.buffer) for s in stores)
        picked, best = (self.expr(s.value) for s in stores)
        k = Index(over)
        match best:
            case Op(name="select", args=(Op(name=rel, args=(Load(tensor=a), x)), Load(tensor=b), y)) if (
                a == b == value and x == y and rel in ("gt", "lt")
            ):
                kind = "argmax" if rel == "gt" else "argmin"
            case _:
                raise Unliftable("a two-result reduction that is not an arg-max or arg-min")
        acc, pos = best.args[1], None
        for load in (n for n in walk(picked) if isinstance(n, Load) and n.tensor == index):
            pos = load
        cond = Op("or", (Op(rel, (acc, x), "bool"),
                         Op("and", (Op("eq", (acc, x), "bool"), Op("lt", (pos or k, k), "bool")), "bool")), "bool")
        if pos is None or picked != Op("select", (cond, pos, k), picked.dtype):
            raise Unliftable("an arg-reduction whose ties do not go to the lowest index")
        dtype = {s.buffer: short_dtype(s.buffer.dtype) for s in stores}
        check_neutral(kind[3:], self.expr(inits[stores[1].buffer]), dtype[stores[1].buffer])
        self.stmts.append(Reduce((index,), tuple(axes), Reducer(kind), over, x, dtype[stores[0].buffer]))
        self.stmts.append(Reduce((value,), tuple(axes), Reducer(kind[3:]), over, x, dtype[stores[1].buffer]))

    def check_destination(self, store: Any, axes: list[str]) -> None:
        """Results are written at the block's spatial axes, in order (constant 0 along axes of extent 1)."""
        got = [self.expr(i) for i in store.indices]
        if got != [Index(a) for a in axes]:
            raise Unliftable("a block that writes a permuted or partial destination")

    # -- axes and names ------------------------------------------------------------------------------------------------

    def axis(self, extent: Any) -> str:
        self.axes.append(Axis(f"a{len(self.axes)}", static(extent)))
        return self.axes[-1].name

    def flatten(self, iters: list[Any]) -> str:
        """One row-major reduction axis for all of them."""
        extents = [static(iv.dom.extent) for iv in iters]
        total = 1
        for e in extents:
            total *= e
        self.axes.append(Axis(f"a{len(self.axes)}", total))
        over, stride = self.axes[-1].name, 1
        for n, (iv, e) in enumerate(reversed(list(zip(iters, extents, strict=True)))):
            value: Expr = Index(over)
            if stride > 1:
                value = Op("floordiv", (value, Const(stride, "i64")), "i64")
            if n + 1 < len(iters):
                value = Op("mod", (value, Const(e, "i64")), "i64")
            self.vars[iv.var] = value
            stride *= e
        return over

    def shape(self, buffer: Any) -> tuple[int, ...]:
        return tuple(static(e) for e in buffer.shape)


def check_neutral(kind: str, init: Expr, dtype: str) -> None:
    """The initial value must be the reducer's neutral element (for max and min also the finite limit of the dtype)."""
    good: Callable[[float], bool] = {
        "sum": lambda v: v == 0, "prod": lambda v: v == 1, "any": lambda v: not v, "all": lambda v: bool(v),
        "max": lambda v: is_limit(v, dtype, -1), "min": lambda v: is_limit(v, dtype, 1)}[kind]
    while isinstance(init, Cast):
        init = init.arg
    if isinstance(init, Op) and init.name == "neg" and isinstance(init.args[0], Const):
        init = Const(-init.args[0].value, init.dtype)
    if not isinstance(init, Const) or not good(init.value):
        raise Unliftable(f"initial value {init} of {kind} is not its neutral element")


def is_limit(value: float, dtype: str, sign: int) -> bool:
    if dtype == "bool":
        return bool(value) == (sign > 0)
    if dtype in INTS:
        return value == (TABLE[dtype].largest if sign > 0 else TABLE[dtype].least)
    return (isinf(value) and (value > 0) == (sign > 0)) or sign * value >= 0.999 * LARGEST[dtype]
