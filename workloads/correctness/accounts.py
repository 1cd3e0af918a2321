"""The same fields as the ledgers, in more awkward spellings: in place, cast, flipped, masked twice, counted, clamped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, In, Program, made, of

TAME = (*CALM, "tiny")


def listmle_flipped(s: Tensor, eps: Tensor) -> Tensor:
    """Log of sums from behind, with a small number that comes as a tensor."""
    top = torch.amax(s, 1, True)
    e = torch.exp(s - top)
    c = torch.flip(torch.cumsum(torch.flip(e, (1,)), 1), (1,))
    return (torch.log(c + eps) + top - s).sum(1)


def behind(x: Tensor) -> Tensor:
    """Sums from behind without a flip."""
    c = x.cumsum(-1)
    return x.sum(-1, keepdim=True) - c + x


def exclusive(x: Tensor) -> tuple[Tensor, Tensor]:
    c = torch.cumsum(x, 1) - x
    return c, (c * x).sum(1)


def nanmean_by_hand(x: Tensor) -> tuple[Tensor, Tensor]:
    bad = torch.isnan(x)
    n = (~bad).sum(-1)
    z = torch.where(bad, torch.tensor(0.0, device=x.device), x)
    mean = z.sum(-1) / n
    d = torch.where(bad, torch.zeros_like(x), x - mean[..., None])
    return mean, (d.pow(2).sum(-1) / (n - 1)).sqrt()


def zscore_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y -= y.mean(dim=-1, keepdim=True)
    y /= y.std(dim=-1, keepdim=True).add_(1e-6)
    y[y.abs() > 3] = 0
    return y


def winsorised(x: Tensor) -> Tensor:
    """Clamped to three median deviations, of means."""
    m = x.mean(1, keepdim=True)
    mad = (x - m).abs().mean(1, keepdim=True)
    y = torch.minimum(torch.maximum(x, m - 3 * mad), m + 3 * mad)
    return (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, unbiased=True) + 1e-9) ** 0.5


def hit_rates(s: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of top ten: hits, precision, reciprocal rank of the first."""
    _, at = s.topk(10, dim=1)
    hits = (at == y[:, None]).to(torch.float32)
    rr = (hits / torch.arange(1, 11, device=s.device)).max(1).values
    return hits.sum(1), hits.mean(), rr


def by_score(s: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return s, s


def auc(s: Tensor, y: Tensor) -> Tensor:
    d = s.unsqueeze(-1) - s.unsqueeze(-2)
    w = y.unsqueeze(-1) * (1 - y).unsqueeze(-2)
    return ((d > 0).to(s.dtype) * w + 0.5 * (d == 0).to(s.dtype) * w).sum((-1, -2)) / w.sum((-1, -2)).clamp(min=1)


def softmax_half(x: Tensor, t: Tensor) -> Tensor:
    """Half-precision scores over a temperature that is a number in a tensor, in float32, and back."""
    p = torch.softmax(x.float() / t, -1)
    return (p * torch.log(p.clamp_min(torch.finfo(torch.float16).tiny))).sum(-1).neg().to(x.dtype)


def popularity(s: Tensor, count: Tensor) -> Tensor:
    """Debiased by counts that are integers."""
    logq = torch.log(count.to(s.dtype) / count.sum())
    return F.log_softmax(s - logq.where(count > 0, torch.zeros_like(logq)), dim=1)


def gate(x: Tensor, w: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Top two of eight experts, renormalised, and the load."""
    p = (x @ w).masked_fill(~keep, -torch.inf).softmax(-1)
    top, at = p.topk(2, -1)
    top = top / top.sum(-1, keepdim=True)
    load = F.one_hot(at, p.shape[-1]).sum((0, 1)).to(p.dtype)
    return top, load / load.sum(), p.mean(0)


def by_gate(x: Tensor, w: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    s = (x @ w).masked_fill(~keep, -torch.inf)
    return s, s


def quantile_crossing(q: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    taus = torch.linspace(0.1, 0.9, q.shape[-1], device=q.device)
    e = y[..., None] - q
    loss = torch.where(e >= 0, taus * e, (taus - 1) * e).mean(dim=(0, -1))
    return loss, torch.relu(q[..., :-1] - q[..., 1:]).sum(-1).amax(0)


def huberised(e: Tensor, keep: Tensor) -> Tensor:
    a = e.abs()
    h = torch.where(a <= 1.0, 0.5 * e * e, a - 0.5)
    n = keep.sum(-1)
    return torch.where(n > 0, (h * keep).sum(-1) / n, torch.full_like(h[..., 0], float("nan"))).nan_to_num(nan=-1.0)


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


def instance_scale(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Masked mean and deviation; rows without values get 0 and 1."""
    k = keep.to(x.dtype)
    n = k.sum(1, keepdim=True)
    m = (x * k).sum(1, keepdim=True) / n.clamp(min=1.0)
    v = ((x - m) ** 2 * k).sum(1, keepdim=True) / n.clamp(min=1.0)
    s = torch.where(v > 1e-8, v.sqrt(), torch.ones_like(v))
    return ((x - m) / s).masked_fill(keep.logical_not(), 0.0), m, s


def sortino(r: Tensor, target: Tensor) -> Tensor:
    e = r - target
    down = e.clamp(max=0).pow(2).sum(0).div(r.shape[0]).sqrt()
    return e.mean(0).div(down + torch.finfo(r.dtype).eps)


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


def minimum_variance(c: Tensor) -> Tensor:
    ones = torch.ones(c.shape[-1], device=c.device, dtype=c.dtype)
    z = c @ ones
    return z / z.sum(-1, keepdim=True)


def kelly(p: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    f = ((b * p - (1 - p)) / b).clamp(0, 1)
    f = f / f.sum(-1, keepdim=True).clamp(min=1)
    return f, (p * torch.log1p(b * f) + (1 - p) * torch.log1p(-f + 1e-7)).sum(-1)


def gaussian_posterior(y: Tensor, prec: Tensor) -> tuple[Tensor, Tensor]:
    """Products of experts: precisions add."""
    t = prec.sum(dim=1) + 1.0
    return (prec * y).sum(dim=1) / t, t.reciprocal().sqrt()


def poe(mu: Tensor, logvar: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    t = torch.exp(-logvar) * keep.unsqueeze(-1)
    t0 = 1.0 + t.sum(1)
    return (mu * t).sum(1) / t0, -torch.log(t0)


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


def categorical_kl(a: Tensor, b: Tensor, keep: Tensor) -> Tensor:
    p, q = F.log_softmax(a, -1), F.log_softmax(b, -1)
    kl = (p.exp() * (p - q)).sum(-1)
    return (kl * keep).sum() / keep.sum().clamp(min=1)


def free_bits(mu: Tensor, logvar: Tensor) -> Tensor:
    kl = 0.5 * (mu**2 + logvar.exp() - 1 - logvar)
    return torch.clamp(kl.mean(0), min=0.1).sum()


def dirichlet_multinomial(x: Tensor, a: Tensor) -> Tensor:
    return torch.lgamma(a.sum(-1)) - torch.lgamma(a.sum(-1) + x.sum(-1)) + (torch.lgamma(x + a) - torch.lgamma(a)).sum(-1)


def student(y: Tensor, mu: Tensor, s: Tensor) -> Tensor:
    """Of four degrees of freedom."""
    z = (y - mu) / s
    return -(torch.log1p(z * z / 4.0) * 2.5 + s.log()).mean(-1)


def ordinal(x: Tensor, cuts: Tensor, y: Tensor) -> Tensor:
    c = torch.cumsum(F.softplus(cuts), 0)
    p = torch.sigmoid(c - x[:, None])
    p = torch.cat([torch.zeros_like(p[:, :1]), p, torch.ones_like(p[:, :1])], 1)
    own = p.gather(1, y[:, None] + 1) - p.gather(1, y[:, None])
    return -own.clamp(min=1e-12).log().mean()


def integrated_brier(s: Tensor, time: Tensor, event: Tensor, grid: Tensor) -> Tensor:
    """Of survival curves at the grid's times, unweighted."""
    alive = time[:, None] > grid
    died = (time[:, None] <= grid) & event[:, None]
    e = torch.where(died, s**2, torch.where(alive, (1 - s) ** 2, torch.zeros_like(s)))
    b = e.sum(0) / (died | alive).sum(0)
    return ((b[1:] + b[:-1]) / 2 * (grid[1:] - grid[:-1])).sum() / (grid[-1] - grid[0])


def nelson_aalen(died: Tensor, at_risk: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.cumsum(died / at_risk.clamp(min=1), -1)
    return h, torch.exp(-h)


def efron(risk: Tensor, tie: Tensor) -> Tensor:
    """Tied events: sums over groups by one-hot products."""
    hot = F.one_hot(tie, 20).to(risk.dtype)
    e = torch.exp(risk - risk.max())
    g = hot.t() @ e
    n = hot.sum(0)
    at = torch.flip(torch.cumsum(torch.flip(g, [0]), 0), [0])
    return torch.where(n > 0, n * torch.log(at.clamp(min=1e-30)), torch.zeros_like(n)).sum() - (risk - risk.max()).sum()


def pmi(c: Tensor) -> Tensor:
    """Positive pointwise mutual information of counts."""
    n = c.sum()
    r, k = c.sum(1, keepdim=True), c.sum(0, keepdim=True)
    out = torch.log(c * n / (r * k))
    out = torch.where(torch.isinf(out) | torch.isnan(out), torch.zeros((), device=c.device), out)
    return torch.clamp(out, min=0)


def conditional_entropy(c: Tensor) -> tuple[Tensor, Tensor]:
    """Of integer tables, rows that may be empty."""
    p = c.float() / c.sum(dim=-1, keepdim=True).clamp(min=1)
    h = -(p * torch.where(p > 0, p, 1).log2()).sum(-1)
    w = c.sum(-1).float() / c.sum()
    return h, (w * h).sum()


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


def vocabulary(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """How evenly codes are used."""
    p = F.one_hot(codes, 33).float().mean(0)
    return torch.exp(-torch.sum(p * torch.log(p + 1e-10))), (p > 0).sum()


def contrastive_weights(s: Tensor, y: Tensor) -> Tensor:
    """Several positives in a row, by labels."""
    same = y[:, None].eq(y[None, :]).float()
    off = 1 - torch.eye(s.shape[0], device=s.device)
    same = same * off
    logits = s - s.max(1, keepdim=True).values.detach()
    logp = logits - torch.log((torch.exp(logits) * off).sum(1, keepdim=True))
    return -(same * logp).sum(1) / same.sum(1).clamp(min=1)


def mean_reciprocal(s: Tensor, y: Tensor) -> Tensor:
    """Ties counted in half."""
    own = s.gather(1, y[:, None])
    return (1 / (1 + (s > own).sum(1) + 0.5 * ((s == own).sum(1) - 1))).mean()


def two_axes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised over time, then over assets."""
    a = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-6)
    b = a - a.mean(2, keepdim=True)
    return b / (b.abs().sum(2, keepdim=True) + 1e-6), a.amax(1)


def hurdle(x: Tensor) -> tuple[Tensor, Tensor]:
    """Share of what is above 0, and the mean log of that."""
    up = x > 0
    n = up.sum(-1)
    logs = torch.where(up, x, 1.0).log()
    return n / x.shape[-1], logs.sum(-1) / n.clamp(min=1)


def median_of_means(x: Tensor) -> Tensor:
    return x.view(x.shape[0], 5, -1).mean(-1).median(-1).values


def crowded(x: Tensor, w: Tensor) -> Tensor:
    """Weighted by ranks: how many are no larger."""
    r = (x[:, None, :] <= x[:, :, None]).sum(-1).to(x.dtype)
    r = (r - 1) / (x.shape[1] - 1) - 0.5
    return (r * w).sum(1) / (r.abs().sum(1) + 1e-6)


def grn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Gates in half precision with a float32 norm."""
    h = x @ w
    g = torch.sigmoid(h) * x
    y = (g + x).float()
    y = (y - y.mean(-1, keepdim=True)) * torch.rsqrt(y.var(-1, keepdim=True, correction=0) + 1e-3)
    return (y * b.float()).to(x.dtype)


def programs() -> Iterator[Program]:
    p = partial(made, "accounts")
    b: dict[str, Any] = {"dtype": "bool", "kind": "keep"}
    i: dict[str, Any] = {"dtype": "i64", "kind": "label"}
    pos: dict[str, Any] = {"kind": "positive"}
    w: dict[str, Any] = {"kind": "weight"}

    def r(what: str, fn: Callable[..., Any], by: Callable[..., tuple[Tensor, Tensor]], *ins: In, only: tuple[str, ...] = ()
          ) -> Program:
        return Program("accounts", what, fn, ins, ranked=by, only=only)

    yield p("f32 33x130 listmle", listmle_flipped, of("s", 33, 130), of("eps", kind="positive", scale=1e-8))
    yield p("f32 33x130 behind", behind, of("x", 33, 130, **pos), only=CALM)
    yield p("f32 33x65 exclusive", exclusive, of("x", 33, 65), only=CALM)
    yield p("f32 33x257 nanmean", nanmean_by_hand, of("x", 33, 257))
    for dt in ("f32", "f16", "bf16"):
        yield p(f"{dt} 33x130 zscore", zscore_in_place, of("x", 33, 130, dtype=dt), only=("normal", "zeros", "nan:x", "inf:x"))
    yield p("f32 33x130 winsorised", winsorised, of("x", 33, 130))
    yield p("f32 65x1000 hit rates", hit_rates, of("s", 65, 1000), of("y", 65, high=1000, **i), only=("normal", "outlier"))
    yield p("f32 9x65 auc", auc, of("s", 9, 65), of("y", 9, 65, kind="weight", scale=0.3, shift=0.5))
    yield p("f16 65x257 softmax half", softmax_half, of("x", 65, 257, dtype="f16"), of("t", **pos))
    yield p("f32 33x130 popularity", popularity, of("s", 33, 130), of("count", 130, high=9, **i))
    yield r("f32 65x33x8 gate", gate, by_gate, of("x", 65, 33), of("w", 33, 8, **w), of("keep", 65, 8, **b),
            only=("normal", "outlier", "hidden"))
    yield p("f32 9x33x9 quantile crossing", quantile_crossing, of("q", 9, 33, 9), of("y", 9, 33))
    yield p("f32 65x33 huberised", huberised, of("e", 65, 33), of("keep", 65, 33, **b))
    yield p("f32 33x130 holt", holt, of("x", 33, 130))
    yield p("f32 33x130 autocovariance", autocovariance, of("x", 33, 130), only=(*TAME, "nan:x"))
    yield p("f32 33x140 seasonal", seasonal, of("x", 33, 140))
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 65x130 instance scale", instance_scale, of("x", 65, 130, dtype=dt), of("keep", 65, 130, **b))
    yield p("f32 257x33 sortino", sortino, of("r", 257, 33, scale=0.02), of("target", **w))
    yield p("f32 257x20 covariance of weights", covariance_of_weights, of("x", 257, 20), of("w", 257), only=TAME)
    yield p("f32 3x130x20 ledoit", ledoit, of("x", 3, 130, 20), only=TAME)
    yield p("f32 33x20 minimum variance", minimum_variance, of("c", 33, 20, 20))
    yield p("f32 65x33 kelly", kelly, of("p", 65, 33, kind="weight", scale=0.1, shift=0.5), of("b", 65, 33, **pos))
    yield p("f32 65x9x16 gaussian posterior", gaussian_posterior, of("y", 65, 9, 16), of("prec", 65, 9, 16, **pos))
    yield p("f16 65x5x16 poe", poe, of("mu", 65, 5, 16, dtype="f16"), of("logvar", 65, 5, 16, dtype="f16", **w),
            of("keep", 65, 5, **b))
    yield p("f32 65x130 dreg", dreg, of("logw", 65, 130))
    yield p("f32 9x257 psis tail", psis_tail, of("logw", 9, 257), only=("normal", "outlier"))
    yield p("f32 130x33 annealed", annealed, of("logp", 130, 33), of("logq", 130, 33), of("beta", **pos), only=TAME)
    yield p("bf16 3x33x65 categorical kl", categorical_kl, of("a", 3, 33, 65, dtype="bf16"), of("b", 3, 33, 65, dtype="bf16"),
            of("keep", 3, 33, **b))
    yield p("f32 130x20 free bits", free_bits, of("mu", 130, 20), of("logvar", 130, 20))
    yield p("f32 65x20 dirichlet multinomial", dirichlet_multinomial, of("x", 65, 20, **pos), of("a", 65, 20, **pos), only=TAME)
    yield p("f32 33x65 student", student, of("y", 33, 65), of("mu", 33, 65), of("s", 33, 65, **pos))
    yield p("f32 130x6 ordinal", ordinal, of("x", 130), of("cuts", 6), of("y", 130, high=7, **i))
    yield p("f32 130x33 integrated brier", integrated_brier, of("s", 130, 33, kind="weight", scale=0.2, shift=0.5),
            of("time", 130, **pos),
            of("event", 130, **b), of("grid", 33, **pos), only=CALM)
    yield p("i64 33x65 nelson aalen", nelson_aalen, of("died", 33, 65, high=4, **i), of("at_risk", 33, 65, high=90, **i))
    yield p("f32 130 efron", efron, of("risk", 130), of("tie", 130, high=20, **i))
    yield p("f32 65x33 pmi", pmi, of("c", 65, 33, **pos), only=TAME)
    yield p("i64 65x33 pmi", pmi, of("c", 65, 33, high=3, **i))
    yield p("i64 65x33 conditional entropy", conditional_entropy, of("c", 65, 33, high=4, **i))
    yield p("f32 65x33 tsallis", tsallis, of("x", 65, 33))
    yield p("f32 33x5x20 js many", js_many, of("x", 33, 5, 20), of("w", 5, **pos))
    yield p("f32 9x65x10 bald", bald, of("x", 9, 65, 10))
    yield p("f32 257 vocabulary", vocabulary, of("x", 3), of("codes", 257, high=30, **i), only=("normal",))
    yield p("f32 65 contrastive weights", contrastive_weights, of("s", 65, 65), of("y", 65, high=9, **i))
    yield p("f32 65x130 mean reciprocal", mean_reciprocal, of("s", 65, 130), of("y", 65, high=130, **i))
    yield p("f32 3x65x33 two axes", two_axes, of("x", 3, 65, 33), only=TAME)
    yield p("f32 65x130 hurdle", hurdle, of("x", 65, 130))
    yield p("f32 33x65 median of means", median_of_means, of("x", 33, 65))
    yield p("f32 9x65 crowded", crowded, of("x", 9, 65), of("w", 9, 65))
    for dt in ("f16", "bf16"):
        yield p(f"{dt} 65x33 grn", grn, of("x", 65, 33, dtype=dt), of("w", 33, 33, dtype=dt, scale=0.2, **w),
                of("b", 33, dtype=dt, **w),
                only=(*CALM, "nan:x"))
