"""Sequences and what goes between their layers: attention beside attention, quantisers, samplers, splines."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.small.spec import In, Programs

PROGRAMS = Programs()


@PROGRAMS(In((256, 512, 768), "f16"), In((768,), "f16", 0.05))
def attention_pool(x: Tensor, w: Tensor) -> Tensor:
    return (torch.softmax(x @ w, -1)[..., None] * x).sum(1)


@PROGRAMS(In((32, 1024, 256), "f16"), In((256, 256), "f16", 0.06), In((256,), "f16", 0.06))
def additive_pool(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bs,bsd->bd", (torch.tanh(x @ w) @ v).softmax(-1), x)


@PROGRAMS(In((64, 512, 768), "f16"), In((64, 512), likely=0.8))
def mean_of_tokens(x: Tensor, m: Tensor) -> Tensor:
    w = m[..., None].to(x.dtype)
    return F.normalize((x * w).sum(1) / w.sum(1).clamp(min=1e-9), dim=-1)


@PROGRAMS(*(In((4, 16, 1024, 64), "f16"),) * 3, *(In((1024, 64), "f16"),) * 2)
def rotary_attention(q: Tensor, k: Tensor, v: Tensor, c: Tensor, s: Tensor) -> Tensor:
    def turned(x: Tensor) -> Tensor:
        return x * c + torch.cat((-x[..., 32:], x[..., :32]), -1) * s

    return F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)


@PROGRAMS(*(In((2, 16, 2048, 128), "bf16"),) * 3, *(In((128,), "bf16"),) * 2)
def normed_attention(q: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(F.rms_norm(q, (128,), w), F.rms_norm(k, (128,), u), v)


@PROGRAMS(*(In((4, 8, 512, 64)),) * 3)
def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v) / (q @ k.sum(-2)[..., None] + 1e-6)


@PROGRAMS(In((32, 12, 512, 512), "f16"), In((32, 512), likely=0.8))
def rolled_out(a: Tensor, m: Tensor) -> Tensor:
    mean = a.masked_fill(~m[:, None, None], 0).mean(1)
    return (mean + torch.eye(512, device=a.device, dtype=a.dtype)).float().softmax(-1)


@PROGRAMS(*(In((16, 1024, 8, 64), "f16"),) * 2)
def strongest_key(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bthd,bshd->bhts", q, k).float().div(8).softmax(-1).amax(-2)


@PROGRAMS(In((8192, 2048), "bf16"), In((2048,), "bf16"), *(In((5632, 2048), "bf16", 0.02),) * 2, In((2048, 5632), "bf16", 0.02))
def gated_layer(x: Tensor, n: Tensor, g: Tensor, u: Tensor, d: Tensor) -> Tensor:
    y = F.rms_norm(x, (2048,), n)
    return x + (F.silu(y @ g.T) * (y @ u.T)) @ d.T


@PROGRAMS(In((8192, 256)), In((256, 256), scale=0.06), In((256,)))
def layer_and_norm(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(F.linear(x, w, c)) + x, (256,))


@PROGRAMS(In((8, 1024, 1152), "f16"), In((8, 6912), "f16"))
def modulated(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    shift, scale, gate, shift2, scale2, _ = c.chunk(6, -1)
    z = x + gate[:, None] * (F.layer_norm(x, (1152,)) * (1 + scale[:, None]) + shift[:, None])
    return F.layer_norm(z, (1152,)) * (1 + scale2[:, None]) + shift2[:, None], z


@PROGRAMS(In((4096, 16, 64), "f16"), In((4096, 16, 64), "f16"), In((64,), "f16"), In((64,), "f16"))
def norms_of_heads(q: Tensor, k: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    return F.rms_norm(q, (64,), w), F.rms_norm(k, (64,), u)


@PROGRAMS(In((2048, 4096), "bf16"), In((2048,), "bf16"))
def gated_norm(x: Tensor, w: Tensor) -> Tensor:
    a, g = x.chunk(2, -1)
    return F.rms_norm(a * F.silu(g), (2048,)) * w


@PROGRAMS(In((64, 4096)))
def running_shares(x: Tensor) -> Tensor:
    return x.softmax(-1).cumsum(-1)


@PROGRAMS(In((64, 50257)))
def best_fifty(x: Tensor) -> Tensor:
    return torch.softmax(x.topk(50)[0], -1)


@PROGRAMS(In((1, 32000)), In((1, 32000)))
def speculative(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    p, q = p.softmax(-1), q.softmax(-1)
    r = (p - q).clamp(min=0)
    return r / r.sum(-1, keepdim=True), torch.minimum(torch.ones_like(p), p / q)


@PROGRAMS(In((65536, 8)))
def straight_through(x: Tensor) -> Tensor:
    p = (x / 0.5).softmax(-1)
    return F.one_hot(p.argmax(-1), 8).to(p.dtype) + p - p.detach()


@PROGRAMS(In((4096, 8, 64)), In((4096, 8, 64)))
def mixed_by_planes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x.softmax(1) * y).sum(1), x.logsumexp(1)


@PROGRAMS(In((32768, 2, 32)), In((32768, 2, 32)))
def mean_of_two(a: Tensor, c: Tensor) -> Tensor:
    return torch.stack((a.softmax(-1), c.softmax(-1)), 0).mean(0)


@PROGRAMS(In((4096, 4096)))
def rounded_weights(w: Tensor) -> Tensor:
    s = w.abs().amax(1, keepdim=True) / 127
    return torch.round(w / s).clamp(-128, 127) * s


@PROGRAMS(In((4096, 4096), "bf16"))
def blocks_of_eight_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.float().unflatten(-1, (-1, 32))
    e = torch.exp2(torch.floor(torch.log2(y.abs().amax(-1, keepdim=True).clamp(min=1e-12))) - 8)
    return (y / e).to(torch.float8_e4m3fn).flatten(-2), e[..., 0]


@PROGRAMS(In((128, 512, 80)))
def features_of_speech(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


@PROGRAMS(In((16, 1500, 513)))
def floored_spectrum(x: Tensor) -> Tensor:
    y = torch.log10(x.pow(2).clamp(min=1e-10))
    return (torch.maximum(y, y.amax((1, 2), keepdim=True) - 8) + 4) / 4


@PROGRAMS(In((16384, 32, 8)))
def knots(s: Tensor) -> Tensor:
    return F.pad(s.softmax(-1).cumsum(-1), (1, 0)) * 6 - 3


@PROGRAMS(In((262144, 9)), In((9,)))
def rows_of_nine(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x * w + 1)
