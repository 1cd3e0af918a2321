"""What the operators that compute take and return: pointwise ones and reductions.

One rule per torch function that :mod:`redfuser.outer.pointwise` and :mod:`redfuser.outer.fused` write, under the name they
write it with. A rule's parameters are the arguments the operator may have here; its body refuses the others.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from redfuser.runtime.shapes import (
    Rule,
    Shaped,
    axes,
    axis,
    broadcast,
    dtype_of,
    flag,
    floating,
    integer,
    need,
    number,
    promoted,
    tensor,
    word,
)

_FLOAT = ("acos", "asin", "atan", "cos", "cosh", "erf", "exp", "log", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh")
_SAME = ("abs", "ceil", "floor", "neg", "round", "sign", "trunc")
_TRUTH = ("isfinite", "isinf", "isnan", "logical_not")


def _float_of(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.float32


def _in_float(x: Any) -> Shaped:
    return tensor(x).like(dtype=_float_of(x.dtype))


def _truth(x: Any) -> Shaped:
    return tensor(x).like(dtype=torch.bool)


def _same(x: Any) -> Shaped:
    need(tensor(x).dtype != torch.bool, "a tensor of truth values where numbers belong")
    return tensor(x)


def _bitwise_not(x: Any) -> Shaped:
    need(not tensor(x).is_float, "bits of a floating tensor")
    return tensor(x)


def _activation(x: Any) -> Shaped:
    return floating(x)


def _gelu(x: Any, *, approximate: Any = "none") -> Shaped:
    word(approximate, "none", "tanh")
    return floating(x)


def _softplus(x: Any, beta: Any, threshold: Any) -> Shaped:
    number(beta), number(threshold)
    return floating(x)


def _logical(a: Any, b: Any) -> Shaped:
    return Shaped(torch.bool, broadcast(tensor(a).shape, tensor(b).shape))


def arithmetic(a: Any, b: Any) -> Shaped:
    """``a + b`` of tensors and numbers, at least one of them a tensor."""
    need(isinstance(a, Shaped) or isinstance(b, Shaped), "arithmetic without a tensor")
    return Shaped(promoted(a, b), broadcast(*(t.shape for t in (a, b) if isinstance(t, Shaped))))


def quotient(a: Any, b: Any) -> Shaped:
    out = arithmetic(a, b)
    return out.like(dtype=_float_of(out.dtype))


def comparison(a: Any, b: Any) -> Shaped:
    return arithmetic(a, b).like(dtype=torch.bool)


def bits(a: Any, b: Any) -> Shaped:
    out = arithmetic(a, b)
    need(not out.is_float, "bits of a floating tensor")
    return out


INFIX: dict[str, Rule] = {
    **dict.fromkeys(("Add", "Sub", "Mult", "FloorDiv", "Mod"), arithmetic), "Div": quotient,
    **dict.fromkeys(("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"), comparison),
    **dict.fromkeys(("BitAnd", "BitOr", "BitXor", "LShift", "RShift"), bits)}
"""Python's operators, by the name of their node."""


def _two(a: Any, b: Any) -> Shaped:
    tensor(a), tensor(b)
    return arithmetic(a, b)


def _div(a: Any, b: Any, *, rounding_mode: Any) -> Shaped:
    word(rounding_mode, "trunc")
    need(number(b) != -1, "a division that may end the process")
    return arithmetic(tensor(a), b)


def _where(mask: Any, a: Any, b: Any) -> Shaped:
    need(tensor(mask).dtype == torch.bool, "a condition that is no truth value")
    parts = [t.shape for t in (mask, a, b) if isinstance(t, Shaped)]
    return Shaped(promoted(a, b), broadcast(*parts))


def _clamp(x: Any, *, min: Any = None, max: Any = None) -> Shaped:
    bounds = [number(b) for b in (min, max) if b is not None]
    need(bool(bounds), "a clamp without bounds")
    return tensor(x).like(dtype=promoted(x, *bounds))


def _reduced(x: Shaped, dims: Any, keepdim: Any) -> tuple[int, ...]:
    over = axes(dims, x.rank)
    return tuple(1 if i in over else n for i, n in enumerate(x.shape) if flag(keepdim) or i not in over)


def _sum(x: Any, dims: Any, *, keepdim: Any = False, dtype: Any = None) -> Shaped:
    kind = tensor(x).dtype if tensor(x).is_float else torch.int64
    return Shaped(kind if dtype is None else dtype_of(dtype), _reduced(x, dims, keepdim))


def _mean(x: Any, dims: Any, *, keepdim: Any = False) -> Shaped:
    return floating(x).like(_reduced(x, dims, keepdim))


def _extremum(x: Any, dims: Any, *, keepdim: Any = False) -> Shaped:
    over = axes(dims, tensor(x).rank)
    need(all(x.shape[a] for a in over), "an extremum of nothing")
    return tensor(x).like(_reduced(x, dims, keepdim))


def _spread(x: Any, dims: Any, *, keepdim: Any = False, correction: Any) -> Shaped:
    integer(correction, 0, 0)
    return _mean(x, dims, keepdim=keepdim)


def _prod(x: Any, dim: Any, *, keepdim: Any = False, dtype: Any) -> Shaped:
    return Shaped(dtype_of(dtype), _reduced(tensor(x), axis(dim, x.rank), keepdim))


def _arg(x: Any, dim: Any, *, keepdim: Any = False) -> Shaped:
    need(math.prod(tensor(x).shape) > 0, "the place of an extremum of nothing")
    if dim is None:
        return Shaped(torch.int64, (1,) * x.rank if flag(keepdim) else ())
    return Shaped(torch.int64, _reduced(x, axis(dim, x.rank), keepdim))


def _scan(x: Any, dim: Any, *, dtype: Any) -> Shaped:
    axis(dim, tensor(x).rank)
    return x.like(dtype=dtype_of(dtype))


def _softmax(x: Any, dim: Any) -> Shaped:
    axis(dim, floating(x).rank)
    return tensor(x)


RULES: dict[str, Rule] = {
    **{f"torch.{n}": _in_float for n in _FLOAT}, **{f"torch.{n}": _same for n in _SAME},
    **{f"torch.{n}": _truth for n in _TRUTH}, "torch.bitwise_not": _bitwise_not, "F.relu": _same,
    "F.silu": _activation, "F.gelu": _gelu, "F.softplus": _softplus,
    **{f"torch.logical_{n}": _logical for n in ("and", "or", "xor")}, "torch.div": _div, "torch.pow": arithmetic,
    "torch.maximum": _two, "torch.minimum": _two, "torch.where": _where, ".clamp": _clamp, "torch.sum": _sum,
    "torch.mean": _mean, "torch.amax": _extremum, "torch.amin": _extremum, "torch.var": _spread, "torch.prod": _prod,
    "torch.argmax": _arg, "torch.argmin": _arg, "torch.cumsum": _scan, "torch.cumprod": _scan, "torch.softmax": _softmax,
    "torch.log_softmax": _softmax}
