"""Cascades as people write them in torch: losses, attention variants, statistics, norms, quantisers, routers.

``WRITTEN[name]`` is a :class:`Row`; ``UNFUSED[name]`` is what must be refused, with its code and the operator it is about;
``APART[name]`` a join that cannot be made, although nothing of it is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """``regions``: how many cascades there are; ``outside``: the reductions that rightly stay with torch."""

    function: Function
    inputs: tuple[Tensor, ...]
    regions: int = 1
    outside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unfused:
    """``op``: the operator, as torch.export names it, that the reason must be about."""

    function: Function
    inputs: tuple[Tensor, ...]
    code: str
    op: str


WRITTEN: dict[str, Row] = {}
UNFUSED: dict[str, Unfused] = {}
APART: dict[str, Unfused] = {}


def written(*inputs: Tensor, regions: int = 1, outside: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    def register(f: Function) -> Function:
        WRITTEN[f.__name__] = Row(f, inputs, regions, outside)
        return f

    return register


def unfused(code: str, op: str, *inputs: Tensor) -> Callable[[Function], Function]:
    def register(f: Function) -> Function:
        UNFUSED[f.__name__] = Unfused(f, inputs, code, op)
        return f

    return register


def apart(code: str, op: str, *inputs: Tensor) -> Callable[[Function], Function]:
    def register(f: Function) -> Function:
        APART[f.__name__] = Unfused(f, inputs, code, op)
        return f

    return register


SEED = torch.Generator().manual_seed(7)
HALF, BF16, F64 = torch.float16, torch.bfloat16, torch.float64


def r(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=SEED).to(dtype)


def labels(classes: int, *shape: int) -> Tensor:
    return torch.randint(0, classes, shape, generator=SEED)


def mask(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=SEED) > 0.3


X, Y, V = r(6, 50), r(6, 50), r(50, 8)
Q, K, W = r(2, 4, 50, 16), r(2, 4, 50, 16), r(2, 4, 50, 16)

# -- losses ------------------------------------------------------------------------------------------------------------


@written(X, labels(50, 6), regions=2)
def cross_entropy(x, t):
    return F.cross_entropy(x, t)


@written(r(2, 6, 50), labels(50, 2, 6), regions=2)
def next_token_loss(x, t):
    return F.cross_entropy(x[:, :-1].reshape(-1, 50), t[:, 1:].reshape(-1))


@written(X, labels(50, 6))
def nll_gather(x, t):
    return -torch.log_softmax(x, -1).gather(1, t[:, None]).squeeze(1)


@written(X)
def loss_of_the_best(x):
    return F.cross_entropy(x, x.argmax(-1), reduction="none")


@written(X)
def gap_to_the_mapped_best(x):
    y = x * 2 + 1
    return y.logsumexp(-1, keepdim=True) - y.gather(-1, y.argmax(-1, keepdim=True))


@written(X, labels(50, 6, 50))
def read_where_another_is_best(x, i):
    return i.gather(-1, ((x.argmax(-1, keepdim=True) + 1) % 50)) - x.logsumexp(-1, keepdim=True)


@written(X, labels(50, 6))
def one_hot_loss(x, t):
    return -(F.log_softmax(x, -1) * F.one_hot(t, 50)).sum(-1)


@written(X, labels(50, 6), regions=2)
def label_smoothing(x, t):
    return F.cross_entropy(x, t, label_smoothing=0.1)


@written(X, labels(50, 6))
def label_smoothing_by_hand(x, t):
    lp = F.log_softmax(x, dim=-1)
    return 0.9 * -lp.gather(-1, t.unsqueeze(-1)).squeeze(-1) - 0.1 * lp.mean(dim=-1)


@written(X, Y)
def kl_batchmean(x, y):
    return F.kl_div(F.log_softmax(x, -1), F.log_softmax(y, -1), reduction="batchmean", log_target=True)


@written(X, Y)
def distillation(x, y):
    return F.kl_div(F.log_softmax(x / 3.0, -1), F.softmax(y / 3.0, -1), reduction="batchmean") * 9.0


@written(X)
def renyi_entropy(x):
    return torch.logsumexp(2.5 * F.log_softmax(x, -1), -1) / -1.5


@written(X, Y)
def fourth_moment_of_weights(x, y):
    p = F.softmax(y, -1)
    return (p * (x - (p * x).sum(-1, keepdim=True)) ** 4).sum(-1)


@written(X)
def entropy_by_xlogy(x):
    p = F.softmax(x, -1)
    return -torch.xlogy(p, p).sum(-1)


@written(X, Y)
def normalised_distance(x, y):
    return 2 - 2 * (F.normalize(x, dim=-1) * F.normalize(y, dim=-1)).sum() / 6


@written(X, r(6))
def info_nce(negative, positive):
    logits = torch.cat([positive[:, None], negative], dim=1) / 0.07
    return -F.log_softmax(logits, -1)[:, 0].mean()


# -- softmax and attention ---------------------------------------------------------------------------------------------


@written(r(6, 50, dtype=BF16))
def softmax_in_float(x):
    return F.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)


@written(r(3, 6, 50))
def softmax_middle(x):
    return torch.softmax(x, 1)


@written(X, V)
def quiet_softmax(x, v):
    m = x.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(x - m)
    return (e / (torch.exp(-m) + e.sum(-1, keepdim=True))) @ v


@written(X, V)
def quiet_softmax_by_zero(x, v):
    return torch.softmax(torch.cat([x, torch.zeros(6, 1)], -1), -1)[:, :50] @ v


@written(r(2, 50, 64, dtype=BF16), r(2, 50, 32, dtype=BF16), r(2, 50, 32, dtype=BF16), r(4, dtype=BF16))
def attention_sink(query, key, value, sinks):
    query, key, value = (t.view(2, 50, -1, 16).transpose(1, 2) for t in (query, key, value))
    key, value = (t[:, :, None].expand(2, 2, 2, 50, 16).reshape(2, 4, 50, 16) for t in (key, value))
    scores = torch.matmul(query, key.transpose(2, 3)) * 0.25
    scores = scores + torch.full((50, 50), torch.finfo(BF16).min, dtype=BF16).triu(1)[None, None]
    column = sinks.reshape(1, -1, 1, 1).expand(query.shape[0], -1, query.shape[-2], -1)
    logits = torch.cat([scores, column], dim=-1)
    logits = logits - logits.max(dim=-1, keepdim=True).values
    weights = F.softmax(logits, dim=-1, dtype=logits.dtype)
    return torch.matmul(weights[..., :-1], value).transpose(1, 2).contiguous()


@written(Q, K, W)
def soft_capped(q, k, v):
    return F.softmax(30.0 * torch.tanh(q @ k.mT / 4.0 / 30.0), -1) @ v


@written(Q, K, W)
def alibi(q, k, v):
    slopes = 2.0 ** (-2.0 * torch.arange(1, 5))
    position = torch.arange(q.shape[-2])
    bias = -(position[:, None] - position[None, :]).abs() * slopes[:, None, None]
    return torch.softmax(q @ k.transpose(-2, -1) * 0.25 + bias, -1) @ v


@written(Q, K, W)
def masked_with_1e4(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(16)
    keep = torch.ones(50, 50, dtype=torch.bool).tril()
    return torch.einsum("bhij,bhjd->bhid", s.masked_fill(keep == 0, -1e4).softmax(-1), v)


@written(Q, K, W, mask(2, 50))
def key_padding(q, k, v, keep):
    s = torch.where(keep[:, None, None, :], q @ k.transpose(-1, -2) * 0.25, torch.finfo(torch.float32).min)
    return torch.softmax(s, -1) @ v


@written(X, V)
def distance_table(x, v):
    d = torch.log1p((torch.arange(6)[:, None] - torch.arange(50)[None]).abs().float())
    return torch.softmax(x - d, -1) @ v


@written(r(8, 20, 16), r(8, 50, 16), r(8, 50, 16), r(8, 20, 50))
def baddbmm(q, k, v, bias):
    return torch.bmm(torch.baddbmm(bias, q, k.transpose(1, 2), alpha=0.25).softmax(-1), v)


@written(r(2, 50, 2, 3, 16), r(2, 50, 2, 16), r(2, 50, 2, 16))
def grouped_einsum(q, k, v):
    s = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * 0.25
    return torch.einsum("bhgqk,bkhd->bqhgd", torch.softmax(s, -1), v)


@written(r(2, 50, 16))
def performer(x):
    return torch.exp(x - x.square().sum(-1, keepdim=True) / 2 - x.amax(-1, keepdim=True)).sum(-1)


@written(Q, K, W)
def attention_and_logsumexp(q, k, v):
    s = q @ k.mT * 0.25
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


@written(X, labels(50, 6))
def policy_and_entropy(x, action):
    lp = F.log_softmax(x, -1)
    return lp.gather(-1, action.unsqueeze(-1)).squeeze(-1), -(lp.exp() * lp).sum(-1)


@written(X, Y)
def softmax_backward(g, x):
    y = torch.softmax(x, -1)
    return y * (g - (g * y).sum(-1, keepdim=True))


@written(X)
def expected_bin(x):
    return (torch.softmax(x, -1) * torch.tensor([1.0, 3.0, 2.0, 5.0, 1.0]).repeat(10)).sum(-1)


@written(X, r(50))
def expectation_and_variance(x, z):
    p = x.softmax(-1)
    mean = (p * z).sum(-1, keepdim=True)
    return mean.squeeze(-1), (p * (z - mean) ** 2).sum(-1)


@written(X, Y)
def weights_used_three_times(x, y):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e.sum(-1), (e * y).sum(-1), (e * x).sum(-1)


@written(X, mask(6, 50))
def guarded_rows(x, keep):
    p = torch.softmax(x.masked_fill(~keep, float("-inf")), -1)
    return torch.where(keep.any(-1, keepdim=True), p, 0.0)


@written(X)
def guarded_maximum(x):
    m = x.amax(-1, keepdim=True)
    e = torch.exp(x - torch.where(torch.isfinite(m), m, 0.0))
    t = e.sum(-1, keepdim=True)
    return e / torch.where(t > 0, t, 1.0)


@written(Q.half(), K.half(), W.half())
def relaxed_scores(q, k, v, alpha=32.0):
    s = q / 4.0 @ k.mT / alpha
    return torch.softmax((s - s.amax(-1).unsqueeze(-1)) * alpha, -1) @ v


# -- statistics --------------------------------------------------------------------------------------------------------


@written(X)
def var_mean(x):
    return torch.var_mean(x, dim=-1, correction=0)


@written(r(3, 6, 5, 4))
def batch_statistics(x):
    return x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)


@written(X, mask(6, 50))
def variance_of_what_counts(x, keep):
    n = keep.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(keep, x, 0.0).sum(-1, keepdim=True) / n
    return torch.where(keep, (x - mean) ** 2, 0.0).sum(-1) / n.squeeze(-1)


@written(X)
def skewness(x):
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=False)
    return (((x - mean) / std) ** 3).mean(-1)


@written(X, Y)
def pearson(x, y):
    xm, ym = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (xm * ym).sum(-1) / (xm.norm(dim=-1) * ym.norm(dim=-1))


@written(r(50), r(50))
def regression(x, y):
    mx, my = x.mean(), y.mean()
    slope = ((x - mx) * (y - my)).sum() / ((x - mx) ** 2).sum()
    return slope, my - slope * mx


@written(X, r(50), regions=2)
def slope_over_one_axis(x, y):
    xm, ym = x - x.mean(-1, keepdim=True), y - y.mean()
    return (xm * ym).sum(-1) / (xm * xm).sum(-1)


@written(X, Y)
def concordance(x, y):
    mx, my = x.mean(-1, keepdim=True), y.mean(-1, keepdim=True)
    both = x.var(-1, correction=0) + y.var(-1, correction=0) + (mx - my).squeeze(-1) ** 2
    return 2 * ((x - mx) * (y - my)).mean(-1) / both


@written(X)
def std_of_everything(x):
    return (x - x.mean()) / x.std()


@written(labels(100, 6, 50))
def shares_of_counts(x):
    return (x.float() / x.sum(-1, keepdim=True)).square().sum(-1)


@written(r(6, 50, dtype=F64), r(50, 8, dtype=F64))
def softmax_double(x, v):
    return torch.softmax(x, -1) @ v


# -- norms, quantisers, routers ----------------------------------------------------------------------------------------


@written(r(6, 50, dtype=BF16), r(50, dtype=BF16), r(8, 50, dtype=BF16))
def llama_norm_linear(x, g, w):
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return F.linear(g * wide.to(x.dtype), w)


@written(r(3, 6, 5, 4), r(6), r(6))
def instance_norm(x, w, b):
    return F.instance_norm(x, weight=w, bias=b)


@written(X)
def fourth_norm(x):
    return F.normalize(x, p=4.0, dim=-1)


@written(X, V)
def min_max_matmul(x, w):
    low, high = x.min(-1, keepdim=True)[0], x.max(-1, keepdim=True)[0]
    return ((x - low) / (high - low)) @ w


@written(X)
def clamped_score(x):
    return ((x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-8)).clamp(-3, 3)


@written(r(6, 64))
def int8_rows(x):
    scale = x.abs().max(dim=-1, keepdim=True).values / 127
    return torch.clamp(torch.round(x / scale), -127, 127).to(torch.int8), scale


@written(r(6, 16))
def switch_router(x):
    return torch.softmax(x, -1).max(-1)


@written(r(6, 16))
def argmax_router(x):
    p = F.softmax(x, -1)
    return p.argmax(-1), p.amax(-1)


@written(r(6, 16), outside=("topk",))
def topk_softmax(x):
    v, i = torch.topk(x, 4, dim=-1)
    return torch.softmax(v, -1), i


@written(r(6, 3), r(50, 3))
def nearest(x, y):
    return (x[:, None] - y[None]).square().sum(-1).topk(5, dim=-1, largest=False)


@written(X, r(50, 50), regions=2)
def two_in_a_row(x, w):
    return torch.softmax(torch.softmax(x, -1) @ w, -1)


# -- refused -----------------------------------------------------------------------------------------------------------


@unfused("RF203", "aten.sum.dim_IntList", X)
def clipped_at_the_mean(x):
    return torch.minimum(x, x.mean(-1, keepdim=True)).sum(-1)


@apart("RF203", "aten.matmul.default", X, V)
def clamped_int8_matmul(x, w):
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127.0
    return (torch.round(x / scale).clamp(-128, 127) @ w) * scale


@unfused("RF204", "aten.sum.dim_IntList", X)
def count_above_the_mean(x):
    return (x > x.mean(-1, keepdim=True)).sum(-1)


@unfused("RF201", "aten.sum.dim_IntList", X)
def entropy_with_epsilon(x):
    p = F.softmax(x, -1)
    return -(p * torch.log(p + 1e-9)).sum(-1)


@unfused("RF301", "aten.median.dim", X)
def median_deviation(x):
    return (x - x.median(-1, keepdim=True).values).abs().mean(-1)


@apart("RF306", "aten.mean.dim", X)
def covariance_matrix(x):
    d = x - x.mean(1, keepdim=True)
    return d @ d.T / 49
