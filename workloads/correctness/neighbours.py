"""More of graphs: edges both ways, Laplacians, moments of neighbours, guarded attention, boxes and distances."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import MILD, TAME, Program, label, made, mask, of, positive, weight


def edge_softmax(e: Tensor, adj: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of incoming, normalised both ways, averaged."""
    a = e.masked_fill(~adj, -1e9)
    return 0.5 * (a.softmax(-1) + a.softmax(-2)), torch.logsumexp(a, (-1, -2))


def infonce_graph(h: Tensor, adj: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours are positives; log of a sum of exponentials over them."""
    z = F.normalize(h, dim=-1)
    s = z @ z.T / 0.5
    eye = torch.eye(h.shape[0], dtype=torch.bool, device=h.device)
    s = s.masked_fill(eye, -1e9)
    pos = torch.logsumexp(s.masked_fill(~adj, -1e9), 1)
    return (torch.logsumexp(s, 1) - pos).mean(), (s.softmax(1) * adj).sum(1)


def nan_gat(x: Tensor, w: Tensor, adj: Tensor) -> tuple[Tensor, Tensor]:
    h = x @ w
    s = (h @ h.mT).masked_fill(~adj, float("-inf"))
    a = torch.nan_to_num(torch.softmax(s, -1), nan=0.0)
    return a @ h, F.relu(h).mean(1)


def moments(x: Tensor, adj: Tensor) -> Tensor:
    """Mean, variance, skew of neighbours."""
    d = adj.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
    a = adj.to(x.dtype)
    m = a @ x / d
    v = (a @ x.square() / d - m.square()).clamp(min=1e-6)
    c = (a.unsqueeze(-1) * (x.unsqueeze(1) - m.unsqueeze(2)).pow(3)).sum(2) / d
    return torch.cat([m, v.sqrt(), c / v.pow(1.5)], -1)


def softmax_agg(x: Tensor, nb: Tensor, keep: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """GENConv over sampled neighbours, temperature for each channel."""
    m = F.relu(x[nb]) + 1e-7
    s = (m * t).masked_fill(~keep.unsqueeze(-1), -1e30)
    return (m * torch.softmax(s, dim=1)).sum(1), torch.where(keep.unsqueeze(-1), m, 0).sum(1).pow(1 / 3)


def topk_pool(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    s = (x * p).sum(-1) / p.norm(p=2)
    v, i = torch.topk(s, 9)
    return x[i] * torch.sigmoid(v).view(-1, 1), v.softmax(0)


def laplacian(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    d = a.sum(-1)
    l = torch.diag_embed(d) - a
    n = torch.rsqrt(d + 1e-6)
    return torch.einsum("bif,bij,bjf->b", x, l, x) / x.square().sum((1, 2)), n[:, :, None] * l * n[:, None]


def cheb(x: Tensor, l: Tensor, w: Tensor) -> Tensor:
    t0, t1 = x, l @ x
    out = t0 @ w[0] + t1 @ w[1]
    t2 = 2 * l @ t1 - t0
    return F.layer_norm(out + t2 @ w[2], (w.shape[-1],))


def hgt(q: Tensor, k: Tensor, v: Tensor, rel: Tensor, types: Tensor) -> Tensor:
    """Heads and a prior for each relation type."""
    s = torch.einsum("ihd,hde,jhe->ijh", q, rel, k) / math.sqrt(q.shape[-1])
    s = s * torch.where(types > 0, 1.0, 0.5)[..., None]
    return torch.einsum("ijh,jhd->ihd", torch.softmax(s, dim=1), v)


def box(h: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Query2box distances: outside and inside."""
    c, o = h.chunk(2, -1)
    o = o.abs()
    d = (t.unsqueeze(0) - c.unsqueeze(1)).abs()
    out, ins = F.relu(d - o.unsqueeze(1)), torch.minimum(d, o.unsqueeze(1))
    s = 12 - out.norm(p=1, dim=-1) - 0.02 * ins.sum(-1)
    return -F.logsigmoid(s.amax(1)), s.log_softmax(1)


def dimenet(pos: Tensor, w: Tensor) -> Tensor:
    """Bessel radial basis with an envelope."""
    d = torch.sqrt((pos[:, None] - pos).pow(2).sum(-1) + torch.eye(pos.shape[0], device=pos.device))
    x = (d / 5).unsqueeze(-1)
    n = torch.arange(1, 7, device=pos.device)
    env = 1 / x - 28 * x**5 + 48 * x**6 - 21 * x**7
    return torch.where(x < 1, env * torch.sin(n * math.pi * x), 0.0).sum(1) @ w


def programs() -> Iterator[Program]:
    p = partial(made, "graphs")
    for dt in ("f32", "bf16"):
        yield p(f"{dt} edge softmax", edge_softmax, of("e", 2, 23, 23, dtype=dt), mask("adj", 2, 23, 23), only=MILD)
    yield p("f32 infonce graph", infonce_graph, of("h", 29, 13), mask("adj", 29, 29))
    for dt in ("f32", "bf16"):
        yield p(f"{dt} nan gat", nan_gat, of("x", 2, 29, 13, dtype=dt), weight("w", 13, 12, dtype=dt, scale=.3),
            mask("adj", 2, 29, 29))
    yield p("f32 moments", moments, of("x", 2, 17, 7), mask("adj", 2, 17, 17), only=MILD)
    yield p("f32 softmax agg", softmax_agg, of("x", 29, 13), label("nb", 29, 6, high=29), mask("keep", 29, 6),
            weight("t", 13))
    yield p("f32 topk pool", topk_pool, of("x", 29, 13), weight("p", 13), only=("normal",))
    yield p("f32 laplacian", laplacian, of("x", 2, 17, 5), positive("a", 2, 17, 17), only=TAME)
    yield p("f32 cheb", cheb, of("x", 2, 17, 11), of("l", 2, 17, 17, scale=.3), weight("w", 3, 11, 9), only=MILD)
    yield p("f32 hgt", hgt, *(of(n, 23, 3, 7) for n in "qkv"), weight("rel", 3, 7, 7), label("types", 23, 23, high=3))
    yield p("f32 box", box, of("h", 7, 22), of("t", 31, 11), only=MILD)
    yield p("f32 dimenet", dimenet, of("pos", 13, 3), weight("w", 6, 5), only=MILD)
