"""Cascades as other fields than language models write them: vision, retrieval, points, graphs, physics, finance, control."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import HALVES, In, Program, alternate

Fn = Callable[..., Any]


# -- attention that is no softmax(q k) v ---------------------------------------------------------------------------------


def cosine_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Swin's second version: unit queries and keys, a bounded scale."""
    s = F.normalize(q.float(), dim=-1) @ F.normalize(k.float(), dim=-1).mT
    return (torch.softmax(s * min(10.0, 100.0), -1) @ v.float()).to(q.dtype)


def sigmoid_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q @ k.mT).float() * 0.125 - 5.0
    return (torch.sigmoid(s) @ v.float()).to(q.dtype)


def squared_relu_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = torch.relu((q @ k.mT).float() * 0.125) ** 2
    return ((a / (a.sum(-1, keepdim=True) + 1e-6)) @ v.float()).to(q.dtype)


def smoothed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Nadaraya and Watson: weights fall with the squared distance."""
    d = (q * q).sum(-1, keepdim=True) - 2.0 * (q @ k.mT) + (k * k).sum(-1)[..., None, :]
    w = torch.exp(-0.05 * d)
    return (w @ v) / w.sum(-1, keepdim=True)


def smoothed_safely(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    d = (q * q).sum(-1, keepdim=True) - 2.0 * (q @ k.mT) + (k * k).sum(-1)[..., None, :]
    return torch.softmax(-0.05 * d, -1) @ v


def signs_kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights of a signed softmax of magnitudes."""
    s = (q @ k.mT).float() * 0.125
    return ((torch.softmax(s.abs(), -1) * s.sign()) @ v.float()).to(q.dtype)


def renormalised(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """A mask multiplied in after the softmax, the rest scaled up."""
    p = torch.softmax((q @ k.mT).float() * 0.125, -1) * keep
    return ((p / p.sum(-1, keepdim=True).clamp_min(1e-9)) @ v.float()).to(q.dtype)


def block_diagonal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2], device=q.device) // 48
    s = (q @ k.mT) * 0.125
    return torch.softmax(s.masked_fill(i[:, None] != i[None, :], float("-inf")), -1) @ v


def dilated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every fourth key, and the neighbours."""
    n = torch.arange(q.shape[-2], device=q.device)
    gap = n[:, None] - n[None, :]
    seen = ((gap % 4 == 0) | (gap.abs() <= 8)) & (gap >= 0)
    return torch.softmax(torch.where(seen, (q @ k.mT).float() * 0.125, -1e30), -1).to(v.dtype) @ v


def decayed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Retention: weights decay with distance, rows are scaled by their absolute sum."""
    n = torch.arange(q.shape[-2], device=q.device)
    gap = (n[:, None] - n[None, :]).float()
    d = torch.where(gap >= 0, torch.exp(gap * -0.03), 0.0)
    a = (q @ k.mT).float() * 0.125 * d
    return ((a / a.abs().sum(-1, keepdim=True).clamp_min(1.0)) @ v.float()).to(q.dtype)


def expected_place(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Soft argmax: the mean place and its variance."""
    p = torch.softmax((q @ k.mT).float() * 0.125, -1)
    n = torch.arange(k.shape[-2], device=q.device, dtype=torch.float32)
    mean = (p * n).sum(-1, keepdim=True)
    return mean[..., 0], (p * (n - mean) ** 2).sum(-1)


def tempered(q: Tensor, k: Tensor, v: Tensor, tau: Tensor) -> Tensor:
    """A learned temperature for each query."""
    s = (q @ k.mT).float() * tau[..., None].float()
    return (torch.softmax(s, -1) @ v.float()).to(q.dtype)


def tempered_in_half(q: Tensor, k: Tensor, v: Tensor, tau: Tensor, bias: Tensor) -> Tensor:
    """The same with a bias of the keys, in half precision throughout."""
    return torch.softmax((q @ k.mT) * tau[..., None] + bias[:, None, :], -1) @ v


def certainty(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The result and how sure each row is."""
    s = (q @ k.mT).float() * 0.125
    p = torch.softmax(s, -1)
    return (p @ v.float()).to(q.dtype), p.amax(-1)


ATTENTION: dict[str, Fn] = {
    "cosine": cosine_attention, "sigmoid": sigmoid_attention, "squared relu": squared_relu_attention,
    "distance": smoothed, "distance softmax": smoothed_safely, "signed": signs_kept, "block diagonal": block_diagonal,
    "dilated": dilated, "decayed": decayed, "with certainty": certainty,
}


# -- pairs: retrieval, contrast, clouds of points ------------------------------------------------------------------------


def contrast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both directions of CLIP's loss, a row each."""
    s = (a @ b.mT).float() * 0.07
    return torch.logsumexp(s, -1) - s.diagonal(), torch.logsumexp(s, 0) - s.diagonal()


def contrast_others(a: Tensor) -> Tensor:
    """NT-Xent's denominator: everybody but oneself."""
    s = (a @ a.mT).float() * 0.1
    return torch.logsumexp(s.masked_fill(torch.eye(a.shape[0], dtype=torch.bool, device=a.device), float("-inf")), -1)


def hardest(a: Tensor, label: Tensor) -> Tensor:
    """Triplets: the farthest of one's own, the nearest of the others."""
    s = (a @ a.mT).float()
    same = label[:, None] == label[None, :]
    return torch.where(same, float("inf"), -s).amin(-1) - torch.where(same, -s, float("-inf")).amax(-1)


def chamfer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    d = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    return d.amin(1), d.amin(0)


def nearest(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    d = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    return d.min(-1)


def energy(x: Tensor, m: Tensor) -> Tensor:
    """The softened potential of every body in the field of all."""
    r = ((x[:, None, :] - x[None, :, :]) ** 2).sum(-1)
    return -(m[None, :] * torch.rsqrt(r + 0.01)).sum(-1)


def field(x: Tensor, m: Tensor) -> Tensor:
    gap = x[None, :, :] - x[:, None, :]
    w = m[None, :] * ((gap * gap).sum(-1) + 0.01) ** -1.5
    return (w[..., None] * gap).sum(1)


# -- rows ----------------------------------------------------------------------------------------------------------------


def spectral(a: Tensor, x: Tensor) -> Tensor:
    """A graph's step: neighbours' mean, by the row's degree."""
    return (a @ x) / a.sum(-1, keepdim=True).clamp_min(1.0)


def sharpe(x: Tensor) -> Tensor:
    return x.mean(-1) / (x.std(-1) + 1e-8) * 252**0.5


def drawn(x: Tensor) -> tuple[Tensor, Tensor]:
    """A path's range and its root mean square."""
    return x.amax(-1) - x.amin(-1), (x * x).mean(-1).sqrt()


def clipped(x: Tensor) -> Tensor:
    """Values beyond three deviations are cut before the mean."""
    m, s = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return x.clamp(m - 3 * s, m + 3 * s).mean(-1)


def huber(x: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(x, y, reduction="none").mean(-1)


def determination(x: Tensor, y: Tensor) -> Tensor:
    """One minus the residual's share of the variance."""
    return 1 - ((y - x) ** 2).sum(-1) / ((y - y.mean(-1, keepdim=True)) ** 2).sum(-1).clamp_min(1e-6)


def slope(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A least-squares line."""
    mx, my = x.mean(-1, keepdim=True), y.mean(-1, keepdim=True)
    b = ((x - mx) * (y - my)).sum(-1, keepdim=True) / ((x - mx) ** 2).sum(-1, keepdim=True).clamp_min(1e-6)
    return b[..., 0], (my - b * mx)[..., 0]


def jensen(x: Tensor, y: Tensor) -> Tensor:
    p, q = torch.softmax(x, -1), torch.softmax(y, -1)
    m = 0.5 * (p + q)
    return 0.5 * ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1))


def focal(x: Tensor, y: Tensor) -> Tensor:
    lp = torch.log_softmax(x.float(), -1).gather(-1, y[:, None])[:, 0]
    return -((1 - lp.exp()) ** 2) * lp


def advantage(q: Tensor) -> tuple[Tensor, Tensor]:
    """Soft values of a policy, and what each action is worth beyond them."""
    v = 0.5 * torch.logsumexp(q / 0.5, -1, keepdim=True)
    return v[..., 0], torch.exp((q - v) / 0.5)


def plain_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """A diffusion block's norm."""
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]


def standard_weights(w: Tensor) -> Tensor:
    m = w.mean((1, 2, 3), keepdim=True)
    return (w - m) / (w.var((1, 2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()


def response(x: Tensor) -> Tensor:
    """ConvNeXt's global response: the norm over places by its mean over channels."""
    g = x.float().norm(dim=1, keepdim=True)
    return (x * (g / (g.mean(-1, keepdim=True) + 1e-6))).to(x.dtype)


def squeeze(x: Tensor) -> Tensor:
    """Channels gated by their own mean."""
    return x * torch.sigmoid(x.float().mean(1, keepdim=True)).to(x.dtype)


def peaks(x: Tensor) -> tuple[Tensor, Tensor]:
    """Where a heat map's mass lies, along both axes."""
    p = torch.softmax(x.float().flatten(1), -1).view(x.shape)
    places = torch.arange(x.shape[-1], device=x.device, dtype=torch.float32)
    return (p.sum(1) * places).sum(-1), (p.sum(2) * torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)).sum(-1)


def ticks(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric four bits a group of 64."""
    g = x.float().unflatten(-1, (-1, 64))
    s = (g.abs().amax(-1, keepdim=True) / 7).clamp_min(1e-8)
    return (g / s).round().clamp(-8, 7).to(torch.int8).flatten(-2), s[..., 0]


def asymmetric(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = x.float()
    lo, hi = h.amin(-1, keepdim=True), h.amax(-1, keepdim=True)
    s = ((hi - lo) / 255).clamp_min(1e-8)
    z = (-lo / s).round()
    return ((h / s).round() + z).clamp(0, 255).to(torch.uint8), s, z


def gated(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Experts by sigmoid scores, a bias in the choice and not in the weight."""
    s = torch.sigmoid(x.float())
    chosen = (s + bias.float()).topk(4, -1).indices
    w = s.gather(-1, chosen)
    return w / w.sum(-1, keepdim=True) * 2.5, chosen


def gate_scores(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(x.float()) + bias.float()
    return s, s


ROWS: dict[str, Fn] = {"sharpe": sharpe, "range and rms": drawn, "clipped mean": clipped}
PAIRS: dict[str, Fn] = {"huber": huber, "determination": determination, "slope": slope, "jensen": jensen}


def attentions() -> Iterator[Program]:
    for dtype in HALVES:
        ins = tuple(In(n, (2, 150, 64), dtype) for n in "qkv")
        for what, fn in ATTENTION.items():
            yield Program("elsewhere", f"{dtype} 2x150 {what}", fn, ins)
        keep = In("keep", (2, 150, 150), "bool", "keep")
        yield Program("elsewhere", f"{dtype} 2x150 renormalised", renormalised, (*ins, keep))
        tau, bias = In("tau", (2, 150), dtype, "positive"), In("bias", (2, 150), dtype)
        yield Program("elsewhere", f"{dtype} 2x150 tempered", tempered, (*ins, tau))
        yield Program("elsewhere", f"{dtype} 2x150 tempered in half", tempered_in_half, (*ins, tau, bias))
        yield Program("elsewhere", f"{dtype} 2x150 expected place", expected_place, ins[:2])
        yield Program("elsewhere", f"{dtype} contrast", contrast, (In("a", (200, 64), dtype), In("b", (200, 64), dtype)))
        yield Program("elsewhere", f"{dtype} contrast others", contrast_others, (In("a", (200, 64), dtype),))
        label = In("label", (200,), "i64", "label", high=5)
        yield Program("elsewhere", f"{dtype} hardest", hardest, (In("a", (200, 64), dtype), label))
        near = In("a", (300, 300), dtype, "positive")
        yield Program("elsewhere", f"{dtype} graph step", spectral, (near, In("x", (300, 72), dtype)))


def rows() -> Iterator[Program]:
    for dtype in ("f32", "bf16"):
        for what, fn in ROWS.items():
            yield Program("elsewhere", f"{dtype} 11x1250 {what}", fn, (In("x", (11, 1250), dtype, shift=0.5),))
        for what, fn in PAIRS.items():
            yield Program("elsewhere", f"{dtype} 11x1250 {what}", fn, (In("x", (11, 1250), dtype), In("y", (11, 1250), dtype)))
        yield Program("elsewhere", f"{dtype} 130x1000 focal", focal, (In("x", (130, 1000), dtype),
                                                                      In("y", (130,), "i64", "label", high=1000)))
        yield Program("elsewhere", f"{dtype} 70x18 advantage", advantage, (In("q", (70, 18), dtype),))
        ins = (In("x", (3, 77, 320), dtype), In("shift", (3, 320), dtype), In("scale", (3, 320), dtype))
        yield Program("elsewhere", f"{dtype} 3x77x320 modulated", modulated, ins)
        for n in (320, 384, 640, 800, 1152):
            yield Program("elsewhere", f"{dtype} 37x{n} norm", plain_norm, (In("x", (37, n), dtype, shift=0.5),))
        yield Program("elsewhere", f"{dtype} 65x32x3x3 standard weights", standard_weights, (In("w", (65, 32, 3, 3), dtype),))
        yield Program("elsewhere", f"{dtype} 3x196x96 response", response, (In("x", (3, 196, 96), dtype),))
        yield Program("elsewhere", f"{dtype} 3x196x96 squeeze", squeeze, (In("x", (3, 196, 96), dtype),))
        yield Program("elsewhere", f"{dtype} 17x48x40 peaks", peaks, (In("x", (17, 48, 40), dtype),))
        yield Program("elsewhere", f"{dtype} 33x512 four bits", ticks, (In("x", (33, 512), dtype),))
        yield Program("elsewhere", f"{dtype} 33x777 asymmetric", asymmetric, (In("x", (33, 777), dtype),))
        ins = (In("x", (129, 64), dtype), In("bias", (64,), dtype, scale=0.1))
        yield Program("elsewhere", f"{dtype} 129x64 gated", gated, ins, ranked=gate_scores)


def clouds() -> Iterator[Program]:
    points = (In("x", (130, 3), "f32"), In("y", (257, 3), "f32"))
    yield Program("elsewhere", "f32 130x257 chamfer", chamfer, points)
    yield Program("elsewhere", "f32 130x257 nearest", nearest, points, only=("normal", "outlier", "big"))
    bodies = (In("x", (300, 3), "f32"), In("m", (300,), "f32", "positive"))
    yield Program("elsewhere", "f32 300 potential", energy, bodies)
    yield Program("elsewhere", "f32 300 field", field, bodies)


def programs() -> Iterator[Program]:
    yield from alternate(attentions())
    yield from alternate(rows())
    yield from clouds()
