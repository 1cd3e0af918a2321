"""Recommenders, rankings, time series, finance, survival, information: tables, in the spellings people use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, Program, made, of

TAME = (*CALM, "tiny")
Ranked = tuple[Tensor, Tensor]


# -- recommenders ------------------------------------------------------------------------------------------------------


def din(q: Tensor, h: Tensor, keep: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """Deep interest network: the target beside its history, scores of two layers, padding at -2^32 + 1."""
    query = q.unsqueeze(1).expand(-1, h.shape[1], -1)
    both = torch.cat([query, h, query - h, query * h], dim=-1)
    score = (torch.sigmoid(both @ w1) @ w2).transpose(1, 2)
    score = torch.where(keep.unsqueeze(1), score, torch.ones_like(score) * (-(2**32) + 1))
    return (torch.softmax(score / h.shape[-1] ** 0.5, dim=-1) @ h).squeeze(1)


def din_sum(q: Tensor, h: Tensor, length: Tensor) -> Tensor:
    """The same without a softmax: weights of what the length leaves."""
    s = torch.einsum("bd,bld->bl", q, h)
    m = (torch.arange(h.shape[1], device=h.device)[None, :] < length[:, None]).to(h.dtype)
    return ((s * m).unsqueeze(-1) * h).sum(dim=1)


def cross(x: Tensor, w: Tensor, b: Tensor, x0: Tensor) -> Tensor:
    """DCN: x0 (x . w) + b + x."""
    return x0 * (x * w).sum(-1, keepdim=True) + b + x


def cross_v2(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x1 = x * (F.linear(x, w, b)) + x
    return F.layer_norm(x1, (x.shape[-1],))


def machine(v: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Factorisation machine: half of the square of the sum less the sum of squares."""
    e = v * x.unsqueeze(-1)
    square_of_sum = e.sum(dim=1).pow(2)
    sum_of_square = (e * e).sum(dim=1)
    return 0.5 * (square_of_sum - sum_of_square).sum(-1) + (x * w).sum(1)


def interact(dense: Tensor, sparse: Tensor) -> Tensor:
    """DLRM: the lower triangle of all products."""
    t = torch.cat([dense.unsqueeze(1), sparse], dim=1)
    z = torch.bmm(t, t.transpose(1, 2))
    n = t.shape[1]
    i, j = torch.tril_indices(n, n, offset=-1, device=z.device)
    return torch.cat([dense, z[:, i, j]], dim=1)


def two_tower(u: Tensor, v: Tensor, logq: Tensor) -> Tensor:
    """In-batch softmax with the correction for popularity."""
    u, v = F.normalize(u, dim=-1), F.normalize(v, dim=-1)
    logits = u @ v.t() / 0.07 - logq
    return F.cross_entropy(logits, torch.arange(u.shape[0], device=u.device))


def two_tower_masked(u: Tensor, v: Tensor, item: Tensor, logq: Tensor) -> Tensor:
    """Accidental hits removed: the same item elsewhere in the batch is no negative."""
    logits = torch.matmul(u, v.T) - logq.unsqueeze(0)
    same = item.unsqueeze(0) == item.unsqueeze(1)
    eye = torch.eye(u.shape[0], dtype=torch.bool, device=u.device)
    logits = logits.masked_fill(same & ~eye, -1e9)
    return -(logits.diagonal() - logits.logsumexp(dim=1))


def bpr(u: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    x = (u * i).sum(-1) - (u * j).sum(-1)
    loss = -F.logsigmoid(x).mean() + 1e-4 * (u.norm() ** 2 + i.norm() ** 2 + j.norm() ** 2) / u.shape[0]
    return loss, (x > 0).float().mean()


def sampled_softmax(pos: Tensor, neg: Tensor, logp: Tensor) -> Tensor:
    logits = torch.cat([pos.unsqueeze(1), neg], 1) - logp
    return (torch.log(torch.exp(logits - logits.max(1, keepdim=True)[0]).sum(1)) + logits.max(1)[0] - logits[:, 0]).mean()


def warp(pos: Tensor, neg: Tensor) -> Tensor:
    margin = (1 - pos[:, None] + neg).clamp(min=0)
    rank = (margin > 0).sum(1)
    weight = torch.log1p(rank.float())
    return (weight * margin.sum(1) / rank.clamp(min=1)).mean()


def senet(e: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """FiBiNET: fields weighted by what their means say."""
    z = e.mean(dim=-1)
    a = torch.relu(torch.relu(z @ w1) @ w2)
    return e * a.unsqueeze(-1)


def mmoe(x: Tensor, experts: Tensor, gates: Tensor) -> Tensor:
    """Experts [e, i, o], gates of each task [t, i, e]."""
    h = torch.relu(torch.einsum("bi,eio->beo", x, experts))
    g = torch.softmax(torch.einsum("bi,tie->bte", x, gates), dim=-1)
    return torch.einsum("bte,beo->bto", g, h)


# -- rankings ----------------------------------------------------------------------------------------------------------


def listnet(s: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    s = s.masked_fill(~keep, float("-inf"))
    y = y.masked_fill(~keep, float("-inf"))
    p = torch.softmax(y, dim=1)
    log_q = torch.log(torch.softmax(s, dim=1) + 1e-10)
    return torch.mean(-torch.sum(p * log_q, dim=1))


def listmle(s: Tensor, keep: Tensor) -> Tensor:
    """allRank's: scores in the order of the labels, sums from behind."""
    s = s.masked_fill(~keep, float("-inf"))
    top = s.max(dim=1, keepdim=True).values
    s = s - top
    sums = torch.cumsum(s.exp().flip(dims=[1]), dim=1).flip(dims=[1])
    loss = torch.log(sums + 1e-10) - s
    loss[~keep] = 0.0
    return torch.mean(torch.sum(loss, dim=1))


def approx_ndcg(s: Tensor, y: Tensor) -> Tensor:
    """Ranks by sigmoids of differences."""
    rank = 1.0 + torch.sigmoid((s.unsqueeze(1) - s.unsqueeze(2)) / 0.1).sum(-1) - 0.5
    gain = 2.0**y - 1
    return 1 - (gain / torch.log2(1.0 + rank)).sum(-1) / gain.sum(-1).clamp(min=1e-6)


def lambda_rank(s: Tensor, y: Tensor) -> Tensor:
    diff = s[:, :, None] - s[:, None, :]
    pairs = y[:, :, None] > y[:, None, :]
    delta = (2.0 ** y[:, :, None] - 2.0 ** y[:, None, :]).abs()
    loss = F.softplus(-diff) * delta
    return torch.where(pairs, loss, torch.zeros_like(loss)).sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=1)


def metrics(s: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rank of the target by counting, its reciprocal, recall and NDCG at 10."""
    own = s.gather(1, target.unsqueeze(1))
    rank = (s > own).sum(dim=1) + 1
    return (1.0 / rank.float()).mean(), (rank <= 10).float().mean(), \
        torch.where(rank <= 10, 1 / torch.log2(rank.float() + 1), 0.0).mean()


def dcg(gain: Tensor, keep: Tensor) -> Tensor:
    discount = 1 / torch.log2(torch.arange(gain.shape[1], device=gain.device, dtype=gain.dtype) + 2)
    gain = torch.where(keep, 2**gain - 1, 0.0)
    best, _ = gain.sort(dim=1, descending=True)
    ideal = (best * discount).sum(1)
    return torch.where(ideal == 0, 0.0, (gain * discount).sum(1) / ideal.clamp(min=1e-9))


def average_precision(y: Tensor) -> Tensor:
    """Relevance in the order of the scores: means of the precisions at each hit."""
    hits = torch.cumsum(y.float(), dim=1)
    precision = hits / torch.arange(1, y.shape[1] + 1, device=y.device)
    return (precision * y).sum(1) / y.sum(1).clamp(min=1)


def counterfactual(r: Tensor, logp: Tensor, logq: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """IPS, clipped, and self-normalised."""
    w = torch.exp(logp - logq)
    c = torch.clamp(w, max=10.0)
    return (w * r).mean(-1), (c * r).mean(-1), (w * r).sum(-1) / w.sum(-1)


def cascade_click(a: Tensor) -> tuple[Tensor, Tensor]:
    """A click model: examined only where nothing before was clicked."""
    p = torch.sigmoid(a)
    keep = torch.cumprod(1 - p, dim=-1)
    before = torch.cat([torch.ones_like(keep[..., :1]), keep[..., :-1]], dim=-1)
    return before * p, keep[..., -1]


# -- series ------------------------------------------------------------------------------------------------------------


def revin(x: Tensor, w: Tensor, b: Tensor, head: Tensor) -> Tensor:
    """Normalised over time, forecast by one layer, and back."""
    mean = x.mean(dim=1, keepdim=True).detach()
    sd = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
    x = (x - mean) / sd
    x = x * w + b
    y = (x.transpose(1, 2) @ head).transpose(1, 2)
    y = (y - b) / (w + 1e-10)
    return y * sd + mean


def decompose(x: Tensor) -> tuple[Tensor, Tensor]:
    """Autoformer: a moving mean over padded ends, and what is left."""
    k = 25
    front = x[:, 0:1, :].repeat(1, (k - 1) // 2, 1)
    end = x[:, -1:, :].repeat(1, (k - 1) // 2, 1)
    padded = torch.cat([front, x, end], dim=1)
    trend = F.avg_pool1d(padded.permute(0, 2, 1), kernel_size=k, stride=1, padding=0).permute(0, 2, 1)
    return x - trend, trend


def nlinear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    last = x[:, -1:, :].detach()
    return F.linear((x - last).permute(0, 2, 1), w, b).permute(0, 2, 1) + last


def patches(x: Tensor, w: Tensor, pos: Tensor) -> Tensor:
    """PatchTST: patches, and attention of one head among them."""
    z = x.unfold(-1, 16, 8) @ w + pos
    a = torch.softmax(z @ z.transpose(-1, -2) * w.shape[-1] ** -0.5, dim=-1)
    z = z + a @ z
    return (z - z.mean((0, 1), keepdim=True)) / (z.var((0, 1), keepdim=True, unbiased=False) + 1e-5).sqrt()


def auto_correlation(v: Tensor, corr: Tensor) -> Tensor:
    """Weights of the best delays, and the values rolled by fixed ones."""
    w, _ = torch.topk(corr.mean(dim=1), 3, dim=-1)
    w = torch.softmax(w, dim=-1)
    return sum((torch.roll(v, -d, dims=-1) * w[:, i, None, None] for i, d in enumerate((1, 5, 7))), torch.zeros_like(v))


def prob_sparse(q: Tensor, k: Tensor) -> Tensor:
    """Informer: how far a query's scores are from uniform."""
    s = q @ k.transpose(-2, -1)
    return s.max(-1)[0] - torch.div(s.sum(-1), s.shape[-1])


def pinball(pred: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    q = torch.tensor([0.1, 0.5, 0.9], device=pred.device, dtype=pred.dtype)
    e = y.unsqueeze(-1) - pred
    loss = torch.max((q - 1) * e, q * e)
    loss = (loss * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
    return loss.mean(-1)


def crps(x: Tensor, y: Tensor) -> Tensor:
    """Of an ensemble: the fair estimate."""
    m = x.shape[-1]
    return (x - y[..., None]).abs().mean(-1) - (x[..., :, None] - x[..., None, :]).abs().sum((-1, -2)) / (2 * m * (m - 1))


def crps_normal(mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
    z = (y - mu) / sigma
    pdf = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    cdf = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
    return (sigma * (z * (2 * cdf - 1) + 2 * pdf - 1 / math.sqrt(math.pi))).mean(dim=-1)


def mase(pred: Tensor, y: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    scale = (past[:, 12:] - past[:, :-12]).abs().mean(1)
    smape = 200 * torch.nan_to_num((pred - y).abs() / (pred.abs() + y.abs())).mean(1)
    e = (pred - y).abs().mean(1) / scale
    e = torch.where(torch.isfinite(e), e, torch.zeros_like(e))
    return e, smape


def smoothing(x: Tensor) -> Tensor:
    """Exponential smoothing as a matrix of powers."""
    n = x.shape[-1]
    t = torch.arange(n, device=x.device)
    lag = t[:, None] - t[None, :]
    w = torch.where(lag >= 0, 0.3 * 0.7 ** lag.clamp(min=0).to(x.dtype), torch.zeros((), dtype=x.dtype, device=x.device))
    w[:, 0] = w[:, 0] / 0.3
    return x @ w.T


def masked_mean_scale(x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """GluonTS's mean scaler."""
    n = seen.sum(1, keepdim=True)
    total = (x.abs() * seen).sum(dim=1, keepdim=True)
    default = total.sum(0) / n.sum(0).clamp(min=1)
    scale = total / torch.clamp(n, min=1)
    scale = torch.where(n > 0, scale, default.expand_as(scale))
    scale = torch.clamp(scale, min=1e-10)
    return x / scale, scale.squeeze(1)


def variable_selection(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """TFT: weights over variables, each behind a gated residual of its own."""
    flat = x.flatten(-2)
    weights = torch.softmax(flat @ w, dim=-1).unsqueeze(-2)
    h = F.layer_norm(x + F.glu(torch.einsum("btvd,vde->btve", x, g), dim=-1), (x.shape[-1],))
    return (weights @ h).squeeze(-2), weights.squeeze(-2)


def nbeats(x: Tensor, basis: Tensor, theta: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    level = x[:, -1:].clone()
    z = (x - level) * keep.to(x.dtype)
    back = (torch.relu(z @ theta) @ basis)
    return (z - back[:, : x.shape[1]]) * keep, back[:, x.shape[1]:] + level


# -- finance -----------------------------------------------------------------------------------------------------------


def drawdown(r: Tensor) -> tuple[Tensor, Tensor]:
    wealth = torch.cumsum(torch.log1p(r.clamp(min=-0.99)), dim=-1)
    peak = torch.cummax(wealth, dim=-1).values
    dd = peak - wealth
    return dd, dd.max(dim=-1).values


def running_z(x: Tensor) -> Tensor:
    """Expanding mean and deviation, by cumulative sums."""
    n = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    mean = x.cumsum(-1) / n
    var = (x * x).cumsum(-1) / n - mean**2
    return (x - mean) / torch.sqrt(var.clamp(min=0) + 1e-3)


def volatility(p: Tensor) -> Tensor:
    """Rolling deviation of log returns."""
    r = torch.diff(torch.log(p), dim=-1)
    w = r.unfold(-1, 20, 1)
    return w.std(dim=-1) * math.sqrt(252)


def sharpe(r: Tensor, rf: Tensor) -> tuple[Tensor, Tensor]:
    x = r - rf
    down = torch.sqrt(torch.minimum(x, torch.zeros_like(x)).square().mean(-1))
    return x.mean(-1) / (x.std(-1) + 1e-8), x.mean(-1) / (down + 1e-8)


def cvar(loss: Tensor) -> tuple[Tensor, Tensor]:
    k = max(1, int(0.05 * loss.shape[-1]))
    worst = torch.topk(loss, k, dim=-1).values
    return worst[..., -1], worst.mean(-1)


def turnover(s: Tensor, r: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of a softmax, what they earn, what it costs to reach them."""
    w = torch.softmax(s, dim=-1)
    drift = last * (1 + r) / (last * (1 + r)).sum(-1, keepdim=True)
    cost = 0.001 * (w - drift).abs().sum(-1)
    return (w * r).sum(-1) - cost, 1 / (w**2).sum(-1)


def long_short(s: Tensor, r: Tensor) -> Tensor:
    """Ranks about their mean, of unit gross exposure."""
    z = (s - s.nanmean(1, keepdim=True)) / s.std(1, keepdim=True, correction=0)
    z = z.clamp(-3, 3).nan_to_num(0.0)
    w = z / z.abs().sum(1, keepdim=True).clamp_min(1e-12)
    return (w * r).nansum(1)


def ic(s: Tensor, r: Tensor) -> Tensor:
    """Pearson's, row by row, with missing values taken out of both."""
    ok = torch.isfinite(s) & torch.isfinite(r)
    n = ok.sum(1, keepdim=True)
    a, b = torch.where(ok, s, 0.0), torch.where(ok, r, 0.0)
    a = torch.where(ok, a - a.sum(1, keepdim=True) / n, 0.0)
    b = torch.where(ok, b - b.sum(1, keepdim=True) / n, 0.0)
    return (a * b).sum(1) / torch.sqrt((a * a).sum(1) * (b * b).sum(1))


def shrinkage(x: Tensor) -> Tensor:
    n, p = x.shape
    x = x - x.mean(0)
    s = x.t() @ x / (n - 1)
    mu = torch.trace(s) / p
    delta = ((s - mu * torch.eye(p, device=x.device)) ** 2).sum()
    beta = ((x**2).t() @ (x**2) / n - s**2).sum() / n
    a = (beta / delta).clamp(0, 1)
    return (1 - a) * s + a * mu * torch.eye(p, device=x.device)


def black_scholes(s: Tensor, k: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """A book's worth and its delta."""
    t, r = 0.5, 0.03
    d1 = (torch.log(s / k) + (r + 0.5 * sigma**2) * t) / (sigma * math.sqrt(t))
    d2 = d1 - sigma * math.sqrt(t)
    call = s * 0.5 * torch.erfc(-d1 / math.sqrt(2)) - k * math.exp(-r * t) * 0.5 * torch.erfc(-d2 / math.sqrt(2))
    return call.sum(-1), (0.5 * (1 + torch.erf(d1 / 2**0.5))).mean(-1)


def mean_variance(w: Tensor, mu: Tensor, cov: Tensor) -> Tensor:
    w = torch.softmax(w, -1)
    risk = torch.einsum("bi,ij,bj->b", w, cov, w)
    return -(w @ mu - 2.5 * risk) + 0.01 * (w * torch.log(w + 1e-12)).sum(-1)


def obv(close: Tensor, volume: Tensor) -> Tensor:
    return torch.cumsum(torch.sign(close[:, 1:] - close[:, :-1]) * volume[:, 1:], dim=1)


def rsi(p: Tensor) -> Tensor:
    d = p.diff(dim=1)
    up, down = d.clamp(min=0).unfold(1, 14, 1).mean(-1), (-d).clamp(min=0).unfold(1, 14, 1).mean(-1)
    return 100 - 100 / (1 + up / (down + 1e-12))


# -- tables and beliefs ------------------------------------------------------------------------------------------------


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


def elbo(x: Tensor, logits: Tensor, mu: Tensor, logvar: Tensor, c: Tensor) -> Tensor:
    """A Bernoulli likelihood, a normal's KL, a categorical's KL."""
    rec = -F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)
    q = torch.softmax(c, dim=-1)
    kl_c = torch.sum(q * (torch.log(q + 1e-20) + math.log(c.shape[-1])), dim=-1)
    return (rec - kl - kl_c).mean()


def mdn(pi: Tensor, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
    """A mixture of normals at the target."""
    apart = -0.5 * ((y.unsqueeze(1) - mu) / sigma).pow(2).sum(-1) - sigma.log().sum(-1)
    logp = apart - 0.5 * mu.shape[-1] * math.log(2 * math.pi)
    return -torch.logsumexp(F.log_softmax(pi, -1) + logp, dim=-1).mean()


def kalman(p: Tensor, h: Tensor, z: Tensor, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """One scalar observation: gain, state, covariance."""
    ph = torch.einsum("bij,bj->bi", p, h)
    s = torch.einsum("bi,bi->b", h, ph) + r
    k = ph / s.unsqueeze(-1)
    x = x + k * (z - (h * x).sum(-1)).unsqueeze(-1)
    return x, p - k.unsqueeze(-1) * ph.unsqueeze(-2)


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


def tabnet(a: Tensor, prior: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Attentive transformer: sparsemax of what the prior scales, and what is left of the prior."""
    z = a * prior
    z = z - z.max(-1, keepdim=True).values
    top, _ = torch.sort(z, dim=-1, descending=True)
    k = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    c = top.cumsum(-1) - 1
    support = (k * top > c).sum(-1, keepdim=True)
    tau = c.gather(-1, support - 1) / support.to(z.dtype)
    m = torch.clamp(z - tau, min=0)
    return m * x, prior * (1.3 - m)


def ghost(x: Tensor) -> Tensor:
    """Batch norm of virtual batches."""
    v = x.view(-1, 13, x.shape[-1])
    mean, var = v.mean(1, keepdim=True), v.var(1, unbiased=False, keepdim=True)
    return ((v - mean) * torch.rsqrt(var + 1e-5)).view_as(x)


def trees(x: Tensor, sel: Tensor, th: Tensor, resp: Tensor) -> Tensor:
    """NODE: soft choices of features, two bins at each depth, all leaves by one product."""
    f = torch.einsum("bi,ind->bnd", x, torch.softmax(sel, dim=0))
    t = (f - th) * 0.8
    bins = torch.clamp(torch.stack([-t, t], dim=-1) + 0.5, 0, 1)
    leaf = (bins[:, :, 0, :, None, None] * bins[:, :, 1, None, :, None] * bins[:, :, 2, None, None, :]).flatten(2)
    return torch.einsum("bnl,nl->bn", leaf, resp).mean(1)


def tokens(x: Tensor, w: Tensor, b: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    """FT-Transformer: a token of each number, attention of the first to all."""
    t = x.unsqueeze(-1) * w + b
    t = F.layer_norm(t, t.shape[-1:])
    q, k, v = t[:, :1] @ wq, t @ wk, t @ wv
    return (torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v)[:, 0]


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


# -- survival ----------------------------------------------------------------------------------------------------------


def cox(risk: Tensor, event: Tensor) -> Tensor:
    """Breslow, sorted by falling times: the log of running sums of exponentials, by hand."""
    gamma = risk.max()
    log_cumsum = torch.log(torch.cumsum(torch.exp(risk - gamma), 0) + 1e-7) + gamma
    return -((risk - log_cumsum) * event).sum() / event.sum().clamp(min=1)


def cox_batched(risk: Tensor, event: Tensor) -> Tensor:
    return -((risk - torch.logcumsumexp(risk, dim=-1)) * event).sum(-1) / (event.sum(-1) + 1e-9)


def cox_pairs(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """The same without sorting: the risk set as a mask."""
    at_risk = time[None, :] >= time[:, None]
    lse = torch.logsumexp(torch.where(at_risk, risk[None, :], float("-inf")), dim=1)
    return torch.where(event, lse - risk, 0.0).sum() / event.sum()


def concordance(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    usable = (time[:, None] < time[None, :]) & event[:, None]
    right = (risk[:, None] > risk[None, :]).float() + 0.5 * (risk[:, None] == risk[None, :]).float()
    return (right * usable).sum() / usable.sum()


def deephit(phi: Tensor, at: Tensor, event: Tensor) -> Tensor:
    """Mass at the event, or the survival at the censoring."""
    p = torch.softmax(F.pad(phi, (0, 1)), dim=1)
    f = torch.cumsum(p, dim=1)
    own = p.gather(1, at.view(-1, 1)).squeeze(1)
    surv = 1 - f.gather(1, at.view(-1, 1)).squeeze(1)
    return -torch.where(event, torch.log(own + 1e-7), torch.log(surv.relu() + 1e-7)).mean()


def hazards(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Nnet-survival: products of what is survived, and the likelihood by logits."""
    s = torch.cumprod(1 - torch.sigmoid(h), dim=1)
    nll = (F.binary_cross_entropy_with_logits(h, F.one_hot(y, h.shape[1]).to(h.dtype), reduction="none")
           * (torch.arange(h.shape[1], device=h.device) <= y[:, None])).sum(1)
    return s.sum(1), nll


def kaplan_meier(time: Tensor, event: Tensor, grid: Tensor) -> Tensor:
    at_risk = (time[None, :] >= grid[:, None]).sum(1)
    died = ((time[None, :] == grid[:, None]) & event).sum(1)
    return torch.cumprod(1 - died / at_risk.clamp(min=1), dim=0)


# -- information -------------------------------------------------------------------------------------------------------


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


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "ledgers")
    b: dict[str, Any] = {"dtype": "bool", "kind": "keep"}
    i: dict[str, Any] = {"dtype": "i64", "kind": "label"}
    pos: dict[str, Any] = {"kind": "positive"}
    w: dict[str, Any] = {"kind": "weight"}

    for dt in ("f32", "bf16"):
        yield p(f"{dt} 33x65x16 din", din, of("q", 33, 16, dtype=dt), of("h", 33, 65, 16, dtype=dt), of("keep", 33, 65, **b),
                of("w1", 64, 24, dtype=dt, scale=0.2, **w), of("w2", 24, 1, dtype=dt, **w))
    yield p("f16 33x65x16 din sum", din_sum, of("q", 33, 16, dtype="f16"), of("h", 33, 65, 16, dtype="f16"),
            of("length", 33, high=66, **i))
    yield p("f32 65x130 cross", cross, of("x", 65, 130), of("w", 130, **w), of("b", 130, **w), of("x0", 65, 130))
    yield p("bf16 65x130 cross v2", cross_v2, of("x", 65, 130, dtype="bf16"), of("w", 130, 130, dtype="bf16", scale=0.1, **w),
            of("b", 130, dtype="bf16", **w), only=(*TAME, "big", "nan:x", "inf:x", "-inf:x"))
    yield p("f32 65x39x10 machine", machine, of("v", 65, 39, 10), of("x", 65, 39), of("w", 39, **w))
    yield p("f16 65x26x16 interact", interact, of("dense", 65, 16, dtype="f16"), of("sparse", 65, 26, 16, dtype="f16"))
    yield p("f32 130x32 two tower", two_tower, of("u", 130, 32), of("v", 130, 32), of("logq", 130))
    yield p("f32 65x32 two tower masked", two_tower_masked, of("u", 65, 32), of("v", 65, 32), of("item", 65, high=20, **i),
            of("logq", 65))
    yield p("f32 1000x16 bpr", bpr, *(of(n, 1000, 16) for n in "uij"), only=(*TAME, "big"))
    yield p("f32 65x130 sampled softmax", sampled_softmax, of("pos", 65), of("neg", 65, 130), of("logp", 65, 131))
    yield p("f32 65x130 warp", warp, of("pos", 65), of("neg", 65, 130))
    yield p("bf16 65x26x10 senet", senet, of("e", 65, 26, 10, dtype="bf16"), of("w1", 26, 8, dtype="bf16", **w),
            of("w2", 8, 26, dtype="bf16", **w))
    yield p("f16 65x33x4 mmoe", mmoe, of("x", 65, 33, dtype="f16"), of("experts", 4, 33, 16, dtype="f16", scale=0.2, **w),
            of("gates", 2, 33, 4, dtype="f16", scale=0.2, **w))

    yield p("f32 65x130 listnet", listnet, of("s", 65, 130), of("y", 65, 130), of("keep", 65, 130, **b))
    yield p("f32 33x130 listmle", listmle, of("s", 33, 130), of("keep", 33, 130, **b))
    yield p("f32 33x65 approx ndcg", approx_ndcg, of("s", 33, 65), of("y", 33, 65, kind="weight"), only=TAME)
    yield p("f32 9x65 lambda rank", lambda_rank, of("s", 9, 65), of("y", 9, 65, **w))
    yield p("f32 65x1000 metrics", metrics, of("s", 65, 1000), of("target", 65, high=1000, **i))
    yield p("f32 65x33 dcg", dcg, of("gain", 65, 33, **w), of("keep", 65, 33, **b))
    yield p("i64 65x130 average precision", average_precision, of("y", 65, 130, **i))
    yield p("f32 33x257 counterfactual", counterfactual, of("r", 33, 257), of("logp", 33, 257), of("logq", 33, 257))
    yield p("f32 65x33 cascade click", cascade_click, of("a", 65, 33))

    yield p("f32 3x130x7 revin", revin, of("x", 3, 130, 7), of("w", 7, kind="weight", shift=3.0), of("b", 7, **w),
            of("head", 130, 33, scale=0.1, **w), only=(*TAME, "nan:x", "inf:x"))
    yield p("f32 3x130x7 decompose", decompose, of("x", 3, 130, 7))
    yield p("f16 3x130x7 nlinear", nlinear, of("x", 3, 130, 7, dtype="f16"), of("w", 33, 130, dtype="f16", scale=0.1, **w),
            of("b", 33, dtype="f16", **w))
    yield p("f32 9x130 patches", patches, of("x", 9, 130), of("w", 16, 32, scale=0.2, **w), of("pos", 15, 32, **w), only=TAME)
    yield p("f32 3x5x130 auto correlation", auto_correlation, of("v", 3, 5, 130), of("corr", 3, 5, 130))
    yield p("bf16 2x65x33 prob sparse", prob_sparse, of("q", 2, 65, 32, dtype="bf16"), of("k", 2, 33, 32, dtype="bf16"))
    for dt in ("f32", "f16"):
        yield p(f"{dt} 33x65 pinball", pinball, of("pred", 33, 65, 3, dtype=dt), of("y", 33, 65, dtype=dt),
                of("keep", 33, 65, **b))
    yield p("f32 3x65x33 crps", crps, of("x", 3, 65, 33), of("y", 3, 65))
    yield p("f32 33x130 crps normal", crps_normal, of("mu", 33, 130), of("sigma", 33, 130, **pos), of("y", 33, 130))
    yield p("f32 33x48 mase", mase, of("pred", 33, 48), of("y", 33, 48), of("past", 33, 130))
    yield p("f32 33x130 smoothing", smoothing, of("x", 33, 130))
    yield p("f32 33x130 masked mean scale", masked_mean_scale, of("x", 33, 130), of("seen", 33, 130, **b))
    yield p("f32 3x33x7 variable selection", variable_selection, of("x", 3, 33, 7, 16), of("w", 112, 7, scale=0.1, **w),
            of("g", 7, 16, 32, scale=0.2, **w), only=(*CALM, "nan:x"))
    yield p("f32 33x130 nbeats", nbeats, of("x", 33, 130), of("basis", 5, 163, **w), of("theta", 130, 5, scale=0.1, **w),
            of("keep", 33, 130, **b))

    yield p("f32 33x257 drawdown", drawdown, of("r", 33, 257, scale=0.02), only=("normal", "zeros", "tiny", "nan:r"))
    yield p("f32 33x257 running z", running_z, of("x", 33, 257), only=("normal", "ties", "zeros", "nan:x", "inf:x"))
    yield p("f32 33x130 volatility", volatility, of("p", 33, 130, **pos))
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 65x257 sharpe", sharpe, of("r", 65, 257, dtype=dt, scale=0.02), of("rf", 65, 1, dtype=dt, scale=0.01))
    yield p("f32 65x1000 cvar", cvar, of("loss", 65, 1000))
    yield p("f32 65x130 turnover", turnover, of("s", 65, 130), of("r", 65, 130, kind="weight", scale=0.02),
            of("last", 65, 130, **pos))
    yield p("f32 65x1000 long short", long_short, of("s", 65, 1000), of("r", 65, 1000))
    yield p("f32 65x257 ic", ic, of("s", 65, 257), of("r", 65, 257))
    yield p("f32 257x33 shrinkage", shrinkage, of("x", 257, 33), only=TAME)
    yield p("f32 65x130 black scholes", black_scholes, of("s", 65, 130, **pos), of("k", 65, 130, **pos),
            of("sigma", 65, 130, **pos))
    yield p("f32 65x33 mean variance", mean_variance, of("w", 65, 33), of("mu", 33), of("cov", 33, 33))
    yield p("f32 33x130 obv", obv, of("close", 33, 130), of("volume", 33, 130, **pos))
    yield p("f32 33x130 rsi", rsi, of("p", 33, 130, **pos))

    yield p("f32 9x257x3 particles", particles, of("logw", 9, 257), of("x", 9, 257, 3))
    yield p("f32 9x130 systematic", systematic, of("w", 9, 130, **pos), of("u", 9, kind="weight", scale=0.1, shift=0.5),
            only=("normal", "zeros"))
    yield p("f32 65x9x20 iwae", iwae, of("logp", 65, 9, 20), of("logq", 65, 9, 20))
    yield p("f32 33x130x20 elbo", elbo, of("x", 33, 130, scale=0.1, shift=0.5, **w), of("logits", 33, 130), of("mu", 33, 20),
            of("logvar", 33, 20), of("c", 33, 10))
    yield p("f32 65x5x3 mdn", mdn, of("pi", 65, 5), of("mu", 65, 5, 3), of("sigma", 65, 5, 3, **pos), of("y", 65, 3))
    yield p("f32 65x6 kalman", kalman, of("p", 65, 6, 6), of("h", 65, 6), of("z", 65), of("x", 65, 6), of("r", 65, **pos))
    yield p("f32 33x65 evidential", evidential, of("gamma", 33, 65),
            *(of(n, 33, 65, shift=1.0, **pos) for n in ("nu", "alpha", "beta")),
            of("y", 33, 65), only=CALM)
    yield p("f32 65x10 dirichlet", dirichlet, of("e", 65, 10), of("y", 65, high=10, **i))
    yield p("f32 65x3 uncertainty weights", uncertainty_weights, of("losses", 65, 3, **pos), of("s", 3))
    yield p("f32 65x54 tabnet", tabnet, of("a", 65, 54), of("prior", 65, 54, **pos), of("x", 65, 54), only=TAME)
    for dt in ("f32", "f16"):
        yield p(f"{dt} 65x33 ghost", ghost, of("x", 65, 33, dtype=dt))
    yield p("f32 65x33x7 trees", trees, of("x", 65, 33), of("sel", 33, 7, 3), of("th", 7, 3), of("resp", 7, 8))
    yield p("bf16 65x21x32 tokens", tokens, of("x", 65, 21, dtype="bf16"), of("w", 21, 32, dtype="bf16", **w),
            of("b", 21, 32, dtype="bf16", **w), *(of(n, 32, 32, dtype="bf16", scale=0.2, **w) for n in ("wq", "wk", "wv")))
    yield p("f32 257x10 calibration", calibration, of("logits", 257, 10), of("y", 257, high=10, **i),
            only=("normal", "zeros", "nan:logits"))
    yield p("f32 257x10 brier", brier, of("logits", 257, 10), of("y", 257, high=10, **i))
    yield p("f32 65x130 conformal", conformal, of("logits", 65, 130), of("y", 65, high=130, **i))
    yield p("f32 65x101 label distribution", label_distribution, of("logits", 65, 101),
            of("age", 65, kind="weight", scale=10.0, shift=50.0))

    yield p("f32 257 cox", cox, of("risk", 257), of("event", 257, dtype="bool", kind="keep"))
    yield p("f32 9x257 cox batched", cox_batched, of("risk", 9, 257), of("event", 9, 257, **b))
    yield p("f32 130 cox pairs", cox_pairs, of("risk", 130), of("time", 130, **pos), of("event", 130, **b))
    yield p("f32 130 concordance", concordance, of("risk", 130), of("time", 130, **pos), of("event", 130, **b))
    yield p("f32 65x33 deephit", deephit, of("phi", 65, 33), of("at", 65, high=33, **i), of("event", 65, **b))
    yield p("f32 65x33 hazards", hazards, of("h", 65, 33), of("y", 65, high=33, **i))
    yield p("f32 130x33 kaplan meier", kaplan_meier, of("time", 130, **pos), of("event", 130, **b), of("grid", 33, **pos))

    yield p("f32 9x33x20 mutual information", mutual_information, of("table", 9, 33, 20, **pos))
    yield p("f32 9x33x20 information", information, of("p", 9, 33, 20, **pos))
    yield p("f32 65x130 divergences", divergences, of("a", 65, 130), of("b", 65, 130), only=(*TAME, "nan:a", "inf:b"))
    yield p("f32 33x65 blahut arimoto", blahut_arimoto, of("w", 33, 65, kind="weight", scale=0.001, shift=1 / 65),
            of("p", 33, **pos))
    yield p("f32 3x33x65 sinkhorn", sinkhorn, of("c", 3, 33, 65, **pos), of("f", 3, 33, scale=0.1), of("loga", 3, 33),
            of("logb", 3, 65))
    yield p("f32 65x10 total correlation", total_correlation, of("z", 65, 10), of("mu", 65, 10),
            of("logvar", 65, 10, scale=0.3, **w))
    yield p("f32 130 infonce", infonce, of("f", 130, 130))
    yield p("f32 65x33 entmax half", entmax_half, of("z", 65, 33), only=("normal", "ties", "zeros"))
    yield p("f32 65x1000 sparsemax topk", sparsemax_topk, of("z", 65, 1000), only=("normal", "ties", "zeros"))
    yield p("bf16 3x65x130 perplexity", perplexity, of("logits", 3, 65, 130, dtype="bf16"), of("y", 3, 65, high=130, **i),
            of("keep", 3, 65, **b))
    yield p("f32 65x130 gini", gini, of("x", 65, 130, **pos))
    yield p("f32 65x130 herfindahl", herfindahl, of("x", 65, 130, **pos))
