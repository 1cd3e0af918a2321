"""Backward formulas written by hand, as forward functions: of softmaxes, norms, attention, losses and activations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, TAME, Program, made, of

# -- softmaxes ---------------------------------------------------------------------------------------------------------


def softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    return y * (dy - (dy * y).sum(dim=-1, keepdim=True))


def softmax_recomputed(x: Tensor, dy: Tensor) -> Tensor:
    """From the logits, as a checkpointed block has it, half in and half out."""
    p = torch.softmax(x, dim=-1, dtype=torch.float32)
    g = dy.float() * p
    return (g - p * g.sum(-1, keepdim=True)).to(x.dtype)


def log_softmax_backward(dy: Tensor, logp: Tensor) -> Tensor:
    return dy - torch.exp(logp) * dy.sum(dim=1, keepdim=True)


def logsumexp_backward(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logsumexp(x, dim=(1, 2), keepdim=True)
    return torch.exp(x - lse) * g[:, None, None], lse.flatten()


def masked_softmax_backward(scores: Tensor, keep: Tensor, dy: Tensor) -> Tensor:
    s = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    p = F.softmax(s, dim=-1)
    d = p * dy
    return torch.where(keep, d - p * d.sum(-1, keepdim=True), 0.0)


# -- norms -------------------------------------------------------------------------------------------------------------


def layer_norm_backward(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """llm.c's, with its statistics made again."""
    mean = x.mean(-1, keepdim=True)
    rstd = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    norm = (x - mean) * rstd
    dw = (dy * norm).sum((0, 1))
    db = dy.sum((0, 1))
    dnorm = dy * w
    dx = dnorm - dnorm.mean(-1, keepdim=True) - norm * (dnorm * norm).mean(-1, keepdim=True)
    return dx * rstd, dw, db


def layer_norm_dx(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor) -> Tensor:
    """Triton's tutorial."""
    xhat = (x.float() - mean[:, None]) * rstd[:, None]
    wdy = w.float() * dy.float()
    c1 = torch.sum(xhat * wdy, dim=1) / x.shape[1]
    c2 = torch.sum(wdy, dim=1) / x.shape[1]
    return ((wdy - (xhat * c1[:, None] + c2[:, None])) * rstd[:, None]).to(x.dtype)


def rms_norm_backward(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Liger's."""
    n = x.shape[-1]
    xf, m = x.to(torch.float32), (dy * w).to(torch.float32)
    r = torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + 1e-6)
    dx = r * m
    dx = dx + r * (-(1 / n) * r * r * (m * xf).sum(-1, keepdim=True) * xf)
    dw = (dy.float() * (xf * r)).sum(0)
    return dx.to(x.dtype), dw.to(w.dtype)


def group_norm_backward(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, c = x.shape[:2]
    g = 4
    xg = x.view(b, g, -1)
    mu = xg.mean(-1, keepdim=True)
    inv = 1 / torch.sqrt(xg.var(-1, unbiased=False, keepdim=True) + 1e-5)
    xhat = (xg - mu) * inv
    dxhat = (dy * w.view(1, c, 1, 1)).view(b, g, -1)
    dx = inv * (dxhat - dxhat.mean(-1, keepdim=True) - xhat * (dxhat * xhat).mean(-1, keepdim=True))
    dw = (dy * xhat.view_as(x)).sum(dim=[0, 2, 3])
    return dx.view_as(x), dw, dy.sum(dim=[0, 2, 3])


def batch_norm_backward(dout: Tensor, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """CS231n's batchnorm_backward_alt."""
    n = x.shape[0]
    mu = x.mean(dim=0)
    std = torch.sqrt(x.var(dim=0, unbiased=False) + 1e-5)
    xhat = (x - mu) / std
    dbeta = dout.sum(dim=0)
    dgamma = (dout * xhat).sum(dim=0)
    dx = gamma / (n * std) * (n * dout - dbeta - xhat * dgamma)
    return dx, dgamma, dbeta


def gelu_norm_backward(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Through a GELU (tanh) that follows an RMS norm."""
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    n = x * r
    u = n * w
    k = math.sqrt(2 / math.pi)
    t = torch.tanh(k * (u + 0.044715 * u ** 3))
    du = dy * (0.5 * (1 + t) + 0.5 * u * (1 - t * t) * k * (1 + 3 * 0.044715 * u * u))
    dn = du * w
    return r * (dn - n * (dn * n).mean(-1, keepdim=True))


def swiglu_norm_backward(dy: Tensor, a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The norm behind a gate: silu(a) * b, then an RMS norm."""
    af, bf = a.float(), b.float()
    s = torch.sigmoid(af)
    h = af * s * bf
    r = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
    g = dy.float() * w.float()
    dh = r * g - h * r ** 3 * (g * h).mean(-1, keepdim=True)
    return (dh * bf * (s + af * s * (1 - s))).to(a.dtype), (dh * af * s).to(b.dtype)


def normalize_backward(g: Tensor, x: Tensor) -> Tensor:
    n = x.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    y = x / n
    return (g - y * (y * g).sum(-1, keepdim=True)) / n


def cosine_backward(a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    na = a.norm(dim=1, keepdim=True).clamp(min=1e-6)
    nb = b.norm(dim=1, keepdim=True).clamp(min=1e-6)
    cos = (a * b).sum(1, keepdim=True) / (na * nb)
    return g[:, None] * (b / (na * nb) - cos * a / na ** 2), g[:, None] * (a / (na * nb) - cos * b / nb ** 2)


# -- attention ---------------------------------------------------------------------------------------------------------


def attention_dq(q: Tensor, k: Tensor, v: Tensor, do: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    scale = q.shape[-1] ** -0.5
    p = torch.exp(q @ k.transpose(-1, -2) * scale - lse.unsqueeze(-1))
    ds = p * (do @ v.transpose(-1, -2) - delta.unsqueeze(-1))
    return (ds @ k) * scale


def attention_dkv(q: Tensor, k: Tensor, v: Tensor, do: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """FlashAttention 2's second loop."""
    scale = 1 / math.sqrt(q.size(-1))
    s = torch.einsum("bhid,bhjd->bhij", q.float(), k.float()) * scale
    p = torch.exp(s - lse[..., None])
    dv = torch.einsum("bhij,bhid->bhjd", p, do.float())
    dp = torch.einsum("bhid,bhjd->bhij", do.float(), v.float())
    ds = p * (dp - delta[..., None])
    dk = torch.einsum("bhij,bhid->bhjd", ds, q.float()) * scale
    return dk.to(k.dtype), dv.to(v.dtype)


def attention_backward(q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Causal, from nothing but the inputs."""
    scale = q.shape[-1] ** -0.5
    s = (q @ k.mT) * scale
    n = s.shape[-1]
    s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=s.device).triu(1), float("-inf"))
    p = s.softmax(-1)
    dv = p.mT @ do
    dp = do @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, dv


def attention_delta(o: Tensor, do: Tensor) -> Tensor:
    return (o.float() * do.float()).sum(-1)


# -- losses ------------------------------------------------------------------------------------------------------------


def cross_entropy_backward(logits: Tensor, target: Tensor) -> Tensor:
    d = F.softmax(logits.float(), dim=-1)
    d = d - F.one_hot(target, logits.shape[-1]).float()
    return (d / logits.shape[0]).to(logits.dtype)


def cross_entropy_smooth(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """With label smoothing, ignored labels and a z-loss, loss and gradient together (Liger's)."""
    v = logits.shape[-1]
    eps, lz = 0.1, 1e-4
    lse = torch.logsumexp(logits, -1, keepdim=True)
    valid = (target != 0).unsqueeze(-1)
    hit = torch.arange(v, device=logits.device)[None, :] == target[:, None]
    p = torch.exp(logits - lse)
    grad = p * (1 + 2 * lz * lse) - eps / v - torch.where(hit, 1 - eps, 0.0)
    n = valid.sum().clamp(min=1)
    at = logits.gather(1, target[:, None])
    loss = (1 - eps) * (lse - at) + eps * (lse - logits.mean(-1, keepdim=True)) + lz * lse ** 2
    return torch.where(valid, loss, 0.0).sum() / n, torch.where(valid, grad / n, 0.0)


def linear_cross_entropy_dx(x: Tensor, w: Tensor, lse: Tensor) -> Tensor:
    """The softmax's part of the gradient, no logits kept."""
    p = torch.exp(x @ w.t() - lse[:, None])
    return p @ w / x.shape[0]


def infonce_backward(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """CLIP's gradient in logits, both ways."""
    s = a @ b.t() / 0.07
    eye = torch.eye(a.shape[0], device=a.device, dtype=a.dtype)
    g = (s.softmax(1) + s.softmax(0) - 2 * eye) / (2 * a.shape[0]) / 0.07
    return g @ b, g.t() @ a


def triplet_backward(x: Tensor, p: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dp = (x - p).pow(2).sum(-1).add(1e-6).sqrt()
    dn = (x - n).pow(2).sum(-1).add(1e-6).sqrt()
    on = ((dp - dn + 1.0) > 0).to(x.dtype)[:, None] / x.shape[0]
    gp, gn = (x - p) / dp[:, None], (x - n) / dn[:, None]
    return on * (gp - gn), -on * gp, on * gn


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "gradients")
    yield p("f32 33x257 softmax", softmax_backward, of("dy", 33, 257), of("y", 33, 257))
    yield p("bf16 3x65x130 softmax again", softmax_recomputed, of("x", 3, 65, 130, dtype="bf16"),
            of("dy", 3, 65, 130, dtype="bf16"))
    yield p("f32 5x130x33 log softmax", log_softmax_backward, of("dy", 5, 130, 33),
            of("logp", 5, 130, 33, kind="weight", shift=-5.0))
    yield p("f32 9x20x51 logsumexp", logsumexp_backward, of("x", 9, 20, 51), of("g", 9))
    yield p("f16 2x3x33x70 masked softmax", masked_softmax_backward, of("scores", 2, 3, 33, 70, dtype="f16"),
            of("keep", 2, 1, 33, 70, dtype="bool", kind="keep"), of("dy", 2, 3, 33, 70, dtype="f16"))
    yield p("f32 3x65x130 layer norm", layer_norm_backward, of("dy", 3, 65, 130), of("x", 3, 65, 130),
            of("w", 130, kind="weight"))
    yield p("f16 65x1000 layer norm dx", layer_norm_dx, of("dy", 65, 1000, dtype="f16"), of("x", 65, 1000, dtype="f16"),
            of("mean", 65, kind="weight", scale=0.1), of("rstd", 65, kind="weight", scale=0.1, shift=1.0),
            of("w", 1000, dtype="f16", kind="weight"))
    yield p("bf16 130x257 rms norm", rms_norm_backward, of("dy", 130, 257, dtype="bf16"), of("x", 130, 257, dtype="bf16"),
            of("w", 257, dtype="bf16", kind="weight"))
    yield p("f32 3x12x13x11 group norm", group_norm_backward, of("dy", 3, 12, 13, 11), of("x", 3, 12, 13, 11),
            of("w", 12, kind="weight"))
    yield p("f32 257x70 batch norm", batch_norm_backward, of("dout", 257, 70), of("x", 257, 70), of("gamma", 70, kind="weight"))
    yield p("f32 65x257 gelu norm", gelu_norm_backward, of("dy", 65, 257), of("x", 65, 257),
            of("w", 257, kind="weight", scale=0.2))
    yield p("bf16 33x1000 swiglu norm", swiglu_norm_backward, of("dy", 33, 1000, dtype="bf16"),
            of("a", 33, 1000, dtype="bf16"), of("b", 33, 1000, dtype="bf16"), of("w", 1000, dtype="bf16", kind="weight"))
    yield p("f32 2x33x5x70 normalize", normalize_backward, of("g", 2, 33, 5, 70), of("x", 2, 33, 5, 70))
    yield p("f32 65x130 cosine", cosine_backward, of("a", 65, 130), of("b", 65, 130), of("g", 65), only=TAME)
    wide = partial(of, kind="weight", dtype="f16")
    six = (wide("q", 2, 3, 65, 64), wide("k", 2, 3, 130, 64), wide("v", 2, 3, 130, 64),
           of("do", 2, 3, 65, 64, dtype="f16"), of("lse", 2, 3, 65, scale=0.1, shift=6.0, dtype="f16", kind="weight"),
           of("delta", 2, 3, 65, dtype="f16"))
    yield p("f16 2x3x65x130x64 attention dq", attention_dq, *six)
    rest = partial(of, kind="weight", dtype="bf16")
    yield p("bf16 2x2x70x65x64 attention dkv", attention_dkv, rest("q", 2, 2, 70, 64), rest("k", 2, 2, 65, 64),
            rest("v", 2, 2, 65, 64), of("do", 2, 2, 70, 64, dtype="bf16"),
            of("lse", 2, 2, 70, scale=0.1, shift=6.0, kind="weight"), of("delta", 2, 2, 70))
    yield p("f32 2x2x65x32 attention causal", attention_backward, *(of(n, 2, 2, 65, 32) for n in ("q", "k", "v", "do")))
    yield p("bf16 2x33x5x64 attention delta", attention_delta, of("o", 2, 33, 5, 64, dtype="bf16"),
            of("do", 2, 33, 5, 64, dtype="bf16"))
    yield p("f16 65x1000 cross entropy", cross_entropy_backward, of("logits", 65, 1000, dtype="f16"),
            of("target", 65, dtype="i64", kind="label", high=1000))
    yield p("f32 33x777 smooth cross entropy", cross_entropy_smooth, of("logits", 33, 777),
            of("target", 33, dtype="i64", kind="label", high=777))
    yield p("f32 70x33x257 linear cross entropy", linear_cross_entropy_dx, of("x", 70, 33, kind="weight"),
            of("w", 257, 33, kind="weight", scale=0.3), of("lse", 70, kind="weight", shift=7.0, scale=0.1))
    yield p("f32 65x33 infonce", infonce_backward, of("a", 65, 33, scale=0.2), of("b", 65, 33, scale=0.2), only=CALM)
    yield p("f32 65x130 triplet", triplet_backward, of("x", 65, 130), of("p", 65, 130), of("n", 65, 130), only=CALM)
