"""Finance: returns and what they risk, weights of portfolios, covariances, options and indicators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from workloads.correctness.program import TAME, Program, made, of, positive, weight


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


def sortino(r: Tensor, target: Tensor) -> Tensor:
    e = r - target
    down = e.clamp(max=0).pow(2).sum(0).div(r.shape[0]).sqrt()
    return e.mean(0).div(down + torch.finfo(r.dtype).eps)


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
    """Scores about their mean in deviations, clamped, of unit gross exposure."""
    z = (s - s.nanmean(1, keepdim=True)) / s.std(1, keepdim=True, correction=0)
    z = z.clamp(-3, 3).nan_to_num(0.0)
    w = z / z.abs().sum(1, keepdim=True).clamp_min(1e-12)
    return (w * r).nansum(1)


def crowded(x: Tensor, w: Tensor) -> Tensor:
    """Weighted by ranks: how many are no larger."""
    r = (x[:, None, :] <= x[:, :, None]).sum(-1).to(x.dtype)
    r = (r - 1) / (x.shape[1] - 1) - 0.5
    return (r * w).sum(1) / (r.abs().sum(1) + 1e-6)


def two_axes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised over time, then over assets."""
    a = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-6)
    b = a - a.mean(2, keepdim=True)
    return b / (b.abs().sum(2, keepdim=True) + 1e-6), a.amax(1)


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


def covariance_of_weights(x: Tensor, w: Tensor) -> Tensor:
    """Weighted, of softmax weights over time."""
    w = torch.softmax(w, 0)
    m = (w[:, None] * x).sum(0)
    d = x - m
    return torch.einsum("t,ti,tj->ij", w, d, d) / (1 - (w * w).sum())


def ledoit(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x - x.mean(-2, keepdim=True)
    c = torch.matmul(x.mT, x) / (x.shape[-2] - 1)
    d = torch.diagonal(c, dim1=-2, dim2=-1)
    corr = c / torch.sqrt(d.unsqueeze(-1) * d.unsqueeze(-2))
    n = c.shape[-1]
    return corr, (corr.sum((-1, -2)) - n) / (n * (n - 1))


def mean_variance(w: Tensor, mu: Tensor, cov: Tensor) -> Tensor:
    w = torch.softmax(w, -1)
    risk = torch.einsum("bi,ij,bj->b", w, cov, w)
    return -(w @ mu - 2.5 * risk) + 0.01 * (w * torch.log(w + 1e-12)).sum(-1)


def minimum_variance(c: Tensor) -> Tensor:
    ones = torch.ones(c.shape[-1], device=c.device, dtype=c.dtype)
    z = c @ ones
    return z / z.sum(-1, keepdim=True)


def kelly(p: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    f = ((b * p - (1 - p)) / b).clamp(0, 1)
    f = f / f.sum(-1, keepdim=True).clamp(min=1)
    return f, (p * torch.log1p(b * f) + (1 - p) * torch.log1p(-f + 1e-7)).sum(-1)


def black_scholes(s: Tensor, k: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """A book's worth and its delta."""
    t, r = 0.5, 0.03
    d1 = (torch.log(s / k) + (r + 0.5 * sigma**2) * t) / (sigma * math.sqrt(t))
    d2 = d1 - sigma * math.sqrt(t)
    call = s * 0.5 * torch.erfc(-d1 / math.sqrt(2)) - k * math.exp(-r * t) * 0.5 * torch.erfc(-d2 / math.sqrt(2))
    return call.sum(-1), (0.5 * (1 + torch.erf(d1 / 2**0.5))).mean(-1)


def obv(close: Tensor, volume: Tensor) -> Tensor:
    return torch.cumsum(torch.sign(close[:, 1:] - close[:, :-1]) * volume[:, 1:], dim=1)


def rsi(p: Tensor) -> Tensor:
    d = p.diff(dim=1)
    up, down = d.clamp(min=0).unfold(1, 14, 1).mean(-1), (-d).clamp(min=0).unfold(1, 14, 1).mean(-1)
    return 100 - 100 / (1 + up / (down + 1e-12))


def programs() -> Iterator[Program]:
    ledger = partial(made, "ledgers")
    account = partial(made, "accounts")
    yield ledger("f32 33x257 drawdown", drawdown, of("r", 33, 257, scale=0.02), only=("normal", "zeros", "tiny", "nan:r"))
    yield ledger("f32 33x257 running z", running_z, of("x", 33, 257), only=("normal", "ties", "zeros", "nan:x", "inf:x"))
    yield ledger("f32 33x130 volatility", volatility, positive("p", 33, 130))
    for dt in ("f32", "bf16"):
        yield ledger(f"{dt} 65x257 sharpe", sharpe, of("r", 65, 257, dtype=dt, scale=0.02),
                of("rf", 65, 1, dtype=dt, scale=0.01))
    yield account("f32 257x33 sortino", sortino, of("r", 257, 33, scale=0.02), weight("target"))
    yield ledger("f32 65x1000 cvar", cvar, of("loss", 65, 1000))
    yield ledger("f32 65x130 turnover", turnover, of("s", 65, 130), weight("r", 65, 130, scale=0.02), positive("last", 65, 130))
    yield ledger("f32 65x1000 long short", long_short, of("s", 65, 1000), of("r", 65, 1000))
    yield account("f32 9x65 crowded", crowded, of("x", 9, 65), of("w", 9, 65))
    yield account("f32 3x65x33 two axes", two_axes, of("x", 3, 65, 33), only=TAME)
    yield ledger("f32 65x257 ic", ic, of("s", 65, 257), of("r", 65, 257))
    yield ledger("f32 257x33 shrinkage", shrinkage, of("x", 257, 33), only=TAME)
    yield account("f32 257x20 covariance of weights", covariance_of_weights, of("x", 257, 20), of("w", 257), only=TAME)
    yield account("f32 3x130x20 ledoit", ledoit, of("x", 3, 130, 20), only=TAME)
    yield ledger("f32 65x33 mean variance", mean_variance, of("w", 65, 33), of("mu", 33), of("cov", 33, 33))
    yield account("f32 33x20 minimum variance", minimum_variance, of("c", 33, 20, 20))
    yield account("f32 65x33 kelly", kelly, weight("p", 65, 33, scale=0.1, shift=0.5), positive("b", 65, 33))
    yield ledger("f32 65x130 black scholes", black_scholes, positive("s", 65, 130), positive("k", 65, 130),
            positive("sigma", 65, 130))
    yield ledger("f32 33x130 obv", obv, of("close", 33, 130), positive("volume", 33, 130))
    yield ledger("f32 33x130 rsi", rsi, positive("p", 33, 130))
