"""Depth: its losses, stereo and flow by matching, and measurements fused over views."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import MILD, TAME, Program, made, mask, of, positive, weight


def silog(pred: Tensor, gt: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    g = torch.log(pred + 1e-6) - torch.log(gt + 1e-6)
    g = torch.where(keep, g, torch.zeros_like(g))
    n = keep.sum((1, 2))
    d = g.pow(2).sum((1, 2)) / n - 0.85 * (g.sum((1, 2)) / n) ** 2
    return torch.sqrt(d.clamp(min=0) + 1e-9) * 10, n


def silog_var(pred: Tensor, gt: Tensor) -> Tensor:
    g = (pred.log() - gt.log()).flatten(1)
    return (torch.var(g, dim=1) + 0.15 * torch.pow(torch.mean(g, 1), 2)).sqrt()


def midas(pred: Tensor, gt: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scale and shift by least squares, then the error."""
    m = keep.to(pred.dtype)
    a00, a01, a11 = (m * pred * pred).sum((1, 2)), (m * pred).sum((1, 2)), m.sum((1, 2))
    b0, b1 = (m * pred * gt).sum((1, 2)), (m * gt).sum((1, 2))
    det = a00 * a11 - a01 * a01
    s = torch.where(det != 0, (a11 * b0 - a01 * b1) / det, 0.0)
    t = torch.where(det != 0, (-a01 * b0 + a00 * b1) / det, 0.0)
    r = m * (s[:, None, None] * pred + t.view(-1, 1, 1) - gt)
    return s, t, (r * r).sum((1, 2)) / (2 * a11)


def berhu(pred: Tensor, gt: Tensor) -> Tensor:
    d = (pred - gt).abs()
    c = 0.2 * d.flatten(1).max(1).values[:, None, None]
    return torch.where(d <= c, d, (d**2 + c**2) / (2 * c + 1e-9)).mean((1, 2))


def delta_accuracy(pred: Tensor, gt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ratio = torch.max(pred / gt, gt / pred)
    rel = ((pred - gt).abs() / gt).mean(-1)
    return (ratio < 1.25).to(pred.dtype).mean(-1), (ratio < 1.25**2).sum(-1), rel


def soft_argmin(cost: Tensor) -> tuple[Tensor, Tensor]:
    """PSMNet's disparities, and how peaked the distribution is."""
    p = F.softmax(-cost, dim=1)
    d = torch.arange(cost.shape[1], dtype=p.dtype, device=p.device).view(1, -1, 1, 1)
    disp = torch.sum(p * d, 1, keepdim=True)
    ent = -(p * torch.log(p.clamp(min=1e-9))).sum(1)
    return disp, ent


def stereo(left: Tensor, right: Tensor) -> Tensor:
    """A winner of the correlation over all places left of it."""
    c = torch.einsum("chi,chj->hij", left, right) / math.sqrt(left.shape[0])
    i = torch.arange(c.shape[1], device=c.device)
    c = c.masked_fill(i[None, :] > i[:, None], float("-inf"))
    p = torch.softmax(c, -1)
    return i - (p * i).sum(-1)


def depth_planes(volume: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """MVSNet: expected depth and the mass of the four planes around it."""
    p = torch.softmax(volume, 1)
    depth = torch.einsum("bdhw,d->bhw", p, z)
    four = 4 * F.avg_pool3d(F.pad(p.unsqueeze(1), pad=(0, 0, 0, 0, 1, 2)), (4, 1, 1), stride=1, padding=0).squeeze(1)
    at = (p * torch.arange(z.shape[0], device=z.device, dtype=torch.float)[None, :, None, None]).sum(1).long()
    return depth, torch.gather(four, 1, at.unsqueeze(1)).squeeze(1)


def variance_volume(v: Tensor, keep: Tensor) -> Tensor:
    """Variances over views, of those that see the point."""
    m = keep[:, :, None].to(v.dtype)
    n = m.sum(0).clamp(min=1)
    s, ss = (v * m).sum(0), (v.pow(2) * m).sum(0)
    return ss.div(n).sub(s.div(n).pow(2))


def raft(f1: Tensor, f2: Tensor) -> tuple[Tensor, Tensor]:
    """GMFlow: global matching, flow as an expectation of coordinates."""
    b, c, h, w = f1.shape
    corr = torch.matmul(f1.flatten(2).permute(0, 2, 1), f2.view(b, c, -1)) / (c**0.5)
    prob = F.softmax(corr, dim=-1)
    y, x = torch.meshgrid(torch.arange(h, device=f1.device), torch.arange(w, device=f1.device), indexing="ij")
    grid = torch.stack([x, y], 0).float()
    g = grid.view(1, 2, -1).repeat(b, 1, 1).permute(0, 2, 1)
    flow = torch.matmul(prob.float(), g).view(b, h, w, 2).permute(0, 3, 1, 2) - grid
    return flow, prob.max(-1)[0].view(b, h, w)


def photometric(x: Tensor, warped: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest error over source views, where one is valid."""
    e = (x[:, None] - warped).abs().mean(2)
    e = e.masked_fill(~keep, float("inf"))
    best = e.min(1)[0]
    ok = torch.isfinite(best)
    return torch.where(ok, best, 0.0).sum((1, 2)) / ok.sum((1, 2)).clamp(min=1), ok


def occupancy(logits: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Log-odds of measurements, clamped, and the entropy of the map."""
    l = (torch.logit(logits.sigmoid(), eps=1e-4) * w).sum(-1).clamp(-3.5, 3.5)
    p = torch.sigmoid(l)
    return p, -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).mean(-1)


def tsdf(d: Tensor, w: Tensor, trunc: Tensor) -> tuple[Tensor, Tensor]:
    """Views fused into truncated distances; those behind the surface do not count."""
    t = torch.clamp(d / trunc, -1, 1)
    m = (d > -trunc).to(d.dtype) * w
    total = m.sum(0)
    return torch.where(total > 0, (t * m).sum(0) / total, torch.ones_like(total)), total


def programs() -> Iterator[Program]:
    p = partial(made, "scenes")
    yield p("f32 3x17x33 silog", silog, positive("pred", 3, 17, 33), positive("gt", 3, 17, 33), mask("keep", 3, 17, 33),
            only=(*TAME, "hidden", "open"))
    yield p("f32 3x17x33 silog var", silog_var, positive("pred", 3, 17, 33), positive("gt", 3, 17, 33))
    yield p("f32 3x17x33 midas", midas, of("pred", 3, 17, 33), of("gt", 3, 17, 33), mask("keep", 3, 17, 33),
            only=(*MILD, "hidden", "open"))
    yield p("f32 3x17x33 berhu", berhu, of("pred", 3, 17, 33), of("gt", 3, 17, 33))
    yield p("f16 3x1000 delta accuracy", delta_accuracy, positive("pred", 3, 1000, dtype="f16"),
            positive("gt", 3, 1000, dtype="f16"), only=("normal",))
    yield p("f32 2x48x9x17 soft argmin", soft_argmin, of("cost", 2, 48, 9, 17))
    yield p("f16 16x9x65 stereo", stereo, of("left", 16, 9, 65, dtype="f16"), of("right", 16, 9, 65, dtype="f16"))
    yield p("f32 2x33x9x17 depth planes", depth_planes, of("volume", 2, 33, 9, 17), weight("z", 33), only=("normal",))
    yield p("f32 5x130x16 variance volume", variance_volume, of("v", 5, 130, 16), mask("keep", 5, 130), only=(*MILD, "hidden"))
    yield p("f16 2x32x9x17 flow", raft, of("f1", 2, 32, 9, 17, dtype="f16"), of("f2", 2, 32, 9, 17, dtype="f16"))
    yield p("f32 2x3x3x9x17 photometric", photometric, of("x", 2, 3, 9, 17), of("warped", 2, 4, 3, 9, 17),
            mask("keep", 2, 4, 9, 17))
    yield p("f32 65x20 occupancy", occupancy, of("logits", 65, 20), weight("w", 65, 20))
    yield p("f32 9x1000 tsdf", tsdf, of("d", 9, 1000), positive("w", 9, 1000), positive("trunc"))
