"""Audio and statistics of features: levels, poolings, correlations, whitening, similarity of images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, TAME, Program, made, of

# -- audio -------------------------------------------------------------------------------------------------------------


def peak(x: Tensor) -> Tensor:
    return x / x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-8)


def loudness(x: Tensor) -> tuple[Tensor, Tensor]:
    """Frames to -23 dB."""
    rms = x.pow(2).mean(-1, keepdim=True).sqrt()
    db = 20 * torch.log10(rms.clamp(min=1e-5))
    return x * 10 ** ((-23 - db) / 20), db.squeeze(-1)


def log_mel(spec: Tensor, bank: Tensor) -> Tensor:
    """Whisper's, from a complex spectrum's two parts."""
    mel = bank @ spec.square().sum(-1)
    log_spec = torch.clamp(mel, min=1e-10).log10()
    log_spec = torch.maximum(log_spec, log_spec.amax(dim=(1, 2), keepdim=True) - 8.0)
    return (log_spec + 4.0) / 4.0


def log_mel_norm(power: Tensor, bank: Tensor) -> Tensor:
    """NeMo: per feature over time."""
    x = torch.log(torch.matmul(bank, power) + 2 ** -24)
    return (x - x.mean(dim=2, keepdim=True)) / (x.std(dim=2, keepdim=True) + 1e-5)


def pcen(e: Tensor, m: Tensor) -> Tensor:
    """Behind its smoother; and centred over the channels."""
    y = (e / (m + 1e-6) ** 0.98 + 2.0) ** 0.5 - 2.0 ** 0.5
    return y - y.mean(1, keepdim=True)


def cmvn(x: Tensor, keep: Tensor) -> Tensor:
    m = keep.unsqueeze(-1).to(x.dtype)
    n = m.sum(dim=1, keepdim=True).clamp(min=1)
    mean = (x * m).sum(1, keepdim=True) / n
    var = ((x - mean) ** 2 * m).sum(1, keepdim=True) / n
    return (x - mean) / torch.sqrt(var + 1e-5) * m


def standard(x: Tensor) -> Tensor:
    """Each row to a mean of 0 and a deviation of 1, its length counted by hand: no bfloat16 is 257."""
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    var = ((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / torch.sqrt(var + 1e-5)


def offset(x: Tensor) -> Tensor:
    """Without its constant part: no float16 is 70001."""
    return x - x.sum(-1, keepdim=True) / x.shape[-1]


def gain(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers that the dtype rounds, as factors."""
    y = x * 257
    return y, y.float().square().mean(-1)


def windows(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Energies of overlapping windows, and each to the loudest."""
    frames = x.unfold(-1, 64, 32) * w
    e = frames.square().sum(-1)
    return e, 10 * torch.log10(e.clamp_min(1e-10) / e.amax(-1, keepdim=True).clamp_min(1e-10))


def zscore_windows(x: Tensor) -> Tensor:
    f = x.unfold(1, 50, 25)
    return (f - f.mean(-1, keepdim=True)) / f.std(-1, keepdim=True).clamp(min=1e-6)


def si_snr(est: Tensor, ref: Tensor) -> Tensor:
    est = est - est.mean(-1, keepdim=True)
    ref = ref - ref.mean(-1, keepdim=True)
    dot = torch.sum(est * ref, dim=-1, keepdim=True)
    proj = dot * ref / (ref.pow(2).sum(-1, keepdim=True) + 1e-8)
    noise = est - proj
    return 10 * torch.log10(proj.pow(2).sum(-1) / (noise.pow(2).sum(-1) + 1e-8) + 1e-8)


def sdr(est: Tensor, ref: Tensor) -> Tensor:
    num = (ref ** 2).sum(dim=(1, 2)) + 1e-7
    den = ((ref - est) ** 2).sum(dim=(1, 2)) + 1e-7
    return -10 * torch.log10(num / den).mean()


def pearson(x: Tensor, y: Tensor) -> Tensor:
    vx, vy = x - torch.mean(x, 0), y - torch.mean(y, 0)
    return torch.sum(vx * vy, 0) / (torch.sqrt(torch.sum(vx ** 2, 0)) * torch.sqrt(torch.sum(vy ** 2, 0)) + 1e-8)


def concordance(x: Tensor, y: Tensor) -> Tensor:
    mx, my = x.mean(-1), y.mean(-1)
    cov = ((x - mx[:, None]) * (y - my[:, None])).mean(-1)
    return 2 * cov / (x.var(-1, unbiased=False) + y.var(-1, unbiased=False) + (mx - my) ** 2 + 1e-8)


# -- pooling -----------------------------------------------------------------------------------------------------------


def softmax_pool(x: Tensor, w: Tensor) -> Tensor:
    return (x * torch.softmax(x @ w, dim=1)).sum(1)


def clip_probability(att: Tensor, cla: Tensor) -> tuple[Tensor, Tensor]:
    """PANNs: attention over time, clipped classes."""
    a = torch.softmax(torch.tanh(att), dim=-1)
    c = torch.sigmoid(cla)
    return torch.clamp((a * c).sum(2), 0.0, 1.0), a


def attentive_statistics(h: Tensor, logits: Tensor, keep: Tensor) -> Tensor:
    """ECAPA-TDNN: a weighted mean and deviation of each channel."""
    a = F.softmax(logits.masked_fill(~keep[:, None, :], float("-inf")), dim=2)
    mean = (a * h).sum(2)
    std = torch.sqrt(((a * (h - mean.unsqueeze(2)) ** 2).sum(2)).clamp(1e-12))
    return torch.cat([mean, std], dim=1)


def netvlad(x: Tensor, s: Tensor, c: Tensor) -> Tensor:
    a = F.softmax(s, dim=1)
    v = torch.einsum("bkn,bdn->bkd", a, x) - a.sum(-1).unsqueeze(-1) * c[None]
    v = F.normalize(v, p=2, dim=2)
    return F.normalize(v.flatten(1), p=2, dim=1)


def gem(x: Tensor) -> Tensor:
    return F.avg_pool2d(x.clamp(min=1e-6).pow(3.0), (x.size(-2), x.size(-1))).pow(1 / 3.0).flatten(1)


def arcface(x: Tensor, w: Tensor, label: Tensor) -> Tensor:
    cos = F.linear(F.normalize(x), F.normalize(w)).clamp(-1 + 1e-6, 1 - 1e-6)
    sin = torch.sqrt(1.0 - cos.pow(2))
    phi = cos * math.cos(0.5) - sin * math.sin(0.5)
    phi = torch.where(cos > math.cos(math.pi - 0.5), phi, cos - math.sin(math.pi - 0.5) * 0.5)
    hot = torch.zeros_like(cos).scatter(1, label.view(-1, 1), 1.0)
    return F.cross_entropy(30.0 * (hot * phi + (1.0 - hot) * cos), label, reduction="none")


# -- statistics of features --------------------------------------------------------------------------------------------


def coral(s: Tensor, t: Tensor) -> Tensor:
    def cov(x: Tensor) -> Tensor:
        x = x - x.mean(0, keepdim=True)
        return x.t() @ x / (x.shape[0] - 1)
    return (cov(s) - cov(t)).pow(2).sum() / (4 * s.shape[1] ** 2)


def barlow(a: Tensor, b: Tensor) -> Tensor:
    a, b = (a - a.mean(0)) / (a.std(0) + 1e-5), (b - b.mean(0)) / (b.std(0) + 1e-5)
    c = a.T @ b / a.shape[0]
    on = (torch.diagonal(c) - 1).pow(2).sum()
    off = c.pow(2).sum() - torch.diagonal(c).pow(2).sum()
    return on + 0.005 * off


def vicreg(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    std = torch.sqrt(x.var(dim=0) + 1e-4), torch.sqrt(y.var(dim=0) + 1e-4)
    hinge = torch.mean(F.relu(1 - std[0])) / 2 + torch.mean(F.relu(1 - std[1])) / 2
    z = x - x.mean(dim=0)
    cov = (z.T @ z) / (x.shape[0] - 1)
    off = cov.masked_fill(torch.eye(x.shape[1], dtype=torch.bool, device=x.device), 0.0)
    return F.mse_loss(x, y) * 25 + 25 * hinge, off.pow(2).sum() / x.shape[1]


def style(f: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    b, c, h, w = f.shape
    flat = f.view(b, c, h * w)
    g = torch.bmm(flat, flat.transpose(1, 2)) / (c * h * w)
    return g, (g - target).square().mean()


def adain(x: Tensor, y: Tensor) -> Tensor:
    def stats(t: Tensor) -> tuple[Tensor, Tensor]:
        v = t.view(t.shape[0], t.shape[1], -1)
        return v.mean(2)[..., None, None], (v.var(dim=2) + 1e-5).sqrt()[..., None, None]
    (mx, sx), (my, sy) = stats(x), stats(y)
    return (x - mx) / sx * sy + my


def uniformity(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Wang & Isola."""
    x, y = F.normalize(x, dim=1), F.normalize(y, dim=1)
    d = 2 - 2 * x @ x.t()
    return (x - y).norm(p=2, dim=1).pow(2).mean(), torch.exp(-2 * d).mean().log()


def ssim(x: Tensor, y: Tensor) -> Tensor:
    """The loss of each 8 x 8 block."""
    b, c, h, w = x.shape
    x = x.view(b, c, h // 8, 8, w // 8, 8)
    y = y.view(b, c, h // 8, 8, w // 8, 8)
    mx, my = x.mean((3, 5)), y.mean((3, 5))
    sx, sy = (x * x).mean((3, 5)) - mx ** 2, (y * y).mean((3, 5)) - my ** 2
    sxy = (x * y).mean((3, 5)) - mx * my
    s = (2 * mx * my + 1e-4) * (2 * sxy + 9e-4) / ((mx ** 2 + my ** 2 + 1e-4) * (sx + sy + 9e-4))
    return torch.clamp((1 - s) / 2, 0, 1)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "signals")
    yield p("f32 33x777 peak", peak, of("x", 33, 777))
    yield p("f32 3x65x400 loudness", loudness, of("x", 3, 65, 400), only=TAME)
    yield p("f32 2x65x70x20 log mel", log_mel, of("spec", 2, 65, 70, 2), of("bank", 20, 65, kind="positive", scale=0.1),
            only=TAME)
    yield p("f32 2x65x130x20 log mel norm", log_mel_norm, of("power", 2, 65, 130, kind="positive"),
            of("bank", 20, 65, kind="positive", scale=0.1), only=TAME)
    yield p("f32 3x33x70 pcen", pcen, of("e", 3, 33, 70, kind="positive"), of("m", 3, 33, 70, kind="positive"))
    yield p("bf16 3x130x70 cmvn", cmvn, of("x", 3, 130, 70, dtype="bf16", shift=1.0),
            of("keep", 3, 130, dtype="bool", kind="keep"))
    yield p("bf16 33x257 standard", standard, of("x", 33, 257, dtype="bf16", shift=1.0), only=("normal", "outlier"))
    yield p("f16 3x70001 offset", offset, of("x", 3, 70001, dtype="f16", scale=0.1, shift=0.5), only=("normal",))
    yield p("bf16 33x130 gain", gain, of("x", 33, 130, dtype="bf16"), only=CALM)
    yield p("f32 3x1000 windows", windows, of("x", 3, 1000), of("w", 64, kind="weight"), only=TAME)
    yield p("f32 5x1000 windows' scores", zscore_windows, of("x", 5, 1000, shift=1.0))
    yield p("f32 9x1000 si snr", si_snr, of("est", 9, 1000), of("ref", 9, 1000), only=TAME)
    yield p("f32 4x2x777 sdr", sdr, of("est", 4, 2, 777), of("ref", 4, 2, 777))
    yield p("f32 257x70 pearson", pearson, of("x", 257, 70), of("y", 257, 70), only=CALM)
    yield p("f32 33x257 concordance", concordance, of("x", 33, 257, shift=0.5), of("y", 33, 257))
    yield p("f16 3x130x70 softmax pool", softmax_pool, of("x", 3, 130, 70, dtype="f16"),
            of("w", 70, 70, dtype="f16", kind="weight", scale=0.1))
    yield p("f32 3x33x130 clip probability", clip_probability, of("att", 3, 33, 130), of("cla", 3, 33, 130))
    yield p("f32 3x33x130 attentive statistics", attentive_statistics, of("h", 3, 33, 130), of("logits", 3, 33, 130),
            of("keep", 3, 130, dtype="bool", kind="keep"), only=(*CALM, "open"))
    yield p("f32 2x32x130x16 netvlad", netvlad, of("x", 2, 32, 130), of("s", 2, 16, 130), of("c", 16, 32), only=TAME)
    yield p("f32 3x20x13x11 gem", gem, of("x", 3, 20, 13, 11, kind="positive"), only=CALM)
    yield p("f32 65x64x257 arcface", arcface, of("x", 65, 64), of("w", 257, 64),
            of("label", 65, dtype="i64", kind="label", high=257), only=CALM)
    yield p("f32 130x257x33 coral", coral, of("s", 130, 33), of("t", 257, 33, shift=0.3), only=TAME)
    yield p("f32 130x65 barlow", barlow, of("a", 130, 65), of("b", 130, 65), only=("normal", "outlier", "spread"))
    yield p("f32 130x65 vicreg", vicreg, of("x", 130, 65), of("y", 130, 65), only=TAME)
    yield p("bf16 2x33x13x11 style", style, of("f", 2, 33, 13, 11, dtype="bf16"), of("target", 2, 33, 33, dtype="bf16"),
            only=CALM)
    yield p("f16 2x20x15x17 adain", adain, of("x", 2, 20, 15, 17, dtype="f16"), of("y", 2, 20, 15, 17, dtype="f16"))
    yield p("f32 130x64 uniformity", uniformity, of("x", 130, 64), of("y", 130, 64), only=CALM)
    yield p("f32 2x3x32x40 ssim", ssim, of("x", 2, 3, 32, 40), of("y", 2, 3, 32, 40), only=CALM)
