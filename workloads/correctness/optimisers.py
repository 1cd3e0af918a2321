"""Steps of optimisers on one tensor: moments, trust ratios, clipping by norms, factored second moments, orthogonal updates, and
weights that are made from a norm of others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, TAME, Program, made, of

# -- clipping ----------------------------------------------------------------------------------------------------------


def clip_global(g: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.linalg.vector_norm(g)
    return g * torch.clamp(1.0 / (total + 1e-6), max=1.0), total


def clip_rows(g: Tensor) -> Tensor:
    """Per example, as Opacus has it, and their mean."""
    n = g.flatten(1).norm(2, dim=1)
    factor = (1.0 / (n + 1e-6)).clamp(max=1.0)
    return torch.einsum("n,n...->...", factor, g) / g.shape[0]


def clip_two(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The norm of the norms of two tensors."""
    norms = torch.stack([torch.norm(a.float(), 2.0), torch.norm(b.float(), 2.0)])
    coef = (0.5 / (torch.norm(norms, 2.0) + 1e-6)).clamp(max=1.0)
    return a * coef.to(a.dtype), b * coef.to(b.dtype)


def unitwise(x: Tensor) -> Tensor:
    return x.norm(2.0, dim=tuple(range(1, x.dim())), keepdim=True)


def agc(p: Tensor, g: Tensor) -> Tensor:
    """timm's adaptive_clip_grad, of a convolution."""
    max_norm = unitwise(p).clamp(min=1e-3).mul(0.01)
    g_norm = unitwise(g)
    clipped = g * (max_norm / g_norm.clamp(min=1e-6))
    return torch.where(g_norm < max_norm, g, clipped)


def centralise(g: Tensor) -> Tensor:
    return g - g.mean(dim=tuple(range(1, g.dim())), keepdim=True)


# -- steps -------------------------------------------------------------------------------------------------------------


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = torch.lerp(m, g, 1 - 0.9)
    v = v * 0.999 + (1 - 0.999) * g * g
    denom = (v.sqrt() / math.sqrt(1 - 0.999 ** 10)) + 1e-8
    return p.mul(1 - 1e-3 * 0.01) - (1e-3 / (1 - 0.9 ** 10)) * (m / denom), m, v


def adam_clipped(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The clip by the tensor's norm, and the step, half-precision weights."""
    g = g.float()
    g = g * (1.0 / g.square().sum().sqrt().clamp(min=1.0))
    m = 0.9 * m + 0.1 * g
    v = 0.95 * v + 0.05 * g.square()
    return (p.float() - 3e-4 * (m / (v.sqrt() + 1e-8) + 0.1 * p.float())).to(p.dtype), m, v


def lamb(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    update = m / (v.sqrt() + 1e-6) + 0.01 * p
    w_norm = p.norm(2)
    g_norm = update.norm(2)
    one = torch.ones_like(w_norm)
    trust = torch.where(w_norm > 0, torch.where(g_norm > 0, w_norm / g_norm, one), one)
    return p - 1e-2 * trust.clamp(max=10.0) * update, m, v


def lars(p: Tensor, g: Tensor, buf: Tensor) -> tuple[Tensor, Tensor]:
    g = g + 1e-4 * p
    pn, gn = torch.norm(p), torch.norm(g)
    lr = torch.where((pn > 0) & (gn > 0), 0.001 * pn / (gn + 1e-8), torch.ones_like(pn))
    buf = buf * 0.9 + g * lr
    return p - 0.1 * buf, buf


def lion(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    update = (m * 0.9 + g * 0.1).sign()
    p = p * (1 - 1e-2 * 0.1) - 1e-2 * update
    return p, m * 0.99 + g * 0.01, (update != m.sign()).float().mean()


def rms(t: Tensor) -> Tensor:
    return t.norm(2) / (t.numel() ** 0.5)


def adafactor(p: Tensor, g: Tensor, row: Tensor, col: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """transformers'."""
    update = g ** 2 + 1e-30
    row = row * 0.99 + update.mean(dim=-1) * 0.01
    col = col * 0.99 + update.mean(dim=-2) * 0.01
    r = (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1)
    c = col.unsqueeze(-2).rsqrt()
    u = r * c * g
    u = u / (rms(u) / 1.0).clamp(min=1.0)
    return p - u * 1e-2 * rms(p).clamp(min=1e-3), row, col


def adafactor_statistics(g: Tensor) -> tuple[Tensor, Tensor]:
    sq = g.float().square().add(1e-30)
    return sq.mean(-1), sq.mean(-2)


def sam(p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """ASAM: scaled by the weights."""
    norm = (torch.abs(p) * g).norm(p=2)
    e = torch.pow(p, 2) * g * (0.05 / (norm + 1e-12))
    return p + e, norm


def muon(g: Tensor) -> Tensor:
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(2):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x * max(1, g.size(-2) / g.size(-1)) ** 0.5


def muon_bf16(g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """One step, with nesterov momentum before and a norm by rows behind (NorMuon)."""
    m = torch.lerp(m, g, 0.05)
    u = torch.lerp(g, m, 0.95).bfloat16()
    x = u / (u.norm() + 1e-7)
    x = 1.5 * x - 0.5 * (x @ x.T) @ x
    return x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-8), m


def ema(avg: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    new = avg.lerp(p, 0.01)
    drift = torch.linalg.norm(new - p, dim=-1) / torch.linalg.norm(p, dim=-1).clamp_min(1e-12)
    return new, drift, drift.max()


def prodigy(p: Tensor, p0: Tensor, g: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The distance estimate."""
    num = torch.dot(g.flatten(), (p0 - p).flatten())
    s = s * 0.99 + 0.01 * g
    return torch.maximum(num / s.abs().sum().clamp(min=1e-8), torch.tensor(1e-6)), s


def adopt_rows(p: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Adam-mini: one second moment to a row."""
    v = v * 0.95 + 0.05 * g.float().pow(2).mean(dim=1)
    return (p.float() - 1e-3 * g.float() / (v.sqrt() + 1e-8).unsqueeze(1)).to(p.dtype), v


# -- weights made from norms -------------------------------------------------------------------------------------------


def standardised(x: Tensor, w: Tensor) -> Tensor:
    """NFNet's scaled weight standardisation."""
    fan = w[0].numel()
    var, mean = torch.var_mean(w, dim=(1, 2, 3), keepdim=True, unbiased=False)
    w = (w - mean) * torch.rsqrt(torch.clamp(var * fan, min=1e-4))
    return F.conv2d(x, w, padding=1)


def standardised_weight(w: Tensor, gain: Tensor) -> Tensor:
    flat = w.reshape(w.shape[0], -1)
    return (gain * (flat - flat.mean(1, keepdim=True)) / (flat.std(dim=1, keepdim=True) + 1e-5)).view_as(w)


def weight_norm(x: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return F.linear(x, g * v / torch.norm_except_dim(v, 2, 0))


def weight_norm_rows(v: Tensor, g: Tensor) -> Tensor:
    """Of a convolution's, over all but the first axis."""
    return v * (g / v.pow(2).sum((1, 2), keepdim=True).sqrt())


def demodulated(w: Tensor, s: Tensor) -> Tensor:
    """StyleGAN 2."""
    w = w[None] * (s[:, None, :, None, None] + 1)
    return w * torch.rsqrt((w ** 2).sum(dim=(2, 3, 4), keepdim=True) + 1e-8)


def spectral(w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    m = w.reshape(w.size(0), -1)
    v = F.normalize(m.t() @ u, dim=0, eps=1e-12)
    u = F.normalize(m @ v, dim=0, eps=1e-12)
    return w / (u @ (m @ v)), u


def dora(x: Tensor, w: Tensor, a: Tensor, b: Tensor, m: Tensor) -> Tensor:
    new = w + 2.0 * (b @ a)
    return F.linear(x, m * new / new.norm(p=2, dim=1, keepdim=True))


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "optimisers")
    yield p("f32 65x130 clip by all", clip_global, of("g", 65, 130))
    yield p("f32 33x20x51 clip by examples", clip_rows, of("g", 33, 20, 51))
    yield p("bf16 65x130 70x33 clip by two", clip_two, of("a", 65, 130, dtype="bf16"), of("b", 70, 33, dtype="bf16"))
    yield p("f32 65x12x3x3 agc", agc, of("p", 65, 12, 3, 3), of("g", 65, 12, 3, 3))
    yield p("f16 70x33x3x3 centralise", centralise, of("g", 70, 33, 3, 3, dtype="f16"))
    yield p("f32 130x257 adam", adam, of("p", 130, 257), of("g", 130, 257), of("m", 130, 257),
            of("v", 130, 257, kind="positive"))
    yield p("bf16 65x257 adam clipped", adam_clipped, of("p", 65, 257, dtype="bf16"), of("g", 65, 257, dtype="bf16"),
            of("m", 65, 257), of("v", 65, 257, kind="positive"))
    yield p("f32 65x130 lamb", lamb, of("p", 65, 130), of("g", 65, 130), of("m", 65, 130), of("v", 65, 130, kind="positive"))
    yield p("f32 70x257 lars", lars, of("p", 70, 257), of("g", 70, 257), of("buf", 70, 257))
    yield p("f32 33x257 lion", lion, of("p", 33, 257), of("g", 33, 257), of("m", 33, 257))
    yield p("f32 70x130 adafactor", adafactor, of("p", 70, 130), of("g", 70, 130), of("row", 70, kind="positive"),
            of("col", 130, kind="positive"))
    yield p("bf16 3x65x130 adafactor statistics", adafactor_statistics, of("g", 3, 65, 130, dtype="bf16"))
    yield p("f32 65x70 sam", sam, of("p", 65, 70), of("g", 65, 70))
    yield p("f32 2x65x130 muon", muon, of("g", 2, 65, 130), only=TAME)
    yield p("f32 65x70 muon rows", muon_bf16, of("g", 65, 70), of("m", 65, 70), only=("normal", "ties", "zeros"))
    yield p("f32 130x257 ema", ema, of("avg", 130, 257), of("p", 130, 257))
    yield p("f32 33x257 prodigy", prodigy, of("p", 33, 257), of("p0", 33, 257), of("g", 33, 257), of("s", 33, 257), only=CALM)
    yield p("bf16 130x1000 adam mini", adopt_rows, of("p", 130, 1000, dtype="bf16"), of("g", 130, 1000, dtype="bf16"),
            of("v", 130, kind="positive"))
    yield p("f32 2x12x9x11x16 standardised", standardised, of("x", 2, 12, 9, 11), of("w", 16, 12, 3, 3))
    yield p("f16 65x12x3x3 standardised weight", standardised_weight, of("w", 65, 12, 3, 3, dtype="f16"),
            of("gain", 65, 1, dtype="f16", kind="weight"))
    yield p("f32 33x130x65 weight norm", weight_norm, of("x", 33, 130), of("v", 65, 130), of("g", 65, 1, kind="weight"))
    yield p("bf16 70x33x5 weight norm of rows", weight_norm_rows, of("v", 70, 33, 5, dtype="bf16"),
            of("g", 70, 1, 1, dtype="bf16", kind="weight"))
    yield p("f32 3x20x12x3x3 demodulated", demodulated, of("w", 20, 12, 3, 3), of("s", 3, 12))
    yield p("f32 65x12x3x3 spectral", spectral, of("w", 65, 12, 3, 3, kind="weight"), of("u", 65, kind="weight"),
            only=("normal", "ties", "zeros"))
    yield p("f16 33x130x70 dora", dora, of("x", 33, 130, dtype="f16"), of("w", 70, 130, dtype="f16", kind="weight", scale=0.1),
            of("a", 8, 130, dtype="f16", kind="weight", scale=0.1), of("b", 70, 8, dtype="f16", kind="weight", scale=0.1),
            of("m", 70, 1, dtype="f16", kind="weight"))
