"""Statistics as they are pasted: moments, means of several kinds, metrics of signals and images, distances and similarities,
over axes and layouts of all sorts, and reductions that share a row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, Program, made, of

# -- statistics --------------------------------------------------------------------------------------------------------


def moments(x: Tensor, w: Tensor) -> list[Tensor]:
    """Weighted, four of them, with the effective sample size."""
    w = w / w.sum(-1, keepdim=True)
    m = (w * x).sum(-1, keepdim=True)
    c = x - m
    v = (w * c.square()).sum(-1)
    sd = v.clamp_min(1e-12).sqrt()
    return [m.squeeze(-1), v, (w * c ** 3).sum(-1) / sd ** 3, (w * c ** 4).sum(-1) / sd ** 4 - 3, 1 / (w * w).sum(-1)]


def si_sdr(x: Tensor, y: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    y = y - y.mean(-1, keepdim=True)
    a = (x * y).sum(-1, keepdim=True) / (y.pow(2).sum(-1, keepdim=True) + 1e-8)
    t = a * y
    return 10 * torch.log10((t ** 2).sum(-1) / ((x - t) ** 2).sum(-1).add(1e-8) + 1e-8)


def psnr_r2(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    mse = ((x - y) ** 2).mean((1, 2, 3))
    peak = y.amax((1, 2, 3)) - y.amin(dim=(1, 2, 3))
    r2 = 1 - ((y - x) ** 2).sum((-3, -2, -1)) / (
        y - y.mean((-3, -2, -1), keepdim=True)).square().sum((-3, -2, -1)).clamp_min(1e-6)
    return 10 * torch.log10(peak.square().clamp_min(1e-6) / mse.clamp_min(1e-10)), r2


def corr_matrix(x: Tensor) -> Tensor:
    c = x - x.mean(dim=1, keepdim=True)
    c = c / (c.norm(dim=1, keepdim=True) + 1e-6)
    return c @ c.t()


def mahalanobis(x: Tensor, m: Tensor, p: Tensor) -> Tensor:
    d = x - m
    return torch.einsum("bi,ij,bj->b", d, p, d)


def means(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Geometric, harmonic, log-mean-exp, and a power mean through its maximum."""
    n = x.shape[-1]
    a = x.abs() + 1e-3
    return a.log().mean(-1).exp(), n / a.reciprocal().sum(-1), torch.logsumexp(x, -1) - math.log(n), \
        a.amax(-1) * (a / a.amax(-1, keepdim=True)).pow(4).mean(-1).pow(0.25)


def perplexity(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    lp = x.log_softmax(-1)
    nll = -lp.gather(2, y[..., None])[..., 0]
    return nll.mean(1).exp(), (lp.argmax(-1) == y).float().mean(1)


def effective(x: Tensor) -> tuple[Tensor, Tensor]:
    """Importance weights: the effective size by two routes."""
    w = torch.exp(x - torch.logsumexp(x, 1, keepdim=True))
    return 1.0 / (w ** 2).sum(1), torch.exp(2 * torch.logsumexp(x, 1) - torch.logsumexp(2 * x, 1))


def best_gathered(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    i = x.argmax(dim=1, keepdim=True)
    j = x.argmin(dim=1, keepdim=True)
    return torch.gather(y, 1, i).squeeze(1), y.take_along_dim(j, 1)[:, 0]


def odd_norms(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = x / (x.abs().sum(0, keepdim=True) + 1e-6)
    b = x / x.pow(2).sum(0).add(1e-12).sqrt()
    c = x / x.abs().amax(0).clamp(min=1e-4)
    return a.sum(0), b.amax(0), c.mean(0), (x - x.min(0).values) / (x.max(0).values - x.min(0).values + 1e-5)


def drawdown(x: Tensor) -> tuple[Tensor, Tensor]:
    """The deepest fall from a running maximum of a running sum."""
    path = x.cumsum(1)
    return (path.cummax(1).values - path).amax(1), path[:, -1]


def discounted(x: Tensor) -> Tensor:
    n = x.shape[-1]
    g = 0.99 ** torch.arange(n, device=x.device, dtype=x.dtype)
    ret = (x * g).flip(-1).cumsum(-1).flip(-1) / g
    return (ret - ret.mean(-1, keepdim=True)) / (ret.std(-1, keepdim=True) + 1e-8)


def welford(m1: Tensor, v1: Tensor, m2: Tensor, v2: Tensor) -> tuple[Tensor, Tensor]:
    """Chan's merge, then statistics of what was merged."""
    d = m2 - m1
    m = m1 + d * 0.25
    v = 0.75 * v1 + 0.25 * v2 + d * d * 0.75 * 0.25
    return (m / v.sqrt()).mean(-1), v.log().sum(-1)


def energy_distance(x: Tensor) -> Tensor:
    """Robust location by three reweighted steps (Cauchy weights)."""
    m = x.mean(-1, keepdim=True)
    for _ in range(3):
        w = 1 / (1 + (x - m).square())
        m = (w * x).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
    return m[:, 0]


# -- distances and similarities ----------------------------------------------------------------------------------------


def bilinear(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(((x @ w).float() * y.float()).sum(-1))


def rbf(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    d = x.pow(2).sum(-1, keepdim=True) + y.pow(2).sum(-1) - 2 * x @ y.T
    k = torch.exp(-d.clamp(min=0) / (2 * 4.0 ** 2))
    return k.sum(1), k.mean()


def softmin_dist(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    d = (x.pow(2).sum(-1)[:, None] + y.pow(2).sum(-1)[None] - 2 * x @ y.mT).clamp_min(1e-6).sqrt()
    p = F.softmin(d, dim=1)
    return p @ y, (p * d).sum(1)


def cosine_lse(x: Tensor, y: Tensor) -> Tensor:
    c = F.cosine_similarity(x[:, None, :], y[None, :, :], dim=-1)
    return torch.logsumexp(c * 20, dim=1) / 20


def soft_kmeans(x: Tensor, c: Tensor) -> Tensor:
    """One step: assignments, then centres as weighted means over points."""
    d = (x[:, None] - c[None]).square().sum(-1)
    a = torch.softmax(-d, dim=1)
    return (a.t() @ x) / (a.sum(0)[:, None] + 1e-6)


# -- axes and layouts --------------------------------------------------------------------------------------------------


def five(x: Tensor) -> tuple[Tensor, Tensor]:
    """Video: over dims out of order, then over one left."""
    m = x.mean(dim=(4, 1, 3), keepdim=True)
    v = ((x - m) ** 2).sum((-1, 1, -2))
    return (x - m).abs().amax((2, 0)), v.softmax(-1)


def whole_softmax(x: Tensor) -> Tensor:
    """Over everything: a plane's softmax, its peak and the same again."""
    p = x.flatten().softmax(0).view_as(x)
    return p / p.max()


def one_d(x: Tensor) -> dict[str, Any]:
    m = x.mean()
    c = x.sub(m)
    s = c.square().mean().sqrt()
    z = c.div(s + 1e-6)
    return {"z": z, "again": z, "pair": [s, (m, z.abs().max())]}


def crossed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Statistics along one axis scale the other; expanded and transposed operands."""
    a = x.transpose(0, 1)
    r = a.std(0, correction=0)
    e = y.expand(x.shape[1], -1)
    return (a / (r + 1e-3) * e.mean(1, keepdim=True)).sum(1), (a.T * r[:, None]).logsumexp((0, 1))


def in_place(x: Tensor) -> Tensor:
    h = x.clone()
    h -= h.amax(-1, keepdim=True)
    h.exp_()
    h /= h.sum(-1, keepdim=True)
    h[:, 0] = 0
    h[..., 1::2].mul_(2.0)
    return h.div_(h.sum(-1, keepdim=True).add_(1e-6))


def counted(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Integers summed, and a mean of floats by their count; bool all and any."""
    n = (y > 1).sum(-1)
    return y.sum(-1), (x * (y > 1)).sum(-1) / n.clamp(min=1), torch.logical_and((x > -9).all(-1), (y > 3).any(-1)).float()


def strided(x: Tensor) -> tuple[Tensor, Tensor]:
    a = x[:, ::3]
    b = x[:, 1::3].flip(1)
    n = min(a.shape[1], b.shape[1])
    return torch.logsumexp(a, 1) - torch.logsumexp(b, 1), (a[:, :n] * b[:, :n]).sum(1)


# -- what shares a row -------------------------------------------------------------------------------------------------


def scaled_and_soft(x: Tensor) -> tuple[Tensor, Tensor]:
    """A signed maximum and one of magnitudes, of a row that no tile ends with."""
    return x / x.abs().amax(-1, keepdim=True), x.softmax(-1)


def flatness(x: Tensor, y: Tensor) -> Tensor:
    """The mean error by the largest."""
    d = (x - y).abs()
    return d.mean(-1) / d.amax(-1)


def product_share(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1) / (x * y).amax(-1)


def outliers(x: Tensor) -> Tensor:
    """Is anything beyond three deviations?"""
    return ((x - x.mean(-1, keepdim=True)).abs() > 3 * x.std(-1, keepdim=True)).any(-1)


def confident(x: Tensor) -> tuple[Tensor, Tensor]:
    p = x.softmax(-1)
    return (p > p.std(-1, keepdim=True) * 0.01).all(-1), (p > p.mean(-1, keepdim=True) * 3).sum(-1)


def counted_max(x: Tensor) -> Tensor:
    """The largest of integers made of what a mean decides."""
    z = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
    return (z * 4).clamp(-100, 100).to(torch.int32).amax(-1)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "measured")
    yield p("f32 7x1025 effective", effective, of("x", 7, 1025, scale=2.0))
    yield p("f32 7x5000 moments", moments, of("x", 7, 5000, shift=2.0), of("w", 7, 5000, kind="positive"), only=CALM[:4])
    yield p("f32 4x5000 si-sdr", si_sdr, of("x", 4, 5000), of("y", 4, 5000))
    yield p("f32 5x3x33x31 psnr", psnr_r2, of("x", 5, 3, 33, 31), of("y", 5, 3, 33, 31))
    yield p("f32 70x300 correlations", corr_matrix, of("x", 70, 300, shift=1.0))
    yield p("f32 130x33 mahalanobis", mahalanobis, of("x", 130, 33), of("m", 33), of("p", 33, 33, kind="weight"))
    yield p("f32 9x1000 means", means, of("x", 9, 1000, scale=2.0))
    yield p("bf16 3x33x1000 perplexity", perplexity, of("x", 3, 33, 1000, dtype="bf16", scale=3.0),
            of("y", 3, 33, dtype="i64", kind="label", high=1000), only=("normal", "outlier"))
    yield p("f32 9x777 best gathered", best_gathered, of("x", 9, 777), of("y", 9, 777))
    yield p("f16 300x65 odd norms", odd_norms, of("x", 300, 65, dtype="f16"))
    yield p("f32 9x1000 drawdown", drawdown, of("x", 9, 1000))
    yield p("f32 9x300 discounted", discounted, of("x", 9, 300))
    yield p("f32 9x1000 welford", welford, of("m1", 9, 1000), of("v1", 9, 1000, kind="positive"), of("m2", 9, 1000),
            of("v2", 9, 1000, kind="positive"))
    yield p("f32 9x1000 cauchy", energy_distance, of("x", 9, 1000, shift=1.0))
    yield p("bf16 130x96x160 bilinear", bilinear, of("x", 130, 96, dtype="bf16"),
            of("w", 96, 160, dtype="bf16", kind="weight", scale=0.1), of("y", 130, 160, dtype="bf16"))
    yield p("f32 130x7x300 rbf", rbf, of("x", 130, 7), of("y", 300, 7))
    yield p("f32 130x24x200 softmin", softmin_dist, of("x", 130, 24), of("y", 200, 24))
    yield p("f32 70x33x90 cosine lse", cosine_lse, of("x", 70, 33), of("y", 90, 33))
    yield p("f32 200x5x20 soft k-means", soft_kmeans, of("x", 200, 5), of("c", 20, 5))
    yield p("f32 3x4x5x6x33 five", five, of("x", 3, 4, 5, 6, 33))
    yield p("f32 33x70 whole softmax", whole_softmax, of("x", 33, 70, scale=3.0))
    yield p("f32 5000 one dimension", one_d, of("x", 5000))
    yield p("f32 77x50 crossed", crossed, of("x", 77, 50), of("y", 1, 33))
    yield p("f32 9x333 in place", in_place, of("x", 9, 333, scale=2.0))
    yield p("f32 9x777 counted", counted, of("y", 9, 777, dtype="i64", kind="label", high=5), of("x", 9, 777))
    yield p("f16 9x1000 strided", strided, of("x", 9, 1000, dtype="f16"))
    yield p("f32 65x300 scaled and soft", scaled_and_soft, of("x", 65, 300))
    yield p("bf16 5x1025 scaled and soft", scaled_and_soft, of("x", 5, 1025, dtype="bf16"))
    yield p("f32 64x33 flatness", flatness, of("x", 64, 33), of("y", 64, 33))
    yield p("f16 7x1000 flatness", flatness, of("x", 7, 1000, dtype="f16"), of("y", 7, 1000, dtype="f16"))
    yield p("f32 4x5000 product share", product_share, of("x", 4, 5000), of("y", 4, 5000), only=("normal", "outlier"))
    yield p("f32 7x1000 outliers", outliers, of("x", 7, 1000), only=("normal", "outlier"))
    yield p("bf16 9x96 outliers", outliers, of("x", 9, 96, dtype="bf16"), only=("normal", "outlier"))
    yield p("f32 9x777 confident", confident, of("x", 9, 777), only=("normal", "outlier"))
    yield p("f32 9x777 counted maximum", counted_max, of("x", 9, 777), only=("normal", "outlier"))
