"""Distances and what is made of them: clusters, mixtures, kernels, codebooks, neighbours and graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, TAME, In, Program, made, of

Ranked = tuple[Tensor, Tensor]


def square(x: Tensor, y: Tensor) -> Tensor:
    return x.pow(2).sum(-1, keepdim=True) - 2 * x @ y.t() + y.pow(2).sum(-1)


# -- clusters ----------------------------------------------------------------------------------------------------------


def assignment(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """k-means, by differences."""
    d = ((x[:, None, :] - c[None, :, :]) ** 2).sum(-1)
    best, at = d.min(dim=1)
    return best, at


def by_difference(x: Tensor, c: Tensor) -> Ranked:
    d = ((x[:, None, :] - c[None, :, :]) ** 2).sum(-1)
    return -d, -d


def kmeans_update(x: Tensor, labels: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    hot = F.one_hot(labels, c.shape[0]).to(x.dtype)
    count = hot.sum(0)
    new = hot.t() @ x / count.clamp(min=1).unsqueeze(1)
    return torch.where(count[:, None] > 0, new, c), count


def soft_kmeans(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step: responsibilities over the centres, sums over the points."""
    d = torch.cdist(x, c, compute_mode="donot_use_mm_for_euclid_dist").square()
    r = F.softmax(-4.0 * d, dim=-1)
    return torch.einsum("nk,nd->kd", r, x) / (r.sum(0)[:, None] + 1e-6), (r * d).sum(-1).mean()


def fuzzy(x: Tensor, c: Tensor) -> Tensor:
    """Fuzzy c-means memberships, m = 2."""
    d = ((x.unsqueeze(1) - c.unsqueeze(0)) ** 2).sum(2).clamp_min(1e-8)
    inv = d.reciprocal()
    return inv / inv.sum(dim=1, keepdim=True)


def responsibilities(x: Tensor, mu: Tensor, logvar: Tensor, logpi: Tensor) -> tuple[Tensor, Tensor]:
    """A diagonal mixture."""
    d = x.shape[-1]
    prec = torch.exp(-logvar)
    maha = (x ** 2) @ prec.t() - 2 * x @ (mu * prec).t() + (mu ** 2 * prec).sum(1)
    logp = -0.5 * (d * math.log(2 * math.pi) + logvar.sum(1) + maha) + F.log_softmax(logpi, dim=0)
    norm = torch.logsumexp(logp, dim=1, keepdim=True)
    return torch.exp(logp - norm), norm.mean()


def em_step(logp: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, means and variances of a mixture from its joint log-probabilities."""
    r = (logp - logp.logsumexp(1, keepdim=True)).exp()
    n = r.sum(0) + 1e-6
    mu = r.t() @ x / n[:, None]
    var = (r.t() @ x.square() / n[:, None] - mu.square()).clamp(min=1e-6)
    return n / x.shape[0], mu, var


def slot_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax over the slots, a mean over the inputs."""
    attn = F.softmax(torch.einsum("bid,bjd->bij", q, k) * q.shape[-1] ** -0.5, dim=1) + 1e-8
    attn = attn / attn.sum(dim=-1, keepdim=True)
    return torch.einsum("bjd,bij->bid", v, attn)


def mean_shift(x: Tensor) -> Tensor:
    w = torch.exp(-0.5 * torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") ** 2 / 4.0)
    return (w @ x) / w.sum(1, keepdim=True)


def som(x: Tensor, w: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Of a self-organising map: soft winners, and each unit's pull by the neighbourhood."""
    d = (x[:, None] - w[None]).pow(2).sum(-1)
    win = F.softmin(d, dim=1) @ grid
    h = torch.exp(-(win[:, None, :] - grid[None]).pow(2).sum(-1) / 2.0)
    return h, h.t() @ x / h.sum(0).clamp_min(1e-6)[:, None]


def codebook(z: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """VQ: the nearest code, its vector, and the loss."""
    d = z.pow(2).sum(1, keepdim=True) - 2 * z @ e.t() + e.pow(2).sum(1)
    at = d.argmin(dim=1)
    q = F.embedding(at, e)
    return q, at, F.mse_loss(q, z)


def by_square(z: Tensor, e: Tensor) -> Ranked:
    d = square(z, e)
    return -d, -d


def code_usage(z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Soft codes' perplexity and the entropy loss (LFQ, MaskGIT)."""
    logits = F.normalize(z, dim=-1) @ F.normalize(e, dim=-1).t() / 0.1
    p, logp = logits.softmax(-1), logits.log_softmax(-1)
    avg = p.mean(0)
    return torch.exp(-(avg * torch.log(avg + 1e-10)).sum()), -(p * logp).sum(-1).mean()


# -- distances of sets -------------------------------------------------------------------------------------------------


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    d = ((a[:, :, None, :] - b[:, None, :, :]) ** 2).sum(-1)
    return d.min(dim=2)[0].mean(dim=1) + d.min(dim=1)[0].mean(dim=1)


def chamfer_masked(a: Tensor, b: Tensor, keep: Tensor) -> Tensor:
    d = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    d = d.masked_fill(~keep[:, None, :], float("inf"))
    return d.amin(-1).mean(-1)


def hausdorff(a: Tensor, b: Tensor) -> Tensor:
    d = (a.unsqueeze(1) - b.unsqueeze(0)).norm(dim=-1)
    return torch.max(d.min(1).values.max(), d.min(0).values.max())


def knn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the 5 smallest distances, and a local scale (CSLS-like)."""
    d = square(x, y).clamp_min(0).sqrt()
    near, _ = d.topk(5, dim=-1, largest=False)
    return near.mean(-1), torch.exp(-near / near[:, -1:].clamp_min(1e-6)).sum(-1)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    def k(a: Tensor, b: Tensor) -> Tensor:
        d = ((a[:, None] - b[None]) ** 2).sum(-1)
        return (torch.exp(-d / 2.0) + torch.exp(-d / 8.0)).mean()
    return k(x, x) + k(y, y) - 2 * k(x, y)


def density(x: Tensor, data: Tensor) -> Tensor:
    """Of a Gaussian kernel, in logarithms."""
    d = torch.cdist(x, data, compute_mode="donot_use_mm_for_euclid_dist").pow(2)
    return torch.logsumexp(-0.5 * d / 0.25, dim=1) - math.log(data.shape[0]) - x.shape[1] / 2 * math.log(2 * math.pi * 0.25)


def nadaraya_watson(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    w = torch.softmax(-((x.reshape(-1, 1) - xs.reshape(1, -1)) ** 2) / 2, dim=1)
    return torch.matmul(w, ys)


def epanechnikov(x: Tensor, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
    """Kernel regression with a compact kernel; nothing near gives 0."""
    w = F.relu(1 - ((x[:, None] - xs[None, :]) / 0.5) ** 2) * 0.75
    n = w.sum(1)
    return torch.where(n > 0, (w * ys).sum(1) / n.clamp(min=1e-6), torch.zeros_like(n)), n


def soft_dtw_step(up: Tensor, left: Tensor, diag: Tensor, cost: Tensor) -> Tensor:
    r = torch.stack([up, left, diag], -1)
    return cost - 0.1 * torch.logsumexp(-r / 0.1, dim=-1)


def sinkhorn(m: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    v = -torch.logsumexp(-m / 0.1 + u[:, :, None], dim=1) - math.log(m.shape[2])
    u = -torch.logsumexp(-m / 0.1 + v[:, None, :], dim=2) - math.log(m.shape[1])
    return u, v


# -- affinities and graphs ---------------------------------------------------------------------------------------------


def tsne(x: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of P at a precision each, and their entropies."""
    d = ((x[:, None] - x[None]) ** 2).sum(-1)
    eye = torch.eye(x.shape[0], dtype=torch.bool, device=x.device)
    logits = (-d * beta[:, None]).masked_fill(eye, float("-inf"))
    p = torch.softmax(logits, dim=1)
    h = torch.logsumexp(logits, 1) + beta * (p * d).sum(1)
    return p, h


def tsne_gradient(p: Tensor, y: Tensor) -> Tensor:
    num = 1 / (1 + torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist").square())
    num = num * (1 - torch.eye(y.shape[0], device=y.device))
    q = (num / num.sum()).clamp(min=1e-12)
    pq = (p - q) * num
    return 4 * (pq.sum(1, keepdim=True) * y - pq @ y)


def umap(d: Tensor, sigma: Tensor) -> Tensor:
    rho = d.amin(dim=1, keepdim=True)
    w = torch.exp(-(d - rho).clamp(min=0) / sigma[:, None])
    return w / w.sum(1, keepdim=True) * math.log2(d.shape[1])


def gat(h: Tensor, left: Tensor, right: Tensor, adj: Tensor) -> Tensor:
    """pyGAT: a dense adjacency, -9e15 where there is no edge."""
    e = F.leaky_relu(h @ left + (h @ right).T, 0.2)
    attention = torch.where(adj, e, -9e15 * torch.ones_like(e))
    return F.elu(F.softmax(attention, dim=1) @ h)


def gat_heads(h: Tensor, s: Tensor, t: Tensor, adj: Tensor) -> Tensor:
    e = F.leaky_relu(s.transpose(1, 2).unsqueeze(-1) + t.transpose(1, 2).unsqueeze(-2), 0.2)
    a = e.masked_fill(~adj.unsqueeze(1), -1e4).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", a, h).flatten(2)


def pagerank(adj: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    out = adj.sum(1)
    p = torch.where(out[:, None] > 0, adj / out[:, None].clamp(min=1e-9), 1.0 / adj.shape[0])
    new = 0.85 * (p.t() @ r) + 0.15 / adj.shape[0]
    new = new / new.sum()
    return new, (new - r).abs().sum()


def laplacian(adj: Tensor, x: Tensor) -> Tensor:
    """GCN: D^-1/2 (A + I) D^-1/2 X."""
    a = adj + torch.eye(adj.shape[-1], device=adj.device)
    d = a.sum(-1).pow(-0.5)
    d = torch.where(torch.isinf(d), 0.0, d)
    return (d.unsqueeze(-1) * a * d.unsqueeze(-2)) @ x


def label_propagation(x: Tensor, y: Tensor) -> Tensor:
    w = torch.exp(-torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square())
    w = w - torch.diag_embed(torch.diagonal(w))
    s = w / w.sum(1, keepdim=True).clamp_min(1e-8)
    f = 0.9 * (s @ y) + 0.1 * y
    return f / f.sum(1, keepdim=True).clamp(min=1e-8)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "clusters")

    def r(what: str, fn: Callable[..., Any], by: Callable[..., tuple[Tensor, Tensor]], *ins: In, only: tuple[str, ...] = ()
          ) -> Program:
        return Program("clusters", what, fn, ins, ranked=by, only=only)

    yield p("f32 130x257 umap", umap, of("d", 130, 257, kind="positive"), of("sigma", 130, kind="positive"))
    yield r("f32 130x33x16 assignment", assignment, by_difference, of("x", 130, 16), of("c", 33, 16))
    yield p("f32 257x16x20 kmeans update", kmeans_update, of("x", 257, 16),
            of("labels", 257, dtype="i64", kind="label", high=20),
            of("c", 20, 16))
    yield p("f32 130x20x8 soft kmeans", soft_kmeans, of("x", 130, 8), of("c", 20, 8), only=TAME)
    yield p("f32 65x20x3 fuzzy", fuzzy, of("x", 65, 3), of("c", 20, 3))
    yield p("f32 130x33x16 responsibilities", responsibilities, of("x", 130, 16), of("mu", 33, 16, kind="weight"),
            of("logvar", 33, 16, kind="weight", scale=0.3), of("logpi", 33, kind="weight"), only=TAME)
    yield p("f32 257x20x16 em step", em_step, of("logp", 257, 20), of("x", 257, 16, kind="weight", shift=1.0))
    yield p("bf16 2x7x130x64 slots", slot_attention,
            *(of(n, 2, s, 64, dtype="bf16") for n, s in (("q", 7), ("k", 130), ("v", 130))))
    yield p("f32 130x3 mean shift", mean_shift, of("x", 130, 3), only=TAME)
    yield p("f32 65x36x8 som", som, of("x", 65, 8), of("w", 36, 8), of("grid", 36, 2, kind="weight"), only=TAME)
    yield r("f32 65x130x16 codebook", codebook, by_square, of("z", 65, 16), of("e", 130, 16), only=("normal", "outlier"))
    yield p("f16 65x130x64 code usage", code_usage, of("z", 65, 64, dtype="f16"), of("e", 130, 64, dtype="f16"), only=CALM)
    yield p("f32 2x65x70x3 chamfer", chamfer, of("a", 2, 65, 3), of("b", 2, 70, 3))
    yield p("f32 2x65x70x3 masked chamfer", chamfer_masked, of("a", 2, 65, 3), of("b", 2, 70, 3),
            of("keep", 2, 70, dtype="bool", kind="keep"))
    yield p("f32 65x70x3 hausdorff", hausdorff, of("a", 65, 3), of("b", 70, 3))
    yield p("f32 65x257x16 knn", knn, of("x", 65, 16), of("y", 257, 16), only=("normal", "outlier"))
    yield p("f32 65x70x5 mmd", mmd, of("x", 65, 5), of("y", 70, 5, shift=0.5), only=TAME)
    yield p("f32 65x257x4 density", density, of("x", 65, 4), of("data", 257, 4))
    yield p("f32 130x257x5 nadaraya watson", nadaraya_watson, of("x", 130), of("xs", 257), of("ys", 257, 5))
    yield p("f32 65x257 epanechnikov", epanechnikov, of("x", 65), of("xs", 257), of("ys", 257), only=TAME)
    yield p("f32 33x65 soft dtw", soft_dtw_step, *(of(n, 33, 65, kind="positive") for n in ("up", "left", "diag", "cost")))
    yield p("f32 3x65x70 sinkhorn", sinkhorn, of("m", 3, 65, 70, kind="positive"), of("u", 3, 65))
    yield p("f32 65x5 tsne", tsne, of("x", 65, 5), of("beta", 65, kind="positive"), only=TAME)
    yield p("f32 65x2 tsne gradient", tsne_gradient, of("p", 65, 65, kind="weight", scale=1e-4, shift=2.4e-4), of("y", 65, 2),
            only=TAME)
    yield p("f32 130x33 gat", gat, of("h", 130, 33), of("left", 33, 1, kind="weight"), of("right", 33, 1, kind="weight"),
            of("adj", 130, 130, dtype="bool", kind="keep"))
    yield p("f16 2x65x4x32 gat heads", gat_heads, of("h", 2, 65, 4, 32, dtype="f16"), of("s", 2, 65, 4, dtype="f16"),
            of("t", 2, 65, 4, dtype="f16"), of("adj", 2, 65, 65, dtype="bool", kind="keep"))
    yield p("f32 130 pagerank", pagerank, of("adj", 130, 130, kind="positive"),
            of("r", 130, kind="positive", scale=0.01), only=TAME)
    yield p("f32 2x65x33 laplacian", laplacian, of("adj", 2, 65, 65, kind="positive"), of("x", 2, 65, 33))
    yield p("f32 65x4x7 label propagation", label_propagation, of("x", 65, 4), of("y", 65, 7, kind="positive"), only=TAME)
