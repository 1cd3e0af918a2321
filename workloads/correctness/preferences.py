"""Losses of preferences and of groups of samples: policies of language models, and rewards made white."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import MILD, TAME, Program, label, made, mask, of


def grpo(lp: Tensor, old: Tensor, ref: Tensor, r: Tensor, m: Tensor) -> Tensor:
    """[groups, samples, tokens], rewards [groups, samples]."""
    adv = ((r - r.mean(dim=1, keepdim=True)) / (r.std(dim=1, keepdim=True) + 1e-4)).unsqueeze(-1)
    ratio = torch.exp(lp - old)
    per = torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv)
    kl = torch.exp(ref - lp) - (ref - lp) - 1
    mk = m.to(lp.dtype)
    return -(((per - 0.04 * kl) * mk).sum(-1) / mk.sum(-1).clamp(min=1)).mean()


def rloo(r: Tensor, lp: Tensor, m: Tensor) -> Tensor:
    k = r.shape[1]
    base = (r.sum(1, keepdim=True) - r) / (k - 1)
    return -((r - base) * lp.masked_fill(~m, 0.0).sum(-1)).mean()


def dpo(pol: Tensor, ref: Tensor, y: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """[2, pairs, tokens, vocabulary]: chosen, rejected."""
    a = torch.gather(pol.log_softmax(-1), 3, y.unsqueeze(3)).squeeze(3)
    b = torch.gather(ref.log_softmax(-1), 3, y.unsqueeze(3)).squeeze(3)
    d = ((a - b) * m).sum(-1)
    margin = 0.1 * (d[0] - d[1])
    return -F.logsigmoid(margin).mean(), (margin > 0).float().mean()


def orpo(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    lp = logits.float().log_softmax(-1).gather(-1, y[..., None])[..., 0].mean(-1)
    odds = (lp[0] - lp[1]) - (torch.log1p(-torch.exp(lp[0])) - torch.log1p(-torch.exp(lp[1])))
    return -lp[0].mean() - 0.1 * F.logsigmoid(odds).mean(), odds


def kto(pol: Tensor, ref: Tensor, y: Tensor, good: Tensor) -> Tensor:
    lp = -F.cross_entropy(pol.transpose(1, 2), y, reduction="none").sum(-1)
    lr = -F.cross_entropy(ref.transpose(1, 2), y, reduction="none").sum(-1)
    kl = (lp - lr).mean().clamp(min=0)
    return torch.where(good, 1 - torch.sigmoid(0.1 * (lp - lr - kl)), 1 - torch.sigmoid(0.1 * (kl - (lp - lr)))).mean()


def whiten(x: Tensor, m: Tensor) -> Tensor:
    n = m.sum()
    mean = (x * m).sum() / n
    var = (((x - mean) ** 2) * m).sum() / n * (n / (n - 1))
    return (x - mean) * torch.rsqrt(var + 1e-8) * m


def soft_values(s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Exponentials tempered by hand, one literal after the other, and the temperature's soft maximum."""
    d = (s - s.max(dim=-1, keepdim=True).values) / 0.7 * 1.3
    w = torch.exp(d)
    z = w.sum(-1, keepdim=True)
    return (w / z) @ v, s.amax(-1) + z.squeeze(-1).log() * 0.7 / 1.3


def skewed(r: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of rewards in units of their own."""
    z = (r - r.mean(-1, keepdim=True)) / 255
    m2, m3 = z.pow(2).mean(-1), z.pow(3).mean(-1)
    return m3 / (m2 * m2.sqrt() + 1e-12), z * torch.rsqrt(m2[..., None] + 1e-6)


def programs() -> Iterator[Program]:
    c = partial(made, "control")
    yield c("f32 3x7x45 grpo", grpo, of("lp", 3, 7, 45), of("old", 3, 7, 45), of("ref", 3, 7, 45), of("r", 3, 7),
            mask("m", 3, 7, 45), only=MILD)
    yield c("f32 6x5x33 rloo", rloo, of("r", 6, 5), of("lp", 6, 5, 33), mask("m", 6, 5, 33))
    yield c("bf16 2x5x11x37 dpo", dpo, of("pol", 2, 5, 11, 37, dtype="bf16"), of("ref", 2, 5, 11, 37, dtype="bf16"),
            label("y", 2, 5, 11, high=37), mask("m", 2, 5, 11))
    yield c("f16 2x7x9x29 orpo", orpo, of("logits", 2, 7, 9, 29, dtype="f16"), label("y", 2, 7, 9, high=29), only=TAME)
    yield c("f32 9x7x23 kto", kto, of("pol", 9, 7, 23), of("ref", 9, 7, 23), label("y", 9, 7, high=23), mask("good", 9))
    yield c("f32 13x41 whiten", whiten, of("x", 13, 41), mask("m", 13, 41), only=TAME)
    for dt in ("f32", "bf16"):
        yield c(f"{dt} 3x17x29 soft values", soft_values, of("s", 3, 17, 29, dtype=dt), of("v", 3, 29, 11, dtype=dt))
    yield c("f32 13x133 skewed", skewed, of("r", 13, 133, scale=100.0), only=MILD)
