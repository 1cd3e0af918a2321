"""What contractions, normalisations and convolutions take and return; see :mod:`redfuser.runtime.computing`."""

from __future__ import annotations

from typing import Any

import torch

from redfuser.runtime.shapes import (
    Rule,
    Shaped,
    broadcast,
    extents,
    fits,
    flag,
    floating,
    integer,
    integers,
    need,
    number,
    tensor,
)


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
    "torch.matmul": _matmul, "F.linear": _linear, "F.scaled_dot_product_attention": _attention, "F.layer_norm": _layer_norm,
    "F.rms_norm": _rms_norm, "F.group_norm": _group_norm, "F.batch_norm": _batch_norm,
    **{f"F.conv{r}d": _convolution(r) for r in (1, 2, 3)}}
