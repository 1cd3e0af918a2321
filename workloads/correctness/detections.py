"""Detection: boxes matched with the truth, suppressed by one another, pooled and scored, and key points."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import MILD, TAME, Program, label, made, mask, of


def corners(b: Tensor) -> Tensor:
    """Boxes of a centre and an extent."""
    cx, cy, w, h = b.unbind(-1)
    w, h = w.abs(), h.abs()
    return torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1)


def pair_iou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    wh = (torch.min(a[:, None, 2:], b[None, :, 2:]) - torch.max(a[:, None, :2], b[None, :, :2])).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    union = area_a[:, None] + area_b - inter
    return inter / union.clamp(min=1e-6), union


def anchors(a: Tensor, gt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Labels of anchors: above 0.7, below 0.3, and the best of each truth kept."""
    iou, _ = pair_iou(corners(a), corners(gt))
    best, _ = iou.max(dim=1)
    per_gt = iou.max(dim=0).values
    keep = (iou == per_gt[None]).any(1)
    labels = torch.full_like(best, -1.0)
    labels[best < 0.3] = 0
    labels[best >= 0.7] = 1
    return torch.where(keep, 1.0, labels), best, per_gt


def giou_cost(logits: Tensor, boxes: Tensor, gt: Tensor, label: Tensor) -> Tensor:
    """DETR's matching cost."""
    prob = logits.softmax(-1)
    a, b = corners(boxes), corners(gt)
    iou, union = pair_iou(a, b)
    wh = (torch.max(a[:, None, 2:], b[:, 2:]) - torch.min(a[:, None, :2], b[:, :2])).clamp(min=0)
    hull = wh[:, :, 0] * wh[:, :, 1]
    giou = iou - (hull - union) / hull.clamp(min=1e-6)
    return 5 * torch.cdist(boxes, gt, p=1) - prob[:, label] - 2 * giou


def focal_cost(logits: Tensor, label: Tensor) -> Tensor:
    p = logits.sigmoid()
    neg = 0.75 * p**2 * -(1 - p + 1e-8).log()
    pos = 0.25 * (1 - p) ** 2 * -(p + 1e-8).log()
    c = pos[:, label] - neg[:, label]
    return c - c.amin(dim=0, keepdim=True)


def simota(iou: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Dynamic k from the best overlaps, and the threshold in costs."""
    iou = iou.sigmoid()
    k = iou.topk(10, dim=1).values.sum(1).int().clamp(min=1)
    low = cost.topk(10, dim=1, largest=False).values
    return k, low.gather(1, (k - 1).clamp(max=9).long()[:, None])[:, 0]


def matrix_nms(masks: Tensor, scores: Tensor) -> Tensor:
    """SOLOv2's decay, masks sorted by score."""
    m = (masks > 0).flatten(1).float()
    n = m.shape[0]
    inter = m @ m.t()
    area = m.sum(1).expand(n, n)
    iou = (inter / (area + area.t() - inter).clamp(min=1)).triu(diagonal=1)
    comp = iou.max(0)[0].expand(n, n).t()
    decay = (torch.exp(-2.0 * iou**2) / torch.exp(-2.0 * comp**2)).min(0)[0]
    return scores * decay


def matrix_nms_linear(iou: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    iou = (iou.sigmoid() * (labels[:, None] == labels[None])).triu_(1)
    comp = iou.amax(0)
    return scores.sigmoid() * ((1 - iou) / (1 - comp[:, None])).amin(dim=0)


def soft_nms(iou: Tensor, scores: Tensor) -> Tensor:
    """One parallel step: the product of the decays of all that score higher."""
    higher = scores[None, :] > scores[:, None]
    decay = torch.where(higher, torch.exp(-iou.square() / 0.5), 1.0)
    return scores * decay.prod(-1)


def cluster_nms(iou: Tensor, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Fast NMS, and boxes merged by the overlaps that are left."""
    keep = iou.triu(diagonal=1).max(dim=0)[0] <= 0.5
    w = (iou > 0.5).to(boxes.dtype) * scores.sigmoid()[None] + 1e-7
    return torch.mm(w, boxes) / w.sum(1, keepdim=True), keep


def centre_peaks(h: Tensor) -> tuple[Tensor, Tensor]:
    """CenterNet: local maxima and the best of each class."""
    h = h.sigmoid()
    peak = F.max_pool2d(h, 3, stride=1, padding=1)
    h = h * (peak == h).float()
    return h.flatten(2).topk(10).values, h.flatten(1).amax(-1)


def integral(x: Tensor) -> tuple[Tensor, Tensor]:
    """GFL: the expectation of a distribution over distances, and the mean of its four largest parts."""
    p = F.softmax(x.reshape(-1, x.shape[-1]), dim=1)
    proj = torch.linspace(0, x.shape[-1] - 1, x.shape[-1], device=x.device)
    return F.linear(p, proj.type_as(p)[None]).reshape(x.shape[:-1]), p.topk(4, dim=1).values.mean(1)


def keypoints(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Soft-argmax of heat maps, coordinates in -1 .. 1, and their variance."""
    hh, ww = h.shape[-2:]
    p = h.flatten(2).softmax(-1).view_as(h)
    xs = torch.linspace(-1, 1, ww, device=h.device, dtype=torch.float32)
    ys = torch.linspace(-1, 1, hh, device=h.device, dtype=torch.float32)
    x = (p.sum(2) * xs).sum(-1)
    y = (p.sum(3) * ys).sum(-1)
    var = (p * ((xs[None, :] - x[..., None, None]) ** 2 + (ys[:, None] - y[..., None, None]) ** 2)).sum((-1, -2))
    return torch.stack([x, y], -1), p.amax((-1, -2)), var


def decode_keypoints(h: Tensor) -> tuple[Tensor, Tensor]:
    """The peak of each map, -1 where nothing is above 0."""
    v, at = h.flatten(2).max(-1)
    xy = torch.stack([at % h.shape[-1], torch.div(at, h.shape[-1], rounding_mode="floor")], -1).float()
    return torch.where((v > 0)[..., None], xy, -1.0), v


def ap(score: Tensor, hit: Tensor) -> Tensor:
    """Average precision of detections that lie sorted: precision made monotone from behind."""
    tp = hit.float().cumsum(-1)
    n = torch.arange(1, hit.shape[-1] + 1, device=hit.device)
    precision = tp / n
    envelope = precision.flip(-1).cummax(-1).values.flip(-1)
    return (envelope * hit).sum(-1) / hit.sum(-1).clamp(min=1) * score.mean(-1)


def roi_pool(f: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Regions as separable triangle weights, normalised."""
    c = torch.arange(f.shape[-1], device=f.device)
    r = torch.arange(f.shape[-2], device=f.device)
    wx = (1 - (x[:, None] - c).abs()).clamp(min=0)
    wy = (1 - (y[:, None] - r).abs()).clamp(min=0)
    wx, wy = wx / (wx.sum(-1, keepdim=True) + 1e-6), wy / (wy.sum(-1, keepdim=True) + 1e-6)
    return torch.einsum("chw,nh,nw->nc", f, wy, wx)


def programs() -> Iterator[Program]:
    p = partial(made, "scenes")
    yield p("f32 130x9 anchors", anchors, of("a", 130, 4), of("gt", 9, 4), only=("normal",))
    yield p("f32 130x91x9 giou cost", giou_cost, of("logits", 130, 91), of("boxes", 130, 4), of("gt", 9, 4),
            label("label", 9, high=91), only=TAME)
    yield p("f16 130x20x9 focal cost", focal_cost, of("logits", 130, 20, dtype="f16"), label("label", 9, high=20))
    yield p("f32 9x130 simota", simota, of("iou", 9, 130, shift=-1.0), of("cost", 9, 130), only=("normal",))
    yield p("f32 33x9x17 matrix nms", matrix_nms, of("masks", 33, 9, 17), of("scores", 33))
    yield p("f32 65 matrix nms linear", matrix_nms_linear, of("iou", 65, 65), of("scores", 65), label("labels", 65, high=4),
            only=MILD)
    yield p("f32 65 soft nms", soft_nms, of("iou", 65, 65), of("scores", 65))
    yield p("f32 65 cluster nms", cluster_nms, of("iou", 65, 65), of("boxes", 65, 4), of("scores", 65))
    yield p("f32 2x5x17x33 centre peaks", centre_peaks, of("h", 2, 5, 17, 33))
    yield p("f16 65x4x17 integral", integral, of("x", 65, 4, 17, dtype="f16"))
    yield p("f32 2x17x16x12 keypoints", keypoints, of("h", 2, 17, 16, 12), only=TAME)
    yield p("f16 2x5x33x17 keypoints", keypoints, of("h", 2, 5, 33, 17, dtype="f16"), only=TAME)
    yield p("f32 2x17x16x12 decode keypoints", decode_keypoints, of("h", 2, 17, 16, 12), only=("normal", "outlier", "big"))
    yield p("f32 5x130 ap", ap, of("score", 5, 130), mask("hit", 5, 130))
    yield p("f32 5x17x33x20 roi pool", roi_pool, of("f", 5, 17, 33), of("y", 20, scale=5.0, shift=8.0),
            of("x", 20, scale=10.0, shift=16.0), only=("normal", "zeros"))
