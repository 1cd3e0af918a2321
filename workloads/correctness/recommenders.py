"""Recommenders: interest in a history, crossed features, two towers, sampled losses, gates over fields and experts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import TAME, Program, label, made, mask, of, weight


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


def programs() -> Iterator[Program]:
    p = partial(made, "ledgers")
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 33x65x16 din", din, of("q", 33, 16, dtype=dt), of("h", 33, 65, 16, dtype=dt), mask("keep", 33, 65),
                weight("w1", 64, 24, dtype=dt, scale=0.2), weight("w2", 24, 1, dtype=dt))
    yield p("f16 33x65x16 din sum", din_sum, of("q", 33, 16, dtype="f16"), of("h", 33, 65, 16, dtype="f16"),
            label("length", 33, high=66))
    yield p("f32 65x130 cross", cross, of("x", 65, 130), weight("w", 130), weight("b", 130), of("x0", 65, 130))
    yield p("bf16 65x130 cross v2", cross_v2, of("x", 65, 130, dtype="bf16"), weight("w", 130, 130, dtype="bf16", scale=0.1),
            weight("b", 130, dtype="bf16"), only=(*TAME, "big", "nan:x", "inf:x", "-inf:x"))
    yield p("f32 65x39x10 machine", machine, of("v", 65, 39, 10), of("x", 65, 39), weight("w", 39))
    yield p("f16 65x26x16 interact", interact, of("dense", 65, 16, dtype="f16"), of("sparse", 65, 26, 16, dtype="f16"))
    yield p("f32 130x32 two tower", two_tower, of("u", 130, 32), of("v", 130, 32), of("logq", 130))
    yield p("f32 65x32 two tower masked", two_tower_masked, of("u", 65, 32), of("v", 65, 32), label("item", 65, high=20),
            of("logq", 65))
    yield p("f32 1000x16 bpr", bpr, *(of(n, 1000, 16) for n in "uij"), only=(*TAME, "big"))
    yield p("f32 65x130 sampled softmax", sampled_softmax, of("pos", 65), of("neg", 65, 130), of("logp", 65, 131))
    yield p("f32 65x130 warp", warp, of("pos", 65), of("neg", 65, 130))
    yield p("bf16 65x26x10 senet", senet, of("e", 65, 26, 10, dtype="bf16"), weight("w1", 26, 8, dtype="bf16"),
            weight("w2", 8, 26, dtype="bf16"))
    yield p("f16 65x33x4 mmoe", mmoe, of("x", 65, 33, dtype="f16"), weight("experts", 4, 33, 16, dtype="f16", scale=0.2),
            weight("gates", 2, 33, 4, dtype="f16", scale=0.2))
