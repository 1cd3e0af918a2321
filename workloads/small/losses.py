"""Losses and what they are made of."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.small.spec import In, Programs

PROGRAMS = Programs()


@PROGRAMS(In((4096, 256), "f16"), In((4096, 256), "f16"))
def infonce(a: Tensor, c: Tensor) -> Tensor:
    return -(F.normalize(a, dim=-1) @ F.normalize(c, dim=-1).T / 0.07).log_softmax(-1).diagonal()


@PROGRAMS(In((16384, 1000)), In((16384,), high=1000))
def focal(x: Tensor, t: Tensor) -> Tensor:
    lp = x.log_softmax(-1).gather(1, t[:, None])[:, 0]
    return -((1 - lp.exp()) ** 2) * lp


@PROGRAMS(In((4096, 32000), "f16"), In((4096,), high=32000))
def smoothed_cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), t, label_smoothing=0.1, reduction="none")


@PROGRAMS(In((2048, 32000), "bf16"), In((2048, 32000), "bf16"))
def distillation(s: Tensor, t: Tensor) -> Tensor:
    return F.kl_div((s.float() / 2).log_softmax(-1), (t.float() / 2).softmax(-1), reduction="none").sum(-1)


@PROGRAMS(In((8192, 1000)), In((8192, 1000)))
def jensen_shannon(a: Tensor, c: Tensor) -> Tensor:
    p, q = a.softmax(-1), c.softmax(-1)
    m = ((p + q) / 2).log()
    return 0.5 * ((p * (p.log() - m)).sum(-1) + (q * (q.log() - m)).sum(-1))


@PROGRAMS(In((4096, 1024), "f16"), In((4096,), high=1024))
def margin(x: Tensor, t: Tensor) -> Tensor:
    c = x.float().clamp(-1, 1)
    z = torch.where(F.one_hot(t, 1024).bool(), torch.cos(torch.acos(c * 0.99) + 0.5), c) * 64
    return z.log_softmax(-1).gather(1, t[:, None])


@PROGRAMS(In((256, 1024)), In((256, 1024)))
def barlow(a: Tensor, c: Tensor) -> Tensor:
    a, c = (a - a.mean(0)) / a.std(0), (c - c.mean(0)) / c.std(0)
    m = a.T @ c / 256
    return (m - torch.eye(1024, device=m.device)).pow(2).sum()


@PROGRAMS(In((16, 4, 256, 256)), In((16, 4, 256, 256)))
def dice(x: Tensor, t: Tensor) -> Tensor:
    p = torch.sigmoid(x)
    return 1 - (2 * (p * t).sum((2, 3)) + 1) / (p.sum((2, 3)) + t.sum((2, 3)) + 1)


@PROGRAMS(In((8, 4096, 8)), In((8, 4096, 8)))
def soft_overlap(p: Tensor, t: Tensor) -> Tensor:
    p = p.sigmoid()
    return (1 - (p * t).sum(1) / (p + t - p * t).sum(1)).mean(-1)


@PROGRAMS(In((512, 2048)), In((512, 2048)), In((512, 2048), likely=0.9))
def masked_correlation(a: Tensor, c: Tensor, m: Tensor) -> Tensor:
    w = m.float()
    n = w.sum(-1, keepdim=True)
    a, c = (a - (a * w).sum(-1, keepdim=True) / n) * w, (c - (c * w).sum(-1, keepdim=True) / n) * w
    return (a * c).sum(-1) / ((a * a).sum(-1) * (c * c).sum(-1)).sqrt()


@PROGRAMS(In((128, 4096, 16)))
def trimmed_mean(x: Tensor) -> Tensor:
    m, s = x.mean(1, keepdim=True), x.std(1, keepdim=True)
    w = (((x - m) / (s + 1e-6)).abs() < 3).float()
    return (x * w).sum(1) / w.sum(1)


@PROGRAMS(In((64, 2048)), In((64, 2048)), In((64, 2048)))
def advantages(r: Tensor, v: Tensor, d: Tensor) -> Tensor:
    delta = r[:, :-1] + 0.99 * v[:, 1:] * d[:, 1:] - v[:, :-1]
    return (delta - delta.mean()) / (delta.std() + 1e-8)


@PROGRAMS(In((65536, 512), "f16"))
def column_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.float().mean(0), x.float().var(0)


@PROGRAMS(In((65536, 256)))
def covariance(x: Tensor) -> Tensor:
    m = x.mean(0)
    return x.T @ x / x.shape[0] - torch.outer(m, m)


@PROGRAMS(In((256, 64, 64)))
def log_diagonal(x: Tensor) -> Tensor:
    return torch.logsumexp(x.diagonal(dim1=-2, dim2=-1).abs().log(), -1)


@PROGRAMS(In((1024, 1024)))
def balanced(x: Tensor) -> Tensor:
    return x / (x.abs().sum(1, keepdim=True) * x.abs().sum(0, keepdim=True)).sqrt()


@PROGRAMS(In((64, 300, 300)))
def ranged(x: Tensor) -> Tensor:
    low, high = x.amin((1, 2), keepdim=True), x.amax((1, 2), keepdim=True)
    return (x - low) / (high - low + 1e-6)
