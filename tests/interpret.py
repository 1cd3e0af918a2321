"""A small interpreter of imported Relax modules in torch, for tests: op by op, nothing clever.

It shares no code with the outer-graph emitter, so either can be held against the other. ``double=True`` evaluates every
floating-point value in float64 and keeps the casts of the program as roundings only where ``roundings`` is true: the
float64 reference of the same low-precision inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from redfuser import tvm_compat as tc
from redfuser.frontend.dtypes import torch_dtype
from redfuser.frontend.imported import Imported, OpaqueCall, Static

relax = tc.relax

UNARY = {
    "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "sinh": torch.sinh,
    "cosh": torch.cosh, "atan": torch.atan, "asin": torch.asin, "acos": torch.acos, "abs": torch.abs,
    "negative": torch.neg, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round,
    "sign": torch.sign, "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite,
    "logical_not": torch.logical_not, "bitwise_not": torch.bitwise_not, "square": torch.square, "nn.relu": torch.relu,
    "nn.silu": F.silu, "nn.gelu": F.gelu, "nn.gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
BINARY = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div, "power": torch.pow,
    "floor_divide": torch.floor_divide, "floor_mod": torch.remainder, "mod": torch.fmod, "maximum": torch.maximum,
    "minimum": torch.minimum, "equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le,
    "greater": torch.gt, "greater_equal": torch.ge, "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor, "left_shift": torch.bitwise_left_shift, "right_shift": torch.bitwise_right_shift,
}


class Interpreter:
    """Runs ``imported`` on torch tensors given for its user inputs, in order."""

    def __init__(self, imported: Imported, double: bool = False, roundings: bool = True) -> None:
        self.imported, self.double, self.roundings = imported, double, roundings
        self.env: dict[str, Any] = {}

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = iter(inputs)
        func = self.imported.mod["main"]
        for param, spec in zip(func.params, self.imported.inputs, strict=True):
            value = next(given) if spec.kind == "user" else self.imported.weights[spec.name]
            assert tuple(value.shape) == spec.shape and value.dtype == torch_dtype(spec.dtype), spec
            self.env[param.name_hint] = self.float(value.detach())
        for binding in tc.bindings(func):
            value = self.eval(binding.value)
            self.check(binding, value)
            self.env[binding.var.name_hint] = value
        out = self.eval(func.body.body)
        return out if isinstance(out, tuple) else (out,)

    def float(self, x: torch.Tensor) -> torch.Tensor:
        return x.double() if self.double and x.dtype.is_floating_point else x

    def check(self, binding: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            assert tuple(value.shape) == tc.shape_of(binding.var), (binding, value.shape)
            assert self.double or value.dtype == torch_dtype(tc.dtype_of(binding.var)), (binding, value.dtype)

    def eval(self, e: Any) -> Any:
        if isinstance(e, relax.Var):
            return self.env[e.name_hint]
        if isinstance(e, relax.Constant):
            values, dtype = e.data.numpy(), torch_dtype(tc.dtype_of(e))
            if dtype.is_floating_point and dtype.itemsize < 4:
                values = values.astype("float32")  # numpy has no bfloat16 that torch reads
            return self.float(torch.tensor(values).to(dtype))
        if isinstance(e, relax.Tuple):
            return tuple(self.eval(f) for f in e.fields)
        if isinstance(e, relax.TupleGetItem):
            return self.eval(e.tuple_value)[e.index]
        if isinstance(e, relax.ShapeExpr):
            return tuple(int(v) for v in e.values)
        if isinstance(e, relax.PrimValue):
            return e.value.value
        if isinstance(e, relax.Call):
            return self.call(tc.op_name(e), e)
        raise NotImplementedError(str(e))

    def call(self, name: str, e: Any) -> Any:
        if name == "call_dps_packed":
            out = resolve(self.imported.opaque[str(e.args[0].global_symbol)])(*self.narrow(e.args[1]))
            out = tuple(self.float(o) for o in out)
            return out[0] if len(out) == 1 and isinstance(e.struct_info, tc.TensorStructInfo) else out
        a = [self.eval(x) for x in e.args]
        at = e.attrs
        shape = tc.shape_of(e) if isinstance(e.struct_info, tc.TensorStructInfo) else ()
        if name in UNARY:
            return UNARY[name](a[0])
        if name in BINARY:
            return BINARY[name](a[0], a[1])
        axis = _axes(at, a[0]) if at is not None and hasattr(at, "axis") else None
        match name:
            case "astype":
                return self.cast(a[0], tc.dtype_of(e))
            case "matmul":
                return self.matmul(a[0], a[1], tc.dtype_of(e))
            case "reshape" | "expand_dims" | "squeeze":
                return a[0].reshape(shape)
            case "permute_dims":
                return a[0].permute(tc.permute_axes(e))
            case "broadcast_to":
                return a[0].expand(shape)
            case "full":
                return a[1].expand(shape)
            case "arange":
                return self.float(torch.arange(*a, dtype=torch_dtype(tc.dtype_of(e))))
            case "where":
                return torch.where(*a)
            case "concat":
                return torch.cat(a[0], axis[0])
            case "repeat":
                return torch.repeat_interleave(a[0], int(at.repeats), axis[0])
            case "flip":
                return torch.flip(a[0], axis)
            case "take":
                return a[0][(slice(None),) * axis[0] + (a[1],)]
            case "gather_elements":
                return torch.gather(a[0], axis[0], a[1])
            case "scatter_elements":
                assert str(at.reduction) == "update"
                return torch.scatter(a[0], axis[0], a[1], a[2])
            case "index_tensor":
                return a[0][a[1]]
            case "strided_slice":
                where = [slice(None)] * a[0].dim()
                for d, begin, end, step in zip(*a[1:5], strict=True):
                    where[d] = slice(begin, end, step)
                return a[0][tuple(where)]
            case "sum" | "mean" | "prod" | "max" | "min" | "variance":
                return _reduce(name, a[0], axis, bool(at.keepdims))
            case "argmax" | "argmin":
                return getattr(torch, name)(a[0], axis[0], bool(at.keepdims))
            case "topk":
                return tuple(torch.topk(a[0], int(at.k), axis[0], bool(at.largest)))
            case "cumsum" | "cumprod":
                return getattr(torch, name)(a[0], axis[0], dtype=a[0].dtype)
            case "nn.softmax":
                return torch.softmax(a[0], axis[0])
            case "nn.log_softmax":
                return torch.log_softmax(a[0], axis[0])
            case "nn.softplus":
                return F.softplus(a[0], float(at.beta), float(at.threshold))
            case "nn.layer_norm":
                return F.layer_norm(a[0], a[0].shape[-len(at.axes):], a[1], a[2], float(at.epsilon))
            case "nn.rms_norm":
                return F.rms_norm(a[0], a[0].shape[-len(at.axes):], a[1], float(at.epsilon))
            case "nn.group_norm":
                return F.group_norm(a[0], int(at.num_groups), a[1], a[2], float(at.epsilon))
            case "nn.batch_norm":
                return F.batch_norm(a[0], a[3], a[4], a[1], a[2], eps=float(at.epsilon)), a[3], a[4]
            case "nn.conv1d" | "nn.conv2d" | "nn.conv3d":
                rank = int(name[-2])
                f = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
                x, w = (self.cast(v, tc.dtype_of(e)) for v in a)
                return f(x, w, None, _ints(at.strides), _ints(at.padding)[:rank], _ints(at.dilation), int(at.groups))
            case "nn.avg_pool2d" | "nn.avg_pool3d" | "nn.max_pool2d" | "nn.max_pool3d":
                last, rank = str(at.layout).endswith("C"), a[0].dim() - 2
                x = a[0].movedim(-1, 1) if last else a[0]
                given = (_ints(at.pool_size), _ints(at.strides), _ints(at.padding)[:rank])
                if "avg" in name:
                    y = getattr(F, name[3:])(x, *given, bool(at.ceil_mode), bool(at.count_include_pad))
                else:
                    y = getattr(F, name[3:])(x, *given, _ints(at.dilation), bool(at.ceil_mode))
                return y.movedim(1, -1) if last else y
        raise NotImplementedError(name)

    def cast(self, x: torch.Tensor, dtype: str) -> torch.Tensor:
        target = torch_dtype(dtype)
        if not self.double or not target.is_floating_point:
            return x.to(target)
        return x.to(target).double() if self.roundings and x.dtype.is_floating_point else x.double()

    def matmul(self, x: torch.Tensor, y: torch.Tensor, dtype: str) -> torch.Tensor:
        """torch has no accumulation dtype; widening the operands computes the same products."""
        return torch.matmul(self.cast(x, dtype), self.cast(y, dtype)) if not self.double else torch.matmul(x, y)

    def narrow(self, args: Any) -> list[torch.Tensor]:
        return [self.eval(a).to(torch_dtype(tc.dtype_of(a))) for a in args.fields]


def _ints(values: Any) -> list[int]:
    return [int(v) for v in values]


def _axes(attrs: Any, x: Any) -> list[int] | None:
    axis = attrs.axis
    if axis is None:
        return None
    return _ints(axis) if hasattr(axis, "__len__") else [int(axis)]


def _reduce(name: str, x: torch.Tensor, axes: list[int] | None, keep: bool) -> torch.Tensor:
    axes = list(range(x.dim())) if axes is None else [a % x.dim() for a in axes]
    if name == "prod":
        for a in sorted(axes, reverse=True):
            x = x.prod(a, keep)
        return x
    if name == "variance":
        return x.var(axes, correction=0, keepdim=keep)
    return {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}[name](x, axes, keep)


def run(imported: Imported, args: Any = (), kwargs: Any = None, double: bool = False,
        roundings: bool = True) -> list[torch.Tensor]:
    """Call the imported model as the original was called; the tensors of its result, flattened."""
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs or {})))
    if imported.in_leaves:
        leaves = [leaf for leaf, what in zip(leaves, imported.in_leaves, strict=True) if not isinstance(what, Static)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    with torch.no_grad():
        return list(Interpreter(imported, double, roundings)(*tensors))


def overload(target: str) -> torch._ops.OpOverload:
    """``aten.histc.default`` as the operator; raises ``AttributeError`` when the library that defines it is not loaded."""
    namespace, name, which = target.split(".", 2)
    return getattr(getattr(getattr(torch.ops, namespace), name), which)


def fill(value: Any, tensors: Sequence[torch.Tensor], device: torch.device | str) -> Any:
    """A template with its tensors and torch objects put back."""
    if isinstance(value, dict):
        ((kind, inner),) = value.items()
        if kind == "tensor":
            return tensors[inner]
        if kind == "device":
            return torch.device(device)
        return getattr(torch, inner)
    if isinstance(value, (list, tuple)):
        return [fill(v, tensors, device) for v in value]
    return value


def resolve(call: OpaqueCall) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The callable: tensors in the order of the Relax call's arguments, results in the order of its struct info."""
    function = overload(call.target)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        device = tensors[0].device if tensors else torch.device("cpu")
        out = function(*(fill(a, tensors, device) for a in call.args),
                       **{k: fill(v, tensors, device) for k, v in call.kwargs.items()})
        return (out,) if call.single else tuple(out[i] for i in call.results)

    return run
