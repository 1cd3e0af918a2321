"""Beliefs: weighted samples, variational bounds, likelihoods, posteriors, and how sure a classifier is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, TAME, Program, label, made, mask, of, positive, weight

# -- samples and bounds ------------------------------------------------------------------------------------------------


def particles(logw: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised weights, effective sample size, mean and spread."""
    w = torch.exp(logw - logw.max(-1, keepdim=True).values)
    w = w / w.sum(-1, keepdim=True)
    ess = 1.0 / torch.sum(w**2, -1)
    mean = (w[..., None] * x).sum(1)
    var = (w[..., None] * (x - mean[:, None]) ** 2).sum(1)
    return ess, mean, var


def systematic(w: Tensor, u: Tensor) -> Tensor:
    """Which particle each place of the comb falls on, by counting."""
    c = torch.cumsum(w, -1) / w.sum(-1, keepdim=True)
    n = w.shape[-1]
    comb = (torch.arange(n, device=w.device) + u[:, None]) / n
    return (c[:, None, :] < comb[:, :, None]).sum(-1).clamp(max=n - 1)


def iwae(logp: Tensor, logq: Tensor) -> tuple[Tensor, Tensor]:
    logw = (logp - logq).sum(-1)
    k = logw.shape[0]
    bound = torch.logsumexp(logw, dim=0) - math.log(k)
    w = F.softmax(logw, dim=0)
    return bound.mean(), (w * logw).sum(0)


def dreg(logw: Tensor) -> tuple[Tensor, Tensor]:
    w = torch.softmax(logw, dim=-1)
    return (w.square() * logw).sum(-1), 1 / w.square().sum(-1) / logw.shape[-1]


def psis_tail(logw: Tensor) -> tuple[Tensor, Tensor]:
    """Generalised Pareto pieces of the largest weights."""
    top = torch.topk(logw, 20, -1).values
    x = torch.exp(top - top[..., :1])
    cut = x[..., -1:]
    e = (x - cut)[..., :-1]
    m = e.mean(-1)
    return m, e.var(-1, correction=1) / m.square().clamp_min(1e-20)


def annealed(logp: Tensor, logq: Tensor, beta: Tensor) -> Tensor:
    """Weights at a temperature that is a number in a tensor."""
    a = beta * (logp - logq)
    return (a.logsumexp(0) - math.log(a.shape[0])) / beta


def elbo(x: Tensor, logits: Tensor, mu: Tensor, logvar: Tensor, c: Tensor) -> Tensor:
    """A Bernoulli likelihood, a normal's KL, a categorical's KL."""
    rec = -F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)
    q = torch.softmax(c, dim=-1)
    kl_c = torch.sum(q * (torch.log(q + 1e-20) + math.log(c.shape[-1])), dim=-1)
    return (rec - kl - kl_c).mean()


def free_bits(mu: Tensor, logvar: Tensor) -> Tensor:
    kl = 0.5 * (mu**2 + logvar.exp() - 1 - logvar)
    return torch.clamp(kl.mean(0), min=0.1).sum()


# -- likelihoods and posteriors ----------------------------------------------------------------------------------------


def mdn(pi: Tensor, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
    """A mixture of normals at the target."""
    apart = -0.5 * ((y.unsqueeze(1) - mu) / sigma).pow(2).sum(-1) - sigma.log().sum(-1)
    logp = apart - 0.5 * mu.shape[-1] * math.log(2 * math.pi)
    return -torch.logsumexp(F.log_softmax(pi, -1) + logp, dim=-1).mean()


def student(y: Tensor, mu: Tensor, s: Tensor) -> Tensor:
    """Of four degrees of freedom."""
    z = (y - mu) / s
    return -(torch.log1p(z * z / 4.0) * 2.5 + s.log()).mean(-1)


def dirichlet_multinomial(x: Tensor, a: Tensor) -> Tensor:
    return torch.lgamma(a.sum(-1)) - torch.lgamma(a.sum(-1) + x.sum(-1)) + (torch.lgamma(x + a) - torch.lgamma(a)).sum(-1)


def kalman(p: Tensor, h: Tensor, z: Tensor, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """One scalar observation: gain, state, covariance."""
    ph = torch.einsum("bij,bj->bi", p, h)
    s = torch.einsum("bi,bi->b", h, ph) + r
    k = ph / s.unsqueeze(-1)
    x = x + k * (z - (h * x).sum(-1)).unsqueeze(-1)
    return x, p - k.unsqueeze(-1) * ph.unsqueeze(-2)


def gaussian_posterior(y: Tensor, prec: Tensor) -> tuple[Tensor, Tensor]:
    """Products of experts: precisions add."""
    t = prec.sum(dim=1) + 1.0
    return (prec * y).sum(dim=1) / t, t.reciprocal().sqrt()


def poe(mu: Tensor, logvar: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    t = torch.exp(-logvar) * keep.unsqueeze(-1)
    t0 = 1.0 + t.sum(1)
    return (mu * t).sum(1) / t0, -torch.log(t0)


def evidential(gamma: Tensor, nu: Tensor, alpha: Tensor, beta: Tensor, y: Tensor) -> Tensor:
    two = 2 * beta * (1 + nu)
    nll = 0.5 * torch.log(math.pi / nu) - alpha * torch.log(two) + (alpha + 0.5) * torch.log(nu * (y - gamma) ** 2 + two) \
        + torch.lgamma(alpha) - torch.lgamma(alpha + 0.5)
    reg = (y - gamma).abs() * (2 * nu + alpha)
    return (nll + 0.01 * reg).mean(-1)


def dirichlet(e: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Evidential classification: squared error, variance, vacuity."""
    alpha = F.relu(e) + 1
    s = alpha.sum(dim=1, keepdim=True)
    m = alpha / s
    hot = F.one_hot(y, e.shape[1])
    a = ((hot - m) ** 2).sum(1) + (alpha * (s - alpha) / (s * s * (s + 1))).sum(1)
    return a, (e.shape[1] / s).squeeze(1)


def uncertainty_weights(losses: Tensor, s: Tensor) -> Tensor:
    return (torch.exp(-s) * losses + s).sum(-1) * 0.5


# -- classifiers -------------------------------------------------------------------------------------------------------


def calibration(logits: Tensor, y: Tensor) -> Tensor:
    """Expected calibration error of fifteen bins."""
    conf, pred = torch.softmax(logits, dim=1).max(1)
    right = pred.eq(y)
    ece = torch.zeros((), device=logits.device)
    edges = torch.linspace(0, 1, 16, device=logits.device)
    for lo, hi in zip(edges[:-1], edges[1:], strict=True):
        inside = conf.gt(lo) & conf.le(hi)
        share = inside.float().mean()
        n = inside.sum().clamp(min=1)
        ece = ece + (torch.where(inside, conf, 0).sum() / n - (right & inside).float().sum() / n).abs() * share
    return ece


def brier(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    p = logits.softmax(-1)
    return ((p - F.one_hot(y, logits.shape[-1]).to(p.dtype)) ** 2).sum(-1).mean(), -(p * (p + 1e-8).log()).sum(-1).mean()


def conformal(logits: Tensor, y: Tensor) -> Tensor:
    """APS: the mass of what is at least as likely as the label."""
    p = torch.softmax(logits, -1)
    own = p.gather(-1, y[:, None])
    return (p * (p >= own)).sum(-1)


def label_distribution(logits: Tensor, age: Tensor) -> tuple[Tensor, Tensor]:
    """A normal about the label as target, its divergence, and the expected value's error."""
    n = logits.shape[-1]
    grid = torch.arange(n, device=logits.device).float()
    t = torch.exp(-((grid - age[:, None]) ** 2) / (2 * 2.0**2))
    t = t / t.sum(1, keepdim=True)
    kl = F.kl_div(F.log_softmax(logits, 1), t, reduction="batchmean")
    return kl, ((F.softmax(logits, 1) * grid).sum(1) - age).abs().mean()


def ordinal(x: Tensor, cuts: Tensor, y: Tensor) -> Tensor:
    c = torch.cumsum(F.softplus(cuts), 0)
    p = torch.sigmoid(c - x[:, None])
    p = torch.cat([torch.zeros_like(p[:, :1]), p, torch.ones_like(p[:, :1])], 1)
    own = p.gather(1, y[:, None] + 1) - p.gather(1, y[:, None])
    return -own.clamp(min=1e-12).log().mean()


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    ledger = partial(made, "ledgers")
    account = partial(made, "accounts")
    yield ledger("f32 9x257x3 particles", particles, of("logw", 9, 257), of("x", 9, 257, 3))
    yield ledger("f32 9x130 systematic", systematic, positive("w", 9, 130), weight("u", 9, scale=0.1, shift=0.5),
            only=("normal", "zeros"))
    yield ledger("f32 65x9x20 iwae", iwae, of("logp", 65, 9, 20), of("logq", 65, 9, 20))
    yield account("f32 65x130 dreg", dreg, of("logw", 65, 130))
    yield account("f32 9x257 psis tail", psis_tail, of("logw", 9, 257), only=("normal", "outlier"))
    yield account("f32 130x33 annealed", annealed, of("logp", 130, 33), of("logq", 130, 33), positive("beta"), only=TAME)
    yield ledger("f32 33x130x20 elbo", elbo, weight("x", 33, 130, scale=0.1, shift=0.5), of("logits", 33, 130),
            of("mu", 33, 20), of("logvar", 33, 20), of("c", 33, 10))
    yield account("f32 130x20 free bits", free_bits, of("mu", 130, 20), of("logvar", 130, 20))

    yield ledger("f32 65x5x3 mdn", mdn, of("pi", 65, 5), of("mu", 65, 5, 3), positive("sigma", 65, 5, 3), of("y", 65, 3))
    yield account("f32 33x65 student", student, of("y", 33, 65), of("mu", 33, 65), positive("s", 33, 65))
    yield account("f32 65x20 dirichlet multinomial", dirichlet_multinomial, positive("x", 65, 20), positive("a", 65, 20),
            only=TAME)
    yield ledger("f32 65x6 kalman", kalman, of("p", 65, 6, 6), of("h", 65, 6), of("z", 65), of("x", 65, 6), positive("r", 65))
    yield account("f32 65x9x16 gaussian posterior", gaussian_posterior, of("y", 65, 9, 16), positive("prec", 65, 9, 16))
    yield account("f16 65x5x16 poe", poe, of("mu", 65, 5, 16, dtype="f16"), weight("logvar", 65, 5, 16, dtype="f16"),
            mask("keep", 65, 5))
    yield ledger("f32 33x65 evidential", evidential, of("gamma", 33, 65),
            *(positive(n, 33, 65, shift=1.0) for n in ("nu", "alpha", "beta")), of("y", 33, 65), only=CALM)
    yield ledger("f32 65x10 dirichlet", dirichlet, of("e", 65, 10), label("y", 65, high=10))
    yield ledger("f32 65x3 uncertainty weights", uncertainty_weights, positive("losses", 65, 3), of("s", 3))

    yield ledger("f32 257x10 calibration", calibration, of("logits", 257, 10), label("y", 257, high=10),
            only=("normal", "zeros", "nan:logits"))
    yield ledger("f32 257x10 brier", brier, of("logits", 257, 10), label("y", 257, high=10))
    yield ledger("f32 65x130 conformal", conformal, of("logits", 65, 130), label("y", 65, high=130))
    yield ledger("f32 65x101 label distribution", label_distribution, of("logits", 65, 101),
            weight("age", 65, scale=10.0, shift=50.0))
    yield account("f32 130x6 ordinal", ordinal, of("x", 130), of("cuts", 6), label("y", 130, high=7))
