"""Losses of dense predictions, and physics: overlaps, focal weights, Boltzmann averages, energies and partition functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, TAME, Program, made, of

# -- dense losses ------------------------------------------------------------------------------------------------------


def dice(logits: Tensor, target: Tensor) -> Tensor:
    p = logits.sigmoid().flatten(2)
    t = target.flatten(2).float()
    inter = (p * t).sum(-1)
    return (1 - (2 * inter + 1.0) / (p.sum(-1) + t.sum(-1) + 1.0)).mean(1)


def dice_softmax(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    p = F.softmax(logits, dim=1)
    hot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).to(p.dtype)
    dims = (0, 2, 3)
    score = (2.0 * torch.sum(p * hot, dims) + 1e-5) / (torch.sum(p + hot, dims) + 1e-5)
    return 1 - score.mean(), F.cross_entropy(logits, target)


def tversky(logits: Tensor, t: Tensor) -> Tensor:
    p = torch.sigmoid(logits).view(logits.shape[0], -1)
    t = t.view(t.shape[0], -1).to(p.dtype)
    tp, fp, fn = (p * t).sum(1), (p * (1 - t)).sum(1), ((1 - p) * t).sum(1)
    return (1 - (tp + 1) / (tp + 0.3 * fp + 0.7 * fn + 1)).pow(0.75)


def focal(x: Tensor, t: Tensor) -> Tensor:
    """torchvision's sigmoid_focal_loss, over each image's positives."""
    t = t.float()
    ce = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    p = torch.sigmoid(x)
    pt = p * t + (1 - p) * (1 - t)
    loss = (0.25 * t + 0.75 * (1 - t)) * ce * (1 - pt) ** 2
    return loss.sum((1, 2)) / t.sum((1, 2)).clamp(min=1.0)


def focal_softmax(x: Tensor, target: Tensor) -> Tensor:
    logp = F.log_softmax(x, dim=-1)
    at = logp.gather(-1, target[:, None]).squeeze(-1)
    return (-((1 - at.exp()) ** 2) * at).mean()


def lovasz_gradient(sorted_truth: Tensor) -> Tensor:
    """Of truths in the order of their errors."""
    g = sorted_truth.float()
    total = g.sum(-1, keepdim=True)
    inter = total - g.cumsum(-1)
    union = total + (1 - g).cumsum(-1)
    jaccard = 1.0 - inter / union
    return torch.cat([jaccard[:, :1], jaccard[:, 1:] - jaccard[:, :-1]], -1)


def log_cosh(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    d = x - y
    return (d + F.softplus(-2.0 * d) - math.log(2.0)).mean(-1), torch.log1p((d / 2) ** 2).sum(-1)


# -- physics -----------------------------------------------------------------------------------------------------------


def boltzmann(e: Tensor, a: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An observable's average, the free energy and the heat capacity at each temperature."""
    beta = 1 / t[:, None]
    w = F.softmax(-beta * e[None, :], dim=1)
    mean = (w * e).sum(1)
    return w @ a, -t * torch.logsumexp(-beta * e, 1), ((w * (e - mean[:, None]) ** 2).sum(1)) / t ** 2


def jarzynski(work: Tensor) -> tuple[Tensor, Tensor]:
    """The free energy by exponential averaging, and the effective number of samples."""
    lw = -work / 0.6
    df = -0.6 * (torch.logsumexp(lw, dim=0) - math.log(work.shape[0]))
    w = torch.exp(lw - lw.max(dim=0, keepdim=True)[0])
    return df, w.sum(0) ** 2 / (w ** 2).sum(0)


def ising(s: Tensor, j: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    e = -0.5 * torch.einsum("bi,ij,bj->b", s, j, s) - (s * h).sum(-1)
    return e, torch.tanh(s @ j + h)


def hopfield(xi: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
    """The modern one's energy and its update."""
    s = xi @ stored.t()
    e = -torch.logsumexp(2.0 * s, -1) / 2.0 + 0.5 * xi.square().sum(-1)
    return torch.softmax(2.0 * s, -1) @ stored, e


def mean_field(x: Tensor, u: Tensor) -> Tensor:
    q = F.softmax(-u, dim=1)
    k = torch.exp(-0.5 * ((x.unsqueeze(2) - x.unsqueeze(1)) ** 2).sum(-1))
    return F.softmax(-u + torch.einsum("bij,bkj->bki", k, q), dim=1)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "energies")
    yield p("f32 3x4x33x31 dice", dice, of("logits", 3, 4, 33, 31), of("target", 3, 4, 33, 31, dtype="bool", kind="keep"))
    yield p("f32 2x5x33x31 dice softmax", dice_softmax, of("logits", 2, 5, 33, 31),
            of("target", 2, 33, 31, dtype="i64", kind="label", high=5))
    yield p("f16 5x33x31 tversky", tversky, of("logits", 5, 33, 31, dtype="f16"), of("t", 5, 33, 31, dtype="bool", kind="keep"),
            only=TAME)
    yield p("f32 4x65x20 focal", focal, of("x", 4, 65, 20), of("t", 4, 65, 20, dtype="bool", kind="keep"), only=TAME)
    yield p("f32 130x33 focal softmax", focal_softmax, of("x", 130, 33), of("target", 130, dtype="i64", kind="label", high=33),
            only=CALM)
    yield p("f32 9x777 lovasz", lovasz_gradient, of("sorted_truth", 9, 777, dtype="bool", kind="keep"))
    yield p("f32 33x257 log cosh", log_cosh, of("x", 33, 257), of("y", 33, 257))
    yield p("f32 20x1000 boltzmann", boltzmann, of("e", 1000), of("a", 1000), of("t", 20, kind="positive"), only=CALM)
    yield p("f32 257x33 jarzynski", jarzynski, of("work", 257, 33))
    yield p("f32 33x130 ising", ising, of("s", 33, 130), of("j", 130, 130, kind="weight", scale=0.1),
            of("h", 130, kind="weight"), only=TAME)
    yield p("f16 33x64x257 hopfield", hopfield, of("xi", 33, 64, dtype="f16", scale=0.3), of("stored", 257, 64, dtype="f16",
                                                                                         scale=0.3), only=CALM)
    yield p("f32 2x70x3x5 mean field", mean_field, of("x", 2, 70, 3), of("u", 2, 5, 70), only=TAME)
