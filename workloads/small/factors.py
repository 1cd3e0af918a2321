"""Attention that is no softmax (softpick, sticks that are broken, positions that gates count), an indexer of sparse attention,
numbers of products' rows, samplers, preferences, windows, flows and flocks, costs of matching boxes and masks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness import factors
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()

P(*(In((8, 8, 1024, 64), "bf16"),) * 3)(factors.softpick)
P(In((256, 32768)))(factors.picked)
P(*(In((4, 8, 512, 64), "f16"),) * 3)(factors.sticks)
P(*(In((2, 8, 512, 64), "f16"),) * 3, In((64, 16), "f16", 0.2))(factors.counted)
P(In((512, 64, 128), "f16"), In((4096, 128), "f16"), In((512, 64)))(factors.index)
P(In((4, 16, 1024, 64), "f16"), In((4, 16, 1024, 64), "f16"))(factors.greatest)
P(In((4096, 4096)))(factors.soft)
P(In((2048, 252), scale=0.01))(factors.rolling)
P(In((16384, 64)), In((64,)), In((64,)), In((1,)))(factors.planar)


@P(In((64, 128256), "bf16", 3))
def above_deviation(x: Tensor) -> Tensor:
    """Top n sigma: the logits that are no more than a deviation below the largest."""
    x = x.float()
    return x.masked_fill(x < x.amax(-1, keepdim=True) - x.std(-1, keepdim=True), float("-inf")).softmax(-1)


@P(In((64, 128256), "bf16", 3))
def eta_sampling(x: Tensor) -> Tensor:
    lp = x.float().log_softmax(-1)
    p = lp.exp()
    h = -(p * lp).sum(-1, keepdim=True)
    least = torch.minimum(torch.full_like(h, 3e-4), math.sqrt(3e-4) * torch.exp(-h))
    return torch.where((p < least) & (p < p.amax(-1, keepdim=True)), float("-inf"), lp).softmax(-1)


@P(In((4, 512, 32000), "bf16", 2), In((4, 512), high=32000), In((4, 512), likely=0.8))
def simple_preference(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    lp = x.float().log_softmax(-1).gather(-1, y[..., None])[..., 0] * m
    r = 2.0 * lp.sum(-1) / m.sum(-1)
    return -F.logsigmoid(r[:2] - r[2:] - 0.5).mean()


@P(In((100, 16384), "f16"), In((40, 16384), "f16"))
def mask_matching(p: Tensor, t: Tensor) -> Tensor:
    t = (t > 0).to(p.dtype)
    no, yes = F.softplus(-p.float()).to(p.dtype), F.softplus(p.float()).to(p.dtype)
    entropy = (no @ t.T + yes @ (1 - t).T).float() / p.shape[1]
    s = p.sigmoid()
    overlap = 1 - (2 * (s @ t.T).float() + 1) / (s.float().sum(-1)[:, None] + t.float().sum(-1) + 1)
    return 5 * entropy + 5 * overlap


@P(In((1024, 1024)), In((1024, 1024)))
def shocks(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z, y = (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0)
    return (z * y).mean(0), z.pow(3).mean(0), z.pow(4).mean(0) - 3


@P(In((4096, 2)), In((4096, 2)))
def flock(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d = x[:, None] - x[None]
    n = (d.square().sum(-1) < 0.04).to(x.dtype)
    c = n.sum(-1, keepdim=True)
    return (n @ v) / c - v, (n @ x) / c - x, (d * n[..., None]).sum(1)
