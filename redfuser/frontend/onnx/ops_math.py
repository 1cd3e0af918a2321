"""Pointwise operators and reductions of ONNX, in torch."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from redfuser.frontend.onnx.node import Call, Unsupported, implements, ints, onnx_dtype, takes_known, tensor

for _name, _f in {
    "Abs": torch.abs, "Neg": torch.neg, "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt, "Sin": torch.sin,
    "Cos": torch.cos, "Tan": torch.tan, "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan,
    "Sinh": torch.sinh, "Cosh": torch.cosh, "Asinh": torch.asinh, "Acosh": torch.acosh, "Atanh": torch.atanh,
    "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Erf": torch.erf, "Relu": torch.relu, "Floor": torch.floor,
    "Ceil": torch.ceil, "Round": torch.round, "Sign": torch.sign, "Not": torch.logical_not, "IsNaN": torch.isnan,
    "Reciprocal": torch.reciprocal, "BitwiseNot": torch.bitwise_not, "Softsign": F.softsign, "Softplus": F.softplus,
    "Mish": F.mish, "HardSwish": F.hardswish, "Identity": lambda x: x,
}.items():
    implements(_name)(lambda call, x, f=_f: f(x))

for _name, _g in {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "And": torch.logical_and, "Or": torch.logical_or,
    "Xor": torch.logical_xor, "Equal": torch.eq, "Less": torch.lt, "LessOrEqual": torch.le, "Greater": torch.gt,
    "GreaterOrEqual": torch.ge, "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}.items():
    implements(_name)(lambda call, x, y, f=_g: f(x, y))


@implements("Div")
def div(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Integers divide towards zero."""
    return torch.div(x, y) if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


_BRIEF: dict[str, Any] = {
    "Mod": lambda call, x, y: torch.fmod(x, y) if call.get("fmod", 0) else torch.remainder(x, y),
    "Max": lambda call, *xs: functools.reduce(torch.maximum, xs),
    "Min": lambda call, *xs: functools.reduce(torch.minimum, xs),
    "Sum": lambda call, *xs: functools.reduce(torch.add, xs),
    "Mean": lambda call, *xs: functools.reduce(torch.add, xs) / len(xs),
    "Where": lambda call, condition, x, y: torch.where(condition, x, y),
    "Cast": lambda call, x: convert(x, onnx_dtype(call.get("to")), bool(call.get("saturate", 1))),
    "CastLike": lambda call, x, like: convert(x, like.dtype, bool(call.get("saturate", 1))),
    "LeakyRelu": lambda call, x: F.leaky_relu(x, call.get("alpha", 0.01)),
    "PRelu": lambda call, x, slope: torch.where(x < 0, x * slope, x),
    "Elu": lambda call, x: F.elu(x, call.get("alpha", 1.0)),
    "Celu": lambda call, x: F.celu(x, call.get("alpha", 1.0)),
    "HardSigmoid": lambda call, x: torch.clamp(x * call.get("alpha", 0.2) + call.get("beta", 0.5), 0, 1),
    "Gelu": lambda call, x: F.gelu(x, approximate=call.get("approximate", b"none").decode()),
    "com.microsoft::FastGelu": lambda call, x, bias=None: F.gelu(x if bias is None else x + bias, approximate="tanh"),
    "com.microsoft::BiasGelu": lambda call, x, bias: F.gelu(x + bias),
    "com.microsoft::Gelu": lambda call, x: F.gelu(x),
    "com.microsoft::QuickGelu": lambda call, x: x * torch.sigmoid(call.get("alpha", 1.702) * x),
}
for _name, _h in _BRIEF.items():
    implements(_name)(_h)


takes_known({"Pow": (1,)})


@implements("Pow")
def power(call: Call, x: Tensor, y: Any) -> Tensor:
    """In the base's dtype. A scalar exponent that is known is a number: squares and roots are recognised as such."""
    if isinstance(y, np.ndarray):
        y = y.item() if y.size == 1 and y.ndim <= x.dim() else tensor(y).to(x.device)
    return torch.pow(x, y).to(x.dtype)


@implements("IsInf")
def isinf(call: Call, x: Tensor) -> Tensor:
    positive, negative = call.get("detect_positive", 1), call.get("detect_negative", 1)
    if bool(positive) is bool(negative):
        return torch.isinf(x) if positive else torch.zeros_like(x, dtype=torch.bool)
    return x == (float("inf") if positive else -float("inf"))


@implements("Clip")
def clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """NaN stays NaN, as in torch."""
    if call.opset < 11:
        return torch.clamp(x, call.get("min"), call.get("max")) if call.attributes else x
    if low is not None:
        x = torch.maximum(x, low)
    return torch.minimum(x, high) if high is not None else x


def convert(x: Tensor, dtype: torch.dtype, saturate: bool = True) -> Tensor:
    """ONNX casts to float8 saturate unless told otherwise; what is beyond e4m3's largest is NaN then, of which torch's
    releases make one or the other."""
    if dtype.is_floating_point and dtype.itemsize == 1 and saturate and x.is_floating_point():
        limit = torch.finfo(dtype).max
        x = torch.clamp(x, -limit, limit)
    elif dtype is torch.float8_e4m3fn and not saturate and x.is_floating_point():
        x = torch.where(torch.abs(x) > 464, math.nan, x)  # half-way to what would be the next
    return x.to(dtype)


SELU = (1.6732632423543772, 1.0507009873554805)
"""alpha and gamma"""


@implements("Selu")
def selu(call: Call, x: Tensor) -> Tensor:
    """The coefficients in float32, as they are written: torch's are those in float64."""
    alpha, gamma = call.get("alpha", SELU[0]), call.get("gamma", SELU[1])
    if math.isclose(alpha, SELU[0], rel_tol=1e-6) and math.isclose(gamma, SELU[1], rel_tol=1e-6):
        return F.selu(x)
    return gamma * F.elu(x, alpha)


@implements("Swish")
def swish(call: Call, x: Tensor) -> Tensor:
    alpha = call.get("alpha", 1.0)
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@implements("ThresholdedRelu")
def thresholded_relu(call: Call, x: Tensor) -> Tensor:
    return torch.where(x > call.get("alpha", 1.0), x, torch.zeros((), dtype=x.dtype, device=x.device))


# -- reductions --------------------------------------------------------------------------------------------------------


def _softmax(f: Any) -> Any:
    def run(call: Call, x: Tensor) -> Tensor:
        if call.opset >= 13:
            return f(x, call.get("axis", -1))
        axis = call.get("axis", 1) % max(x.dim(), 1)  # before opset 13: over all dimensions from the axis on
        return f(x.flatten(axis), -1).reshape(x.shape)

    return run


implements("Softmax")(_softmax(torch.softmax))
implements("LogSoftmax")(_softmax(torch.log_softmax))


def _reduce(f: Any) -> Any:
    def run(call: Call, x: Tensor, axes: Any = None) -> Tensor:
        dims = call.get("axes") if axes is None else ints(axes)
        keep = bool(call.get("keepdims", 1))
        if call.get("noop_with_empty_axes", 0) and not dims:  # over no axis: what is done before and after a sum stays
            return f(x.unsqueeze(-1), [-1], False)
        return f(x, list(dims) if dims else list(range(x.dim())), keep)

    return run


def _product(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    for d in sorted((d % x.dim() for d in dims), reverse=True):
        x = torch.prod(x, d, keep, dtype=x.dtype)
    return x


def _of_integers(f: Any) -> Any:
    """torch has it for floating types alone; in ONNX the result has the operand's type, cut towards zero."""

    def reduced(x: Tensor, dims: list[int], keep: bool) -> Tensor:
        y: Tensor = f(x, dims, keep) if x.is_floating_point() else f(x.double(), dims, keep).to(x.dtype)
        return y

    return reduced


for _name, _r in {
    "ReduceSum": lambda x, d, k: torch.sum(x, d, k, dtype=x.dtype), "ReduceMean": _of_integers(torch.mean),
    "ReduceMax": torch.amax, "ReduceMin": torch.amin, "ReduceProd": _product,
    "ReduceL1": lambda x, d, k: torch.sum(torch.abs(x), d, k, dtype=x.dtype),
    "ReduceL2": _of_integers(lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k)),
    "ReduceLogSum": _of_integers(lambda x, d, k: torch.log(torch.sum(x, d, k))),
    "ReduceLogSumExp": _of_integers(torch.logsumexp),
    "ReduceSumSquare": lambda x, d, k: torch.sum(x * x, d, k, dtype=x.dtype),
}.items():
    implements(_name)(_reduce(_r))
    takes_known({_name: (1,)})


def _arg(f: Any) -> Any:
    def run(call: Call, x: Tensor) -> Tensor:
        if call.get("select_last_index", 0):
            raise Unsupported("select_last_index")
        return f(x, call.get("axis", 0), bool(call.get("keepdims", 1)))

    return run


implements("ArgMax")(_arg(torch.argmax))
implements("ArgMin")(_arg(torch.argmin))
takes_known({"TopK": (1,), "CumSum": (1,)})


@implements("TopK")
def topk(call: Call, x: Tensor, k: Any = None) -> Any:
    count = ints(k)[0] if call.opset >= 10 else call.get("k")
    values, indices = torch.topk(x, count, call.get("axis", -1), bool(call.get("largest", 1)), bool(call.get("sorted", 1)))
    return values, indices


@implements("CumSum")
def cumsum(call: Call, x: Tensor, axis: Any) -> Tensor:
    """``exclusive`` leaves each element out of its own sum: they are shifted by one, since taking it away again would round
    twice, and infinities do not go away."""
    dim = ints(axis)[0]
    if call.get("reverse", 0):
        x = torch.flip(x, [dim])
    if call.get("exclusive", 0):
        first = x.new_zeros([1 if d == dim % x.dim() else n for d, n in enumerate(x.shape)])
        x = torch.cat([first, x], dim).narrow(dim, 0, x.shape[dim])
    result = torch.cumsum(x, dim, dtype=x.dtype)
    return torch.flip(result, [dim]) if call.get("reverse", 0) else result


# -- quantisation ------------------------------------------------------------------------------------------------------


def _along(x: Tensor, scale: Tensor, axis: int, block: int) -> Tensor:
    """``scale`` shaped to multiply ``x``: one for all, one per position along ``axis``, or one per block."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.dim() == 1 and not block:
        shape = [1] * x.dim()
        shape[axis % x.dim()] = -1
        return scale.reshape(shape)
    return torch.repeat_interleave(scale, block, axis).narrow(axis, 0, x.shape[axis])  # the last block may be a part of one


@implements("QuantizeLinear")
def quantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    code = call.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else onnx_dtype(code) if code else torch.uint8
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    finer = call.get("precision", 0)
    exact = onnx_dtype(finer) if finer else torch.promote_types(x.dtype, scale.dtype)
    y = x.to(exact) / _along(x, scale, axis, block).to(exact)
    if dtype.is_floating_point:
        return convert(y, dtype, bool(call.get("saturate", 1)))
    y = torch.round(y)
    if zero is not None:
        y = y.float() + _along(x, zero, axis, block).float()
    info = torch.iinfo(dtype)
    return torch.clamp(y, info.min, info.max).to(dtype)


@implements("DequantizeLinear")
def dequantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """In float32: a bias of int32 is beyond float16's largest before it is scaled."""
    axis, block, code = call.get("axis", 1), call.get("block_size", 0), call.get("output_dtype", 0)
    y = x if x.is_floating_point() else x.to(torch.int32)
    if zero is not None and not zero.is_floating_point():
        y = y - _along(x, zero, axis, block).to(y.dtype)
    return (y.float() * _along(x, scale, axis, block).float()).to(onnx_dtype(code) if code else scale.dtype)


@implements("DynamicQuantizeLinear")
def dynamic_quantize(call: Call, x: Tensor) -> Any:
    low = torch.clamp(torch.amin(x, list(range(x.dim()))), max=0)
    high = torch.clamp(torch.amax(x, list(range(x.dim()))), min=0)
    scale = torch.where(high == low, 1.0, high - low) / 255
    zero = torch.clamp(torch.round(-low / scale), 0, 255)
    y = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return y.to(torch.uint8), scale, zero.to(torch.uint8)


@implements("MatMulInteger")
def matmul_integer(call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    x, y = a.to(torch.int32), b.to(torch.int32)
    if a_zero is not None:
        x = x - (a_zero.to(torch.int32).reshape(-1, 1) if a_zero.numel() > 1 else a_zero.to(torch.int32).reshape(()))
    if b_zero is not None:
        y = y - b_zero.to(torch.int32)
    return torch.matmul(x, y)
