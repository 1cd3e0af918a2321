"""Relax operators that compute: pointwise, reductions, contractions, normalisations, convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redfuser.outer.scope import Scope, is_float, scalar, shape_text, torch_dtype
from redfuser.tvm_compat import dtype_of, op_name, shape_of

Rule = Callable[[Scope, Any], str]

_INFIX = {"add": "+", "subtract": "-", "multiply": "*", "floor_divide": "//", "floor_mod": "%", "equal": "==",
          "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
          "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "left_shift": "<<", "right_shift": ">>"}
_TENSORS = {"logical_and": "torch.logical_and", "logical_or": "torch.logical_or", "logical_xor": "torch.logical_xor"}
UNARY = {n: f"torch.{n}" for n in (
    "abs", "acos", "asin", "atan", "bitwise_not", "ceil", "cos", "cosh", "erf", "exp", "floor", "isfinite", "isinf", "isnan",
    "log", "logical_not", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc")}
UNARY |= {"negative": "torch.neg", "nn.relu": "F.relu", "nn.silu": "F.silu", "nn.gelu": "F.gelu"}


def _infix(s: Scope, c: Any) -> str:
    a, b = c.args
    left, right = s.text(a), s.text(b)
    if scalar(a) is not None and scalar(b) is not None:
        left = s.tensor(a)
    return f"{left} {_INFIX[op_name(c)]} {right}"


def _divide(s: Scope, c: Any) -> str:
    a, b = c.args
    if not is_float(dtype_of(c)):
        if scalar(b) not in (None, -1):
            return f'torch.div({s.tensor(a)}, {s.text(b)}, rounding_mode="trunc")'
        return truncated(s.tensor(a), s.tensor(b))
    return f"{s.text(a)} / {s.text(b)}"


def truncated(x: str, y: str) -> str:
    """The quotient of two integers without its fraction. (torch's own spelling ends the process for the smallest integer and
    -1; its floor division does not.)"""
    return f"{x} // {y} + ({x} % {y} != 0) * (({x} < 0) != ({y} < 0))"


def _power(s: Scope, c: Any) -> str:
    a, b = c.args
    left = s.tensor(a) if scalar(b) is not None else s.text(a)
    return f"torch.pow({left}, {s.text(b)})"


def _extremum(s: Scope, c: Any) -> str:
    """maximum / minimum; a scalar operand becomes a clamp, which propagates NaN alike."""
    name, bound = op_name(c), "min" if op_name(c) == "maximum" else "max"
    a, b = c.args
    if scalar(a) is not None:
        a, b = b, a
    if scalar(b) is not None and dtype_of(c) != "bool":
        return f"{s.tensor(a)}.clamp({bound}={s.text(b)})"
    return f"torch.{name}({s.tensor(a)}, {s.tensor(b)})"


def _where(s: Scope, c: Any) -> str:
    mask, a, b = c.args
    if scalar(a) is not None and scalar(b) is not None:
        return f"torch.where({s.tensor(mask)}, {s.tensor(a)}, {s.text(b)})"
    return f"torch.where({s.tensor(mask)}, {s.text(a)}, {s.text(b)})"


def _astype(s: Scope, c: Any) -> str:
    return f"{s.tensor(c.args[0])}.to({torch_dtype(dtype_of(c))})"


def reduced_axes(c: Any) -> tuple[int, ...]:
    rank = len(shape_of(c.args[0]))
    axis = c.attrs.axis
    if axis is None:
        return tuple(range(rank))
    return tuple(int(a) % rank for a in (axis if hasattr(axis, "__iter__") else (axis,)))


def _reduce(name: str, extra: str = "") -> Rule:
    def rule(s: Scope, c: Any) -> str:
        axes = reduced_axes(c)
        if not axes:
            return s.tensor(c.args[0])
        keep = ", keepdim=True" if c.attrs.keepdims else ""
        kind = extra
        if name == "sum" and not is_float(dtype_of(c)):
            kind = f", dtype={torch_dtype(dtype_of(c))}"
        return f"torch.{name}({s.tensor(c.args[0])}, {shape_text(axes)}{keep}{kind})"

    return rule


def _prod(s: Scope, c: Any) -> str:
    text = s.tensor(c.args[0])
    for axis in sorted(reduced_axes(c), reverse=True):
        keep = ", keepdim=True" if c.attrs.keepdims else ""
        text = f"torch.prod({text}, {axis}{keep}, dtype={torch_dtype(dtype_of(c))})"
    return text


def _arg_extremum(s: Scope, c: Any) -> str:
    axis = "None" if c.attrs.axis is None else int(c.attrs.axis)
    keep = ", keepdim=True" if c.attrs.keepdims else ""
    text = f"torch.{op_name(c)}({s.tensor(c.args[0])}, {axis}{keep})"
    return text if dtype_of(c) == "int64" else f"{text}.to({torch_dtype(dtype_of(c))})"


def _scan(s: Scope, c: Any) -> str:
    x = s.tensor(c.args[0])
    if c.attrs.axis is None:
        x, axis = f"{x}.flatten()", 0
    else:
        axis = int(c.attrs.axis)
    text = f"torch.{op_name(c)}({x}, {axis}, dtype={torch_dtype(dtype_of(c))})"
    if bool(c.attrs.exclusive):
        text = f"{text} - {x}" if op_name(c) == "cumsum" else f"{text} / {x}"
    return text


def _softmax(s: Scope, c: Any) -> str:
    return f"torch.{op_name(c).removeprefix('nn.')}({s.tensor(c.args[0])}, {int(c.attrs.axis)})"


def _matmul(s: Scope, c: Any) -> str:
    """Operands narrower than the accumulation type are widened first, as the program says."""
    a, b = c.args
    out = dtype_of(c)
    if not is_float(out):
        return f"torch.matmul({s.tensor(a)}.double(), {s.tensor(b)}.double()).to({torch_dtype(out)})"
    left, right = (s.tensor(x) if dtype_of(x) == out else f"{s.tensor(x)}.to({torch_dtype(out)})" for x in (a, b))
    return f"torch.matmul({left}, {right})"


def trailing(c: Any) -> tuple[int, ...] | None:
    """The normalised shape, when the normalised axes are the trailing ones in order."""
    shape = shape_of(c.args[0])
    axes = tuple(int(a) % len(shape) for a in c.attrs.axes)
    return shape[len(shape) - len(axes):] if axes == tuple(range(len(shape) - len(axes), len(shape))) else None


def _layer_norm(s: Scope, c: Any) -> str:
    shape = trailing(c)
    if shape is None:
        raise NotImplementedError("layer_norm over axes that are not the trailing ones")
    x, w, b = (s.tensor(a) for a in c.args)
    weight = w if c.attrs.scale else "None"
    bias = b if c.attrs.center else "None"
    return f"F.layer_norm({x}, {shape_text(shape)}, {weight}, {bias}, {float(c.attrs.epsilon)!r})"


def _rms_norm(s: Scope, c: Any) -> str:
    shape = trailing(c)
    if shape is None:
        raise NotImplementedError("rms_norm over axes that are not the trailing ones")
    return f"F.rms_norm({s.tensor(c.args[0])}, {shape_text(shape)}, {s.tensor(c.args[1])}, {float(c.attrs.epsilon)!r})"


def _group_norm(s: Scope, c: Any) -> str:
    if int(c.attrs.channel_axis) != 1:
        raise NotImplementedError("group_norm with channels elsewhere than on axis 1")
    x, w, b = (s.tensor(a) for a in c.args)
    weight, bias = (w if c.attrs.scale else "None"), (b if c.attrs.center else "None")
    return f"torch.group_norm({x}, {int(c.attrs.num_groups)}, {weight}, {bias}, {float(c.attrs.epsilon)!r})"


def _batch_norm(s: Scope, c: Any) -> str:
    return f"({batch_norm(s, c)}, {s.tensor(c.args[3])}, {s.tensor(c.args[4])})"


def batch_norm(s: Scope, c: Any) -> str:
    """Its first result."""
    axis, last = int(c.attrs.axis), len(shape_of(c.args[0])) - 1
    if axis not in (1, last) or bool(c.attrs.training):
        raise NotImplementedError("batch_norm in training, or with channels elsewhere than on axis 1 or the last")
    x, mean, var = (s.tensor(c.args[i]) for i in (0, 3, 4))
    weight, bias = (s.tensor(c.args[i]) if used else "None" for i, used in ((1, c.attrs.scale), (2, c.attrs.center)))
    given, back = ("", "") if axis == 1 else (".movedim(-1, 1)", ".movedim(1, -1)")
    return f"F.batch_norm({x}{given}, {mean}, {var}, {weight}, {bias}, eps={float(c.attrs.epsilon)!r}){back}"


def convolution(s: Scope, c: Any, bias: str = "", operands: tuple[str, str] | None = None) -> str:
    """conv1d, conv2d, conv3d; asymmetric padding is applied beforehand. With channels last, operand and result are views."""
    name = op_name(c).removeprefix("nn.")
    rank = int(name[4])
    layout = str(c.attrs.data_layout)
    last = layout.index("C") == rank + 1
    if (layout.index("C") != 1 and not last) or str(c.attrs.kernel_layout)[:2] != "OI" or str(c.attrs.out_layout) != layout:
        raise NotImplementedError(f"{name} in layout {layout}")
    x, w = operands or tuple(
        s.tensor(a) if dtype_of(a) == dtype_of(c) else f"{s.tensor(a)}.to({torch_dtype(dtype_of(c))})"
        for a in c.args)
    x = f"{x}.movedim(-1, 1)" if last else x
    pads = [int(p) for p in c.attrs.padding]
    low, high = pads[:rank], pads[rank:]
    if low != high:
        spread = [p for pair in reversed(list(zip(low, high, strict=True))) for p in pair]
        x, low = f"F.pad({x}, {shape_text(tuple(spread))})", [0] * rank
    line = last and rank == 1  # torch lays an operand of three dimensions out row by row; of four it takes either order
    if line:
        x, w, name = f"{x}.unsqueeze(2)", f"{w}.unsqueeze(2)", "conv2d"
    if s.laid(c.args[1]):
        w += ".contiguous(memory_format=torch.channels_last)"
    options = [("stride", [int(v) for v in c.attrs.strides], 1), ("padding", low, 0),
               ("dilation", [int(v) for v in c.attrs.dilation], 1)]
    extra = "".join(f", {n}={shape_text((*[default] * line, *v))}" for n, v, default in options if v != [default] * rank)
    groups = f", groups={int(c.attrs.groups)}" if int(c.attrs.groups) != 1 else ""
    back = ".squeeze(2)" * line + ".movedim(1, -1)" * last
    return f"F.{name}({x}, {w}{', ' + bias if bias else ''}{extra}{groups}){back}"


def _pool(s: Scope, c: Any) -> str:
    """torch's own call, as the program has it. With channels last, operand and result are views."""
    a, ints = c.attrs, lambda v: [int(i) for i in v]
    rank, last = len(shape_of(c)) - 2, str(c.attrs.layout).endswith("C")
    x = s.tensor(c.args[0]) + ".movedim(-1, 1)" * last
    given = f"{x}, {ints(a.pool_size)}, {ints(a.strides)}, {ints(a.padding)[:rank]}"
    if "avg" in op_name(c):
        text = f"torch.ops.aten.avg_pool{rank}d.default({given}, {bool(a.ceil_mode)}, {bool(a.count_include_pad)})"
    else:
        text = f"torch.ops.aten.max_pool{rank}d_with_indices.default({given}, {ints(a.dilation)}, {bool(a.ceil_mode)})[0]"
    return text + ".movedim(1, -1)" * last


def _call(name: str, *numbers: str, more: str = "") -> Rule:
    """A function of the tensors, numbers that are attributes, and what is always the same."""
    def rule(s: Scope, c: Any) -> str:
        given = [*(s.tensor(a) for a in c.args), *(repr(float(getattr(c.attrs, n))) for n in numbers)]
        return f"{name}({', '.join(given)}{more})"

    return rule


RULES: dict[str, Rule] = {
    **dict.fromkeys(_INFIX, _infix),
    "divide": _divide, "power": _power, "maximum": _extremum, "minimum": _extremum, "where": _where,
    "astype": _astype, "sum": _reduce("sum"), "mean": _reduce("mean"), "max": _reduce("amax"), "min": _reduce("amin"),
    "variance": _reduce("var", ", correction=0"), "prod": _prod,
    "argmax": _arg_extremum, "argmin": _arg_extremum, "cumsum": _scan, "cumprod": _scan, "nn.softmax": _softmax,
    "nn.log_softmax": _softmax, "matmul": _matmul, "nn.layer_norm": _layer_norm,
    "nn.rms_norm": _rms_norm, "nn.group_norm": _group_norm, "nn.batch_norm": _batch_norm,
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), convolution),
    **dict.fromkeys(("nn.avg_pool2d", "nn.avg_pool3d", "nn.max_pool2d", "nn.max_pool3d"), _pool),
    "nn.softplus": _call("F.softplus", "beta", "threshold"), "nn.gelu_tanh": _call("F.gelu", more=', approximate="tanh"'),
    **{name: _call(f) for name, f in (_TENSORS | UNARY).items()},
}
