"""One Relax op to lifted statements: through TVM's own legalisation where it has a usable one, else by a model of ours.

The meaning of an op is taken from the TensorIR that TVM lowers it to, so no op has to be known by name, but for a few
(:mod:`redfuser.partition.meanings`).

Results are memoised by everything that matters: op, attributes, dtypes, shapes and scalar constants of the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from redfuser.acrf.affine import Indices
from redfuser.acrf.cascade import Let, Reduce, Stmt, Tensor
from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, map_children, substitute
from redfuser.acrf.lift import Lifted, lift_primfunc
from redfuser.acrf.lift_expr import Unliftable, short_dtype, static
from redfuser.partition.meanings import MODELS, scalar, uniform
from redfuser.partition.placed import SCATTERS
from redfuser.partition.windows import CONVOLUTIONS, POOLS, apart, depthwise
from redfuser.tvm_compat import TensorStructInfo, TupleStructInfo, ir, relax, tvm


@dataclass(frozen=True, slots=True)
class Lowered:
    """``lifted.params[i]`` is the value of the Relax variable ``args[i]``."""

    lifted: Lifted
    args: tuple[Any, ...]


class Legaliser:
    """Lowers the ops of one module; keep one per process part to share the memo. written: a convolution of each channel by
    itself is a map of the few elements of its window, not a sum of products."""

    def __init__(self, module: Any, written: bool = False) -> None:
        self.module, self.written = module, written
        self.memo: dict[Any, Lifted | Unliftable] = {}

    def lower(self, call: Any) -> Lowered:
        """Raises :class:`Unliftable` when the op has no counterpart (opaque calls, dynamic shapes, sorts, scans)."""
        if not isinstance(call, relax.Call):
            raise Unliftable(type(call).__name__)
        args: list[Any] = []
        key = (str(call.op), str(call.attrs), tuple(self.describe(a, args) for a in call.args),
               str(call.struct_info), tuple(map(str, call.sinfo_args)))
        if key not in self.memo:
            try:
                self.memo[key] = normal(self.fresh(call, args))
            except Unliftable as e:
                self.memo[key] = e
            except Exception as e:  # an op without legalisation or that TVM cannot legalise
                self.memo[key] = Unliftable(f"{op_name(call)}: {str(e).strip().splitlines()[-1][:120]}")
        got = self.memo[key]
        if isinstance(got, Unliftable):
            raise got
        return Lowered(got, tuple(args))

    def describe(self, arg: Any, args: list[Any]) -> Any:
        """A hashable description of an argument; tensor variables are collected, in order of first use."""
        if isinstance(arg, relax.Var):
            if arg not in args:
                args.append(arg)
            return ("var", args.index(arg), str(arg.struct_info))
        if isinstance(arg, relax.Constant):
            if len(arg.struct_info.shape):
                return ("uniform", repr(uniform(arg)), str(arg.struct_info))
            return ("const", repr(scalar(arg)), arg.struct_info.dtype)
        if isinstance(arg, relax.Tuple):
            return tuple(self.describe(a, args) for a in arg.fields)
        return str(arg)

    def fresh(self, call: Any, args: list[Any]) -> Lifted:
        name = op_name(call)
        for v in args:
            if not isinstance(v.struct_info, TensorStructInfo):
                raise Unliftable(f"{name} on a {type(v.struct_info).__name__}")
        own = self.written and name in CONVOLUTIONS and len(args) == 2 and apart(call)
        if model := depthwise if own else MODELS.get(name) or POOLS.get(name) or SCATTERS.get(name):
            return model(call, [buffer_of(a, i) for i, a in enumerate(args)], {a: i for i, a in enumerate(args)})
        if name == "relax.call_tir":
            return self.call_tir(call, args)
        if not isinstance(call.op, ir.Op):
            raise Unliftable("a call to another function")
        params = [relax.Var(f"p{i}", v.struct_info) for i, v in enumerate(args)]
        swap = dict(zip(args, params, strict=True))
        fixed = [a for a in call.args if isinstance(a, relax.Constant) and (
            len(a.struct_info.shape) or a.struct_info.dtype == "bfloat16")]  # numpy has no bfloat16 to inline
        extra = [relax.Var(f"c{i}", a.struct_info) for i, a in enumerate(fixed)]
        swap.update(zip(fixed, extra, strict=True))
        body = relax.Call(call.op, [rename(a, swap) for a in call.args], call.attrs, call.sinfo_args)
        body = relax.BlockBuilder().normalize(body)
        module = tvm.IRModule({"main": relax.Function([*params, *extra], body, body.struct_info)})
        module = relax.transform.LegalizeOps()(relax.transform.Normalize()(module))
        blocks = module["main"].body.blocks if isinstance(module["main"].body, relax.SeqExpr) else []
        calls = [b for block in blocks for b in block.bindings]
        if len(calls) != 1 or op_name(calls[0].value) != "relax.call_tir":
            raise Unliftable(name)
        inner = calls[0].value
        values = {f"@{len(params) + i}": Const(uniform(a), short_dtype(a.struct_info.dtype)) for i, a in enumerate(fixed)}
        return self.primfunc(module[inner.args[0]], inner, [*params, *extra], values)

    def call_tir(self, call: Any, args: list[Any]) -> Lifted:
        return self.primfunc(self.module[call.args[0]], call, args)

    def primfunc(self, func: Any, call: Any, order: list[Any], values: dict[str, Const] | None = None) -> Lifted:
        """Lift, then put the parameters into the order of ``order`` (an op may drop or repeat arguments); ``values`` are
        parameters that hold one number."""
        outputs = len(call.struct_info.fields) if isinstance(call.struct_info, TupleStructInfo) else 1
        lifted = lift_primfunc(func, outputs)
        passed = list(call.args[1].fields)
        rename_ = {t.name: f"@{order.index(v)}" for t, v in zip(lifted.params, passed, strict=True)}
        values = values or {}
        params = tuple(buffer_of(v, i) for i, v in enumerate(order) if f"@{i}" not in values)
        return Lifted(params, lifted.axes, tuple(rename_loads(s, rename_, values) for s in lifted.stmts), lifted.outputs)


def normal(lifted: Lifted) -> Lifted:
    """A reduction over an axis of one element is the map of that element: there is nothing to share a walk with. A view's
    positions are as short as its own extents make them: half a row that is read beyond its end, and discarded there, has then
    no quotients."""
    extents = {a.name: a.extent for a in lifted.axes if isinstance(a.extent, int)}
    ix = Indices(extents)

    def plain(s: Stmt) -> Stmt:
        if isinstance(s, Let) and isinstance(s.expr, Load):
            return replace(s, expr=replace(s.expr, indices=tuple(map(ix.simplify, s.expr.indices))))
        if not isinstance(s, Reduce) or extents.get(s.over) != 1 or s.reducer.kind == "topk":
            return s
        return Let(s.name, s.axes, Const(0, s.dtype)) if s.reducer.kind.startswith("arg") else spelled(s, 1)

    return replace(lifted, stmts=tuple(map(plain, lifted.stmts)))


def spelled(s: Reduce, extent: int) -> Let:
    """A reduction of one element, a sum or a product, as an expression of its terms."""
    name = "mul" if s.reducer.kind == "prod" else "add"
    terms = [substitute(s.expr, indices={s.over: Const(i, "i64")}) for i in range(extent)]
    terms = [e if e.dtype == s.dtype else Cast(e, s.dtype) for e in terms]
    while len(terms) > 1:
        pairs = [Op(name, (a, b), s.dtype) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs):]
    return Let(s.name, s.axes, terms[0])


def op_name(call: Any) -> str:
    if not isinstance(call, relax.Call):
        return type(call).__name__
    return str(call.op.name) if isinstance(call.op, ir.Op) else str(getattr(call.op, "name_hint", call.op))


def rename(arg: Any, swap: dict[Any, Any]) -> Any:
    if isinstance(arg, relax.Tuple):
        return relax.Tuple([rename(a, swap) for a in arg.fields])
    return swap.get(arg, arg) if isinstance(arg, (relax.Var, relax.Constant)) else arg


def rename_loads(s: Stmt, names: dict[str, str], values: dict[str, Const]) -> Stmt:
    def go(e: Expr) -> Expr:
        e = map_children(e, go)
        if isinstance(e, Load):
            name = names.get(e.tensor, e.tensor)
            return values.get(name) or replace(e, tensor=name)
        return e

    return replace(s, expr=go(s.expr))


def buffer_of(var: Any, i: int) -> Tensor:
    info = var.struct_info
    if info.shape is None:
        raise Unliftable("a tensor of unknown shape")
    return Tensor(f"@{i}", short_dtype(info.dtype), tuple(static(e) for e in info.shape))
