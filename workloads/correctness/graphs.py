"""Graph networks: attention over neighbours, aggregators, pooling, propagation, scores of triples, molecules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import CALM, MILD, TAME, Program, label, made, mask, of, positive, weight


def gat(x: Tensor, w: Tensor, a: Tensor, adj: Tensor) -> Tensor:
    """Dense, heads apart, neighbours where the mask is true."""
    h = torch.einsum("nf,fhd->hnd", x, w)
    left, right = (h * a[:, None, : h.shape[-1]]).sum(-1), (h * a[:, None, h.shape[-1]:]).sum(-1)
    e = F.leaky_relu(left.unsqueeze(2) + right.unsqueeze(1), 0.2)
    att = F.softmax(torch.where(adj > 0, e, -9e15 * torch.ones_like(e)), dim=-1)
    return F.elu(torch.matmul(att, h)).transpose(0, 1).flatten(1)


def gatv2(x: Tensor, left: Tensor, right: Tensor, a: Tensor, adj: Tensor) -> tuple[Tensor, Tensor]:
    hl, hr = x @ left, x @ right
    e = F.leaky_relu(hl[:, :, None, :] + hr[:, None, :, :], negative_slope=0.2) @ a
    att = e.masked_fill(~adj, float("-inf")).softmax(dim=-1)
    att = torch.nan_to_num(att)
    return torch.bmm(att, hr), -(att * torch.log(att + 1e-9)).sum(-1)


def edge_bias(q: Tensor, k: Tensor, v: Tensor, e: Tensor, w: Tensor, keep: Tensor) -> Tensor:
    """Graphormer: a bias of edge features for every head."""
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + torch.einsum("bijc,ch->bhij", e, w)
    s = s.masked_fill(~keep[:, None, None, :], torch.finfo(s.dtype).min)
    return torch.softmax(s, dim=-1, dtype=torch.float32).to(v.dtype) @ v


def gated_edges(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Dwivedi's graph transformer: clamped exponentials, normalised afterwards; edges keep their scores."""
    s = (q[:, :, None] * k[:, None] / q.shape[-1] ** 0.5) * e
    a = torch.exp(s.sum(-1, keepdim=True).clamp(-5, 5))
    return (a * v[:, None]).sum(2) / (a.sum(2) + 1e-6), s


def gin(x: Tensor, adj: Tensor, eps: Tensor, w: Tensor) -> Tensor:
    h = (1 + eps) * x + adj @ x
    h = h @ w
    h = (h - h.mean((0, 1))) / torch.sqrt(h.var((0, 1), unbiased=False) + 1e-5)
    return F.relu(h).sum(dim=1)


def pna(x: Tensor, adj: Tensor) -> Tensor:
    """Mean, maximum, minimum, deviation over neighbours, by three scalers of the degree."""
    a = adj.unsqueeze(-1)
    deg = adj.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
    h = x.unsqueeze(1)
    mean = (h * a).sum(2) / deg
    mx = h.masked_fill(~a, -1e9).amax(2)
    mn = h.masked_fill(~a, 1e9).amin(2)
    std = torch.sqrt(F.relu((h * h * a).sum(2) / deg - mean * mean) + 1e-5)
    out = torch.cat([mean, mx, mn, std], dim=-1)
    scale = torch.log(deg + 1) / 1.7
    return torch.cat([out, out * scale, out / scale], -1)


def sage(x: Tensor, adj: Tensor, w: Tensor, u: Tensor) -> Tensor:
    n = torch.matmul(adj, x) / adj.sum(-1, keepdim=True).clamp(min=1.0)
    return F.normalize(x @ u + n @ w, p=2, dim=-1)


def sage_pool(x: Tensor, nb: Tensor, w: Tensor) -> Tensor:
    """Sampled neighbours by their numbers, the largest of each feature."""
    h = F.relu(x @ w)[nb]
    h = torch.cat((x, h.max(dim=1)[0]), 1)
    return h / h.norm(dim=-1, keepdim=True).clamp(min=1e-6)


def diffpool(x: Tensor, adj: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s = torch.softmax(s, dim=-1)
    out = torch.matmul(s.transpose(1, 2), x)
    pooled = torch.matmul(torch.matmul(s.transpose(1, 2), adj), s)
    link = torch.norm(adj - torch.matmul(s, s.transpose(1, 2)), p=2) / adj.numel()
    return out, pooled, link, (-s * torch.log(s + 1e-15)).sum(dim=-1).mean()


def mincut(adj: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Cut over degrees; how far the clusters are from orthogonal."""
    s = s.softmax(-1)
    num = torch.einsum("bij,bik,bjk->b", adj, s, s)
    den = torch.einsum("bi,bik,bik->b", adj.sum(-1), s, s)
    ss = s.mT @ s
    k = s.shape[-1]
    eye = torch.eye(k, device=s.device, dtype=s.dtype) / k**0.5
    return -(num / den).mean(), torch.norm(ss / torch.norm(ss, dim=(-1, -2), keepdim=True) - eye, dim=(-1, -2)).mean()


def sag_pool(x: Tensor, adj: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of one propagation; the best half, gated, and their statistics."""
    d = adj.sum(-1).clamp(min=1e-6).rsqrt()
    score = torch.tanh((d.unsqueeze(-1) * adj * d.unsqueeze(-2)) @ (x @ w)).squeeze(-1)
    top, i = score.topk(x.shape[1] // 2, dim=1)
    h = torch.gather(x, 1, i.unsqueeze(-1).expand(-1, -1, x.shape[-1])) * top.unsqueeze(-1)
    return torch.cat([h.mean(1), h.amax(1)], dim=-1), top


def gcn(x: Tensor, adj: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Two layers of D^-1/2 (A + I) D^-1/2."""
    a = adj + torch.eye(adj.shape[0], device=adj.device, dtype=adj.dtype)
    d = a.sum(1).pow(-0.5)
    d = d.masked_fill(d == float("inf"), 0.0)
    a = torch.diag(d) @ a @ torch.diag(d)
    return F.log_softmax(a @ F.relu(a @ x @ w) @ v, dim=1)


def appnp(x: Tensor, adj: Tensor) -> Tensor:
    """Personalised pagerank, three steps of a random walk."""
    p = adj / adj.sum(dim=0, keepdim=True).clamp(min=1e-6)
    z = x
    for _ in range(3):
        z = 0.9 * torch.mm(p, z) + 0.1 * x
    return z.softmax(-1)


def dgi(h: Tensor, fake: Tensor, w: Tensor) -> Tensor:
    s = torch.sigmoid(h.mean(dim=0))
    pos, neg = torch.matmul(h, torch.matmul(w, s)), torch.matmul(fake, torch.matmul(w, s))
    return -torch.log(torch.sigmoid(pos) + 1e-15).mean() - torch.log(1 - torch.sigmoid(neg) + 1e-15).mean()


def graphcl(a: Tensor, b: Tensor) -> Tensor:
    na, nb = a.norm(dim=1), b.norm(dim=1)
    sim = torch.einsum("ik,jk->ij", a, b) / torch.einsum("i,j->ij", na, nb)
    sim = torch.exp(sim / 0.2)
    pos = torch.diagonal(sim)
    return -torch.log(pos / (sim.sum(dim=1) - pos)).mean()


def adversarial(head: Tensor, rel: Tensor, tail: Tensor, neg: Tensor) -> Tensor:
    """RotatE with self-adversarial negative samples."""
    def score(t: Tensor) -> Tensor:
        (rh, ih), (rt, it) = head.chunk(2, -1), t.chunk(2, -1)
        phase = rel / (0.1 / math.pi)
        c, s = torch.cos(phase), torch.sin(phase)
        re, im = rh * c - ih * s - rt, rh * s + ih * c - it
        return 6.0 - torch.stack([re, im], dim=0).norm(dim=0).sum(dim=-1)
    p, n = score(tail), score(neg)
    n = (F.softmax(n * 1.0, dim=1) * F.logsigmoid(-n)).sum(dim=1)
    return (-F.logsigmoid(p).squeeze(1).mean() - n.mean()) / 2


def transe(h: Tensor, r: Tensor, ents: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Against every entity: the rank of the true tail, and a margin."""
    e = F.normalize(ents, dim=-1)
    d = torch.norm((F.normalize(h, dim=-1) + r).unsqueeze(1) - e, p=1, dim=-1)
    true = d.gather(1, y.view(-1, 1))
    return (d < true).sum(1) + 1, F.relu(1.0 + true - d).mean(1)


def complex_scores(h: Tensor, r: Tensor, ents: Tensor, y: Tensor) -> Tensor:
    """ComplEx against all entities."""
    (a, b), (c, d), (e, f) = h.chunk(2, 1), r.chunk(2, 1), ents.chunk(2, 1)
    s = (a * c - b * d) @ e.t() + (a * d + b * c) @ f.t()
    return F.cross_entropy(s, y) + 0.01 * (h.abs() ** 3).sum(1).mean()


def distmult(h: Tensor, r: Tensor, neg: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    pos = (h * r * t).sum(-1)
    n = torch.einsum("bd,bd,bkd->bk", h, r, neg)
    return F.softplus(-pos) + F.softplus(n).mean(-1), (n >= pos[:, None]).float().mean(-1)


def schnet(x: Tensor, pos: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Continuous filters of radial functions with a cosine cut."""
    r = ((pos[:, :, None] - pos[:, None]) ** 2).sum(-1).clamp(min=1e-9).sqrt()
    rbf = torch.exp(-10.0 * (r.unsqueeze(-1) - torch.linspace(0, 3, 12, device=x.device)) ** 2)
    cut = 0.5 * (torch.cos(r * math.pi / 3) + 1.0) * (r < 3).to(x.dtype)
    f = (F.softplus(rbf @ w) - math.log(2.0)) @ v * cut[..., None]
    return torch.einsum("bijf,bjf->bif", f, x)


def egnn(h: Tensor, x: Tensor, we: Tensor, wx: Tensor) -> tuple[Tensor, Tensor]:
    diff = x.unsqueeze(2) - x.unsqueeze(1)
    d2 = diff.pow(2).sum(-1, keepdim=True)
    n = h.shape[1]
    m = torch.cat([h.unsqueeze(2).expand(-1, -1, n, -1), h.unsqueeze(1).expand(-1, n, -1, -1), d2], dim=-1)
    m = F.silu(m @ we)
    m = m * torch.sigmoid(m.mean(-1, keepdim=True))
    return m.sum(2), x + (diff / (d2.sqrt() + 1) * (m @ wx)).sum(2) / (n - 1)


def angles(pos: Tensor, w: Tensor) -> Tensor:
    """Cosines between all pairs of unit edges at an atom, in Legendre polynomials, summed over pairs."""
    e = pos[:, None] - pos[None]
    u = e / torch.sqrt(e.square().sum(-1, keepdim=True) + 1e-6)
    c = torch.einsum("iad,ibd->iab", u, u)
    p = torch.stack((torch.ones_like(c), c, 1.5 * c**2 - 0.5), -1)
    return (p @ w).sum((1, 2))


def jumping(xs: Tensor, w: Tensor) -> Tensor:
    """Attention over what each layer said of a node."""
    a = torch.softmax(xs @ w, dim=0)
    return (xs * a.unsqueeze(-1)).sum(0) + xs.max(0).values


def graph_norm(x: Tensor, keep: Tensor, alpha: Tensor, g: Tensor) -> Tensor:
    m = keep.unsqueeze(-1)
    n = m.sum(1, keepdim=True)
    mean = torch.where(m, x, 0).sum(1, keepdim=True) / n
    out = x - mean * alpha
    var = torch.where(m, out * out, torch.zeros_like(out)).sum(1, keepdim=True) / n
    return g * out / (var + 1e-5).sqrt()


def pair_norm(x: Tensor) -> Tensor:
    x = x - x.mean(dim=0, keepdim=True)
    return 1.0 * x / (1e-5 + x.pow(2).sum(-1).mean()).sqrt()


def set2set(x: Tensor, q: Tensor, keep: Tensor, w: Tensor) -> Tensor:
    """Two steps of reading a set, each with what the last one read."""
    for _ in range(2):
        e = (x * q.unsqueeze(1)).sum(-1).masked_fill(~keep, -1e30)
        a = torch.softmax(e, 1)
        q = torch.tanh(torch.cat([q, torch.einsum("bn,bnd->bd", a, x)], -1) @ w)
    return q


def dirichlet(x: Tensor, adj: Tensor) -> tuple[Tensor, Tensor]:
    """Energy of features over edges, and how alike they are on average."""
    deg = adj.sum(-1)
    y = x / torch.sqrt(1 + deg).unsqueeze(-1)
    d = (y.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1)
    n = F.normalize(x, dim=1)
    return 0.5 * (adj * d).sum(), ((n @ n.T) * adj).sum() / adj.sum()


def sparse_gat(x: Tensor, src: Tensor, dst: Tensor, a: Tensor) -> Tensor:
    """A list of edges: softmax over each target's by scatters."""
    n = x.shape[0]
    e = F.leaky_relu((torch.cat((x[src], x[dst]), 1) * a).sum(-1), 0.2)
    mx = torch.full((n,), -1e9, device=x.device).scatter_reduce(0, dst, e, "amax")
    w = torch.exp(e - mx[dst])
    den = torch.zeros(n, device=x.device).scatter_add(0, dst, w)
    return torch.zeros_like(x).index_add(0, dst, x[src] * (w / (den[dst] + 1e-16)).unsqueeze(-1))


def programs() -> Iterator[Program]:
    p = partial(made, "graphs")
    for dt in ("f32", "f16"):
        yield p(f"{dt} 37x24 gat", gat, of("x", 37, 24, dtype=dt), weight("w", 24, 3, 7, dtype=dt, scale=0.3),
                weight("a", 3, 14, dtype=dt), mask("adj", 37, 37), only=MILD if dt == "f16" else ())
    yield p("f32 2x23x13 gatv2", gatv2, of("x", 2, 23, 13), *(weight(n, 13, 11, scale=0.4) for n in "lr"), weight("a", 11),
            mask("adj", 2, 23, 23))
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 2x3x29x13 edge bias", edge_bias, *(of(n, 2, 3, 29, 13, dtype=dt) for n in "qkv"),
                of("e", 2, 29, 29, 5, dtype=dt), weight("w", 5, 3, dtype=dt), mask("keep", 2, 29))
    yield p("f32 2x17x12 gated edges", gated_edges, *(of(n, 2, 17, 12) for n in "qkv"), of("e", 2, 17, 17, 12))
    yield p("f32 3x19x13 gin", gin, of("x", 3, 19, 13), positive("adj", 3, 19, 19), weight("eps", 1), weight("w", 13, 17),
            only=TAME)
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 2x19x11 pna", pna, of("x", 2, 19, 11, dtype=dt), mask("adj", 2, 19, 19), only=MILD)
    yield p("f32 29x13 sage", sage, of("x", 29, 13), positive("adj", 29, 29), weight("w", 13, 9), weight("u", 13, 9))
    yield p("bf16 29x13x6 sage pool", sage_pool, of("x", 29, 13, dtype="bf16"), label("nb", 29, 6, high=29),
            weight("w", 13, 9, dtype="bf16"))
    yield p("f32 2x23x13 diffpool", diffpool, of("x", 2, 23, 13), positive("adj", 2, 23, 23), of("s", 2, 23, 5))
    yield p("f32 2x23x5 mincut", mincut, positive("adj", 2, 23, 23), of("s", 2, 23, 5), only=MILD)
    yield p("f32 2x24x13 sag pool", sag_pool, of("x", 2, 24, 13), positive("adj", 2, 24, 24), weight("w", 13, 1, scale=0.2),
            only=("normal",))
    yield p("f32 29x13 gcn", gcn, of("x", 29, 13), positive("adj", 29, 29), weight("w", 13, 11), weight("v", 11, 7))
    yield p("f32 29x7 appnp", appnp, of("x", 29, 7), positive("adj", 29, 29))
    yield p("f32 37x13 dgi", dgi, of("h", 37, 13), of("fake", 37, 13), weight("w", 13, 13, scale=0.2), only=MILD)
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 19x37 graphcl", graphcl, of("a", 19, 37, dtype=dt), of("b", 19, 37, dtype=dt), only=MILD)
    yield p("f32 9x21x24 adversarial", adversarial, of("head", 9, 1, 24), of("rel", 9, 1, 12, scale=0.02), of("tail", 9, 1, 24),
            of("neg", 9, 21, 24), only=MILD)
    yield p("f32 9x50x13 transe", transe, of("h", 9, 13), of("r", 9, 13), weight("ents", 50, 13), label("y", 9, high=50),
            only=("normal",))
    yield p("f32 9x50x26 complex", complex_scores, of("h", 9, 26), of("r", 9, 26), weight("ents", 50, 26),
            label("y", 9, high=50), only=CALM)
    yield p("f32 9x21x24 distmult", distmult, *(of(n, 9, 24) for n in "hr"), of("neg", 9, 21, 24), of("t", 9, 24), only=MILD)
    yield p("f32 2x13x11 schnet", schnet, of("x", 2, 13, 11), of("pos", 2, 13, 3), weight("w", 12, 9), weight("v", 9, 11),
            only=TAME)
    yield p("f32 2x13x8 egnn", egnn, of("h", 2, 13, 8), of("x", 2, 13, 3), weight("we", 17, 11, scale=0.3),
            weight("wx", 11, 1, scale=0.3))
    yield p("f32 17x3 angles", angles, of("pos", 17, 3), weight("w", 3, 5), only=MILD)
    for dt in ("f32", "f16"):
        yield p(f"{dt} 4x29x13 jumping", jumping, of("xs", 4, 29, 13, dtype=dt), weight("w", 13, dtype=dt))
    yield p("f32 3x29x13 graph norm", graph_norm, of("x", 3, 29, 13), mask("keep", 3, 29), weight("alpha", 13), weight("g", 13),
            only=TAME)
    for dt in ("f32", "bf16"):
        yield p(f"{dt} 37x24 pair norm", pair_norm, of("x", 37, 24, dtype=dt))
    yield p("f32 3x29x13 set2set", set2set, of("x", 3, 29, 13), of("q", 3, 13), mask("keep", 3, 29),
            weight("w", 26, 13, scale=0.3), only=CALM)
    yield p("f32 29x13 dirichlet", dirichlet, of("x", 29, 13), positive("adj", 29, 29))
    yield p("f32 29x13x90 sparse gat", sparse_gat, of("x", 29, 13), label("src", 90, high=29), label("dst", 90, high=29),
            weight("a", 26), only=CALM)
