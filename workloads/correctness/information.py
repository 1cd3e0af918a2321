"""Information: entropies, divergences, bounds of mutual information, transport, and sparse distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import TAME, Program, label, made, mask, of, positive, weight

# -- entropies and divergences -----------------------------------------------------------------------------------------


def mutual_information(table: Tensor) -> Tensor:
    """Of joint counts."""
    p = table / table.sum((-1, -2), keepdim=True)
    a, b = p.sum(-1, keepdim=True), p.sum(-2, keepdim=True)
    return torch.where(p > 0, p * (p / (a * b)).log(), torch.zeros_like(p)).sum(dim=(-2, -1))


def information(p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """H(X), H(Y), H(X, Y) with xlogy, in bits."""
    p = p / p.sum(dim=(-1, -2), keepdim=True)
    x, y = p.sum(-1), p.sum(-2)
    bits = math.log(2)
    return -torch.xlogy(x, x).sum(-1) / bits, -torch.xlogy(y, y).sum(-1) / bits, -torch.xlogy(p, p).sum((-1, -2)) / bits


def divergences(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Jensen-Shannon, Hellinger, Renyi of two rows of scores."""
    p, q = torch.softmax(a, -1), torch.softmax(b, -1)
    m = 0.5 * (p + q)
    js = 0.5 * (p * (p / m).clamp(min=1e-12).log()).sum(-1) + 0.5 * (q * (q / m).clamp(min=1e-12).log()).sum(-1)
    hellinger = (p.sqrt() - q.sqrt()).pow(2).sum(-1).sqrt() / math.sqrt(2)
    renyi = 2 * torch.log((p**0.5 * q**0.5).sum(-1) + 1e-12)
    return js, hellinger, renyi


def categorical_kl(a: Tensor, b: Tensor, keep: Tensor) -> Tensor:
    p, q = F.log_softmax(a, -1), F.log_softmax(b, -1)
    kl = (p.exp() * (p - q)).sum(-1)
    return (kl * keep).sum() / keep.sum().clamp(min=1)


def tsallis(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = F.softmax(x, dim=1)
    return (1 - p.pow(1.5).sum(1)) / 0.5, p.pow(2).sum(1).log().neg(), p.max(1).values.log().neg()


def js_many(x: Tensor, w: Tensor) -> Tensor:
    """Of several experts: the entropy of the mean less the mean entropy."""
    p = torch.softmax(x, -1)
    m = torch.einsum("k,bkc->bc", w / w.sum(), p)

    def h(q: Tensor) -> Tensor:
        return -(q * torch.log(q.clamp(min=1e-10))).sum(-1)

    return h(m) - (h(p) * (w / w.sum())).sum(-1)


def bald(x: Tensor) -> Tensor:
    """Of draws of a posterior: [draws, batch, classes]."""
    lp = F.log_softmax(x, dim=-1)
    mean = torch.logsumexp(lp, dim=0) - math.log(x.shape[0])
    return -(mean.exp() * mean).sum(-1) + (lp.exp() * lp).sum(-1).mean(0)


def softmax_half(x: Tensor, t: Tensor) -> Tensor:
    """Half-precision scores over a temperature that is a number in a tensor, in float32, and back."""
    p = torch.softmax(x.float() / t, -1)
    return (p * torch.log(p.clamp_min(torch.finfo(torch.float16).tiny))).sum(-1).neg().to(x.dtype)


def conditional_entropy(c: Tensor) -> tuple[Tensor, Tensor]:
    """Of integer tables, rows that may be empty."""
    p = c.float() / c.sum(dim=-1, keepdim=True).clamp(min=1)
    h = -(p * torch.where(p > 0, p, 1).log2()).sum(-1)
    w = c.sum(-1).float() / c.sum()
    return h, (w * h).sum()


def pmi(c: Tensor) -> Tensor:
    """Positive pointwise mutual information of counts."""
    n = c.sum()
    r, k = c.sum(1, keepdim=True), c.sum(0, keepdim=True)
    out = torch.log(c * n / (r * k))
    out = torch.where(torch.isinf(out) | torch.isnan(out), torch.zeros((), device=c.device), out)
    return torch.clamp(out, min=0)


def perplexity(logits: Tensor, y: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    nll = F.cross_entropy(logits.transpose(1, 2), y, reduction="none")
    nll = (nll * keep).sum(-1) / keep.sum(-1)
    return nll.exp(), (logits.argmax(-1) == y).logical_and(keep).sum(-1)


def gini(x: Tensor) -> Tensor:
    """Of sorted rows."""
    x = x.sort(-1).values
    n = x.shape[-1]
    i = torch.arange(1, n + 1, device=x.device, dtype=x.dtype)
    return ((2 * i - n - 1) * x).sum(-1) / (n * x.sum(-1))


def herfindahl(x: Tensor) -> tuple[Tensor, Tensor]:
    p = x / x.sum(-1, keepdim=True)
    return (p**2).sum(-1), torch.exp(-(p * p.log()).sum(-1))


def vocabulary(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """How evenly codes are used."""
    p = F.one_hot(codes, 33).float().mean(0)
    return torch.exp(-torch.sum(p * torch.log(p + 1e-10))), (p > 0).sum()


# -- bounds and distributions ------------------------------------------------------------------------------------------


def blahut_arimoto(w: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """One step towards a channel's capacity."""
    p = p / p.sum()
    q = p.unsqueeze(1) * w
    q = q / q.sum(0, keepdim=True)
    r = torch.exp((w * torch.log(q + 1e-16)).sum(1))
    return r / r.sum(), torch.log2(r.sum())


def sinkhorn(c: Tensor, f: Tensor, loga: Tensor, logb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    eps = 0.05
    g = eps * (logb - torch.logsumexp((f.unsqueeze(-1) - c) / eps, dim=-2))
    f = eps * (loga - torch.logsumexp((g.unsqueeze(-2) - c) / eps, dim=-1))
    plan = torch.exp((f.unsqueeze(-1) + g.unsqueeze(-2) - c) / eps)
    return f, g, (plan * c).sum((-2, -1))


def total_correlation(z: Tensor, mu: Tensor, logvar: Tensor) -> Tensor:
    """beta-TCVAE's minibatch estimate."""
    n = z.shape[0]
    d = -0.5 * (math.log(2 * math.pi) + logvar[None] + (z[:, None] - mu[None]) ** 2 * torch.exp(-logvar)[None])
    joint = torch.logsumexp(d.sum(2), dim=1) - math.log(n)
    product = (torch.logsumexp(d, dim=1) - math.log(n)).sum(1)
    return (joint - product).mean()


def infonce(f: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of mutual information: InfoNCE, and Donsker-Varadhan over what is off the diagonal."""
    n = f.shape[0]
    nce = (f.diagonal() - torch.logsumexp(f, 1) + math.log(n)).mean()
    off = f.masked_fill(torch.eye(n, dtype=torch.bool, device=f.device), float("-inf"))
    return nce, f.diag().mean() - (torch.logsumexp(off.flatten(), 0) - math.log(n * (n - 1)))


def contrastive_weights(s: Tensor, y: Tensor) -> Tensor:
    """Several positives in a row, by labels."""
    same = y[:, None].eq(y[None, :]).float()
    off = 1 - torch.eye(s.shape[0], device=s.device)
    same = same * off
    logits = s - s.max(1, keepdim=True).values.detach()
    logp = logits - torch.log((torch.exp(logits) * off).sum(1, keepdim=True))
    return -(same * logp).sum(1) / same.sum(1).clamp(min=1)


def entmax_half(z: Tensor) -> Tensor:
    """1.5-entmax by sorting."""
    z = (z - z.max(-1, keepdim=True)[0]) / 2
    s = z.sort(-1, descending=True)[0]
    rho = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    mean = s.cumsum(-1) / rho
    ss = rho * ((s**2).cumsum(-1) / rho - mean**2)
    delta = torch.clamp((1 - ss) / rho, min=0)
    tau = mean - delta.sqrt()
    size = (tau <= s).sum(-1, keepdim=True)
    return torch.clamp(z - tau.gather(-1, size - 1), min=0) ** 2


def sparsemax_topk(z: Tensor) -> Tensor:
    top, _ = z.topk(16, dim=-1)
    c = top.cumsum(-1) - 1
    r = torch.arange(1, 17, device=z.device, dtype=z.dtype)
    size = (r * top > c).sum(-1, keepdim=True)
    return (z - c.gather(-1, size - 1) / size).clamp(min=0)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    ledger = partial(made, "ledgers")
    account = partial(made, "accounts")
    yield ledger("f32 9x33x20 mutual information", mutual_information, positive("table", 9, 33, 20))
    yield ledger("f32 9x33x20 information", information, positive("p", 9, 33, 20))
    yield ledger("f32 65x130 divergences", divergences, of("a", 65, 130), of("b", 65, 130), only=(*TAME, "nan:a", "inf:b"))
    yield account("bf16 3x33x65 categorical kl", categorical_kl, of("a", 3, 33, 65, dtype="bf16"),
            of("b", 3, 33, 65, dtype="bf16"), mask("keep", 3, 33))
    yield account("f32 65x33 tsallis", tsallis, of("x", 65, 33))
    yield account("f32 33x5x20 js many", js_many, of("x", 33, 5, 20), positive("w", 5))
    yield account("f32 9x65x10 bald", bald, of("x", 9, 65, 10),
            only=("normal", "ties", "zeros", "outlier", "spread", "big"))
    yield account("f16 65x257 softmax half", softmax_half, of("x", 65, 257, dtype="f16"), positive("t"))
    yield account("i64 65x33 conditional entropy", conditional_entropy, label("c", 65, 33, high=4))
    yield account("f32 65x33 pmi", pmi, positive("c", 65, 33), only=TAME)
    yield account("i64 65x33 pmi", pmi, label("c", 65, 33, high=3))
    yield ledger("bf16 3x65x130 perplexity", perplexity, of("logits", 3, 65, 130, dtype="bf16"), label("y", 3, 65, high=130),
            mask("keep", 3, 65))
    yield ledger("f32 65x130 gini", gini, positive("x", 65, 130))
    yield ledger("f32 65x130 herfindahl", herfindahl, positive("x", 65, 130))
    yield account("f32 257 vocabulary", vocabulary, of("x", 3), label("codes", 257, high=30), only=("normal",))

    yield ledger("f32 33x65 blahut arimoto", blahut_arimoto, weight("w", 33, 65, scale=0.001, shift=1 / 65), positive("p", 33))
    yield ledger("f32 3x33x65 sinkhorn", sinkhorn, positive("c", 3, 33, 65), of("f", 3, 33, scale=0.1), of("loga", 3, 33),
            of("logb", 3, 65))
    yield ledger("f32 65x10 total correlation", total_correlation, of("z", 65, 10), of("mu", 65, 10),
            weight("logvar", 65, 10, scale=0.3))
    yield ledger("f32 130 infonce", infonce, of("f", 130, 130))
    yield account("f32 65 contrastive weights", contrastive_weights, of("s", 65, 65), label("y", 65, high=9))
    yield ledger("f32 65x33 entmax half", entmax_half, of("z", 65, 33), only=("normal", "ties", "zeros"))
    yield ledger("f32 65x1000 sparsemax topk", sparsemax_topk, of("z", 65, 1000), only=("normal", "ties", "zeros"))
