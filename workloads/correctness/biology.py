"""Biology and chemistry: blocks of structure prediction, scores of structures, alignments, counts of cells, fingerprints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import CALM, MILD, TAME, Program, label, made, mask, of, positive, weight


def triangle_attention(z: Tensor, w: Tensor, wb: Tensor, wg: Tensor, m: Tensor) -> Tensor:
    """About the starting node: [n, n, c], two heads."""
    n, _, c = z.shape
    x = F.layer_norm(z, (c,))
    q, k, v = (x @ w).view(n, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
    bias = (x @ wb).permute(2, 0, 1)
    s = torch.einsum("ihqd,ihkd->ihqk", q, k) / math.sqrt(c // 2) + bias[None]
    s = s + (1e9 * (m.to(z.dtype) - 1))[:, None, None, :]
    o = torch.einsum("ihqk,ihkd->iqhd", torch.softmax(s, -1), v).reshape(n, n, c)
    return torch.sigmoid(x @ wg) * o


def triangle_multiplication(z: Tensor, wa: Tensor, wb: Tensor, g: Tensor, m: Tensor) -> Tensor:
    c = z.shape[-1]
    x = F.layer_norm(z, (c,), g)
    a = (x @ wa).sigmoid() * x * m[..., None]
    b = (x @ wb).sigmoid() * x * m[..., None]
    return F.layer_norm(torch.einsum("ikc,jkc->ijc", a, b), (c,))


def outer_product_mean(x: Tensor, wa: Tensor, wb: Tensor, m: Tensor) -> Tensor:
    """[sequences, residues, c]."""
    x = F.layer_norm(x, x.shape[-1:])
    mk = m.to(x.dtype).unsqueeze(-1)
    a, b = x @ wa * mk, x @ wb * mk
    o = torch.einsum("sic,sjd->ijcd", a, b)
    norm = torch.einsum("sic,sjd->ijcd", mk, mk)
    return o / (norm + 1e-3)


def msa_row(q: Tensor, k: Tensor, v: Tensor, pair: Tensor, wb: Tensor) -> Tensor:
    """[s, h, i, d] with a bias of a normed pair representation."""
    b = F.layer_norm(pair, pair.shape[-1:]).matmul(wb).permute(2, 0, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=b.unsqueeze(0).expand(q.shape[0], -1, -1, -1))


def global_attention(x: Tensor, wq: Tensor, wk: Tensor, m: Tensor) -> Tensor:
    """Extra sequences: one query, the mean over what is visible."""
    mk = m.to(x.dtype)[..., None]
    q = ((x * mk).sum(1) / (mk.sum(1) + 1e-10)) @ wq
    k = x @ wk
    s = torch.einsum("bd,bnd->bn", q, k) * q.shape[-1] ** -0.5
    p = s.masked_fill(~m, -1e4).softmax(-1)
    return torch.einsum("bn,bnc->bc", p, x)


def esm(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary attention and the masked mean of its rows."""
    n, d = q.shape[-2:]
    inv = 1.0 / (10000 ** (torch.arange(0, d, 2, device=q.device).float() / d))
    t = torch.outer(torch.arange(n, device=q.device).float(), inv)
    emb = torch.cat((t, t), -1)
    cos, sin = emb.cos().to(q.dtype), emb.sin().to(q.dtype)

    def rot(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    s = rot(q) @ rot(k).transpose(-1, -2) * d**-0.5
    s = s.masked_fill(~m[:, None, None, :], float("-inf"))
    y = torch.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype) @ v
    mk = m[:, None, :, None]
    return y, (y * mk).sum(2) / mk.sum(2)


def distogram(logits: Tensor, x: Tensor, m: Tensor) -> Tensor:
    logits = 0.5 * (logits + logits.transpose(0, 1))
    edge = torch.linspace(2.0, 8.0, logits.shape[-1] - 1, device=x.device) ** 2
    d2 = (x[:, None] - x[None]).square().sum(-1, keepdim=True)
    y = F.one_hot((d2 > edge).sum(-1), logits.shape[-1])
    err = -(y * F.log_softmax(logits, -1)).sum(-1)
    sq = (m[:, None] & m[None]).float()
    return (err * sq).sum() / (1e-6 + sq.sum())


def fape(r: Tensor, t: Tensor, x: Tensor, rt: Tensor, tt: Tensor, xt: Tensor) -> Tensor:
    """Points in all frames, of a prediction and of the truth, clamped."""
    a = torch.einsum("fji,fpj->fpi", r, x[None] - t[:, None])
    b = torch.einsum("fji,fpj->fpi", rt, xt[None] - tt[:, None])
    d = torch.sqrt((a - b).pow(2).sum(-1) + 1e-4).clamp(max=10.0)
    return d.mean() / 10


def tm_score(a: Tensor, b: Tensor, m: Tensor) -> Tensor:
    n = m.sum(-1).clamp(min=19)
    d0 = 1.24 * (n - 15).float() ** (1 / 3) - 1.8
    d2 = (a - b).square().sum(-1)
    return (m / (1 + d2 / d0[:, None] ** 2)).sum(-1) / n


def lddt(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    da = torch.sqrt(1e-10 + ((a[:, None] - a[None]) ** 2).sum(-1))
    db = torch.sqrt(1e-10 + ((b[:, None] - b[None]) ** 2).sum(-1))
    scope = (db < 3.0) * (1 - torch.eye(a.shape[0], device=a.device))
    l1 = (da - db).abs()
    s = sum((l1 < t).to(a.dtype) for t in (0.5, 1.0, 2.0, 4.0)) * 0.25
    return (scope * s).sum(-1) / (1e-10 + scope.sum(-1)), (scope * s).sum() / scope.sum().clamp(min=1)


def contacts(attn: Tensor, w: Tensor) -> Tensor:
    """Symmetrised maps, corrected by their average product, and a logistic regression of them."""
    x = attn + attn.transpose(-1, -2)
    a1, a2, a12 = x.sum(-1, keepdim=True), x.sum(-2, keepdim=True), x.sum((-1, -2), keepdim=True)
    x = x - a1 * a2 / a12
    return torch.sigmoid(torch.einsum("bhij,h->bij", x, w))


def pwm(counts: Tensor, seq: Tensor, bg: Tensor) -> tuple[Tensor, Tensor]:
    """Log-odds of a motif, its best site in a sequence, its information."""
    p = (counts + 0.25) / (counts + 0.25).sum(-1, keepdim=True)
    lo = torch.log2(p / (bg / bg.sum()))
    hot = F.one_hot(seq, 4).to(lo.dtype)
    s = torch.einsum("bnwc,wc->bn", hot.unfold(1, lo.shape[0], 1).transpose(-1, -2), lo)
    return s.max(dim=1).values, (p * lo).sum(-1)


def hmm(alpha: Tensor, trans: Tensor, emit: Tensor) -> tuple[Tensor, Tensor]:
    lt = torch.log_softmax(trans, dim=-1)
    for t in range(2):
        alpha = torch.logsumexp(alpha[:, :, None] + lt[None], dim=1) + emit[:, t]
    return alpha, alpha.logsumexp(-1)


def viterbi(d: Tensor, trans: Tensor, emit: Tensor) -> tuple[Tensor, Tensor]:
    s, back = (d.unsqueeze(-1) + trans).max(dim=-2)
    return s + emit, back


def cells(x: Tensor) -> tuple[Tensor, Tensor]:
    """Counts per ten thousand, then genes of unit variance."""
    y = torch.log1p(x / x.sum(1, keepdim=True).clamp(min=1) * 1e4)
    z = (y - y.mean(0)) / (y.std(0) + 1e-6)
    return z.clamp(max=10), (x > 0.5).sum(1)


def negative_binomial(x: Tensor, mu: Tensor, theta: Tensor) -> Tensor:
    eps = 1e-8
    lt = torch.log(theta + mu + eps)
    res = (theta * (torch.log(theta + eps) - lt) + x * (torch.log(mu + eps) - lt)
           + torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1))
    return res.sum(dim=-1)


def zinb(x: Tensor, h: Tensor, lib: Tensor, theta: Tensor, pi: Tensor) -> Tensor:
    mu = torch.softmax(h, -1) * lib
    sp = F.softplus(-pi)
    lte = torch.log(theta + 1e-8)
    ltm = torch.log(theta + mu + 1e-8)
    pit = -pi + theta * (lte - ltm)
    zero = F.softplus(pit) - sp
    rest = -sp + pit + x * (torch.log(mu + 1e-8) - ltm) + torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1)
    return torch.where(x < 1e-8, zero, rest).sum(-1).mean()


def whitened(x: Tensor, v: Tensor, lam: Tensor) -> Tensor:
    x = x - x.mean(0, keepdim=True)
    y = x @ v / torch.sqrt(lam + 1e-5)
    return y / y.norm(dim=1, keepdim=True).clamp(min=1e-6)


def invariants(x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Radial features of all pairs, messages, and a move of the points that turns with them."""
    d = x.unsqueeze(2) - x.unsqueeze(1)
    r = (d.pow(2).sum(-1) + 1e-8).sqrt()
    rbf = torch.exp(-((r[..., None] - torch.linspace(0, 4, 7, device=x.device)) ** 2))
    a = torch.einsum("bijk,kc,bjc->bijc", rbf, m, h)
    return h + a.sum(2), x + (d / (r[..., None] + 1) * a.mean(-1, keepdim=True)).mean(2)


def tanimoto(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    inter = a @ b.T
    sim = inter / (a.sum(-1, keepdim=True) + b.sum(-1)[None, :] - inter)
    return sim.max(1).values, sim.mean(1)


def enrichment(score: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """The running sum of a ranked list and its extreme."""
    s, order = torch.sort(score, dim=-1, descending=True, stable=True)
    hit = torch.gather(member, -1, order)
    w = torch.where(hit, s.abs(), 0.0)
    miss = (~hit).to(s.dtype)
    run = torch.cumsum(w / (w.sum(-1, keepdim=True) + 1e-9) - miss / miss.sum(-1, keepdim=True).clamp(min=1), dim=-1)
    return run.amax(-1), run.amin(-1)


def umi(x: Tensor) -> tuple[Tensor, Tensor]:
    p = x / x.sum(-1, keepdim=True)
    h = -torch.xlogy(p, p).sum(-1)
    return h / math.log(x.shape[-1]), 1 - (p**2).sum(-1)


def michaelis(s: Tensor, v: Tensor, vmax: Tensor, km: Tensor) -> tuple[Tensor, Tensor]:
    pred = vmax * s / (km + s)
    res = v - pred
    return (res**2).sum(-1), 1 - (res**2).sum(-1) / ((v - v.mean(-1, keepdim=True)) ** 2).sum(-1)


def phylogenetic(left: Tensor, right: Tensor, pl: Tensor, pr: Tensor, pi: Tensor) -> Tensor:
    """Felsenstein's step for all sites, scaled."""
    a = torch.einsum("ij,sj->si", pl.softmax(-1), left)
    b = torch.einsum("ij,sj->si", pr.softmax(-1), right)
    c = a * b
    big = c.amax(-1, keepdim=True)
    return (torch.log((c / big * pi.softmax(0)).sum(-1)) + big.log().squeeze(-1)).sum()


def coevolution(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted frequencies of columns and the mutual information of neighbours."""
    f = torch.einsum("n,nla->la", w / w.sum(), x) + 1e-3
    f = f / f.sum(-1, keepdim=True)
    p = torch.einsum("n,nla,nlb->lab", w / w.sum(), x[:, :-1], x[:, 1:]) + 1e-4
    p = p / p.sum((-1, -2), keepdim=True)
    mi = (p * (p.log() - f[:-1, :, None].log() - f[1:, None, :].log())).sum((-2, -1))
    return mi, -(f * f.log()).sum(-1)


def point_attention(q: Tensor, k: Tensor, qp: Tensor, kp: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
    """Invariant points: scores of scalars and of distances."""
    d2 = ((qp[:, :, None] - kp[:, None]) ** 2).sum((-1, -2))
    s = q @ k.mT / math.sqrt(q.shape[-1]) - 0.5 * F.softplus(gamma) * d2
    return (s * 3**-0.5).softmax(-1) @ v


def programs() -> Iterator[Program]:
    b = partial(made, "biology")
    for dt in ("f32", "bf16"):
        yield b(f"{dt} 13x13x8 triangle attention", triangle_attention, of("z", 13, 13, 8, dtype=dt), of("w", 8, 24, dtype=dt),
                of("wb", 8, 2, dtype=dt), of("wg", 8, 8, dtype=dt), mask("m", 13, 13), only=MILD)
        yield b(f"{dt} 15x15x10 triangle multiplication", triangle_multiplication, of("z", 15, 15, 10, dtype=dt),
                of("wa", 10, 10, dtype=dt), of("wb", 10, 10, dtype=dt), weight("g", 10, dtype=dt), mask("m", 15, 15), only=TAME)
        yield b(f"{dt} 3x2x29x16 msa row", msa_row, *(of(n, 3, 2, 29, 16, dtype=dt) for n in "qkv"),
                of("pair", 29, 29, 9, dtype=dt), weight("wb", 9, 2, dtype=dt))
    yield b("f32 11x13x12 outer product mean", outer_product_mean, of("x", 11, 13, 12), of("wa", 12, 5), of("wb", 12, 5),
            mask("m", 11, 13))
    yield b("f32 7x23x12 global attention", global_attention, of("x", 7, 23, 12), of("wq", 12, 8), of("wk", 12, 8),
            mask("m", 7, 23))
    for dt in ("f16", "bf16"):
        yield b(f"{dt} 2x2x37x24 esm", esm, *(of(n, 2, 2, 37, 24, dtype=dt) for n in "qkv"), mask("m", 2, 37))
    yield b("f32 17x17x21 distogram", distogram, of("logits", 17, 17, 21), of("x", 17, 3, scale=3.0), mask("m", 17))
    yield b("f32 9x31 fape", fape, of("r", 9, 3, 3), of("t", 9, 3), of("x", 31, 3), of("rt", 9, 3, 3), of("tt", 9, 3),
            of("xt", 31, 3))
    yield b("f32 5x77 tm score", tm_score, of("a", 5, 77, 3), of("b", 5, 77, 3), mask("m", 5, 77))
    yield b("f32 33x3 lddt", lddt, of("a", 33, 3), of("b", 33, 3), only=("normal", "tiny", "nan:a", "inf:a"))
    for dt in ("f32", "f16"):
        yield b(f"{dt} 2x5x27x27 contacts", contacts, positive("attn", 2, 5, 27, 27, dtype=dt, scale=0.1),
                weight("w", 5, dtype=dt), only=MILD)
    yield b("f32 7x45 pwm", pwm, positive("counts", 7, 4, scale=9.0), label("seq", 11, 45, high=4), positive("bg", 4),
            only=TAME)
    yield b("f32 13x17 hmm", hmm, of("alpha", 13, 17), of("trans", 17, 17), of("emit", 13, 2, 17))
    yield b("f32 13x19 viterbi", viterbi, of("d", 13, 19), of("trans", 19, 19), of("emit", 13, 19), only=("normal", "outlier"))
    yield b("f32 57x43 cells", cells, positive("x", 57, 43, scale=5.0), only=("normal", "ties", "tiny", "big"))
    yield b("f32 19x61 negative binomial", negative_binomial, positive("x", 19, 61, scale=5.0), positive("mu", 19, 61),
            positive("theta", 61), only=MILD)
    yield b("f32 17x53 zinb", zinb, positive("x", 17, 53, scale=5.0), of("h", 17, 53), positive("lib", 17, 1, scale=100.0),
            positive("theta", 53), of("pi", 17, 53), only=MILD)
    yield b("f32 41x29 whitened", whitened, of("x", 41, 29), of("v", 29, 9), positive("lam", 9), only=TAME)
    yield b("f32 2x19x11 invariants", invariants, of("x", 2, 19, 3), of("h", 2, 19, 11), weight("m", 7, 11), only=TAME)
    yield b("f32 23x71 tanimoto", tanimoto, positive("a", 23, 71), positive("b", 31, 71), only=TAME)
    yield b("f32 9x83 enrichment", enrichment, of("score", 9, 83), mask("member", 9, 83), only=("normal", "outlier", "tiny"))
    for dt in ("f32", "bf16"):
        yield b(f"{dt} 29x97 umi", umi, positive("x", 29, 97, dtype=dt))
    yield b("f32 15x25 michaelis", michaelis, positive("s", 15, 25), of("v", 15, 25), positive("vmax", 15, 1),
            positive("km", 15, 1))
    yield b("f32 139x4 phylogenetic", phylogenetic, positive("left", 139, 4), positive("right", 139, 4), of("pl", 4, 4),
            of("pr", 4, 4), of("pi", 4), only=CALM)
    yield b("f32 31x9x5 coevolution", coevolution, positive("x", 31, 9, 5), positive("w", 31), only=TAME)
    yield b("f32 3x23x8 point attention", point_attention, of("q", 3, 23, 8), of("k", 3, 23, 8), of("qp", 3, 23, 4, 3),
            of("kp", 3, 23, 4, 3), of("v", 3, 23, 12), weight("gamma", 1))
