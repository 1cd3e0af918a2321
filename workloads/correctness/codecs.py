"""Neural codecs and compression: quantisers, entropy models of latents, rates and distortions, divisive normalisation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import CALM, MILD, TAME, Program, made, mask, of, positive, weight

FEW = ("normal", "zeros", "spread")


def nearest(x: Tensor, book: Tensor) -> tuple[Tensor, Tensor]:
    """Vector quantisation by expanded distances; its commitment loss."""
    d = x.pow(2).sum(1, keepdim=True) - 2 * x @ book.t() + book.t().pow(2).sum(0, keepdim=True)
    q = F.embedding(torch.argmin(d, dim=1), book)
    return q, (q - x).pow(2).mean()


def encodec(x: Tensor, book: Tensor) -> tuple[Tensor, Tensor]:
    """Codes by negative distances, and how much of the book a batch uses."""
    e = book.t()
    dist = -(x.pow(2).sum(-1, keepdim=True) - 2 * x @ e + e.pow(2).sum(0, keepdim=True))
    hot = F.one_hot(dist.max(dim=-1).indices, book.shape[0]).type_as(x)
    p = hot.flatten(0, 1).mean(0)
    return hot @ book, torch.exp(-torch.sum(p * torch.log(p + 1e-10)))


def residual(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two stages, the second of what the first leaves."""
    out, rest, loss = torch.zeros_like(x), x, x.new_zeros(())
    for book in (a, b):
        i = torch.cdist(rest, book, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)
        q = book[i]
        loss = loss + ((q - rest) ** 2).mean()
        rest, out = rest - q, out + q
    return out, loss / 2


def dac(x: Tensor, down: Tensor, book: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """A factored book on the sphere, as DAC has it, channels first."""
    z = F.conv1d(x, down)
    enc, c = F.normalize(z.transpose(1, 2).flatten(0, 1)), F.normalize(book)
    d = enc.pow(2).sum(1, keepdim=True) - 2 * enc @ c.t() + c.pow(2).sum(1, keepdim=True).t()
    q = F.embedding((-d).max(1)[1].view(x.shape[0], -1), book).transpose(1, 2)
    return F.conv1d(q, up), F.mse_loss(z, q, reduction="none").mean([1, 2])


def fsq(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Finite scalar quantisation behind a projection; the index of a code."""
    levels = torch.tensor([7.0, 5.0, 5.0, 3.0], device=x.device)
    basis = torch.tensor([1.0, 7.0, 35.0, 175.0], device=x.device)
    z = torch.tanh(x @ w) * (levels - 1) / 2
    q = z + (z.round() - z).detach()
    return q / (levels // 2), ((q + (levels - 1) / 2) * basis).sum(dim=-1).to(torch.int64)


def lfq(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lookup-free: signs as bits, entropies of bits in a sample and over the batch."""
    p = torch.sigmoid(4 * x)
    h = -(p * torch.log(p + 1e-6) + (1 - p) * torch.log(1 - p + 1e-6))
    m = p.mean(dim=(0, 1))
    hm = -(m * (m + 1e-6).log() + (1 - m) * (1 - m + 1e-6).log()).sum()
    bits = (x > 0).long() * (2 ** torch.arange(x.shape[-1], device=x.device))
    return bits.sum(-1), h.sum(-1).mean() - hm, (torch.where(x > 0, 1.0, -1.0) - x).square().mean()


def gumbel(logits: Tensor, noise: Tensor, book: Tensor) -> tuple[Tensor, Tensor]:
    """Soft codes of groups; the perplexity of their average."""
    g = -torch.log(-torch.log(torch.sigmoid(noise) * 0.998 + 1e-3))
    y = torch.softmax((logits + g) / 0.7, dim=-1)
    avg = torch.softmax(logits.float(), dim=-1).mean(dim=0)
    ppl = torch.exp(-torch.sum(avg * torch.log(avg + 1e-7), dim=-1)).sum()
    return torch.einsum("ngv,gvd->ngd", y, book).flatten(1), ppl


def soft_to_hard(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    d = (x.unsqueeze(-1) - centers).abs().square()
    soft = (F.softmax(-d, dim=-1) * centers).sum(-1)
    hard = centers[d.argmin(-1)]
    return soft, (hard - soft).abs().amax(-1)


def gaussian_bits(y: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """CompressAI's likelihood of an integer bin; bits for each image."""
    v = torch.abs(y - mu)
    s = torch.clamp(sigma, min=0.11)
    up = 0.5 * torch.erfc(-(2**-0.5) * (0.5 - v) / s)
    lo = 0.5 * torch.erfc(-(2**-0.5) * (-0.5 - v) / s)
    return torch.log2((up - lo).clamp(min=1e-9)).sum(dim=(1, 2)) / -1.0


def laplace_bits(y: Tensor, mu: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded about its mean, with a Laplace's distribution function."""
    q = torch.round(y - mu)
    b = F.softplus(scale) + 1e-2

    def cdf(t: Tensor) -> Tensor:
        return 0.5 - 0.5 * t.sign() * torch.expm1(-t.abs() / b)
    bits = -torch.log2(torch.clamp_min(cdf(q + 0.5) - cdf(q - 0.5), 1e-6))
    return bits.mean(-1), bits.sum(1).amax(-1)


def factorized(x: Tensor, h: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """Balle's factorised prior: a monotone function of one layer for each channel."""
    def logits(v: Tensor) -> Tensor:
        z = torch.matmul(F.softplus(h), v) + b
        return (z + torch.tanh(a) * torch.tanh(z)).sum(1)
    lo, up = logits(x - 0.5), logits(x + 0.5)
    sign = -torch.sign(lo + up)
    p = torch.abs(torch.sigmoid(sign * up) - torch.sigmoid(sign * lo))
    return -torch.log(p.clamp(min=1e-9)).sum(-1) / math.log(2)


def rate_distortion(x: Tensor, xh: Tensor, like: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n, _, t = x.shape
    bpp = sum((torch.log(p).sum() / (-math.log(2) * n * t) for p in (like, side)), x.new_zeros(()))
    mse = torch.mean((x - xh) ** 2, dim=(1, 2))
    return 0.01 * 255**2 * mse.mean() + bpp, bpp, -10 * torch.log10(mse)


def gdn(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    norm = F.conv2d(x * x, gamma[:, :, None, None], beta)
    return x * torch.rsqrt(norm)


def igdn_rows(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """The inverse, channels last, simplified to absolute values; then a norm over channels."""
    y = x * (torch.matmul(x.abs(), gamma) + beta)
    return F.rms_norm(y, y.shape[-1:])


def hyper(z: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and means of a hyperprior, the rate of what it predicts."""
    mu, s = (z @ w).chunk(2, -1)
    s = F.softplus(s).clamp(min=0.05)
    r = torch.round(y - mu) + mu
    cdf = partial(torch.special.ndtr)
    p = cdf((r + 0.5 - mu) / s) - cdf((r - 0.5 - mu) / s)
    return r, -torch.log2(p.clamp(1e-9)).sum(-1)


def checkerboard(y: Tensor, w: Tensor, keep: Tensor) -> Tensor:
    """Half of the latents seen by the rest, through normalised masked weights."""
    a = torch.softmax(w.masked_fill(~keep, -torch.inf), dim=-1)
    c = a @ y
    return ((y - c) / (y - c).std(dim=-2, keepdim=True).clamp(min=1e-3)).tanh()


def groups_q(x: Tensor) -> tuple[Tensor, Tensor]:
    """Asymmetric four bits in groups of 32, and back."""
    g = x.float().reshape(x.shape[0], -1, 32)
    lo, hi = g.aminmax(dim=-1, keepdim=True)
    s = (hi - lo).clamp(min=1e-5) / 15
    q = ((g - lo) / s).round().clamp(0, 15)
    return (q * s + lo).reshape(x.shape).to(x.dtype), (g - (q * s + lo)).norm(dim=-1)


def companded(x: Tensor) -> tuple[Tensor, Tensor]:
    """mu-law by each row's peak, in 256 steps, expanded again."""
    peak = x.abs().amax(-1, keepdim=True).clamp_min(1e-4)
    u = torch.sign(x) * torch.log1p(255.0 * (x / peak).abs()) / math.log1p(255.0)
    q = torch.floor((u + 1) / 2 * 255 + 0.5)
    v = 2 * q / 255 - 1
    y = v.sign() * ((1 + 255.0) ** v.abs() - 1) / 255.0 * peak
    return y, 10 * torch.log10(x.pow(2).mean(-1) / ((x - y).pow(2).mean(-1) + 1e-9) + 1e-9)


def usage(codes: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Soft assignments that are kept: perplexity, largest share, dead codes."""
    p = codes.softmax(-1) * keep.unsqueeze(-1)
    avg = p.sum((0, 1)) / keep.sum()
    return torch.exp(torch.special.entr(avg).sum()), avg.max(), (avg < 0.5 / avg.shape[0]).sum()


def ema(x: Tensor, book: Tensor, size: Tensor) -> Tensor:
    """A book's update by Laplace-smoothed counts."""
    hot = F.one_hot(torch.cdist(x, book).argmin(1), book.shape[0]).to(x.dtype)
    n = 0.9 * size + 0.1 * hot.sum(0)
    total = n.sum()
    n = (n + 1e-5) / (total + book.shape[0] * 1e-5) * total
    return (0.9 * book * size[:, None] + 0.1 * hot.t() @ x) / n.unsqueeze(1)


def orthogonal(book: Tensor) -> Tensor:
    n = F.normalize(book, p=2.0, dim=-1)
    cos = torch.einsum("hid,hjd->hij", n, n)
    h, k, _ = book.shape
    return (cos**2).sum() / (h * k**2) - 1 / k


def balance(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of the mean and mean of the entropies, of codes by cosine."""
    s = F.normalize(x, dim=-1) @ F.normalize(w, dim=-1).transpose(-2, -1) * 10
    lp = s.log_softmax(dim=-1)
    p = lp.exp()
    avg = p.mean(dim=(0, 1))
    return -(avg * torch.log(avg + 1e-5)).sum(), -(p * lp).sum(-1).mean()


def ssim_rows(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Structural similarity of windowed rows."""
    w = w / w.sum()
    a, b = x.unfold(-1, 11, 3), y.unfold(-1, 11, 3)
    ma, mb = a @ w, b @ w
    va, vb = torch.matmul(a * a, w) - ma**2, torch.matmul(b * b, w) - mb**2
    cov = (a * b) @ w - ma * mb
    return (((2 * ma * mb + 1e-2) * (2 * cov + 3e-2)) / ((ma**2 + mb**2 + 1e-2) * (va.abs() + vb.abs() + 3e-2))).mean(-1)


def cross_book(x: Tensor, q: Tensor, keep: Tensor) -> Tensor:
    """Contrast of each frame with the quantised frames of its own clip."""
    s = torch.baddbmm(torch.zeros(1, device=x.device, dtype=x.dtype), x, q.mT, beta=0, alpha=x.shape[-1] ** -0.5)
    s = s + torch.where(keep, 0.0, -1e4).to(s.dtype)[:, None]
    return (torch.logsumexp(s, -1) - s.diagonal(dim1=1, dim2=2)).mean(-1)


def programs() -> Iterator[Program]:
    p = partial(made, "codecs")
    yield p("f32 37x16 nearest", nearest, of("x", 37, 16), weight("book", 50, 16), only=FEW)
    yield p("f32 2x19x16 encodec", encodec, of("x", 2, 19, 16), weight("book", 37, 16), only=FEW)
    yield p("f32 2x13x12 residual", residual, of("x", 26, 12), weight("a", 24, 12), weight("b", 24, 12, scale=0.3), only=FEW)
    yield p("f32 2x24x17 dac", dac, of("x", 2, 24, 17), weight("down", 8, 24, 1, scale=0.2), weight("book", 40, 8),
            weight("up", 24, 8, 1), only=("normal", "spread"))
    yield p("f32 3x37x24 fsq", fsq, of("x", 3, 37, 24), weight("w", 24, 4, scale=0.2), only=("normal", "zeros"))
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 3x37x10 lfq", lfq, of("x", 3, 37, 10, dtype=dt))
    for dt in ("f32", "f16"):
        yield p(f"{dt} 37x2x20 gumbel", gumbel, of("logits", 37, 2, 20, dtype=dt), of("noise", 37, 2, 20, dtype=dt),
                weight("book", 2, 20, 9, dtype=dt))
    yield p("f32 3x37x7 soft to hard", soft_to_hard, of("x", 3, 37), weight("centers", 7), only=("normal", "spread"))
    yield p("f32 3x12x33 gaussian bits", gaussian_bits, of("y", 3, 12, 33), of("mu", 3, 12, 33), positive("sigma", 3, 12, 33),
            only=CALM)
    yield p("f32 3x12x33 laplace bits", laplace_bits, of("y", 3, 12, 33, scale=3.0), of("mu", 3, 12, 33),
            of("scale", 3, 12, 33), only=("normal", "zeros"))
    yield p("f32 5x1x33 factorized", factorized, of("x", 5, 1, 33), weight("h", 5, 3, 1), weight("b", 5, 3, 1),
            weight("a", 5, 3, 1), only=MILD)
    yield p("f32 3x5x67 rate distortion", rate_distortion, of("x", 3, 5, 67), of("xh", 3, 5, 67), positive("like", 3, 12, 17),
            positive("side", 3, 7, 5))
    for dt in ("f32", "f16"):
        yield p(f"{dt} 2x13x5x7 gdn", gdn, of("x", 2, 13, 5, 7, dtype=dt), positive("gamma", 13, 13, dtype=dt, scale=0.1),
                positive("beta", 13, dtype=dt))
    yield p("bf16 2x29x24 igdn rows", igdn_rows, of("x", 2, 29, 24, dtype="bf16"),
            positive("gamma", 24, 24, dtype="bf16", scale=0.1), positive("beta", 24, dtype="bf16"))
    yield p("f32 2x19x15 hyper", hyper, of("z", 2, 19, 15), weight("w", 15, 26, scale=0.3), of("y", 2, 19, 13),
            only=("normal", "zeros"))
    yield p("f32 2x29x13 checkerboard", checkerboard, of("y", 2, 29, 13), weight("w", 29, 29), mask("keep", 29, 29), only=TAME)
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 17x96 groups", groups_q, of("x", 17, 96, dtype=dt))
    yield p("f32 9x130 companded", companded, of("x", 9, 130), only=("normal", "zeros", "outlier"))
    yield p("f32 3x21x37 usage", usage, of("codes", 3, 21, 37), mask("keep", 3, 21))
    yield p("f32 41x12 ema", ema, of("x", 41, 12), weight("book", 20, 12), positive("size", 20), only=("normal", "spread"))
    yield p("f32 2x37x9 orthogonal", orthogonal, of("book", 2, 37, 9))
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 2x21x13 balance", balance, of("x", 2, 21, 13, dtype=dt), weight("w", 33, 13, dtype=dt))
    yield p("f32 9x130 ssim rows", ssim_rows, of("x", 9, 130), of("y", 9, 130), positive("w", 11), only=MILD)
    yield p("f16 3x29x24 cross book", cross_book, of("x", 3, 29, 24, dtype="f16"), of("q", 3, 29, 24, dtype="f16"),
            mask("keep", 3, 29))
