"""Classes of places and of pixels: focal losses, overlaps of masks, costs of matching masks, panoptic maps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import Program, label, made, mask, of


def focal(logits: Tensor, target: Tensor) -> Tensor:
    """RetinaNet: label 0 is background, 1 is to be ignored."""
    hot = F.one_hot(target, logits.shape[-1])[..., 2:].to(logits.dtype)
    x = logits[..., 2:]
    p = x.sigmoid()
    ce = F.binary_cross_entropy_with_logits(x, hot, reduction="none")
    pt = p * hot + (1 - p) * (1 - hot)
    loss = (0.25 * hot + 0.75 * (1 - hot)) * ce * (1 - pt) ** 2
    valid = (target != 1).unsqueeze(-1)
    return (loss * valid).sum() / (target > 1).sum().clamp(min=1)


def gaussian_focal(logits: Tensor, heat: Tensor) -> Tensor:
    """CenterNet's."""
    p = torch.clamp(logits.sigmoid(), min=1e-4, max=1 - 1e-4)
    pos, neg = heat.eq(1).float(), heat.lt(1).float()
    pl = torch.log(p) * torch.pow(1 - p, 2) * pos
    nl = torch.log(1 - p) * torch.pow(p, 2) * torch.pow(1 - heat, 4) * neg
    n = pos.sum()
    return torch.where(n == 0, -nl.sum(), -(pl.sum() + nl.sum()) / n.clamp(min=1))


def multiclass_focal(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logp = F.log_softmax(logits, dim=1)
    ignore = target == 0
    lp = logp.gather(1, target.unsqueeze(1)).squeeze(1)
    loss = -((1 - lp.exp()) ** 2) * lp
    loss = loss.masked_fill(ignore, 0.0)
    return loss.sum() / (~ignore).sum(), loss.amax((1, 2))


def dice(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Per class, classes that are not there left out of the mean."""
    p = logits.softmax(1)
    hot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).to(p.dtype)
    dims = (0, 2, 3)
    inter, total = (p * hot).sum(dims), (p + hot).sum(dims)
    d = (2 * inter + 1) / (total + 1)
    there = hot.sum(dims) > 0
    return d, 1 - (d * there).sum() / there.sum()


def tversky(logits: Tensor, target: Tensor) -> Tensor:
    p, t = logits.sigmoid().flatten(1), target.flatten(1).float()
    tp, fp, fn = (p * t).sum(1), (p * (1 - t)).sum(1), ((1 - p) * t).sum(1)
    return (1 - (tp + 1) / (tp + 0.3 * fp + 0.7 * fn + 1)).pow(0.75).mean()


def mask_cost(masks: Tensor, gt: Tensor) -> Tensor:
    """Mask2Former: sigmoid and dice costs by products."""
    x, t = masks.flatten(1), gt.flatten(1).float()
    pos, neg = F.softplus(-x), F.softplus(x)
    ce = (torch.einsum("nc,mc->nm", pos, t) + torch.einsum("nc,mc->nm", neg, 1 - t)) / x.shape[1]
    p = x.sigmoid()
    d = 1 - (2 * torch.einsum("nc,mc->nm", p, t) + 1) / (p.sum(-1)[:, None] + t.sum(-1)[None, :] + 1)
    return ce + d


def mean_iou(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    c = logits.shape[1]
    pred = F.one_hot(logits.argmax(1), c)
    true = F.one_hot(target, c)
    inter = (pred & true).flatten(1, 2).sum(1)
    union = (pred | true).flatten(1, 2).sum(1)
    iou = inter / union
    return iou, torch.nanmean(iou, dim=-1)


def panoptic(masks: Tensor, cls: Tensor) -> tuple[Tensor, Tensor]:
    """Which mask a pixel belongs to, weighted by its class's score; how sure."""
    score = cls.softmax(-1)[..., :-1].amax(-1)
    p = score[:, :, None, None] * masks.sigmoid()
    return p.amax(1), p.sum(1)


def programs() -> Iterator[Program]:
    p = partial(made, "scenes")
    yield p("f16 3x65x22 focal", focal, of("logits", 3, 65, 22, dtype="f16"), label("target", 3, 65, high=22))
    yield p("f32 2x3x17x33 gaussian focal", gaussian_focal, of("logits", 2, 3, 17, 33), of("heat", 2, 3, 17, 33))
    yield p("bf16 2x20x9x17 multiclass focal", multiclass_focal, of("logits", 2, 20, 9, 17, dtype="bf16"),
            label("target", 2, 9, 17, high=20))
    yield p("f32 2x7x9x17 dice", dice, of("logits", 2, 7, 9, 17), label("target", 2, 9, 17, high=5))
    yield p("f16 3x17x33 tversky", tversky, of("logits", 3, 17, 33, dtype="f16"), mask("target", 3, 17, 33))
    yield p("f32 20x9x17 mask cost", mask_cost, of("masks", 20, 9, 17), mask("gt", 7, 9, 17))
    yield p("f32 2x7x9x17 mean iou", mean_iou, of("logits", 2, 7, 9, 17), label("target", 2, 9, 17, high=6),
            only=("normal", "outlier"))
    yield p("f16 2x20x9x17 panoptic", panoptic, of("masks", 2, 20, 9, 17, dtype="f16"), of("cls", 2, 20, 8, dtype="f16"))
