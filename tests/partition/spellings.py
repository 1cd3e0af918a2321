"""One torch function per way people write a cascade, with small inputs whose extents are all different."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

B, H, KV, I, L, D, E = 2, 4, 2, 5, 7, 8, 6
"""Batch, heads, kv heads, queries, keys, head dim, value dim."""

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


def r(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(sum(shape) + 7 * len(shape))
    return torch.randn(*shape, generator=g).to(dtype)


def qkv(heads: int = H, kv: int = H, value: int = D, keys: int = L, queries: int = I,
        dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return (r(B, heads, queries, D, dtype=dtype), r(B, kv, keys, D, dtype=dtype), r(B, kv, keys, value, dtype=dtype))


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * D**-0.5


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def sdpa_causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def manual(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D), dim=-1) @ v


def decomposed(q, k, v):
    s = scores(q, k)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return (p / p.sum(-1, keepdim=True)) @ v


def divide_last(q, k, v):
    s = scores(q, k)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return (p @ v) / p.sum(-1, keepdim=True)


def einsum(q, k, v):
    p = torch.softmax(torch.einsum("bhic,bhlc->bhil", q, k) * D**-0.5, -1)
    return torch.einsum("bhil,bhle->bihe", p, v)


def scaled_query(q, k, v):
    return torch.softmax((q * D**-0.5) @ k.transpose(-1, -2), -1) @ v


def folded_heads(q, k, v):
    b, h, i, d = q.shape
    q, k, v = (t.reshape(b * h, t.shape[2], t.shape[3]) for t in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * d**-0.5, -1), v).reshape(b, h, i, -1)


def packed_heads(x, wk):
    """Heads split out of one hidden axis, as models do it; the projections stay outside."""
    b, n, _ = x.shape
    q, k, v = (t.view(b, n, H, D).transpose(1, 2) for t in (x + 0.5, x.sin(), wk))
    return (torch.softmax(scores(q, k), -1) @ v).transpose(1, 2).reshape(b, n, H * D)


def additive_mask(q, k, v, mask):
    return torch.softmax(scores(q, k) + mask, -1) @ v


def bool_mask(q, k, v, keep):
    return torch.softmax(scores(q, k).masked_fill(~keep, float("-inf")), -1) @ v


def padding_mask(q, k, v, pad):
    keep = pad[:, None, None, :] != 0
    return torch.softmax(torch.where(keep, scores(q, k), torch.finfo(q.dtype).min), -1) @ v


def causal_arange(q, k, v):
    keep = torch.arange(L)[None, :] <= torch.arange(I)[:, None]
    return torch.softmax(torch.where(keep, scores(q, k), float("-inf")), -1) @ v


def causal_triu(q, k, v):
    mask = torch.triu(torch.full((I, L), float("-inf")), diagonal=1)
    return torch.softmax(scores(q, k) + mask, -1) @ v


def causal_tril(q, k, v):
    keep = torch.tril(torch.ones(I, L)).bool()
    return torch.softmax(scores(q, k).masked_fill(keep == 0, float("-inf")), -1) @ v


def causal_products(q, k, v):
    keep = (torch.arange(L)[None, :] <= torch.arange(I)[:, None]).float()
    return torch.softmax(scores(q, k) + (1.0 - keep) * torch.finfo(torch.float32).min, -1) @ v


def window(q, k, v):
    i, j = torch.arange(I)[:, None], torch.arange(L)[None, :]
    return torch.softmax(torch.where((j <= i) & (i - j < 3), scores(q, k), float("-inf")), -1) @ v


def prefix(q, k, v):
    i, j = torch.arange(I)[:, None], torch.arange(L)[None, :]
    return torch.softmax(torch.where((j <= i) | (j < 3), scores(q, k), float("-inf")), -1) @ v


def document(q, k, v, qdoc, kdoc):
    return torch.softmax(torch.where(qdoc[:, None] == kdoc[None, :], scores(q, k), float("-inf")), -1) @ v


def alibi(q, k, v, slopes):
    i, j = torch.arange(I)[:, None], torch.arange(L)[None, :]
    return torch.softmax(scores(q, k) + slopes[:, None, None] * (j - i), -1) @ v


def alibi_computed(q, k, v):
    slopes = 2.0 ** (-8.0 * (torch.arange(H) + 1) / H)
    i, j = torch.arange(I)[:, None], torch.arange(L)[None, :]
    return torch.softmax(torch.where(j <= i, scores(q, k) + slopes[:, None, None] * (j - i), float("-inf")), -1) @ v


def softcap(q, k, v):
    return torch.softmax(torch.tanh(scores(q, k) / 30.0) * 30.0, -1) @ v


def gqa_repeat(q, k, v):
    k, v = (t.repeat_interleave(H // KV, dim=1) for t in (k, v))
    return torch.softmax(scores(q, k), -1) @ v


def gqa_expand(q, k, v):
    k, v = (t[:, :, None].expand(B, KV, H // KV, L, t.shape[-1]).reshape(B, H, L, t.shape[-1]) for t in (k, v))
    return torch.softmax(scores(q, k), -1) @ v


def gqa_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def gqa_grouped(q, k, v):
    q = q.view(B, KV, H // KV, I, D)
    return (torch.softmax(scores(q, k[:, :, None]), -1) @ v[:, :, None]).reshape(B, H, I, -1)


def decode_cache(q, k, v, past_k, past_v):
    k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    return torch.softmax(scores(q, k), -1) @ v, k, v


def mla_wide(q, kv):
    p = torch.softmax(torch.einsum("bhc,blc->bhl", q, kv) * 576**-0.5, -1)
    return torch.einsum("bhl,ble->bhe", p, kv[..., :512])


def mla_absorbed(q, kv):
    """One latent head; V is the first columns of the same tensor."""
    p = torch.softmax(torch.einsum("bhc,blc->bhl", q, kv) * D**-0.5, -1)
    return torch.einsum("bhl,ble->bhe", p, kv[..., :E])


def mla_concat(q_nope, q_rope, k_nope, k_rope, v):
    q = torch.cat([q_nope, q_rope], -1)
    k = torch.cat([k_nope, k_rope.expand(-1, H, -1, -1)], -1)
    return torch.softmax(scores(q, k), -1) @ v


def self_similarity(x):
    return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


def softmax(x):
    return torch.softmax(x, -1)


def softmax_middle(x):
    return torch.softmax(x, 1)


def softmax_manual(x):
    e = torch.exp(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def log_softmax(x):
    return F.log_softmax(x, -1)


def logsumexp(x):
    return torch.logsumexp(x, -1)


def entropy(x):
    p = torch.softmax(x, -1)
    return -(p * torch.log_softmax(x, -1)).sum(-1)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def layer_norm_manual(x, w, b):
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5) * w + b


def layer_norm_var(x, w, b):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * w + b


def layer_norm_2d(x):
    return F.layer_norm(x, x.shape[-2:])


def rms_norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def rms_norm_manual(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def residual_norm(x, f, w):
    h = x + f
    return h, F.rms_norm(h, (x.shape[-1],), w, 1e-6)


def group_norm(x, w, b):
    return F.group_norm(x, 3, w, b)


def instance_stats(x):
    m = x.mean((2, 3), keepdim=True)
    return (x - m) * torch.rsqrt(((x - m) ** 2).mean((2, 3), keepdim=True) + 1e-5)


def variance(x):
    return x.var(-1, unbiased=False)


def variance_manual(x):
    return ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)


def l2_stable(x):
    m = x.abs().amax(-1, keepdim=True)
    return (m * torch.sqrt(((x / m) ** 2).sum(-1, keepdim=True))).squeeze(-1)


def rms_then_max(x):
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).amax(-1)


def router(x, w):
    return torch.topk(torch.softmax(x @ w, -1), 3)


def router_sigmoid(x, w):
    return torch.topk(torch.sigmoid(F.linear(x, w.t())), 3)


def router_renormalised(x, w):
    v, i = torch.topk(torch.softmax(x @ w, -1), 3)
    return v / v.sum(-1, keepdim=True), i


def quant(x):
    scale = x.abs().amax(-1, keepdim=True) / 127.0
    return torch.round(x / scale).clamp(-128, 127).to(torch.int8), scale


def quant_gemm(x, w):
    m = x.abs().amax(-1, keepdim=True)
    return (x * (448.0 / m)).to(torch.float8_e4m3fn).to(torch.float32) @ w * (m / 448.0)


def inertia(m, x):
    c = (m[..., None] * x).sum(1) / m.sum(1, keepdim=True)
    return (m * ((x - c[:, None, :]) ** 2).sum(-1)).sum(1)


def norm_gemm(x, w, g):
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * g) @ w


_half = torch.float16
_i = torch.arange
CASES: dict[str, Case] = {
    "sdpa": (sdpa, qkv(value=E)), "sdpa_half": (sdpa, qkv(value=E, dtype=_half)), "sdpa_causal": (sdpa_causal, qkv()),
    "manual": (manual, qkv(value=E)), "manual_half": (manual, qkv(value=E, dtype=_half)),
    "decomposed": (decomposed, qkv(value=E)), "divide_last": (divide_last, qkv(value=E)), "einsum": (einsum, qkv(value=E)),
    "scaled_query": (scaled_query, qkv(value=E)), "folded_heads": (folded_heads, qkv(value=E)),
    "packed_heads": (packed_heads, (r(B, L, H * D), r(B, L, H * D))),
    "additive_mask": (additive_mask, (*qkv(), r(B, 1, I, L))), "bool_mask": (bool_mask, (*qkv(), r(B, 1, I, L) > -1)),
    "padding_mask": (padding_mask, (*qkv(), (r(B, L) > -1).long())), "causal_arange": (causal_arange, qkv()),
    "causal_triu": (causal_triu, qkv()), "causal_tril": (causal_tril, qkv()), "causal_products": (causal_products, qkv()),
    "window": (window, qkv()), "prefix": (prefix, qkv()),
    "document": (document, (*qkv(), _i(I) // 2, _i(L) // 2)), "alibi": (alibi, (*qkv(), r(H))),
    "alibi_computed": (alibi_computed, qkv()), "softcap": (softcap, qkv()), "gqa_repeat": (gqa_repeat, qkv(kv=KV)),
    "gqa_expand": (gqa_expand, qkv(kv=KV)), "gqa_sdpa": (gqa_sdpa, qkv(kv=KV)), "gqa_grouped": (gqa_grouped, qkv(kv=KV)),
    "decode_cache": (decode_cache, (*qkv(queries=1, keys=1), r(B, H, 9, D), r(B, H, 9, D))),
    "decode_wide": (manual, (r(2, 64, 1, 128), r(2, 64, 1024, 128), r(2, 64, 1024, 128))),
    "mla_absorbed": (mla_absorbed, (r(B, H, D), r(B, L, D))),
    "mla_wide": (mla_wide, (r(1, 16, 576, dtype=_half), r(1, 64, 576, dtype=_half))),
    "router_wide": (router, (r(16, 2048), r(2048, 64))),
    "mla_concat": (mla_concat, (r(B, H, I, 6), r(B, H, I, 2), r(B, H, L, 6), r(B, 1, L, 2), r(B, H, L, E))),
    "self_similarity": (self_similarity, (r(B, I, D),)),
    "softmax": (softmax, (r(B, L),)), "softmax_middle": (softmax_middle, (r(B, L, I),)),
    "softmax_manual": (softmax_manual, (r(B, L),)), "log_softmax": (log_softmax, (r(B, L),)),
    "logsumexp": (logsumexp, (r(B, L),)), "entropy": (entropy, (r(B, L),)),
    "layer_norm": (layer_norm, (r(B, I, L), r(L), r(L))), "layer_norm_manual": (layer_norm_manual, (r(B, I, L), r(L), r(L))),
    "layer_norm_var": (layer_norm_var, (r(B, I, L), r(L), r(L))), "layer_norm_2d": (layer_norm_2d, (r(B, I, L),)),
    "rms_norm": (rms_norm, (r(B, I, L), r(L))), "rms_norm_manual": (rms_norm_manual, (r(B, I, L), r(L))),
    "rms_norm_half": (rms_norm, (r(B, I, L, dtype=_half), r(L, dtype=_half))),
    "residual_norm": (residual_norm, (r(B, I, L), r(B, I, L), r(L))),
    "group_norm": (group_norm, (r(B, 6, 2, 5), r(6), r(6))), "instance_stats": (instance_stats, (r(B, 3, 2, 5),)),
    "variance": (variance, (r(B, L),)), "variance_manual": (variance_manual, (r(B, L),)), "l2_stable": (l2_stable, (r(B, L),)),
    "rms_then_max": (rms_then_max, (r(B, L),)), "router": (router, (r(I, D), r(D, L))),
    "router_sigmoid": (router_sigmoid, (r(I, D), r(D, L))), "router_renormalised": (router_renormalised, (r(I, D), r(D, L))),
    "quant": (quant, (r(B, L),)), "quant_gemm": (quant_gemm, (r(64, 512), r(512, 1024))),
    "inertia": (inertia, (r(B, L).abs(), r(B, L, 3))), "norm_gemm": (norm_gemm, (r(64, 96), r(96, 16), r(96))),
}
