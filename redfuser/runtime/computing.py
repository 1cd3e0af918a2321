"""What the operators that compute take and return: pointwise ones, reductions, contractions, normalisations, convolutions.

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
    extents,
    fits,
    flag,
    floating,
    integer,
    integers,
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


def _matmul(a: Any, b: Any) -> Shaped:
    need(tensor(a).dtype == tensor(b).dtype and a.dtype != torch.bool, f"a product of {a.dtype} and {b.dtype}")
    need(a.rank > 0 and b.rank > 0, "a product with a number")
    left = a.shape if a.rank > 1 else (1, *a.shape)
    right = b.shape if b.rank > 1 else (*b.shape, 1)
    need(left[-1] == right[-2], f"a product of {list(a.shape)} and {list(b.shape)}")
    out = [*broadcast(left[:-2], right[:-2]), left[-2], right[-1]]
    if b.rank == 1:
        out.pop(-1)
    if a.rank == 1:
        out.pop(-1 if b.rank == 1 else -2)
    return a.like(out)


def _linear(x: Any, weight: Any, bias: Any = None) -> Shaped:
    need(floating(weight).rank == 2 and floating(x).rank > 0 and x.dtype == weight.dtype,
         "a weight matrix of the operand's dtype")
    need(x.shape[-1] == weight.shape[1], f"a product of {list(x.shape)} and {list(weight.shape)} transposed")
    need(bias is None or (tensor(bias).shape == weight.shape[:1] and bias.dtype == x.dtype), "a bias for each column")
    return x.like((*x.shape[:-1], weight.shape[0]))


def _attention(q: Any, k: Any, v: Any, *, is_causal: Any = False, attn_mask: Any = None, scale: Any) -> Shaped:
    number(scale)
    need(floating(q).rank == floating(k).rank == floating(v).rank == 4, "attention on four axes")
    need(q.dtype == k.dtype == v.dtype, "attention in one dtype")
    need(q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[3] == k.shape[3] and k.shape[2] == v.shape[2],
         f"attention of {list(q.shape)}, {list(k.shape)} and {list(v.shape)}")
    if attn_mask is not None:
        need(not flag(is_causal) and tensor(attn_mask).dtype in (torch.bool, q.dtype), "a mask of another dtype")
        fits(attn_mask.shape, (*q.shape[:3], k.shape[2]))
    flag(is_causal)
    return q.like((*q.shape[:3], v.shape[3]))


def _affine(x: Shaped, shape: tuple[int, ...], *operands: Any) -> Shaped:
    for operand in operands:
        need(operand is None or (floating(operand).shape == shape), "a weight of another shape")
    return x


def _layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Shaped:
    last = extents(shape)
    number(eps)
    need(0 < len(last) <= floating(x).rank and x.shape[x.rank - len(last):] == last, "a norm over other axes")
    return _affine(x, last, weight, bias)


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: Any = 1e-5) -> Shaped:
    return _layer_norm(x, shape, weight, None, eps)


def _group_norm(x: Any, groups: Any, weight: Any, bias: Any, eps: Any) -> Shaped:
    number(eps)
    need(floating(x).rank >= 2 and integer(groups, 1) <= x.shape[1] and x.shape[1] % groups == 0, "groups of channels")
    return _affine(x, x.shape[1:2], weight, bias)


def _batch_norm(x: Any, mean: Any, var: Any, weight: Any, bias: Any, *, eps: Any) -> Shaped:
    number(eps)
    need(floating(x).rank >= 2, "a batch of channels")
    tensor(mean), tensor(var)
    return _affine(x, x.shape[1:2], mean, var, weight, bias)


def _convolution(rank: int) -> Rule:
    def rule(x: Any, w: Any, bias: Any = None, *, stride: Any = None, padding: Any = None, dilation: Any = None,
             groups: Any = 1) -> Shaped:
        ones, zeros = (1,) * rank, (0,) * rank
        step, pad, wide = (integers(v, low, 1 << 31) for v, low in
                           ((stride or ones, 1), (padding or zeros, 0), (dilation or ones, 1)))
        need(len(step) == len(pad) == len(wide) == rank, f"{rank} numbers for {rank} axes")
        need(floating(x).rank == floating(w).rank == rank + 2 and x.dtype == w.dtype, f"a convolution on {rank} axes")
        need(integer(groups, 1) * w.shape[1] == x.shape[1] and w.shape[0] % groups == 0, "channels of the weight")
        need(min(w.shape) > 0, "a weight without elements")
        need(bias is None or (tensor(bias).shape == w.shape[:1] and bias.dtype == x.dtype), "a bias for each channel")
        out = [(n + 2 * p - d * (k - 1) - 1) // s + 1
               for n, k, s, p, d in zip(x.shape[2:], w.shape[2:], step, pad, wide, strict=True)]
        need(all(n > 0 for n in out), "a window larger than what it slides over")
        return x.like((x.shape[0], w.shape[0], *out))

    return rule


RULES: dict[str, Rule] = {
    **{f"torch.{n}": _in_float for n in _FLOAT}, **{f"torch.{n}": _same for n in _SAME},
    **{f"torch.{n}": _truth for n in _TRUTH}, "torch.bitwise_not": _bitwise_not, "F.relu": _same,
    "F.silu": _activation, "F.gelu": _gelu, "F.softplus": _softplus,
    **{f"torch.logical_{n}": _logical for n in ("and", "or", "xor")}, "torch.div": _div, "torch.pow": arithmetic,
    "torch.maximum": _two, "torch.minimum": _two, "torch.where": _where, ".clamp": _clamp, "torch.sum": _sum,
    "torch.mean": _mean, "torch.amax": _extremum, "torch.amin": _extremum, "torch.var": _spread, "torch.prod": _prod,
    "torch.argmax": _arg, "torch.argmin": _arg, "torch.cumsum": _scan, "torch.cumprod": _scan, "torch.softmax": _softmax,
    "torch.log_softmax": _softmax,
    "torch.matmul": _matmul, "F.linear": _linear, "F.scaled_dot_product_attention": _attention, "F.layer_norm": _layer_norm,
    "F.rms_norm": _rms_norm, "torch.group_norm": _group_norm, "F.group_norm": _group_norm,
    "F.batch_norm": _batch_norm,
    **{f"F.conv{r}d": _convolution(r) for r in (1, 2, 3)}}
