"""Time series: normalised, decomposed and forecast, and the errors of quantiles, ensembles and means."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, TAME, Program, made, mask, of, positive, weight

# -- models ------------------------------------------------------------------------------------------------------------


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


def smoothing(x: Tensor) -> Tensor:
    """Exponential smoothing as a matrix of powers."""
    n = x.shape[-1]
    t = torch.arange(n, device=x.device)
    lag = t[:, None] - t[None, :]
    w = torch.where(lag >= 0, 0.3 * 0.7 ** lag.clamp(min=0).to(x.dtype), torch.zeros((), dtype=x.dtype, device=x.device))
    w[:, 0] = w[:, 0] / 0.3
    return x @ w.T


def holt(x: Tensor) -> Tensor:
    """Weights of a geometric past, normalised."""
    k = torch.arange(x.shape[-1] - 1, -1, -1, device=x.device)
    w = 0.9 ** k.float()
    return (x * w).sum(-1) / w.sum()


def autocovariance(x: Tensor) -> Tensor:
    z = x - x.mean(-1, keepdim=True)
    v = (z * z).mean(-1)
    return torch.stack([(z[..., k:] * z[..., : x.shape[-1] - k]).mean(-1) / v for k in (1, 2, 5)], -1)


def seasonal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Means of each place in the week, and what is left."""
    w = x.view(x.shape[0], -1, 7)
    m = w.mean(1)
    return m - m.mean(-1, True), (w - m.unsqueeze(1)).reshape_as(x)


def masked_mean_scale(x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """GluonTS's mean scaler."""
    n = seen.sum(1, keepdim=True)
    total = (x.abs() * seen).sum(dim=1, keepdim=True)
    default = total.sum(0) / n.sum(0).clamp(min=1)
    scale = total / torch.clamp(n, min=1)
    scale = torch.where(n > 0, scale, default.expand_as(scale))
    scale = torch.clamp(scale, min=1e-10)
    return x / scale, scale.squeeze(1)


def instance_scale(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Masked mean and deviation; rows without values get 0 and 1."""
    k = keep.to(x.dtype)
    n = k.sum(1, keepdim=True)
    m = (x * k).sum(1, keepdim=True) / n.clamp(min=1.0)
    v = ((x - m) ** 2 * k).sum(1, keepdim=True) / n.clamp(min=1.0)
    s = torch.where(v > 1e-8, v.sqrt(), torch.ones_like(v))
    return ((x - m) / s).masked_fill(keep.logical_not(), 0.0), m, s


def variable_selection(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """TFT: weights over variables, each behind a gated residual of its own."""
    flat = x.flatten(-2)
    weights = torch.softmax(flat @ w, dim=-1).unsqueeze(-2)
    h = F.layer_norm(x + F.glu(torch.einsum("btvd,vde->btve", x, g), dim=-1), (x.shape[-1],))
    return (weights @ h).squeeze(-2), weights.squeeze(-2)


def grn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Gates in half precision with a float32 norm."""
    h = x @ w
    g = torch.sigmoid(h) * x
    y = (g + x).float()
    y = (y - y.mean(-1, keepdim=True)) * torch.rsqrt(y.var(-1, keepdim=True, correction=0) + 1e-3)
    return (y * b.float()).to(x.dtype)


def nbeats(x: Tensor, basis: Tensor, theta: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    level = x[:, -1:].clone()
    z = (x - level) * keep.to(x.dtype)
    back = (torch.relu(z @ theta) @ basis)
    return (z - back[:, : x.shape[1]]) * keep, back[:, x.shape[1]:] + level


# -- errors ------------------------------------------------------------------------------------------------------------


def pinball(pred: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    q = torch.tensor([0.1, 0.5, 0.9], device=pred.device, dtype=pred.dtype)
    e = y.unsqueeze(-1) - pred
    loss = torch.max((q - 1) * e, q * e)
    loss = (loss * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
    return loss.mean(-1)


def quantile_crossing(q: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    taus = torch.linspace(0.1, 0.9, q.shape[-1], device=q.device)
    e = y[..., None] - q
    loss = torch.where(e >= 0, taus * e, (taus - 1) * e).mean(dim=(0, -1))
    return loss, torch.relu(q[..., :-1] - q[..., 1:]).sum(-1).amax(0)


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


def huberised(e: Tensor, keep: Tensor) -> Tensor:
    a = e.abs()
    h = torch.where(a <= 1.0, 0.5 * e * e, a - 0.5)
    n = keep.sum(-1)
    return torch.where(n > 0, (h * keep).sum(-1) / n, torch.full_like(h[..., 0], float("nan"))).nan_to_num(nan=-1.0)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    ledger = partial(made, "ledgers")
    account = partial(made, "accounts")
    yield ledger("f32 3x130x7 revin", revin, of("x", 3, 130, 7), weight("w", 7, shift=3.0), weight("b", 7),
            weight("head", 130, 33, scale=0.1), only=(*TAME, "nan:x", "inf:x"))
    yield ledger("f32 3x130x7 decompose", decompose, of("x", 3, 130, 7))
    yield ledger("f16 3x130x7 nlinear", nlinear, of("x", 3, 130, 7, dtype="f16"), weight("w", 33, 130, dtype="f16", scale=0.1),
            weight("b", 33, dtype="f16"))
    yield ledger("f32 9x130 patches", patches, of("x", 9, 130), weight("w", 16, 32, scale=0.2), weight("pos", 15, 32),
            only=TAME)
    yield ledger("f32 3x5x130 auto correlation", auto_correlation, of("v", 3, 5, 130), of("corr", 3, 5, 130))
    yield ledger("bf16 2x65x33 prob sparse", prob_sparse, of("q", 2, 65, 32, dtype="bf16"), of("k", 2, 33, 32, dtype="bf16"))
    yield ledger("f32 33x130 smoothing", smoothing, of("x", 33, 130))
    yield account("f32 33x130 holt", holt, of("x", 33, 130))
    yield account("f32 33x130 autocovariance", autocovariance, of("x", 33, 130), only=(*TAME, "nan:x"))
    yield account("f32 33x140 seasonal", seasonal, of("x", 33, 140))
    yield ledger("f32 33x130 masked mean scale", masked_mean_scale, of("x", 33, 130), mask("seen", 33, 130))
    for dt in ("f32", "bf16"):
        yield account(f"{dt} 65x130 instance scale", instance_scale, of("x", 65, 130, dtype=dt), mask("keep", 65, 130))
    yield ledger("f32 3x33x7 variable selection", variable_selection, of("x", 3, 33, 7, 16), weight("w", 112, 7, scale=0.1),
            weight("g", 7, 16, 32, scale=0.2), only=(*CALM, "nan:x"))
    for dt in ("f16", "bf16"):
        yield account(f"{dt} 65x33 grn", grn, of("x", 65, 33, dtype=dt), weight("w", 33, 33, dtype=dt, scale=0.2),
                weight("b", 33, dtype=dt), only=(*CALM, "nan:x"))
    yield ledger("f32 33x130 nbeats", nbeats, of("x", 33, 130), weight("basis", 5, 163), weight("theta", 130, 5, scale=0.1),
            mask("keep", 33, 130))

    for dt in ("f32", "f16"):
        yield ledger(f"{dt} 33x65 pinball", pinball, of("pred", 33, 65, 3, dtype=dt), of("y", 33, 65, dtype=dt),
                mask("keep", 33, 65))
    yield account("f32 9x33x9 quantile crossing", quantile_crossing, of("q", 9, 33, 9), of("y", 9, 33))
    yield ledger("f32 3x65x33 crps", crps, of("x", 3, 65, 33), of("y", 3, 65))
    yield ledger("f32 33x130 crps normal", crps_normal, of("mu", 33, 130), positive("sigma", 33, 130), of("y", 33, 130))
    yield ledger("f32 33x48 mase", mase, of("pred", 33, 48), of("y", 33, 48), of("past", 33, 130))
    yield account("f32 65x33 huberised", huberised, of("e", 65, 33), mask("keep", 65, 33))
