"""The main road in spellings that no list had: attention, routing, losses, positions, as repositories have them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()
B, H = "bf16", "f16"


@P(In((4, 8, 1024, 64), H), In((4, 8, 1024, 64), H), In((4, 8, 1024, 64), H), In((4,), high=1024))
def key_lengths(q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Any:
    """Keys up to a length of each sequence."""
    seen = torch.arange(k.shape[-2], device=q.device)[None] < (n[:, None] + 1)
    s = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    s = s.masked_fill(~seen[:, None, None], torch.finfo(s.dtype).min)
    return torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v)


@P(In((1, 16, 4096, 64), B), In((1, 4, 4096, 64), B), In((1, 4, 4096, 64), B))
def streaming(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """The last 512 keys and the first four."""
    k, v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
    i = torch.arange(4096, device=q.device)
    ok = (i[:, None] >= i) & ((i[:, None] - i < 512) | (i < 4))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=ok)


@P(In((2, 8, 1024, 64), B), In((2, 8, 1024, 64), B), In((2, 8, 1024, 64), B), In((2, 8, 1024, 64), B), In((2, 8, 1024, 64), B))
def ring_merge(q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor) -> Any:
    """Two parts of the keys, met by their log-sum-exps."""
    def part(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s = (q @ k.mT).float() / 8
        lse = s.logsumexp(-1, keepdim=True)
        return (s - lse).exp().to(q.dtype) @ v, lse
    o1, a = part(k1, v1)
    o2, b = part(k2, v2)
    lse = torch.logaddexp(a, b)
    return (o1.float() * (a - lse).exp() + o2.float() * (b - lse).exp()).to(q.dtype), lse


@P(In((8, 32, 1, 128), B), *[In((512, 16, 8, 128), B)] * 2, In((8, 64), high=512), In((8,), high=1023))
def paged_decode(q: Tensor, kc: Tensor, vc: Tensor, table: Tensor, length: Tensor) -> Any:
    """A step of decoding that gathers its keys by pages."""
    k = kc[table].flatten(1, 2).transpose(1, 2)
    v = vc[table].flatten(1, 2).transpose(1, 2)
    qq = q.view(8, 8, 4, 128)
    s = (qq @ k.mT).float() / math.sqrt(128)
    s = torch.where(torch.arange(1024, device=q.device) <= length[:, None, None, None], s, float("-inf"))
    return (s.softmax(-1).to(v.dtype) @ v).view(8, 32, 1, 128)


@P(In((4, 8, 2048, 64), B), In((4, 8, 2048, 64), B), In((4, 8, 2048, 64), B))
def elu_attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Attention without a softmax, by sums of keys."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    z = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(2)) + 1e-6)
    return torch.einsum("bhnd,bhde,bhn->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v), z)


@P(In((2, 1024, 16, 64), B), *[In((2, 1024, 4, 64), B)] * 2, In((64,), B), In((64,), B), In((1024, 64)))
def qk_norm_rope(q: Tensor, k: Tensor, v: Tensor, wq: Tensor, wk: Tensor, ang: Tensor) -> Any:
    """Queries and keys normed and turned, grouped heads."""
    def rms(x: Tensor, w: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
    def rot(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        c, s = ang.cos()[:, None].to(x.dtype), ang.sin()[:, None].to(x.dtype)
        return x * c + torch.cat([-b, a], -1) * s
    q, k = rot(rms(q, wq)).transpose(1, 2), rot(rms(k, wk)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)


@P(In((2, 8, 512, 64), H), In((2, 8, 512, 64), H), In((2, 8, 512, 64), H))
def with_entropy(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Attention, and how spread its weights are."""
    s = q @ k.mT * 0.125
    lp = F.log_softmax(s.float(), -1)
    p = lp.exp()
    return p.to(v.dtype) @ v, -(p * lp).sum(-1)


@P(In((2, 16, 256, 64), B), In((2, 16, 4096, 64), B))
def block_choice(q: Tensor, k: Tensor) -> Any:
    """Which blocks of keys each query is to see."""
    kb = k.view(2, 16, 64, 64, 64).mean(3)
    s = (q.float() @ kb.float().mT / 8).softmax(-1)
    return s.view(2, 4, 4, 256, 64).sum(2).topk(16, -1)


@P(In((4, 2048, 64)))
def expert_choice(x: Tensor) -> Any:
    """Experts that choose their tokens."""
    p = x.softmax(-1)
    return p.transpose(1, 2).topk(64, -1)


@P(In((16384, 64)))
def router_losses(x: Tensor) -> Any:
    """How evenly experts are used, and how large their logits are."""
    lse = x.logsumexp(-1)
    p = x.softmax(-1)
    top = p.argmax(-1)
    f = F.one_hot(top, 64).float().mean(0)
    return (f * p.mean(0)).sum() * 64, (lse * lse).mean()


@P(In((8192, 64)))
def switch_capacity(x: Tensor) -> Any:
    """One expert a token, as long as it has room."""
    p, i = x.softmax(-1).max(-1)
    one = F.one_hot(i, 64)
    place = (one.cumsum(0) * one).sum(-1) - 1
    ok = place < 160
    return torch.where(ok, p, 0.0), torch.where(ok, place, -1), i


@P(In((2, 8, 4096, 128), B))
def kv_zero_points(x: Tensor) -> Any:
    """A cache in bytes, from each row's least to its largest."""
    lo, hi = x.amin(-1, keepdim=True).float(), x.amax(-1, keepdim=True).float()
    s = (hi - lo).clamp(min=1e-5) / 255
    return ((x.float() - lo) / s).round().clamp(0, 255).to(torch.uint8), s.to(x.dtype), lo.to(x.dtype)


@P(In((4096, 8192), B))
def swiglu_blocks(x: Tensor) -> Any:
    """A gate, and its blocks of 128 in 8 bits."""
    a, b = x.chunk(2, -1)
    y = (F.silu(a) * b).view(4096, 32, 128).float()
    s = y.abs().amax(-1, keepdim=True) / 448
    return (y / s).to(torch.float8_e4m3fn).view(4096, 4096), s.squeeze(-1)


@P(In((8, 64, 64, 320), H), In((320,), H), In((320,), H))
def group_silu_last(x: Tensor, g: Tensor, b: Tensor) -> Any:
    """A group norm with channels last."""
    y = x.float().view(8, 4096, 32, 10)
    m = y.mean((1, 3), keepdim=True)
    v = y.var((1, 3), keepdim=True, unbiased=False)
    z = ((y - m) * torch.rsqrt(v + 1e-5)).view(8, 64, 64, 320) * g + b
    return F.silu(z).half()


@P(In((32, 256, 196)))
def covariance_pool(x: Tensor) -> Any:
    """Covariances of channels, by their trace."""
    d = x - x.mean(-1, keepdim=True)
    c = d @ d.mT / (x.shape[-1] - 1)
    return c / c.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]


@P(In((8192, 32000), B), In((8192,), high=32000))
def smoothed_loss(x: Tensor, y: Tensor) -> Any:
    """Smoothed labels, some left out."""
    y = torch.where(y % 7 == 0, -100, y)
    return F.cross_entropy(x.float(), y, ignore_index=-100, label_smoothing=0.1)


@P(In((2048, 32000), B), In((2048, 32000), B))
def distilled(s: Tensor, t: Tensor) -> Any:
    """What a teacher's distribution is of a student's."""
    mine, given = (F.log_softmax(x.float() / 2, -1) for x in (s, t))
    return F.kl_div(mine, given, log_target=True, reduction="batchmean") * 4


@P(In((1024, 768)), In((1024, 768)), In(()))
def clip_loss(a: Tensor, b: Tensor, t: Tensor) -> Any:
    """Both ways of a contrastive loss."""
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    s = a @ b.T * t.exp()
    y = torch.arange(1024, device=a.device)
    return (F.cross_entropy(s, y) + F.cross_entropy(s.T, y)) / 2


@P(In((4, 1024, 32000), B), In((4, 1024, 32000), B), In((4, 1024), high=32000), In((4, 1024), "f32", likely=0.8))
def dpo(p: Tensor, r: Tensor, y: Tensor, m: Tensor) -> Any:
    """Preferences of answers by two models."""
    def lp(x: Tensor) -> Tensor:
        return (x.float().log_softmax(-1).gather(-1, y[..., None]).squeeze(-1) * m).sum(-1)
    d = lp(p) - lp(r)
    return -F.logsigmoid(0.1 * (d[:2] - d[2:])).mean()


@P(In((8, 56, 56, 96), H), In((96,), H), In((96,), H))
def shifted_windows(x: Tensor, g: Tensor, b: Tensor) -> Any:
    """Windows of a normed picture, rolled."""
    y = F.layer_norm(x, (96,), g, b)
    y = torch.roll(y, (-3, -3), (1, 2))
    return y.view(8, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 96)


@P(In((8, 1024, 2048), B), In((2048,), B), In((2048,), B))
def token_shift(x: Tensor, a: Tensor, b: Tensor) -> Any:
    """Each token mixed with the one before."""
    prev = F.pad(x, (0, 0, 1, -1))
    return x + (prev - x) * a, x + (prev - x) * b


@P(In((2, 2048, 32, 128), B), In((2048, 64)))
def rope_pairs(x: Tensor, ang: Tensor) -> Any:
    """Neighbours turned."""
    c, s = ang.cos()[:, None], ang.sin()[:, None]
    a, b = x.float().unflatten(-1, (64, 2)).unbind(-1)
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2).to(x.dtype)


@P(In((8, 2048), high=2048))
def segment_bias(d: Tensor) -> Any:
    """Who sees whom, of packed documents, as a bias."""
    d = d // 400
    i = torch.arange(2048, device=d.device)
    ok = (d[:, None] == d[:, :, None]) & (i[:, None] >= i)
    return torch.where(ok, 0.0, float("-inf"))[:, None].half()


@P(In((64, 1024, 8)), In((64, 1024, 8)))
def boxes(a: Tensor, d: Tensor) -> Any:
    """Boxes from anchors."""
    w, h = a[..., 2] - a[..., 0], a[..., 3] - a[..., 1]
    cx, cy = a[..., 0] + 0.5 * w, a[..., 1] + 0.5 * h
    px, py = d[..., 0] * w + cx, d[..., 1] * h + cy
    pw, ph = d[..., 2].clamp(max=4).exp() * w, d[..., 3].clamp(max=4).exp() * h
    return torch.stack([px - pw / 2, py - ph / 2, px + pw / 2, py + ph / 2], -1)


@P(In((4096, 4096), B), In((4096, 4096), "f32", likely=0.9))
def dropped(x: Tensor, keep: Tensor) -> Any:
    """What a mask keeps, larger."""
    return torch.where(keep, x / 0.9, 0.0)


@P(In((8192, 64)), In((8192,), high=64))
def one_hot_loss(x: Tensor, y: Tensor) -> Any:
    """Smoothed labels, written out."""
    t = F.one_hot(y, 64).float() * 0.9 + 0.1 / 64
    return -(t * x.log_softmax(-1)).sum(-1)


@P(In((16, 80, 3000)))
def log_mel(x: Tensor) -> Any:
    """A picture of a sound, by its loudest."""
    y = (x.abs() + 1e-10).log10()
    y = torch.maximum(y, y.amax((1, 2), keepdim=True) - 8)
    return (y + 4) / 4


@P(In((64, 16000)))
def framed(x: Tensor) -> Any:
    """Loudness of frames that overlap."""
    f = x.unfold(-1, 400, 160) * torch.hann_window(400, device=x.device)
    return f.pow(2).mean(-1).sqrt()


@P(In((8, 12, 197, 197), H))
def rollout(a: Tensor) -> Any:
    """Attention that is passed on."""
    a = a.mean(1) + torch.eye(197, device=a.device, dtype=a.dtype)
    return a / a.sum(-1, keepdim=True)


@P(In((16, 3, 224, 224), B))
def patches(x: Tensor) -> Any:
    """A picture in pieces, as a transformer takes it."""
    return x.view(16, 3, 14, 16, 14, 16).permute(0, 2, 4, 1, 3, 5).reshape(16, 196, 768)
