"""Tables: columns and rows with gaps and outliers, and networks for rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import TAME, Program, made, mask, of, positive, weight


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
    """Clamped to three mean absolute deviations, then normalised."""
    m = x.mean(1, keepdim=True)
    mad = (x - m).abs().mean(1, keepdim=True)
    y = torch.minimum(torch.maximum(x, m - 3 * mad), m + 3 * mad)
    return (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, unbiased=True) + 1e-9) ** 0.5


def hurdle(x: Tensor) -> tuple[Tensor, Tensor]:
    """Share of what is above 0, and the mean log of that."""
    up = x > 0
    n = up.sum(-1)
    logs = torch.where(up, x, 1.0).log()
    return n / x.shape[-1], logs.sum(-1) / n.clamp(min=1)


def median_of_means(x: Tensor) -> Tensor:
    return x.view(x.shape[0], 5, -1).mean(-1).median(-1).values


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


def programs() -> Iterator[Program]:
    ledger = partial(made, "ledgers")
    account = partial(made, "accounts")
    yield account("f32 33x257 nanmean", nanmean_by_hand, of("x", 33, 257))
    for dt in ("f32", "f16", "bf16"):
        yield account(f"{dt} 33x130 zscore", zscore_in_place, of("x", 33, 130, dtype=dt),
                only=("normal", "zeros", "nan:x", "inf:x"))
    yield account("f32 33x130 winsorised", winsorised, of("x", 33, 130))
    yield account("f32 65x130 hurdle", hurdle, of("x", 65, 130))
    yield account("f32 33x65 median of means", median_of_means, of("x", 33, 65))
    yield ledger("f32 65x54 tabnet", tabnet, of("a", 65, 54), positive("prior", 65, 54), of("x", 65, 54), only=TAME)
    for dt in ("f32", "f16"):
        yield ledger(f"{dt} 65x33 ghost", ghost, of("x", 65, 33, dtype=dt))
    yield ledger("f32 65x33x7 trees", trees, of("x", 65, 33), of("sel", 33, 7, 3), of("th", 7, 3), of("resp", 7, 8))
    yield ledger("bf16 65x21x32 tokens", tokens, of("x", 65, 21, dtype="bf16"), weight("w", 21, 32, dtype="bf16"),
            weight("b", 21, 32, dtype="bf16"), *(weight(n, 32, 32, dtype="bf16", scale=0.2) for n in ("wq", "wk", "wv")))
    yield account("f32 65x33x8 gate", gate, of("x", 65, 33), weight("w", 33, 8), mask("keep", 65, 8),
            only=("normal",), ranked=by_gate)
