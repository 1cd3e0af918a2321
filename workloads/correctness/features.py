"""Features of pictures: gates over channels and places, pooled descriptors, orientations, and matches of patches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import MILD, TAME, Program, label, made, of, positive, weight

# -- maps --------------------------------------------------------------------------------------------------------------


def se(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    s = x.mean((2, 3))
    s = torch.sigmoid(F.linear(F.relu(F.linear(s, w1)), w2))
    return x * s[:, :, None, None]


def cbam_channel(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    avg = F.adaptive_avg_pool2d(x, 1).flatten(1)
    top = F.adaptive_max_pool2d(x, 1).flatten(1)
    a = torch.relu(avg @ w1.t()) @ w2.t() + torch.relu(top @ w1.t()) @ w2.t()
    return x * a.sigmoid().unsqueeze(-1).unsqueeze(-1)


def cbam_spatial(x: Tensor) -> Tensor:
    s = torch.cat([x.max(1, keepdim=True)[0], x.mean(1, keepdim=True)], dim=1)
    return x * torch.sigmoid(s.sum(1, keepdim=True) - s.mean((1, 2, 3), keepdim=True))


def global_context(x: Tensor, w: Tensor) -> Tensor:
    """GCNet: one attention over all places."""
    f = x.flatten(2)
    a = torch.softmax(torch.einsum("c,bcn->bn", w, f), -1)
    return x + torch.bmm(f, a.unsqueeze(2)).unsqueeze(-1)


def simam(x: Tensor) -> Tensor:
    n = x.shape[2] * x.shape[3] - 1
    d = (x - x.mean(dim=[2, 3], keepdim=True)).pow(2)
    v = d.sum(dim=[2, 3], keepdim=True) / n
    return x * torch.sigmoid(d / (4 * (v + 1e-4)) + 0.5)


def generalised_mean(x: Tensor, p: Tensor) -> Tensor:
    """GeM with a learnt exponent, normalised."""
    return F.normalize(x.clamp(min=1e-6).pow(p).mean((-1, -2)).pow(1.0 / p), dim=-1)


def netvlad(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    x = F.normalize(x, p=2, dim=1)
    a = F.softmax(torch.einsum("kc,bcn->bkn", w, x), dim=1)
    v = torch.einsum("bkn,bcn->bkc", a, x) - a.sum(-1)[..., None] * c
    return F.normalize(F.normalize(v, dim=2).flatten(1), dim=1)


def superpixels(f: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Soft assignments and the centres that they give."""
    d = f.square().sum(-1, keepdim=True) + c.square().sum(-1)[:, None] - 2 * f @ c.mT
    q = (-d).softmax(-1)
    new = q.mT @ f / q.sum(1).clamp(min=1e-6)[..., None]
    return new, d.amin(-1)


def deformable(v: Tensor, offs: Tensor, logits: Tensor, at: Tensor) -> Tensor:
    """Values gathered at sampling places, weights of a softmax over levels and points."""
    q = logits.shape[1]
    w = logits.softmax(-1) * torch.exp(-offs.pow(2))
    g = torch.gather(v.unsqueeze(1).expand(-1, q, -1, -1, -1), 2,
                     at.permute(0, 1, 3, 2)[..., None].expand(-1, -1, -1, -1, v.shape[-1]))
    return (g.permute(0, 1, 3, 2, 4) * w.unsqueeze(-1)).sum(3).flatten(2)


# -- patches -----------------------------------------------------------------------------------------------------------


def dual_softmax(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """LoFTR: both softmaxes, mutual nearest neighbours above a threshold."""
    s = torch.einsum("bnc,bmc->bnm", f, g) / 0.1 / f.shape[-1]
    conf = F.softmax(s, 1) * F.softmax(s, 2)
    mask = conf > 0.0
    mask = mask & (conf == conf.max(dim=2, keepdim=True)[0]) & (conf == conf.max(dim=1, keepdim=True)[0])
    return conf, mask.any(2)


def ncc(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.flatten(1), b.flatten(1)
    a = (a - a.mean(1, keepdim=True)) / (a.std(1, unbiased=False, keepdim=True) + 1e-5)
    b = (b - b.mean(1, keepdim=True)) / (b.std(1, unbiased=False, keepdim=True) + 1e-5)
    return (a @ b.t()) / a.shape[1]


def zncc(a: Tensor, b: Tensor) -> Tensor:
    """Of patches in a search window: one centred template, many windows."""
    a0 = a - a.mean((-1, -2), keepdim=True)
    b0 = b - b.mean(dim=(-2, -1), keepdim=True)
    num = (a0[:, None] * b0).sum((-1, -2))
    den = (a0.pow(2).sum((-1, -2))[:, None] * b0.pow(2).sum((-1, -2))).sqrt()
    return torch.where(den > 1e-6, num / den, torch.zeros_like(den))


def census(x: Tensor) -> tuple[Tensor, Tensor]:
    """Census of 3 x 3: distances between rows that lie below one another."""
    p = F.unfold(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3).view(x.shape[0], 9, *x.shape[2:])
    bits = (p > x).to(torch.int32)
    return (bits[:, :, 1:] != bits[:, :, :-1]).sum(1), bits.sum(1).float().mean((1, 2))


def ratio_test(d: Tensor) -> tuple[Tensor, Tensor]:
    """Lowe's."""
    two = d.topk(2, dim=-1, largest=False).values
    ok = two[..., 0] < 0.8 * two[..., 1]
    return torch.where(ok, two[..., 0], torch.full_like(two[..., 0], float("inf"))), ok.float().mean(-1)


def root_sift(x: Tensor) -> Tensor:
    x = x.clone()
    x /= x.norm(dim=-1, keepdim=True) + 1e-7
    x.clamp_(max=0.2)
    x = x / x.abs().sum(-1, keepdim=True).clamp(min=1e-12)
    return x.sqrt()


def hog(mag: Tensor, angle: Tensor) -> Tensor:
    """Orientations in nine bins, blocks normalised twice (L2-Hys)."""
    k = torch.floor(angle * 9 / math.pi).long() % 9
    h = (F.one_hot(k, 9) * mag[..., None]).sum(-2)
    h = h / torch.sqrt(h.square().sum(-1, keepdim=True) + 1e-10)
    h = h.clamp(max=0.2)
    return h / torch.sqrt(h.square().sum(-1, keepdim=True) + 1e-10)


def harris(ix: Tensor, iy: Tensor) -> Tensor:
    a, b, c = (ix * ix).mean(-1), (iy * iy).mean(-1), (ix * iy).mean(-1)
    r = a * b - c * c - 0.05 * (a + b) ** 2
    return r / r.abs().amax(-1, keepdim=True).clamp(min=1e-12)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "scenes")
    yield p("f32 2x32x17x33 se", se, of("x", 2, 32, 17, 33), weight("w1", 4, 32), weight("w2", 32, 4))
    yield p("bf16 2x32x9x17 cbam channel", cbam_channel, of("x", 2, 32, 9, 17, dtype="bf16"), weight("w1", 4, 32, dtype="bf16"),
            weight("w2", 32, 4, dtype="bf16"))
    yield p("f32 2x32x9x17 cbam spatial", cbam_spatial, of("x", 2, 32, 9, 17))
    yield p("f32 2x32x17x33 global context", global_context, of("x", 2, 32, 17, 33), weight("w", 32))
    yield p("f16 2x5x17x33 simam", simam, of("x", 2, 5, 17, 33, dtype="f16"))
    yield p("f32 2x33x9x17 generalised mean", generalised_mean, of("x", 2, 33, 9, 17), weight("p", 1, scale=0.1, shift=3.0),
            only=TAME)
    yield p("f32 2x16x130x8 netvlad", netvlad, of("x", 2, 16, 130), of("w", 8, 16), of("c", 8, 16), only=TAME)
    yield p("f32 2x257x9x5 superpixels", superpixels, of("f", 2, 257, 5), of("c", 2, 9, 5), only=("normal", "ties", "zeros"))
    yield p("f16 2x33x4x12 deformable", deformable, of("v", 2, 65, 4, 16, dtype="f16"), of("offs", 2, 33, 4, 12, dtype="f16"),
            of("logits", 2, 33, 4, 12, dtype="f16"), label("at", 2, 33, 4, 12, high=65))

    yield p("f32 2x65x70x16 dual softmax", dual_softmax, of("f", 2, 65, 16), of("g", 2, 70, 16), only=("normal",))
    yield p("f32 65x33x49 ncc", ncc, of("a", 65, 7, 7), of("b", 33, 7, 7))
    yield p("f32 33x9x7x7 zncc", zncc, of("a", 33, 7, 7), of("b", 33, 9, 7, 7), only=("normal", "outlier"))
    yield p("f32 2x1x17x33 census", census, of("x", 2, 1, 17, 33))
    yield p("f32 65x130 ratio test", ratio_test, positive("d", 65, 130))
    yield p("f32 65x128 root sift", root_sift, positive("x", 65, 128))
    yield p("f32 65x64 hog", hog, positive("mag", 65, 64), of("angle", 65, 64), only=MILD)
    yield p("f32 3x130x25 harris", harris, of("ix", 3, 130, 25), of("iy", 3, 130, 25))
