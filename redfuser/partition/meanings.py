"""What an op computes, where TVM's legalisation loses what we need or does not exist.

``arange`` (TVM folds it to a constant array, the index structure is gone), ``where`` (scalar branches would become tensors),
``topk`` (an extern call), ``take`` and ``gather_elements`` (positions out of bounds, which torch refuses at the call),
``group_norm`` (TVM lowers it through raw moments ``E[x^2] - E[x]^2``, which is neither what torch computes nor stable),
``batch_norm`` (which updates statistics), ``softplus`` (TVM's is 0 below a float's spacing at 1), ``power`` (TVM warns the user
of his own exponent), and torch calls that are maps without a Relax op.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import Any

from redfuser.acrf.cascade import Axis, Let, Reduce, Reducer, Stmt, Tensor
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Index, Load, Op, f32, op
from redfuser.acrf.lift import Lifted
from redfuser.acrf.lift_expr import Unliftable, short_dtype, static
from redfuser.acrf.repeated import in_steps
from redfuser.partition import calls
from redfuser.tvm_compat import TensorStructInfo, relax


def scalar(c: Any) -> Any:
    data = c.data.numpy()
    return data.astype("float32").item() if "float" in c.struct_info.dtype and data.dtype.itemsize < 4 else data.item()


def uniform(c: Any) -> Any:
    """The one number a constant tensor holds (a missing affine weight of ones). Unliftable when it holds several."""
    data = c.data.numpy()
    if data.size == 0 or not (data == data.flat[0]).all():
        raise Unliftable("a constant table inside an op")
    value = data.flat[0]
    return bool(value) if data.dtype == bool else float(value) if "float" in c.struct_info.dtype else int(value)


Positions = dict[Any, int]


def operand_of(arg: Any, params: list[Tensor], where: Positions, axes: list[str], shape: tuple[int, ...]) -> Expr:
    """An argument broadcast to the result: a constant, or a load at the trailing axes."""
    if isinstance(arg, relax.Constant):
        return Const(scalar(arg), short_dtype(arg.struct_info.dtype))
    t = params[where[arg]]
    skip = len(axes) - len(t.shape)
    index = tuple(Const(0, "i64") if e == 1 and shape[skip + i] != 1 else Index(axes[skip + i])
                  for i, e in enumerate(t.shape))
    return Load(t.name, index, t.dtype)


def result_axes(call: Any) -> tuple[list[str], tuple[Axis, ...], tuple[int, ...]]:
    shape = tuple(static(e) for e in call.struct_info.shape)
    names = [f"a{i}" for i in range(len(shape))]
    return names, tuple(Axis(n, e) for n, e in zip(names, shape, strict=True)), shape


def _where(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    names, axes, shape = result_axes(call)
    c, x, y = (operand_of(a, params, where, names, shape) for a in call.args)
    if c.dtype != "bool":
        c = Op("ne", (c, Const(0, c.dtype)), "bool")
    return Lifted(tuple(params), axes, (Let("out", tuple(names), Op("select", (c, x, y), x.dtype)),), ("out",))


def _power(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    names, axes, shape = result_axes(call)
    base, exponent = (operand_of(a, params, where, names, shape) for a in call.args)
    if base.dtype not in FLOATS:
        raise Unliftable("a power of integers")
    return Lifted(tuple(params), axes, (Let("out", tuple(names), op("pow", base, exponent)),), ("out",))


def _arange(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    start, _, step = (a.value if isinstance(a, relax.PrimValue) else a for a in call.args)
    names, axes, _ = result_axes(call)
    dtype = short_dtype(call.struct_info.dtype)
    if any(type(v).__name__ == "FloatImm" for v in (start, step)):
        raise Unliftable("arange with fractional bounds")
    value: Expr = Index(names[0])
    if static(step) != 1:
        value = Op("mul", (value, Const(static(step), "i64")), "i64")
    if static(start) != 0:
        value = Op("add", (value, Const(static(start), "i64")), "i64")
    return Lifted((), axes, (Let("out", tuple(names), value if dtype == "i64" else Cast(value, dtype)),), ("out",))


def _topk(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """values, indices = topk(k) over one axis; the extra axis k stays where the reduced axis was.

    The smallest are the largest of what is negated. NaN, which torch takes for the largest there too, would be the smallest
    then: it is ranked as -inf, and the last ranks, as many as there are, are NaN."""
    attrs, x = call.attrs, params[0]
    if str(attrs.ret_type) != "both":
        raise Unliftable("topk of one result only")
    smallest = not bool(attrs.largest)
    if smallest and x.dtype not in FLOATS:
        raise Unliftable("topk of the smallest integers")
    k, rank = int(call.attrs.k), len(x.shape)
    at = int(attrs.axis) % rank
    names = [f"a{i}" for i in range(rank)]
    axes = [Axis(n, e) for n, e in zip(names, x.shape, strict=True)] + [Axis("k", k)]
    points = tuple(n for i, n in enumerate(names) if i != at)
    kept = (*points, "k")
    row: Expr = Load(x.name, tuple(map(Index, names)), x.dtype)
    nan, least = op("isnan", row), Const(-math.inf, x.dtype)
    ranked = op("select", nan, least, op("neg", row)) if smallest else row
    stmts: list[Stmt] = [Reduce(("values", "indices"), kept, Reducer("topk", k), names[at], ranked, x.dtype)]
    place = tuple("k" if i == at else n for i, n in enumerate(names))
    index_dtype = short_dtype(attrs.dtype)
    found, index = (Load(n, tuple(map(Index, kept)), d) for n, d in (("values", x.dtype), ("indices", "i64")))
    value: Expr = found
    if smallest:
        stmts.append(Reduce(("nans",), points, Reducer("sum"), names[at], op("select", nan, f32(1.0), f32(0.0)), "f32"))
        numbers = op("sub", f32(float(x.shape[at])), Load("nans", tuple(map(Index, points)), "f32"))
        last = op("lt", Cast(Index("k"), "f32"), numbers)
        value = op("select", last, op("neg", found), Const(math.nan, x.dtype))
    return Lifted((x,), tuple(axes), (
        *stmts, Let("out0", place, value),
        Let("out1", place, index if index_dtype == "i64" else Cast(index, index_dtype))), ("out0", "out1"))


def _take(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """out[before, j, after] = x[before, index[j], after]."""
    x, index = call.args[0], call.args[1]
    if isinstance(x, relax.Constant) or isinstance(index, relax.PrimValue):
        raise Unliftable("take from a constant, or at one position")
    source = params[where[x]]
    if call.attrs.axis is None and len(source.shape) != 1:
        raise Unliftable("take from a flattened tensor")
    at = int(call.attrs.axis or 0) % len(source.shape)
    names, axes, _ = result_axes(call)
    rank = len(names) - len(source.shape) + 1
    if isinstance(index, relax.Constant):
        position: Expr = Const(uniform(index), short_dtype(index.struct_info.dtype))
    else:
        t = params[where[index]]
        position = within(Load(t.name, tuple(map(Index, names[at:at + rank])), t.dtype), source.shape[at])
    here = (*map(Index, names[:at]), position, *map(Index, names[at + rank:]))
    return Lifted(tuple(params), axes, (Let("out", tuple(names), Load(source.name, here, source.dtype)),), ("out",))


def _gather(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """out[i, j] = x[i, index[i, j]]."""
    x, index = call.args
    if not isinstance(x, relax.Var) or not isinstance(index, relax.Var):
        raise Unliftable("a gather of or by a constant")
    source, t = params[where[x]], params[where[index]]
    at = int(call.attrs.axis) % len(source.shape)
    names, axes, _ = result_axes(call)
    here = tuple(map(Index, names))
    position = within(Load(t.name, here, t.dtype), source.shape[at])
    load = Load(source.name, (*here[:at], position, *here[at + 1:]), source.dtype)
    return Lifted(tuple(params), axes, (Let("out", tuple(names), load),), ("out",))


def _index_tensor(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """out[i, after] = x[a[i], b[i], ..., after]: as many tensors of positions as the leading axes that they stand for, which
    meet as operands of one map do."""
    x, indices = call.args[0], list(call.args[1].fields)
    source = params[where[x]]
    names, axes, shape = result_axes(call)
    rank = len(names) - len(source.shape) + len(indices)
    places = [operand_of(a, params, where, names[:rank], shape[:rank]) for a in indices]
    here = (*map(within, places, source.shape), *map(Index, names[rank:]))
    return Lifted(tuple(params), axes, (Let("out", tuple(names), Load(source.name, here, source.dtype)),), ("out",))


def within(position: Expr, extent: Any) -> Expr:
    """A position that data say. One out of bounds, which torch refuses at the call, is that of the nearest element: a kernel
    must not read elsewhere."""
    if not isinstance(extent, int) or extent < 1:  # of no element none is near
        raise Unliftable("a position on an axis that is empty, or of no known length")
    t = position.dtype
    return Op("min", (Op("max", (position, Const(0, t)), t), Const(extent - 1, t)), t)


def _group_norm(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """(x - mean) * rsqrt(var + eps) * weight + bias over the channels of a group and the trailing axes, in float32."""
    attrs = call.attrs
    x = params[where[call.args[0]]]
    groups, channel, reduced = int(attrs.num_groups), int(attrs.channel_axis), [int(a) for a in attrs.axes]
    rank = len(x.shape)
    channel, reduced = channel % rank, [a % rank for a in reduced]
    if channel != 1 or reduced != list(range(2, rank)):
        raise Unliftable("group_norm over other axes than the trailing ones")
    per = x.shape[1] // groups if isinstance(x.shape[1], int) else 0
    inner = prod(int(e) for e in x.shape[2:])
    n = per * inner
    names = [f"a{i}" for i in range(rank)]
    axes = (*(Axis(a, e) for a, e in zip(names, x.shape, strict=True)), Axis("g", groups), Axis("r", n))

    def c(v: int) -> Const:
        return Const(v, "i64")

    def at(offset: Expr) -> Load:
        """x at batch a0, group g and the flattened position within the group."""
        channel_at = Op("add", (Op("mul", (Index("g"), c(per)), "i64"), Op("floordiv", (offset, c(inner)), "i64")), "i64")
        index: list[Expr] = [Index("a0"), channel_at]
        stride = inner
        for e in x.shape[2:]:
            stride //= int(e)
            index.append(Op("mod", (Op("floordiv", (offset, c(stride)), "i64"), c(int(e))), "i64"))
        return Load(x.name, tuple(index), x.dtype)

    def wide(e: Expr) -> Expr:
        return e if e.dtype in ("f32", "f64") else Cast(e, "f32")

    acc = "f64" if x.dtype == "f64" else "f32"
    row: tuple[str, ...] = ("a0", "g")

    def stat(name: str, index: tuple[Expr, ...]) -> Load:
        return Load(name, index, acc)

    here = tuple(map(Index, row))
    own = (Index("a0"), Op("floordiv", (Index("a1"), c(per)), "i64"))
    count = Const(float(n), acc)
    centred = Op("sub", (wide(at(Index("r"))), stat("mean", here)), acc)
    out: Expr = Op("mul", (Op("sub", (wide(Load(x.name, tuple(map(Index, names)), x.dtype)), stat("mean", own)), acc),
                           Op("rsqrt", (Op("add", (Op("div", (stat("sq", own), count), acc),
                                                   Const(float(attrs.epsilon), acc)), acc),), acc)), acc)
    for flag, arg, name in ((attrs.scale, call.args[1], "mul"), (attrs.center, call.args[2], "add")):
        if flag:
            given: Expr
            if isinstance(arg, relax.Constant):  # a missing affine weight
                given = Const(uniform(arg), short_dtype(arg.struct_info.dtype))
            else:
                given = Load(params[where[arg]].name, (Index("a1"),), params[where[arg]].dtype)
            out = Op(name, (out, wide(given)), acc)
    stmts = (Reduce(("total",), row, Reducer("sum"), "r", wide(at(Index("r"))), acc),
             Let("mean", row, Op("div", (stat("total", here), count), acc)),
             Reduce(("sq",), row, Reducer("sum"), "r", Op("mul", (centred, centred), acc), acc),
             Let("out", tuple(names), out if x.dtype == acc else Cast(out, x.dtype)))
    return Lifted(tuple(params), axes, stmts, ("out",))


def _batch_norm(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """(x - mean) * rsqrt(var + eps) * weight + bias by given statistics, which are the other two results. TVM lowers it by a
    square root and a quotient for every element."""
    attrs = call.attrs
    if bool(attrs.training):
        raise Unliftable("batch_norm by the statistics of the batch, which changes the given ones")
    x = params[where[call.args[0]]]
    names = [f"a{i}" for i in range(len(x.shape))]
    axes = tuple(Axis(a, e) for a, e in zip(names, x.shape, strict=True))
    channel = names[int(attrs.axis) % len(names)]

    def of(arg: Any) -> Expr:
        if isinstance(arg, relax.Constant):  # a missing affine weight
            return Const(uniform(arg), x.dtype)
        return Load(params[where[arg]].name, (Index(channel),), x.dtype)

    weight, bias, mean, var = map(of, call.args[1:])
    deviation = Op("rsqrt", (Op("add", (var, Const(float(attrs.epsilon), x.dtype)), x.dtype),), x.dtype)
    out: Expr = Op("mul", (Op("sub", (Load(x.name, tuple(map(Index, names)), x.dtype), mean), x.dtype), deviation), x.dtype)
    out = Op("mul", (out, weight), x.dtype) if attrs.scale else out
    out = Op("add", (out, bias), x.dtype) if attrs.center else out
    return Lifted(tuple(params), axes, (Let("out", tuple(names), out), Let("mean", (channel,), mean),
                                        Let("var", (channel,), var)), ("out", "mean", "var"))


def _softplus(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """``log1p(exp(beta * x)) / beta``, and ``x`` where ``beta * x`` is above the threshold."""
    names, axes, shape = result_axes(call)
    x = operand_of(call.args[0], params, where, names, shape)
    return Lifted(tuple(params), axes, (Let("out", tuple(names), calls.softplus(
        x, float(call.attrs.beta), float(call.attrs.threshold))),), ("out",))


def _torch_call(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """A pointwise torch call without a Relax op, of tensors alone (:mod:`redfuser.partition.calls`)."""
    target = str(call.args[0].global_symbol).partition(".")[2].rpartition(".")[0]
    if target not in calls.MEANINGS or not isinstance(call.struct_info, TensorStructInfo):
        raise Unliftable("relax.call_dps_packed")
    return _meant(target, call, list(call.args[1].fields), params, where)


def _function(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    return _meant(str(call.op.name), call, list(call.args), params, where)


def _meant(target: str, call: Any, given: list[Any], params: list[Tensor], where: Positions) -> Lifted:
    meaning = calls.MEANINGS[target]
    if len(given) != meaning.arity:
        raise Unliftable(target)
    names, axes, shape = result_axes(call)
    out = meaning(*(operand_of(a, params, where, names, shape) for a in given), dtype=short_dtype(call.struct_info.dtype))
    return Lifted(tuple(params), axes, in_steps("out", tuple(names), out), ("out",))


MODELS: dict[str, Callable[[Any, list[Tensor], Positions], Lifted]] = {
    "relax.where": _where, "relax.power": _power, "relax.arange": _arange, "relax.topk": _topk, "relax.take": _take,
    "relax.gather_elements": _gather, "relax.index_tensor": _index_tensor, "relax.nn.group_norm": _group_norm,
    "relax.nn.batch_norm": _batch_norm, "relax.nn.softplus": _softplus, "relax.call_dps_packed": _torch_call,
    **{name: _function for name in calls.MEANINGS if name.startswith("relax.")}}
