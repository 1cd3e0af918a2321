"""Molecules, pictures, routing, sampling, recommenders: what the first four lists had none of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.small.spec import In, Programs

PROGRAMS = Programs()


@PROGRAMS(In((16, 3, 512, 512)))
def hue(x: Tensor) -> Tensor:
    r, g, b = x.sigmoid().unbind(1)
    every = torch.stack([r, g, b], 1)
    v = every.amax(1)
    d = (v - every.amin(1)).clamp(min=1e-6)
    h = torch.where(v == r, (g - b) / d, torch.where(v == g, 2 + (b - r) / d, 4 + (r - g) / d))
    return torch.stack([(h / 6) % 1.0, d / v.clamp(min=1e-6), v], 1)


@PROGRAMS(In((16, 512, 3)))
def lennard_jones(x: Tensor) -> Tensor:
    d2 = (x[:, :, None] - x[:, None]).pow(2).sum(-1)
    near = ~torch.eye(512, dtype=torch.bool, device=x.device) & (d2 < 6.25)
    i6 = (1 / torch.where(near, d2.clamp(min=0.3), 1.0)) ** 3
    return torch.where(near, 4 * (i6 * i6 - i6), 0.0).sum((1, 2)) * 0.5


@PROGRAMS(In((4096, 64)), In((4096, 64)))
def farthest_of_nearest(a: Tensor, b: Tensor) -> Tensor:
    d = torch.cdist(a, b)
    return torch.maximum(d.amin(1).amax(), d.amin(0).amax())


@PROGRAMS(In((8192, 2048), "f16"))
def best_of_four(x: Tensor) -> Tensor:
    return x.view(8192, 512, 4).amax(-1)


@PROGRAMS(In((4096, 4, 1024), "bf16"), In((4, 1024), "bf16", 0.05), In((4, 4)), In((1024,), "bf16"))
def hyper_connections(h: Tensor, w: Tensor, b: Tensor, n: Tensor) -> Tensor:
    d = F.rms_norm(h, (1024,), n)
    a = torch.tanh(torch.einsum("bnd,md->bnm", d, w).float()) * 0.1 + b
    return torch.einsum("bnm,bnd->bmd", a.softmax(1).to(h.dtype), h)


@PROGRAMS(In((65536, 4)), In((65536, 8, 3)))
def turned_points(q: Tensor, p: Tensor) -> Tensor:
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    r = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z),
                     1 - 2 * (x * x + z * z), 2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x),
                     1 - 2 * (x * x + y * y)], -1).view(-1, 3, 3)
    return torch.einsum("nij,npj->npi", r, p)


@PROGRAMS(In((16, 128, 128, 32)))
def softmax_of_heads_last(b: Tensor) -> Tensor:
    return b.permute(0, 3, 1, 2).softmax(-1)


@PROGRAMS(In((256, 1152, 10, 16), "f16"))
def routed_capsules(u: Tensor) -> Tensor:
    s = (torch.full((256, 1152, 10, 1), 0.1, device=u.device, dtype=u.dtype) * u).sum(1)
    n = s.float().pow(2).sum(-1, keepdim=True)
    v = (n / (1 + n) / (n + 1e-6).sqrt() * s).to(u.dtype)
    return (u * v[:, None]).sum(-1)


@PROGRAMS(In((16, 2, 440, 1024)), In((16, 2, 440, 1024)), In((16, 440, 1024), likely=0.7))
def flow_error(f: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    e = (f - g).pow(2).sum(1).sqrt()
    v = m & (g.pow(2).sum(1).sqrt() < 400)
    return (e * v).sum() / v.sum(), ((e > 3) & v).sum() / v.sum()


@PROGRAMS(In((16, 3, 512, 512)))
def total_variation(x: Tensor) -> Tensor:
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean((1, 2, 3)) + (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3))


@PROGRAMS(In((256, 100)), In((256, 100)))
def approximate_ndcg(s: Tensor, y: Tensor) -> Tensor:
    r = 1 + torch.sigmoid((s[:, None, :] - s[:, :, None]) / 0.1).sum(-1) - 0.5
    return ((2 ** y.clamp(0, 4) - 1) / torch.log2(1 + r)).sum(-1)


@PROGRAMS(In((8, 2048, 1024), "bf16"), In((1024, 4), "bf16"), In((1024,), "bf16"))
def causal_filter(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = b
    for k in range(4):
        y = y + F.pad(x, (0, 0, 3 - k, 0))[:, :2048] * w[:, k]
    return F.silu(y)


@PROGRAMS(In((4096, 50, 32), "f16"), In((4096, 32), "f16"), In((4096, 50), likely=0.7))
def interests(h: Tensor, q: Tensor, m: Tensor) -> Tensor:
    w = ((h * q[:, None]).sum(-1) / 32 ** 0.5).masked_fill(~m, -1e4).softmax(-1)
    return (w[..., None] * h).sum(1)


@PROGRAMS(In((64, 1024, 128)), In((64, 1024), likely=0.8))
def masked_statistics(x: Tensor, m: Tensor) -> Tensor:
    k = m[..., None].float()
    n = k.sum(1).clamp(min=1)
    mu = (x * k).sum(1) / n
    return torch.cat([mu, ((x - mu[:, None]).pow(2) * k).sum(1).div(n).sqrt()], -1)


@PROGRAMS(In((512, 512, 64)))
def triangle_gate(z: Tensor) -> Tensor:
    a, b = F.layer_norm(z, (64,)).chunk(2, -1)
    return a.sigmoid() * b


@PROGRAMS(In((64, 32000), scale=3))
def smallest_probability(x: Tensor) -> Tensor:
    p = F.softmax(x / 0.8, -1)
    return x.masked_fill(p < 0.05 * p.amax(-1, keepdim=True), float("-inf"))


@PROGRAMS(In((8192, 256)), In((256,), scale=0.1))
def grouped_router(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    s = x.sigmoid()
    c = (s + bias).view(-1, 8, 32)
    g = c.topk(2, -1).values.sum(-1)
    m = torch.zeros_like(g).scatter(1, g.topk(4, -1).indices, 1.0)
    i = c.masked_fill((m == 0)[..., None], 0.0).view(-1, 256).topk(8, -1).indices
    w = s.gather(1, i)
    return w / w.sum(-1, keepdim=True), i
