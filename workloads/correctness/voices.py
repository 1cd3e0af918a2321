"""More of speech and codecs: alignments, losses of waveforms, slots, codebooks in groups, mixtures of logistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import CALM, MILD, TAME, Program, label, made, mask, of, positive, weight


def aligner(q: Tensor, k: Tensor, prior: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Distances as scores, with a prior over places (RAD-TTS)."""
    d = -0.0005 * ((q[:, :, None] - k[:, None, :]) ** 2).sum(-1)
    lp = F.log_softmax(d, dim=-1) + torch.log(prior + 1e-8)
    return torch.softmax(lp.masked_fill(~keep[:, None, :], -float("inf")), -1), lp


def loudness(x: Tensor) -> Tensor:
    """Gated loudness of blocks."""
    z = x.unfold(-1, 40, 10).pow(2).mean(-1)
    lo = -0.691 + 10 * torch.log10(z + 1e-10)
    gate = (lo > -70).to(x.dtype)
    rel = -0.691 + 10 * torch.log10((z * gate).sum(-1, keepdim=True) / gate.sum(-1, keepdim=True).clamp(min=1) + 1e-10) - 10
    gate = gate * (lo > rel)
    return -0.691 + 10 * torch.log10((z * gate).sum(-1) / gate.sum(-1).clamp(min=1) + 1e-10)


def vad(x: Tensor, win: Tensor) -> tuple[Tensor, Tensor]:
    f = x.unfold(-1, win.shape[0], win.shape[0] // 2)
    f = (f - f.mean(-1, keepdim=True)) * win
    e = torch.log(f.square().sum(-1).clamp_min(1e-8))
    zcr = (f[..., 1:] * f[..., :-1] < 0).float().mean(-1)
    return (e - e.amin(-1, keepdim=True)) / (e.amax(-1, keepdim=True) - e.amin(-1, keepdim=True) + 1e-5), zcr


def wavenet(x: Tensor, w: Tensor, c: Tensor, rs: Tensor) -> tuple[Tensor, Tensor]:
    h = F.conv1d(F.pad(x, (4, 0)), w, dilation=4) + c.unsqueeze(-1)
    a, b = torch.split(h, h.shape[1] // 2, dim=1)
    z = torch.einsum("oc,bct->bot", rs, torch.tanh(a) * torch.sigmoid(b))
    res, skip = z.chunk(2, 1)
    return (x + res) * math.sqrt(0.5), skip


def flow_kl(zp: Tensor, logs_q: Tensor, m_p: Tensor, logs_p: Tensor, keep: Tensor) -> Tensor:
    """VITS: the prior's KL term over what a mask leaves."""
    zp, logs_q, m_p, logs_p = zp.float(), logs_q.float(), m_p.float(), logs_p.float()
    m = keep.unsqueeze(1).float()
    kl = logs_p - logs_q - 0.5 + 0.5 * ((zp - m_p) ** 2) * torch.exp(-2.0 * logs_p)
    return torch.sum(kl * m) / torch.sum(m)


def mas_scores(z: Tensor, m: Tensor, logs: Tensor) -> Tensor:
    """Gaussian log likelihood of each frame under each phoneme, expanded into products."""
    s = torch.exp(-2 * logs)
    a = torch.sum(-0.5 * math.log(2 * math.pi) - logs, [1], keepdim=True)
    b = torch.matmul(-0.5 * (z**2).transpose(1, 2), s)
    c = torch.matmul(z.transpose(1, 2), m * s)
    return a + b + c + torch.sum(-0.5 * (m**2) * s, [1], keepdim=True)


def hifigan(real: Tensor, fake: Tensor, fr: Tensor, ff: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.mean((1 - real) ** 2) + torch.mean(fake**2), torch.mean((1 - fake) ** 2), torch.mean(torch.abs(fr - ff)) * 2


def clampw(s: Tensor, v: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    a = s.masked_fill(~keep, -torch.inf).softmax(-1).clamp(min=1e-6)
    a = a / a.sum(-1, keepdim=True)
    return a @ v, a.amax(-1)


def slot(x: Tensor, q: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Slot attention: softmax over slots, then normalised over inputs."""
    a = torch.softmax(torch.einsum("bid,bjd->bij", q, x) * q.shape[-1] ** -0.5, dim=1) + 1e-8
    a = a / a.sum(-1, keepdim=True)
    u = torch.einsum("bij,bjd->bid", a, x)
    return F.layer_norm(u + q, (q.shape[-1],)) @ w, a.argmax(1)


def sinkhorn_log(c: Tensor) -> Tensor:
    l = -c / 0.3
    for _ in range(2):
        l = l - torch.logsumexp(l, -1, keepdim=True)
        l = l - torch.logsumexp(l, -2, keepdim=True)
    return l.exp()


def ctc_lattice(lp: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Best and total score over two alignments of labels."""
    e = lp.log_softmax(-1).gather(2, y[:, None].expand(-1, lp.shape[1], -1))
    return torch.logsumexp(e.sum(1), -1), e.max(1).values.sum(-1), e.cumsum(1)[:, -1]


def spec_aug_norm(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Global mean & var over time and frequency of what a mask leaves; per-utterance."""
    m = keep[..., None].expand_as(x)
    n = m.sum((1, 2), keepdim=True)
    mu = x.masked_fill(~m, 0).sum((1, 2), keepdim=True) / n
    d = (x - mu).masked_fill(~m, 0)
    return d / (d.pow(2).sum((1, 2), keepdim=True) / (n - 1).clamp(min=1)).sqrt().clamp(min=1e-5), d.abs().amax((1, 2))


def pcen(e: Tensor) -> Tensor:
    """Per-channel energy normalisation with a smoother as a kernel matrix."""
    t = torch.arange(e.shape[-1], device=e.device)
    k = torch.where(t[:, None] >= t, 0.1 * 0.9 ** (t[:, None] - t).to(e.dtype), 0.0)
    m = torch.einsum("bft,st->bfs", e, k)
    return (e / (1e-6 + m) ** 0.98 + 2.0) ** 0.5 - 2.0**0.5


def multires(x: Tensor, y: Tensor) -> Tensor:
    loss = x.new_zeros(())
    for n in (16, 40):
        a, b = x.unfold(-1, n, n // 2).abs().amax(-1), y.unfold(-1, n, n // 2).abs().amax(-1)
        loss = loss + (a - b).norm() / b.norm() + (torch.log(a + 1e-5) - torch.log(b + 1e-5)).abs().mean()
    return loss / 2


def mel_cepstral(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    d = x[:, :, 1:] - y[:, :, 1:]
    return (10 / math.log(10)) * torch.sqrt(2 * d.pow(2).sum(-1)).mean(-1), F.cosine_similarity(x, y, dim=1).mean(-1)


def sdr_matrix(e: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs SI-SDR; greedy assignment by the largest."""
    e, r = e - e.mean(-1, keepdim=True), r - r.mean(-1, keepdim=True)
    dot = torch.einsum("bit,bjt->bij", e, r)
    rr = r.square().sum(-1)[:, None]
    ee = e.square().sum(-1)[..., None]
    p = dot.square() / (rr + 1e-8)
    s = 10 * torch.log10((p + 1e-8) / (ee - p + 1e-8).clamp(min=1e-8))
    return s.amax(-1).mean(-1), s


def beats(x: Tensor, codes: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    lp = torch.log_softmax(-torch.cdist(x, codes).square() / 2, -1)
    return F.nll_loss(lp.transpose(1, 2), y, reduction="none").mean(1), lp.exp().mean(1).max(-1).values


def sinkhorn_codes(x: Tensor, p: Tensor) -> Tensor:
    """SwAV / codebook: two rounds of row and column normalisation."""
    q = torch.exp(x @ p.t() / 0.5).t()
    q = q / q.sum()
    for _ in range(2):
        q = q / q.sum(dim=1, keepdim=True) / q.shape[0]
        q = q / q.sum(dim=0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).t()


def grouped_vq(x: Tensor, books: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Groups of channels with a book each; softmax relaxation and its entropy."""
    b, t, c = x.shape
    g = x.view(b, t, books.shape[0], -1)
    d = (g.unsqueeze(3) - books).pow(2).sum(-1)
    p = F.softmax(-d, -1)
    z = torch.einsum("btgk,gkd->btgd", p, books).reshape(b, t, c)
    return z, -(p * p.clamp(min=1e-9).log()).sum(-1).mean((0, 1)), d.argmin(-1)


def channel_q(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Symmetric eight bits for each output channel, error for each input channel."""
    s = w.abs().amax(dim=(1, 2), keepdim=True) / 127
    q = torch.clamp(torch.round(w / s), -128, 127)
    return q.to(torch.int8), s.flatten(), ((q * s - w) ** 2).mean((0, 2))


def mulaw_ce(x: Tensor, logits: Tensor) -> Tensor:
    u = torch.sign(x) * torch.log1p(31 * x.abs().clamp(max=1)) / math.log1p(31)
    y = ((u + 1) / 2 * 31).round().long().clamp(0, 31)
    return F.cross_entropy(logits.transpose(1, 2), y)


def logistic_mix(y: Tensor, params: Tensor) -> Tensor:
    """Discretised mixture of logistics."""
    lp, mu, ls = params.chunk(3, -1)
    ls = ls.clamp(min=-5)
    c = (y.unsqueeze(-1) - mu) * torch.exp(-ls)
    up, lo = torch.sigmoid(c + 0.1 * torch.exp(-ls)), torch.sigmoid(c - 0.1 * torch.exp(-ls))
    return -torch.logsumexp(torch.log((up - lo).clamp(min=1e-8)) + F.log_softmax(lp, -1), -1).mean(-1)


def hard_gumbel(l: Tensor, book: Tensor) -> Tensor:
    y = l.softmax(-1)
    i = y.max(-1, keepdim=True)[1]
    h = torch.zeros_like(l).scatter_(-1, i, 1.0)
    return (h - y.detach() + y) @ book


def bpp_channels(y: Tensor, med: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    r = torch.round(y - med[None, :, None]) + med[None, :, None]
    s = F.softplus(scale)[None, :, None]
    z = (r - med[None, :, None]).abs()
    p = torch.sigmoid((0.5 - z) / s) - torch.sigmoid((-0.5 - z) / s)
    return -p.clamp_min(1e-9).log2().sum((0, 2)), (r - y).abs().max()


def programs() -> Iterator[Program]:
    p, c = partial(made, "speech"), partial(made, "codecs")
    yield p("f32 2x23x13x16 aligner", aligner, of("q", 2, 23, 16), of("k", 2, 13, 16), positive("prior", 2, 23, 13),
            mask("keep", 2, 13), only=CALM)
    yield p("f32 5x300 loudness", loudness, of("x", 5, 300, scale=0.1), only=MILD)
    yield p("f32 5x300 vad", vad, of("x", 5, 300), positive("win", 50), only=CALM)
    yield p("f32 2x16x41 wavenet", wavenet, of("x", 2, 16, 41), weight("w", 32, 16, 2, scale=0.2), weight("c", 2, 32),
            weight("rs", 32, 16, scale=0.3))
    yield p("f16 3x24x33 flow kl", flow_kl, *(of(n, 3, 24, 33, dtype="f16") for n in ("zp", "lq", "mp", "lp")),
            mask("keep", 3, 33), only=MILD)
    yield p("f32 2x15x33x21 mas scores", mas_scores, of("z", 2, 15, 33), of("m", 2, 15, 21), weight("logs", 2, 15, 21),
            only=TAME)
    yield p("bf16 3x130 hifigan", hifigan, *(of(n, 3, 130, dtype="bf16") for n in ("real", "fake")),
            *(of(n, 3, 9, 41, dtype="bf16") for n in ("fr", "ff")))
    yield p("f32 clampw", clampw, of("s", 3, 29, 37), of("v", 3, 37, 13), mask("keep", 3, 29, 37))
    yield p("bf16 clampw", clampw, of("s", 3, 29, 37, dtype="bf16"), of("v", 3, 37, 13, dtype="bf16"), mask("keep", 3,
            29, 37), only=MILD)
    yield p("f32 slot", slot, of("x", 2, 37, 16), of("q", 2, 5, 16), weight("w", 16, 9), only=CALM)
    yield p("f32 sinkhorn log", sinkhorn_log, of("c", 3, 23, 17), only=TAME)
    yield p("f32 ctc lattice", ctc_lattice, of("lp", 3, 21, 29), label("y", 3, 7, high=29))
    yield p("f32 spec norm", spec_aug_norm, of("x", 3, 21, 13), mask("keep", 3, 21), only=TAME)
    yield p("f32 pcen", pcen, positive("e", 2, 9, 41), only=TAME)
    yield p("f32 multires", multires, of("x", 3, 160), of("y", 3, 160), only=MILD)
    yield p("f32 mel cepstral", mel_cepstral, of("x", 3, 21, 13), of("y", 3, 21, 13), only=TAME)
    yield p("f32 sdr matrix", sdr_matrix, of("e", 3, 4, 130), of("r", 3, 4, 130), only=MILD)
    yield p("f32 beats", beats, of("x", 2, 19, 13), weight("codes", 24, 13), label("y", 2, 19, high=24),
            only=("normal", "zeros"))
    yield c("f32 sinkhorn", sinkhorn_codes, of("x", 37, 16, scale=.3), weight("p", 11, 16, scale=.3), only=MILD)
    yield c("f32 grouped vq", grouped_vq, of("x", 2, 19, 12), weight("books", 3, 15, 4), only=("normal",))
    yield c("f16 grouped vq", grouped_vq, of("x", 2, 19, 12, dtype="f16"), weight("books", 3, 15, 4, dtype="f16"),
            only=("normal",))
    yield c("f32 channel q", channel_q, of("w", 13, 7, 5), only=MILD)
    yield c("f32 mulaw ce", mulaw_ce, of("x", 3, 37, scale=.3), of("logits", 3, 37, 32), only=MILD)
    yield c("f32 logistic mix", logistic_mix, of("y", 3, 37), of("params", 3, 37, 15), only=MILD)
    yield c("f32 hard gumbel", hard_gumbel, of("l", 29, 17), weight("book", 17, 7), only=("normal", "outlier"))
    yield c("f32 bpp channels", bpp_channels, of("y", 3, 7, 33, scale=3.), weight("med", 7), weight("scale", 7),
            only=("normal", "zeros"))
