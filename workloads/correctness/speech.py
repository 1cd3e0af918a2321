"""Audio and speech: features of spectra, losses of waveforms and speakers, quantisers, aligners and convolution modules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import CALM, MILD, TAME, Program, label, made, mask, of, positive, weight


def mfcc(power: Tensor, fb: Tensor, dct: Tensor) -> Tensor:
    """Log mel in decibels with a floor below each clip's peak, cosine transform, mean taken off over time."""
    mel = torch.matmul(power.transpose(-1, -2), fb)
    db = 10.0 * torch.log10(torch.clamp(mel, min=1e-10))
    db = torch.max(db, db.amax(dim=(-2, -1), keepdim=True) - 80.0)
    c = torch.matmul(db, dct)
    return c - c.mean(dim=1, keepdim=True)


def whisper_mel(mags: Tensor, filters: Tensor) -> Tensor:
    spec = torch.clamp(filters @ mags, min=1e-10).log10()
    spec = torch.maximum(spec, spec.max() - 8.0)
    return (spec + 4.0) / 4.0


def cmvn(x: Tensor, keep: Tensor) -> Tensor:
    n = keep.sum(dim=1, keepdim=True).clamp(min=1).unsqueeze(-1)
    m = keep.unsqueeze(-1).to(x.dtype)
    mu = (x * m).sum(dim=1, keepdim=True) / n
    var = ((x - mu).pow(2) * m).sum(1, keepdim=True) / n
    return (x - mu) * torch.rsqrt(var + 1e-5) * m


def spectral(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Spectral convergence and the distance of log magnitudes."""
    sc = torch.norm(y - x, p="fro", dim=(1, 2)) / torch.norm(y, p="fro", dim=(1, 2))
    return sc.mean(), F.l1_loss(torch.log(x + 1e-7), torch.log(y + 1e-7))


def si_sdr(est: Tensor, ref: Tensor) -> Tensor:
    est = est - torch.mean(est, dim=-1, keepdim=True)
    ref = ref - torch.mean(ref, dim=-1, keepdim=True)
    dot = torch.sum(est * ref, dim=-1, keepdim=True)
    proj = dot * ref / (torch.sum(ref**2, dim=-1, keepdim=True) + 1e-8)
    noise = est - proj
    return 10 * torch.log10(torch.sum(proj**2, dim=-1) / (torch.sum(noise**2, dim=-1) + 1e-8) + 1e-8)


def pit(est: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """Two speakers, both orders, the better one."""
    pair = ((est.unsqueeze(2) - ref.unsqueeze(1)) ** 2).mean(-1)
    first = pair[:, 0, 0] + pair[:, 1, 1]
    second = pair[:, 0, 1] + pair[:, 1, 0]
    return torch.stack((first, second), -1).min(dim=-1).values.mean() / 2, pair


def attentive(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Attentive statistics pooling."""
    a = torch.softmax(torch.einsum("bht,h->bt", torch.tanh(torch.einsum("hc,bct->bht", w, x)), v), dim=-1).unsqueeze(1)
    mu = torch.sum(a * x, dim=2)
    sg = torch.sqrt((torch.sum(a * x**2, dim=2) - mu**2).clamp(min=1e-4))
    return torch.cat((mu, sg), 1)


def ecapa_attention(x: Tensor, keep: Tensor, w: Tensor) -> Tensor:
    """A score for every channel and frame, of the frame with its global statistics."""
    m = keep[:, None, :].to(x.dtype)
    n = m.sum(2, keepdim=True)
    mean = (m * x).sum(2, keepdim=True) / n
    std = torch.sqrt(((m * (x - mean).pow(2)).sum(2, keepdim=True) / n).clamp(1e-9))
    s = torch.matmul(w, torch.cat([x, mean.expand_as(x), std.expand_as(x)], dim=1).tanh())
    a = F.softmax(s.masked_fill(~keep[:, None, :], float("-inf")), dim=2)
    mean = (a * x).sum(2)
    return torch.cat([mean, torch.sqrt((a * (x - mean.unsqueeze(2)).pow(2)).sum(2).clamp(1e-9))], 1)


def squeeze(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    s = x.mean(dim=2)
    s = torch.sigmoid(F.linear(F.relu(F.linear(s, a)), b))
    return x * s.unsqueeze(-1) + x


def aam(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Additive angular margin over speakers."""
    cos = F.linear(F.normalize(x), F.normalize(w))
    sin = torch.sqrt((1.0 - cos.pow(2)).clamp(0, 1))
    phi = cos * math.cos(0.2) - sin * math.sin(0.2)
    phi = torch.where(cos - math.cos(math.pi - 0.2) > 0, phi, cos - math.sin(math.pi - 0.2) * 0.2)
    hot = F.one_hot(y, w.shape[0]).to(x.dtype)
    return F.cross_entropy(30.0 * (hot * phi + (1.0 - hot) * cos), y)


def am_softmax(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    cos = x.div(x.norm(p=2, dim=1, keepdim=True).clamp(min=1e-12)) @ w.div(w.norm(p=2, dim=0, keepdim=True).clamp(min=1e-12))
    target = cos.gather(1, y[:, None])
    other = 20 * (cos - 0.3 * torch.zeros_like(cos).scatter(1, y[:, None], 1.0))
    return torch.logsumexp(other, 1) - 20 * (target.squeeze(1) - 0.3)


def ge2e(e: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Speakers x utterances; an utterance is left out of its own centroid."""
    n, m, _ = e.shape
    e = e / torch.norm(e, dim=2, keepdim=True)
    inc = e.mean(dim=1)
    inc = inc / (torch.norm(inc, dim=1, keepdim=True) + 1e-5)
    exc = (e.sum(dim=1, keepdim=True) - e) / (m - 1)
    exc = exc / (exc.norm(dim=2, keepdim=True) + 1e-5)
    sim = torch.einsum("nmd,kd->nmk", e, inc)
    own = (e * exc).sum(-1)
    eye = torch.eye(n, device=e.device, dtype=torch.bool)[:, None, :]
    sim = torch.where(eye, own.unsqueeze(-1), sim) * w + b
    return -(torch.diagonal(sim, dim1=0, dim2=2) - torch.logsumexp(sim, 2).T).mean()


def mvdr(phi: Tensor, steer: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of a beamformer, of an inverse covariance that is given."""
    num = torch.einsum("fij,fj->fi", phi, steer)
    den = torch.einsum("fi,fi->f", steer, num)
    w = num / (den.unsqueeze(-1) + 1e-8)
    return w, w.square().sum(-1).rsqrt()


def psd(x: Tensor, m: Tensor) -> Tensor:
    """Masked spatial covariance of real and imaginary parts, by its trace."""
    g = torch.sigmoid(m)
    g = g / (g.sum(dim=-1, keepdim=True) + 1e-15)
    p = torch.einsum("fct,fet,ft->fce", x, x, g)
    return p / (p.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] + 1e-8)


def joint(f: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """RNN-T: every frame with every label, log-softmax over the vocabulary."""
    h = torch.tanh(f.unsqueeze(2) + g.unsqueeze(1))
    return F.log_softmax(h @ w, dim=-1)


def joint_paths(f: Tensor, g: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Blank and label probabilities only, as pruned transducers have them: a joint of sums is never formed."""
    fm, gm = f.amax(-1, keepdim=True), g.amax(-1, keepdim=True)
    z = torch.log(torch.matmul(torch.exp(f - fm), torch.exp(g - gm).transpose(1, 2)) + 1e-30) + fm + gm.transpose(1, 2)
    px = torch.gather(f.unsqueeze(2).expand(-1, -1, y.shape[1], -1), 3, y[:, None, :, None].expand(-1, f.shape[1], -1, 1))
    return px.squeeze(-1) + torch.gather(g[:, :-1], 2, y[..., None]).squeeze(-1)[:, None] - z[..., :-1], \
        f[..., :1] + g[..., 0][:, None] - z


def ctc_step(alpha: Tensor, logits: Tensor, y: Tensor, skip: Tensor) -> Tensor:
    """One frame forward: stay, advance or skip a blank."""
    lp = logits.log_softmax(-1).gather(1, y)
    one = F.pad(alpha, (1, 0), value=-1e30)[:, :-1]
    two = F.pad(alpha, (2, 0), value=-1e30)[:, :-2].masked_fill(~skip, -1e30)
    return torch.logsumexp(torch.stack([alpha, one, two]), dim=0) + lp


def contrastive(c: Tensor, q: Tensor, neg: Tensor) -> Tensor:
    """wav2vec 2.0: the true latent among distractors that may equal it."""
    cand = torch.cat([q.unsqueeze(0), neg], dim=0)
    same = (q == neg).all(-1)
    logits = torch.cosine_similarity(c.float(), cand.float(), dim=-1) / 0.1
    logits = torch.cat([logits[:1], logits[1:].masked_fill(same, float("-inf"))], 0)
    return -logits.log_softmax(0)[0]


def hubert(x: Tensor, codes: Tensor, y: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.cosine_similarity(x.unsqueeze(2), codes, dim=-1) / 0.1
    ce = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
    hit = (logits.argmax(-1) == y) & keep
    return (ce * keep).sum() / keep.sum(), hit.sum() / keep.sum()


def conformer_conv(x: Tensor, g: Tensor, up: Tensor, dw: Tensor, down: Tensor) -> Tensor:
    h = F.layer_norm(x, (x.shape[-1],), g)
    h = F.glu(h @ up, dim=-1).transpose(1, 2)
    h = F.conv1d(h, dw, padding=dw.shape[-1] // 2, groups=dw.shape[0]).transpose(1, 2)
    h = F.silu(F.layer_norm(h, h.shape[-1:]))
    return x + h @ down


def location(query: Tensor, keys: Tensor, prev: Tensor, conv: Tensor, v: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Tacotron 2: an additive score with features of where it attended before."""
    loc = F.conv1d(prev.unsqueeze(1), conv, padding=(conv.shape[-1] - 1) // 2).transpose(1, 2)
    e = torch.matmul(torch.tanh(query.unsqueeze(1) + keys + loc), v)
    a = F.softmax(e.masked_fill(keep.logical_not(), -1e4), dim=1)
    return torch.bmm(a.unsqueeze(1), keys).squeeze(1), a + prev


def mixture(params: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """GMM attention: weights of a mixture along the positions."""
    w, d, s = params.chunk(3, dim=-1)
    w, d, s = torch.softmax(w, -1), F.softplus(d), F.softplus(s) + 1e-2
    j = torch.arange(memory.shape[1], device=memory.device, dtype=memory.dtype)
    z = (j - d.unsqueeze(-1)) / s.unsqueeze(-1)
    a = (w.unsqueeze(-1) / (s.unsqueeze(-1) * math.sqrt(2 * math.pi)) * torch.exp(-0.5 * z**2)).sum(1)
    a = a / (a.sum(-1, keepdim=True) + 1e-6)
    return torch.einsum("bt,btd->bd", a, memory), a


def monotonic(e: Tensor, prev: Tensor) -> Tensor:
    """Expected monotonic alignment of probabilities to stop, in parallel."""
    p = torch.sigmoid(e)
    cp = torch.exp(torch.cumsum(torch.log((1 - p).clamp(1e-10, 1.0)), -1))
    cp = F.pad(cp[:, :-1], (1, 0), value=1.0)
    return p * cp * torch.cumsum(prev / cp.clamp(1e-6, 1.0), dim=-1)


def regulate(x: Tensor, dur: Tensor) -> Tensor:
    """Phonemes spread over frames by durations: gaussian upsampling."""
    d = F.softplus(dur)
    c = torch.cumsum(d, -1) - 0.5 * d
    t = torch.arange(45, device=x.device).to(x.dtype) + 0.5
    w = torch.softmax(-0.1 * (t[None, :, None] - c[:, None, :]) ** 2, dim=-1)
    return w @ x


def durations(x: Tensor, w: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    h = F.relu(F.conv1d(x.transpose(1, 2), w, padding=1)).transpose(1, 2)
    h = F.layer_norm(h, (h.shape[-1],)).mean(-1)
    return F.mse_loss(h * keep, torch.log1p(y) * keep, reduction="sum") / keep.sum()


def programs() -> Iterator[Program]:
    p = partial(made, "speech")
    fine = ("normal", "ties", "zeros", "spread")
    yield p("f32 2x33x41 mfcc", mfcc, positive("power", 2, 33, 41), positive("fb", 33, 20, scale=0.1), weight("dct", 20, 13))
    yield p("f32 2x33x37 whisper mel", whisper_mel, positive("mags", 2, 33, 37), positive("filters", 20, 33, scale=0.1))
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 3x37x24 cmvn", cmvn, of("x", 3, 37, 24, dtype=dt), mask("keep", 3, 37))
    yield p("f32 3x33x29 spectral", spectral, positive("x", 3, 33, 29), positive("y", 3, 33, 29))
    yield p("f32 5x300 si sdr", si_sdr, of("est", 5, 300), of("ref", 5, 300), only=CALM)
    yield p("f32 3x2x130 pit", pit, of("est", 3, 2, 130), of("ref", 3, 2, 130))
    for dt in ("f32", "f16"):
        yield p(f"{dt} 3x24x41 attentive", attentive, of("x", 3, 24, 41, dtype=dt), weight("w", 16, 24, dtype=dt, scale=0.3),
                weight("v", 16, dtype=dt))
    yield p("f32 3x12x37 ecapa attention", ecapa_attention, of("x", 3, 12, 37), mask("keep", 3, 37),
            weight("w", 12, 36, scale=0.3))
    yield p("bf16 3x24x37 squeeze", squeeze, of("x", 3, 24, 37, dtype="bf16"), weight("a", 7, 24, dtype="bf16"),
            weight("b", 24, 7, dtype="bf16"))
    yield p("f32 19x33 aam", aam, of("x", 19, 33), weight("w", 50, 33), label("y", 19, high=50))
    yield p("f32 19x33 am softmax", am_softmax, of("x", 19, 33), weight("w", 33, 50), label("y", 19, high=50))
    yield p("f32 5x4x33 ge2e", ge2e, of("e", 5, 4, 33), positive("w", scale=5.0), weight("b"))
    yield p("f32 33x5 mvdr", mvdr, of("phi", 33, 5, 5), of("steer", 33, 5), only=TAME)
    yield p("f32 17x5x41 psd", psd, of("x", 17, 5, 41), of("m", 17, 41))
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 2x13x7x24 joint", joint, of("f", 2, 13, 24, dtype=dt), of("g", 2, 7, 24, dtype=dt),
                weight("w", 24, 37, dtype=dt))
    yield p("f32 2x19x8x29 joint paths", joint_paths, of("f", 2, 19, 29), of("g", 2, 8, 29), label("y", 2, 7, high=29),
            only=MILD)
    yield p("f32 5x29 ctc step", ctc_step, of("alpha", 5, 15), of("logits", 5, 29), label("y", 5, 15, high=29),
            mask("skip", 5, 15))
    yield p("f16 2x11x24 contrastive", contrastive, of("c", 2, 11, 24, dtype="f16"), of("q", 2, 11, 24, dtype="f16"),
            of("neg", 9, 2, 11, 24, dtype="f16"))
    yield p("f32 2x13x24 hubert", hubert, of("x", 2, 13, 24), weight("codes", 30, 24), label("y", 2, 13, high=30),
            mask("keep", 2, 13), only=fine)
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 2x29x24 conformer conv", conformer_conv, of("x", 2, 29, 24, dtype=dt), weight("g", 24, dtype=dt),
                weight("up", 24, 48, dtype=dt, scale=0.2), weight("dw", 24, 1, 7, dtype=dt, scale=0.3),
                weight("down", 24, 24, dtype=dt, scale=0.2))
    yield p("f32 3x41x16 location", location, of("query", 3, 16), of("keys", 3, 41, 16), of("prev", 3, 41),
            weight("conv", 16, 1, 9), weight("v", 16), mask("keep", 3, 41))
    yield p("f32 3x5x41 mixture", mixture, of("params", 3, 15), of("memory", 3, 41, 20))
    yield p("f32 5x41 monotonic", monotonic, of("e", 5, 41), positive("prev", 5, 41), only=MILD)
    yield p("f32 2x17x24 regulate", regulate, of("x", 2, 17, 24), of("dur", 2, 17), only=CALM)
    yield p("f32 2x19x16 durations", durations, of("x", 2, 19, 16), weight("w", 16, 16, 3, scale=0.2), positive("y", 2, 19),
            mask("keep", 2, 19))
