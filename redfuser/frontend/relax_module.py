"""A Relax module as its owner has it, re-emitted in the normal form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from redfuser import tvm_compat as tc
from redfuser.errors import InputError, UnsupportedError
from redfuser.frontend.builder import Builder, triangle
from redfuser.frontend.dtypes import torch_dtype
from redfuser.frontend.imported import Imported, InputSpec, Provenance, refuse_inputs
from redfuser.frontend.local import OPERATORS, POOLS
from redfuser.tvm_compat import dtype_of, op_name, relax, shape_of, tensor_info, tvm

op = relax.op
HALF = ("float16", "bfloat16")

WIDENED = frozenset({
    "matmul", "sum", "mean", "variance", "prod", "cumsum", "cumprod", "nn.softmax", "nn.log_softmax", "nn.layer_norm",
    "nn.rms_norm", "nn.group_norm", "nn.conv1d", "nn.conv2d", "nn.conv3d", "exp", "log", "sqrt", "rsqrt", "sigmoid",
    "tanh", "erf", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "nn.gelu", "nn.gelu_tanh", "nn.silu",
    "nn.softplus", "power",
})
"""Operators whose half-precision form computes in float32 and rounds once."""


def is_relax(model: Any) -> bool:
    return isinstance(model, tvm.IRModule)


def import_relax(mod: Any) -> Imported:
    """Import ``main``, or the only Relax function. Parameters are user inputs, unless the attribute ``num_input`` says
    that the first so many are and ``params`` holds the others (as TVM's own importers leave them). Raises InputError
    RF110, RF111, RF112 and UnsupportedError RF115."""
    names = [g.name_hint for g, f in mod.functions_items() if isinstance(f, relax.Function)]
    name = "main" if "main" in names else names[0] if len(names) == 1 else None
    if name is None:
        raise InputError("RF110", "cannot tell which function of the module is the model", where=", ".join(names),
                         help="name it main")
    mod = tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.CanonicalizeBindings()])(mod)
    return _Import(mod[name]).run()


class _Import:
    def __init__(self, func: Any) -> None:
        self.func = func
        self.env: dict[Any, Any] = {}
        self.notes: list[str] = []
        self.unsupported: list[str] = []
        self.weights: dict[str, Any] = {}
        self.inputs = self._inputs()
        params = [relax.Var(s.name, tensor_info(s.shape, s.dtype)) for s in self.inputs]
        self.builder = Builder(params)
        self.env.update(zip(func.params, params, strict=True))

    def _inputs(self) -> tuple[InputSpec, ...]:
        import torch

        attrs = self.func.attrs or {}
        user = int(attrs["num_input"]) if "num_input" in attrs else len(self.func.params)
        values = list(attrs["params"]) if "params" in attrs else []
        if user + len(values) != len(self.func.params):
            user, values = len(self.func.params), []
        dynamic, odd, specs = [], [], []
        for i, p in enumerate(self.func.params):
            info = p.struct_info
            if not isinstance(info, tc.TensorStructInfo):
                odd.append(f"{p.name_hint}: {info}")
            elif not tc.is_static(info):
                dynamic.append(f"{p.name_hint}: {info}")
            elif not _known_dtype(dtype_of(p)):
                odd.append(f"{p.name_hint}: {dtype_of(p)}")
            else:
                specs.append(InputSpec(p.name_hint, dtype_of(p), shape_of(p), "user" if i < user else "weight"))
                if i >= user:
                    self.weights[p.name_hint] = torch.from_dlpack(values[i - user])
        refuse_inputs(dynamic, odd, "bind the symbolic shapes, once per shape that you run",
                      "convert these parameters before the call")
        return tuple(specs)

    def run(self) -> Imported:
        if not isinstance(self.func.body, relax.SeqExpr):
            raise InputError("RF116", "the model returns no tensor", help="return at least one tensor")
        for binding in tc.bindings(self.func):
            value = binding.value
            try:
                self.env[binding.var] = self._expr(binding.var.name_hint, value)
            except _Unsupported as error:
                self.unsupported.append(f"{error} ({binding.var.name_hint})")
        outputs = self._fields(self.func.body.body) if not self.unsupported else []
        if self.unsupported:
            raise UnsupportedError("RF115", "operators that can neither be compiled nor run as torch calls",
                                   where="; ".join(self.unsupported),
                                   why="only tensor operators of Relax can be imported: no calls of TIR or external "
                                       "functions, no control flow",
                                   help="import the module before it is legalised or fused")
        mod = self.builder.finish(outputs)
        return Imported(mod=mod, inputs=self.inputs, weights=self.weights, opaque={}, provenance=self.builder.provenance,
                        source="relax", notes=tuple(dict.fromkeys(self.notes)), once=tuple(self.builder.once.items()))

    def _fields(self, e: Any) -> list[Any]:
        value = self._operand(e)
        if isinstance(value, tuple):
            return [f for v in value for f in (v if isinstance(v, tuple) else (v,))]
        return [value]

    def _operand(self, e: Any) -> Any:
        """The re-emitted value: a Relax expression, or a tuple of them."""
        if isinstance(e, relax.Var):
            if e not in self.env:
                raise _Unsupported("a value that is not computed")
            return self.env[e]
        if isinstance(e, relax.Tuple):
            return tuple(self._operand(f) for f in e.fields)
        return e

    def _expr(self, name: str, e: Any) -> Any:
        self.builder.begin(name, Provenance(f"{op_name(e)} (relax)" if op_name(e) else "", name))
        if isinstance(e, relax.TupleGetItem):
            source = self._operand(e.tuple_value)
            return source[e.index] if isinstance(source, tuple) else self.builder.emit(relax.TupleGetItem(source, e.index))
        if not isinstance(e, relax.Call):
            if isinstance(e, (relax.Var, relax.Tuple, relax.Constant)):
                return self._operand(e)
            raise _Unsupported(type(e).__name__)
        if not isinstance(e.op, tc.ir.Op):
            raise _Unsupported(f"a call of {getattr(e.op, 'name_hint', getattr(e.op, 'global_symbol', e.op))}")
        if not tc.is_static(e.struct_info):
            raise _Unsupported(f"{op_name(e)} with a result whose shape is not static")
        return self._call(op_name(e), e)

    def _call(self, name: str, e: Any) -> Any:
        operands = [self._operand(a) for a in e.args]
        rewrite = REWRITES.get(name)
        if rewrite is not None:
            return rewrite(self.builder, e, operands)
        if name not in OPERATORS - POOLS or name == "call_dps_packed":  # its pools pad otherwise than torch's
            raise _Unsupported(name or "a call")
        plain = [relax.Tuple(list(o)) if isinstance(o, tuple) else o for o in operands]
        if name not in WIDENED or not any(_is_half(o) for o in plain):
            return self.builder.emit(relax.Call(e.op, plain, e.attrs, e.sinfo_args))
        return self._widened(name, e, plain)

    def _widened(self, name: str, e: Any, operands: Sequence[Any]) -> Any:
        """The operator in float32, its result rounded to the dtype that the module gives it."""
        wanted = dtype_of(e)
        if name == "matmul":
            x, y = operands
            if dtype_of(x) != dtype_of(y):
                x, y = self.builder.emit(op.astype(x, "float32"), "x"), self.builder.emit(op.astype(y, "float32"), "y")
            r = self.builder.emit(op.matmul(x, y, out_dtype="float32"), "acc")
        else:
            wide = [self.builder.emit(op.astype(o, "float32"), "wide") if _is_half(o) else o for o in operands]
            r = self.builder.emit(_in_float32(name, e, wide), "f32")
        return self.builder.emit(op.astype(r, wanted))


class _Unsupported(Exception):
    """An operator that has no place in the normal form."""


def _is_half(e: Any) -> bool:
    return isinstance(e, relax.Expr) and isinstance(e.struct_info, tc.TensorStructInfo) and dtype_of(e) in HALF


def _known_dtype(name: str) -> bool:
    try:
        torch_dtype(name)
    except KeyError:
        return False
    return True


def _in_float32(name: str, e: Any, operands: Sequence[Any]) -> Any:
    """The call on float32 operands; attributes that name the half dtype as a result or accumulation dtype are undone."""
    a = e.attrs
    if name in ("cumsum", "cumprod"):
        return getattr(op, name)(operands[0], int(a.axis) if a.axis is not None else None, "float32", bool(a.exclusive))
    if name.startswith("nn.conv"):
        ints = lambda v: tuple(int(i) for i in v)  # noqa: E731
        return getattr(op.nn, name[3:])(*operands, ints(a.strides), ints(a.padding), ints(a.dilation), int(a.groups),
                                        str(a.data_layout), str(a.kernel_layout), str(a.out_layout))
    return relax.Call(e.op, list(operands), a, e.sinfo_args)


# -- operators that are spelled with others ------------------------------------------------------------------------------


def _split(b: Builder, e: Any, operands: Sequence[Any]) -> Any:
    (x,) = operands
    axis = int(e.attrs.axis) % len(shape_of(x))
    parts, first = [], 0
    for i, field in enumerate(e.struct_info.fields):
        size = int(field.shape.values[axis])
        parts.append(b.emit(op.strided_slice(x, axes=[axis], begin=[first], end=[first + size], strides=[1]), str(i)))
        first += size
    return tuple(parts)


def _stack(b: Builder, e: Any, operands: Sequence[Any]) -> Any:
    axis = (int(e.attrs.axis) if e.attrs.axis is not None else 0) % len(shape_of(e))
    return b.emit(op.concat([b.emit(op.expand_dims(x, [axis]), "row") for x in operands[0]], axis))


def _clip(b: Builder, e: Any, operands: Sequence[Any]) -> Any:
    x, low, high = operands
    number = lambda p: relax.const(p.value.value, dtype_of(x))  # noqa: E731
    return b.emit(op.minimum(b.emit(op.maximum(x, number(low)), "low"), number(high)))


def _filled(value: float) -> Callable[..., Any]:
    def rewrite(b: Builder, e: Any, operands: Sequence[Any]) -> Any:
        return b.emit(op.full(shape_of(e), relax.const(value, dtype_of(e)), dtype_of(e)))

    return rewrite


def _full_like(b: Builder, e: Any, operands: Sequence[Any]) -> Any:
    fill = operands[1] if dtype_of(operands[1]) == dtype_of(e) else b.emit(op.astype(operands[1], dtype_of(e)), "fill")
    return b.emit(op.full(shape_of(e), fill, dtype_of(e)))


def _square(b: Builder, e: Any, operands: Sequence[Any]) -> Any:
    return b.emit(op.multiply(operands[0], operands[0]))


def _std(b: Builder, e: Any, operands: Sequence[Any]) -> Any:
    x = b.emit(op.astype(operands[0], "float32"), "wide") if _is_half(operands[0]) else operands[0]
    axes = [int(i) for i in e.attrs.axis] if e.attrs.axis is not None else None
    r = b.emit(op.sqrt(b.emit(op.variance(x, axes, bool(e.attrs.keepdims)), "variance")), "f32")
    return b.emit(op.astype(r, dtype_of(e)))


def _triangle(lower: bool) -> Callable[..., Any]:
    def rewrite(b: Builder, e: Any, operands: Sequence[Any]) -> Any:
        keep = triangle(b, shape_of(e), tc.prim_int(operands[1]), "keep", lower)
        return b.emit(op.where(keep, operands[0], relax.const(0, dtype_of(e))))

    return rewrite


def _attention(b: Builder, e: Any, operands: Sequence[Any]) -> Any:
    """``nn.attention`` on [batch, length, heads, dim]: its mathematics, as for torch's operator."""
    q, k, v = operands[:3]
    mask = operands[3] if len(operands) > 3 else None
    if e.attrs.window_size is not None or shape_of(q)[2] != shape_of(k)[2]:
        raise _Unsupported("nn.attention with a window or shared heads")
    q, k, v = (b.emit(op.permute_dims(x, [0, 2, 1, 3]), n) for x, n in ((q, "queries"), (k, "k"), (v, "v")))
    half = _is_half(q)
    scale = float(e.attrs.scale.value) if e.attrs.scale is not None else 1.0 / math.sqrt(shape_of(q)[-1])
    keys = b.emit(op.permute_dims(k, [0, 1, 3, 2]), "keys")
    scores = b.emit(op.matmul(q, keys, out_dtype="float32" if half else None), "scores")
    acc = dtype_of(scores)
    scores = b.emit(op.multiply(scores, relax.const(scale, acc)), "scaled")
    if mask is not None:
        scores = b.emit(op.add(scores, b.emit(op.astype(mask, acc), "mask")), "masked")
    if e.attrs.causal_mask is not None:
        rows, columns = shape_of(scores)[-2:]
        seen = triangle(b, (rows, columns), columns - rows if str(e.attrs.causal_mask) == "BottomRight" else 0, "causal")
        scores = b.emit(op.where(seen, scores, relax.const(-math.inf, acc)), "causally")
    weights = b.emit(op.nn.softmax(scores, 3), "weights")
    out = b.emit(op.matmul(weights, b.emit(op.astype(v, acc), "values")), "acc")
    return b.emit(op.permute_dims(b.emit(op.astype(out, dtype_of(e)), "rounded"), [0, 2, 1, 3]))


REWRITES: dict[str, Callable[..., Any]] = {
    "split": _split, "stack": _stack, "clip": _clip, "zeros": _filled(0), "ones": _filled(1), "zeros_like": _filled(0),
    "ones_like": _filled(1), "full_like": _full_like, "square": _square, "std": _std, "tril": _triangle(True),
    "triu": _triangle(False), "nn.attention": _attention, "nn.attention_bias": _attention,
}
