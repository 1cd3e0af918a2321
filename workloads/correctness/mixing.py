"""Sequence mixing whose weights are more than a softmax of scores, or none: gates, norms of queries and keys, learned scales,
sigmoids, sparse and nested softmaxes, turns of normalisation, several softmaxes at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import NEG_INF, In, Program, made, qkv

Fn = Callable[..., Any]


# -- gates, norms, learned scales --------------------------------------------------------------------------------------


def gated_heads(x: Tensor, w: Tensor, kw: Tensor, vw: Tensor) -> Tensor:
    """Qwen-Next: queries and gates from one projection, chunked; the gate after the values."""
    b, n, _ = x.shape
    d = kw.shape[1]
    q, g = torch.chunk((x @ w).view(b, n, -1, 2 * d), 2, dim=-1)
    q = q.transpose(1, 2)
    k, v = (x @ kw)[:, None], (x @ vw)[:, None]
    o = F.scaled_dot_product_attention(q, k.expand(-1, q.shape[1], -1, -1), v.expand(-1, q.shape[1], -1, -1), is_causal=True)
    return (o.transpose(1, 2) * torch.sigmoid(g)).reshape(b, n, -1)


def swin_two(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Cosine, a learned scale clamped in the log, a bounded bias."""
    s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
    s = s * torch.clamp(scale, max=math.log(1.0 / 0.01)).exp()
    return torch.softmax(s + 16 * torch.sigmoid(bias), -1) @ v


def qk_layer_norm(q: Tensor, k: Tensor, v: Tensor, gq: Tensor, gk: Tensor, bq: Tensor, bk: Tensor) -> Tensor:
    """ViT-22B: LayerNorms of queries and keys in float32, with biases."""
    d = q.shape[-1]
    qn = F.layer_norm(q.float(), (d,), gq.float(), bq.float(), 1e-6).type_as(q)
    kn = F.layer_norm(k.float(), (d,), gk.float(), bk.float(), 1e-6).type_as(k)
    return F.scaled_dot_product_attention(qn, kn, v)


def standardised_logits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Logits of mean 0 and deviation 1 before the softmax."""
    s = (q @ k.mT).float()
    s = (s - s.mean(-1, keepdim=True)) / (s.std(-1, keepdim=True) + 1e-5)
    return (s.softmax(-1) @ v.float()).to(v.dtype)


def entropy_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """log n scaling: each query's temperature by how many keys it sees (scalable softmax), causal."""
    n = q.shape[-2]
    seen = torch.arange(1, n + 1, device=q.device, dtype=torch.float32)
    s = (q.float() @ k.float().mT) * (0.43 * seen.log()[:, None])
    s = s + torch.triu(torch.full((n, n), NEG_INF, device=q.device), 1)
    return (torch.softmax(s, -1) @ v.float()).to(q.dtype)


def exclusive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """XSA: the part of the result along one's own value is taken away."""
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    vn = F.normalize(v, dim=-1)
    return y - (y * vn).sum(-1, keepdim=True) * vn


def value_residual(q: Tensor, k: Tensor, v: Tensor, v0: Tensor, lam: Tensor) -> Tensor:
    """Values mixed with those of the first layer; RMS norm behind."""
    y = F.scaled_dot_product_attention(q, k, lam[0] * v + lam[1] * v0, is_causal=True)
    y = y.transpose(1, 2).flatten(2)
    return F.rms_norm(y, (y.shape[-1],))


# -- several softmaxes -------------------------------------------------------------------------------------------------


def differential(q: Tensor, k: Tensor, v: Tensor, l1: Tensor, l2: Tensor, l3: Tensor, l4: Tensor, g: Tensor) -> Tensor:
    """Two softmaxes apart by a learned factor, an RMS norm per head."""
    b, h, n, d = v.shape
    init = 0.8 - 0.6 * math.exp(-0.3 * 3)
    lam = torch.exp((l1 * l2).sum(-1).float()) - torch.exp((l3 * l4).sum(-1).float()) + init
    s = (q @ k.mT) * q.shape[-1] ** -0.5
    hide = torch.triu(torch.full((n, n), NEG_INF, device=q.device), 1).type_as(s)
    p = F.softmax(s + hide, dim=-1, dtype=torch.float32).type_as(s).view(b, h, 2, n, n)
    o = (p[:, :, 0] - lam.type_as(s) * p[:, :, 1]) @ v
    o = F.rms_norm(o, (d,), g, 1e-5) * (1 - init)
    return o.transpose(1, 2).reshape(b, n, h * d)


def talking_causal(x: Tensor, w: Tensor, pre: Tensor, post: Tensor) -> Tensor:
    """Packed qkv; heads talk before the softmax and after it."""
    b, n, c = x.shape
    h = pre.shape[0]
    q, k, v = (t.view(b, n, h, -1).transpose(1, 2) for t in (x @ w).split(c, dim=-1))
    s = torch.einsum("b h i j, h g -> b g i j", q @ k.mT * (c // h) ** -0.5, pre)
    s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), -torch.finfo(s.dtype).max)
    p = torch.einsum("b h i j, h g -> b g i j", s.softmax(-1), post)
    return torch.einsum("bhij,bhjd->bihd", p, v).reshape(b, n, c)


def nested(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A softmax over each group of 25 keys, and one of the groups' lse."""
    s = ((q @ k.mT).float() * 0.125).unflatten(-1, (-1, 25))
    inner = torch.softmax(s, -1)
    outer = torch.softmax(torch.logsumexp(s, -1) * 0.5, -1)
    return ((inner * outer[..., None]).flatten(-2) @ v.float()).to(v.dtype)


def soft_moe(x: Tensor, phi: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Dispatch over tokens and combine over slots, of one product of unit vectors."""
    s = (F.normalize(x, dim=-1) @ (scale * F.normalize(phi, dim=0))).float()
    d, c = s.softmax(1), s.softmax(2)
    y = torch.einsum("bmd,bms->bsd", x.float(), d)
    return (c @ y).to(x.dtype), y.to(x.dtype)


def bidaf(c: Tensor, q: Tensor, w: Tensor, keep: Tensor) -> Tensor:
    """Trilinear similarity, context to query, and query to context of the largest."""
    d = c.shape[-1]
    s = (c @ w[:d])[:, :, None] + (q @ w[d : 2 * d])[:, None, :] + (c * w[2 * d :]) @ q.mT
    s = s.masked_fill(~keep[:, None, :], -1e30)
    a = s.softmax(-1) @ q
    b = torch.einsum("bi,bid->bd", s.amax(-1).softmax(-1), c)
    return torch.cat([c, a, c * a, c * b[:, None]], -1)


def sinkformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sinkhorn by rows and columns in the log, three turns, then the values."""
    m = (q @ k.mT).float() * q.shape[-1] ** -0.5
    for _ in range(3):
        m = m - torch.logsumexp(m, -2, keepdim=True)
        m = m - torch.logsumexp(m, -1, keepdim=True)
    return (m.exp() @ v.float()).to(v.dtype)


def rebased_twice(s: Tensor, v: Tensor) -> Tensor:
    """Scaled by an odd number, by columns and then by rows: biases from a log-sum-exp of what is scaled."""
    m = s.float() * 0.158
    m = m - torch.logsumexp(m, -2, keepdim=True)
    return torch.softmax(m, -1) @ v.float()


# -- weights that are no softmax ---------------------------------------------------------------------------------------


def off_by_one_safe(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Miller's, with the maximum held at no less than 0 and a multiplied mask."""
    s = (q @ k.mT).float() / math.sqrt(q.shape[-1])
    m = s.amax(-1, keepdim=True).clamp_min(0)
    e = torch.exp(s - m) * keep[:, None, None, :].float()
    return ((e / (e.sum(-1, keepdim=True) + torch.exp(-m))) @ v.float()).to(q.dtype)


def sigmoid_biased(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    """Apple's: a bias of -log n and one per head, causal by multiplication."""
    n = k.shape[-2]
    s = torch.einsum("...qd,...kd->...qk", q, k) / q.shape[-1] ** 0.5
    p = torch.sigmoid(s + b[:, None, None] - math.log(n)) * torch.tril(torch.ones(n, n, device=q.device, dtype=q.dtype))
    return p @ v


def wide_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """bfloat16 keys and float32 queries, sigmoid weights."""
    return torch.sigmoid(q @ k.float().mT - 2.0) @ v


def sparsemax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sort, cumulative sum, support, threshold."""
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5
    z = s.sort(-1, descending=True).values
    c = z.cumsum(-1)
    r = torch.arange(1, s.shape[-1] + 1, device=s.device)
    size = (1 + r * z > c).sum(-1, keepdim=True).clamp_min(1)
    tau = (c.gather(-1, size - 1) - 1) / size
    return ((s - tau).clamp_min(0) @ v.float()).to(q.dtype)


def entmax_bisect(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """1.5-entmax by bisection, eight steps."""
    s = (q @ k.mT).float() * (0.5 * q.shape[-1] ** -0.5)
    hi = s.amax(-1, keepdim=True)
    lo = hi - 1.0
    hi = hi - s.shape[-1] ** -0.5
    for _ in range(8):
        mid = 0.5 * (lo + hi)
        low = ((s - mid).clamp_min(0) ** 2).sum(-1, keepdim=True) >= 1
        lo, hi = torch.where(low, mid, lo), torch.where(low, hi, mid)
    p = (s - lo).clamp_min(0) ** 2
    return ((p / p.sum(-1, keepdim=True)) @ v.float()).to(q.dtype)


def top_k(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores below the 16th are hidden."""
    s = (q @ k.mT) * q.shape[-1] ** -0.5
    least = s.topk(16, -1).values[..., -1:]
    return torch.softmax(torch.where(s < least, NEG_INF, s), -1) @ v


def squared_relu_laplace(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Mega's two: squared relu and the Laplace function of one's scores."""
    n = k.shape[-2]
    s = (q @ k.mT).float() / n
    a = torch.relu(s).square()
    l = 0.5 * (1 + torch.erf((s - 0.707107) / (0.282095 * math.sqrt(2.0))))
    return (a @ v.float()).to(v.dtype), (l @ v.float()).to(v.dtype)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "mixing")
    yield p("bf16 2x130x96 gated heads", gated_heads, In("x", (2, 130, 96), "bf16"),
            In("w", (96, 384), "bf16", "weight", 0.1), In("kw", (96, 64), "bf16", "weight", 0.1),
            In("vw", (96, 64), "bf16", "weight", 0.1))
    yield p("f16 9x3x64 d32 Swin's second", swin_two, *qkv((9, 3, 64, 32), "f16"),
            In("scale", (3, 1, 1), "f16", "weight", 2.0, 2.3), In("bias", (3, 64, 64), "f16"))
    yield p("bf16 2x3x197 d80 layer norms of queries and keys", qk_layer_norm, *qkv((2, 3, 197, 80), "bf16"),
            *(In(n, (80,), "bf16", "weight") for n in ("gq", "gk", "bq", "bk")))
    yield p("f16 2x3x130x257 d64 standardised", standardised_logits, *qkv((2, 3, 130, 64), "f16", 257))
    yield p("f16 2x3x200 d192 scalable", entropy_scaled, *qkv((2, 3, 200, 192), "f16"))
    yield p("bf16 2x3x150 d64 exclusive", exclusive, *qkv((2, 3, 150, 64), "bf16"))
    yield p("f16 2x3x130 d64 value residual", value_residual, *qkv((2, 3, 130, 64), "f16"), In("v0", (2, 3, 130, 64), "f16"),
            In("lam", (2,), "f16", "weight"))
    yield p("bf16 1x3x100 differential", differential, In("q", (1, 6, 100, 32), "bf16"), In("k", (1, 6, 100, 32), "bf16"),
            In("v", (1, 3, 100, 64), "bf16"), *(In(n, (32,), "bf16", "weight", 0.1) for n in ("l1", "l2", "l3", "l4")),
            In("g", (64,), "bf16", "weight"))
    yield p("f32 2x70x128 talking heads packed", talking_causal, In("x", (2, 70, 128), "f32"),
            In("w", (128, 384), "f32", "weight", 0.1), In("pre", (4, 4), "f32", "weight"), In("post", (4, 4), "f32", "weight"))
    yield p("bf16 2x65x200 d64 nested", nested, *qkv((2, 65, 64), "bf16", 200))
    yield p("bf16 2x129x64 soft experts", soft_moe, In("x", (2, 129, 64), "bf16"), In("phi", (64, 24), "bf16", "weight"),
            In("scale", (), "bf16", "weight", 1.0, 4.0))
    yield p("f32 2x129x31 d40 both ways by the largest", bidaf, In("c", (2, 129, 40), "f32"), In("q", (2, 31, 40), "f32"),
            In("w", (120,), "f32", "weight", 0.2), In("keep", (2, 31), "bool", "keep"))
    yield p("f32 2x65x65 d40 Sinkhorn", sinkformer, *qkv((2, 65, 40), "f32"))
    yield p("f16 2x65x129 d64 rebased twice", rebased_twice, In("s", (2, 65, 129), "f16"), In("v", (2, 129, 64), "f16"))
    yield p("f32 2x65x129 d64 rebased twice", rebased_twice, In("s", (2, 65, 129), "f32"), In("v", (2, 129, 64), "f32"))
    yield p("f16 2x3x65x200 d64 off by one", off_by_one_safe, *qkv((2, 3, 65, 64), "f16", 200),
            In("keep", (2, 200), "bool", "keep"))
    yield p("bf16 2x3x129 d112 sigmoid", sigmoid_biased, *qkv((2, 3, 129, 112), "bf16"), In("b", (3,), "bf16", "weight"))
    yield p("mixed 2x65x129 d64 sigmoid of both", wide_bias, In("q", (2, 65, 64), "f32"), In("k", (2, 129, 64), "bf16"),
            In("v", (2, 129, 64), "f32"))
    yield p("f32 2x3x65x77 d32 sparsemax", sparsemax, *qkv((2, 3, 65, 32), "f32", 77))
    yield p("f16 2x65x130 d64 entmax", entmax_bisect, *qkv((2, 65, 64), "f16", 130))
    yield p("bf16 2x2x65x130 d64 top 16", top_k, *qkv((2, 2, 65, 64), "bf16", 130))
    yield p("f16 2x150x130 d64 Mega's", squared_relu_laplace, *qkv((2, 150, 64), "f16", 130))
