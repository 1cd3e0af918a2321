"""Sequence mixing that forgets, or never makes all scores: decays and forget gates, scans and states in chunks, features in
place of the exponential, and slots, memories and capsules whose states are refined in rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import NEG_INF, In, Program, made, qkv

# -- decays ------------------------------------------------------------------------------------------------------------


def forgetting(q: Tensor, k: Tensor, v: Tensor, f: Tensor) -> Tensor:
    """The sum of log forget gates between key and query as a bias."""
    n = q.shape[-2]
    c = F.logsigmoid(f.float()).cumsum(-1)
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5 + (c[..., :, None] - c[..., None, :])
    s = s.masked_fill(torch.ones(n, n, device=q.device, dtype=torch.bool).triu(1), NEG_INF)
    return torch.softmax(s, -1).to(v.dtype) @ v


def retnet(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Parallel retention with decays per head, normalised twice, and a group norm."""
    _, h, n, d = q.shape
    decay = torch.log(1 - 2.0 ** (-5 - torch.arange(h, device=q.device, dtype=torch.float32)))
    at = torch.arange(n, device=q.device)
    gap = (at[:, None] - at[None, :]).float()
    mask = torch.where(gap >= 0, torch.exp(gap * decay[:, None, None]), 0.0)
    mask = mask / mask.sum(-1, keepdim=True).sqrt()
    a = (q @ k.mT).float() * d**-0.5 * mask
    a = a / a.detach().abs().sum(-1, keepdim=True).clamp(min=1, max=5e4)
    o = (a @ v.float()).transpose(1, 2)
    return F.rms_norm(o, (d,), eps=1e-6).to(q.dtype)


def ssd(x: Tensor, dt: Tensor, a: Tensor, bb: Tensor, cc: Tensor, d: Tensor) -> Tensor:
    """Mamba-2 in its quadratic form: exp of segment sums times C B, softplus steps, a skip."""
    dt = F.softplus(dt.float())
    da = (dt * -torch.exp(a.float())).transpose(1, 2)
    c = da.cumsum(-1)
    n = x.shape[1]
    seg = (c[..., :, None] - c[..., None, :]).masked_fill(
        ~torch.ones(n, n, dtype=torch.bool, device=x.device).tril(), NEG_INF)
    g = torch.einsum("bis,bjs->bij", cc.float(), bb.float())
    w = g[:, None] * seg.exp() * dt.transpose(1, 2)[:, :, None, :]
    return (torch.einsum("bhij,bjhp->bihp", w, x.float()) + x.float() * d.float()[:, None]).to(x.dtype)


def chunked_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Gated linear attention: within chunks of 16 by decayed q and k, across by a state that is carried."""
    b, h, n, d = q.shape
    w = 16
    qc, kc, vc, gc = (t.float().view(b, h, n // w, w, -1) for t in (q, k, v, F.logsigmoid(g.float()) / 16))
    c = gc.cumsum(-2)
    end = c[..., -1:, :]
    qd, kd = qc * c.exp() * d**-0.5, kc * (-c).exp()
    tri = torch.ones(w, w, device=q.device, dtype=torch.bool).tril()
    inner = (qd @ kd.mT).masked_fill(~tri, 0) @ vc
    add = (kc * (end - c).exp()).mT @ vc
    state = torch.zeros_like(add[:, :, 0])
    outs = []
    for i in range(n // w):
        outs.append(qd[:, :, i] @ state)
        state = state * end[:, :, i].mT.exp() + add[:, :, i]
    return (inner + torch.stack(outs, 2)).view(b, h, n, -1).to(q.dtype)


def wkv(k: Tensor, v: Tensor, r: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """RWKV-4 over places as a softmax over (key + decay), own bonus, receptance gate."""
    n = k.shape[1]
    at = torch.arange(n, device=k.device)
    gap = (at[:, None] - 1 - at[None, :])[None, :, :, None].float()
    e = k.float()[:, None] - gap * torch.exp(w.float())
    e = torch.where(gap == -1, k.float()[:, None] + u.float(), e)
    e = torch.where(gap < -1, NEG_INF, e)
    return (torch.sigmoid(r.float()) * (torch.softmax(e, 2) * v.float()[:, None]).sum(2)).to(k.dtype)


def mamba_cumsum(x: Tensor, dt: Tensor, a: Tensor, bb: Tensor, cc: Tensor) -> Tensor:
    """A selective scan as minimal Mamba has it: exponentials of cumulative sums, divided and clamped."""
    da = torch.einsum("bld,ds->blds", dt, -a)
    dbx = torch.einsum("bld,bls,bld->blds", dt, bb, x)
    c = F.pad(da[:, 1:], (0, 0, 0, 0, 0, 1)).flip(1).cumsum(1).exp().flip(1)
    h = dbx * c
    h = h.cumsum(1) / (c + 1e-12)
    return torch.einsum("blds,bls->bld", h, cc)


def norm_after(x: Tensor, wq: Tensor, wk: Tensor, r: Tensor) -> Tensor:
    """TransNormer: silu features, no softmax, RMS norm of the result, gate; decay by a learned rate."""
    q, k = F.silu(x @ wq), F.silu(x @ wk)
    n = x.shape[1]
    at = torch.arange(n, device=x.device)
    gap = (at[:, None] - at[None, :]).clamp_min(0).float()
    d = torch.exp(-F.softplus(r.float()) * gap).tril()
    o = ((q @ k.mT).float() * d).to(x.dtype) @ x
    return F.rms_norm(o, o.shape[-1:]) * torch.sigmoid(q)


# -- features and states -----------------------------------------------------------------------------------------------


def linear_norm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Efficient attention: a softmax over features and one over places, causal by cumulative sums."""
    a, b = torch.softmax(q.float(), -1), torch.exp(k.float() - k.float().amax(-2, keepdim=True))
    kv = torch.einsum("bnd,bne->bnde", b, v.float()).cumsum(1)
    z = 1.0 / torch.einsum("bnd,bnd->bn", a, b.cumsum(1) + 1e-4)
    return torch.einsum("bnde,bnd,bn->bne", kv, a, z).to(q.dtype)


def performer(q: Tensor, k: Tensor, v: Tensor, proj: Tensor) -> Tensor:
    """FAVOR+: stabilised exponential features."""
    d = q.shape[-1]
    def features(x: Tensor, query: bool) -> Tensor:
        x = x * d**-0.25
        dash = x @ proj.mT
        diag = (x * x).sum(-1, keepdim=True) / 2
        top = dash.amax(-1, keepdim=True) if query else dash.amax((-1, -2), keepdim=True)
        return proj.shape[0] ** -0.5 * (torch.exp(dash - diag - top) + 1e-4)
    a, b = features(q, True), features(k, False)
    den = 1.0 / torch.einsum("bnd,bd->bn", a, b.sum(1))
    return torch.einsum("bnd,bde,bn->bne", a, torch.einsum("bnd,bne->bde", b, v), den)


def cosformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """relu features reweighted by sine and cosine of the place."""
    n = q.shape[1]
    at = math.pi / 2 * torch.arange(1, n + 1, device=q.device, dtype=torch.float32)[None, :, None] / n
    q, k = F.relu(q), F.relu(k)
    a = torch.cat([q * at.sin(), q * at.cos()], -1)
    b = torch.cat([k * at.sin(), k * at.cos()], -1)
    z = 1 / torch.clamp_min(torch.einsum("nld,nd->nl", a, b.sum(1)), 1e-6)
    return torch.einsum("nld,ndm,nl->nlm", a, torch.einsum("nld,nlm->ndm", b, v.float()), z)


def aft_full(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Attention-free with a bias for each pair of places, causal."""
    n = k.shape[1]
    e = w.masked_fill(torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1), NEG_INF)
    ek, ew = torch.exp(k - k.amax(1, keepdim=True)), torch.exp(e - e.amax(-1, keepdim=True))
    return torch.sigmoid(q) * (ew @ (ek * v)) / (ew @ ek)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """DeltaNet within one chunk: the inverse of a triangle by a Neumann product, queries read what is left."""
    n = q.shape[-2]
    k = F.normalize(k, dim=-1)
    kb, vb = k * beta[..., None], v * beta[..., None]
    a = -(kb @ k.mT).tril(-1)
    eye = torch.eye(n, device=q.device)
    t = eye + a
    for _ in range(3):
        a = a @ a
        t = t + t @ a
    return (q @ k.mT).tril() @ (t @ vb)


def nystrom(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Landmarks as means of segments, two Newton steps of the inverse."""
    b, h, n, d = q.shape
    m = 8
    q = q * d**-0.5
    ql, kl = q.view(b, h, m, n // m, d).mean(3), k.view(b, h, m, n // m, d).mean(3)
    a1, a2, a3 = (torch.softmax((x @ y.mT).float(), -1) for x, y in ((q, kl), (ql, kl), (ql, k)))
    z = a2.mT / (a2.sum(-2).amax(-1) * a2.sum(-1).amax(-1))[..., None, None]
    eye = torch.eye(m, device=q.device)
    for _ in range(2):
        az = a2 @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return ((a1 @ z) @ (a3 @ v.float())).to(v.dtype)


# -- rounds ------------------------------------------------------------------------------------------------------------


def slot_round(x: Tensor, slots: Tensor, wk: Tensor, wv: Tensor, wq: Tensor) -> Tensor:
    """Two rounds of slot attention (no GRU): norms, softmax over slots, means over places."""
    h = F.layer_norm(x, x.shape[-1:])
    k, v = h @ wk, h @ wv
    for _ in range(2):
        q = F.layer_norm(slots, slots.shape[-1:]) @ wq
        a = torch.softmax(torch.einsum("bnd,bsd->bns", k, q).float() * k.shape[-1] ** -0.5, -1) + 1e-8
        a = a / a.sum(1, keepdim=True)
        slots = slots + torch.einsum("bns,bnd->bsd", a, v.float()).to(slots.dtype)
    return slots


def hopfield(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Two updates of modern Hopfield states, and the energy at the end."""
    beta = 0.25
    for _ in range(2):
        x = torch.softmax(beta * (x @ m.mT), -1) @ m
    return x, -torch.logsumexp(beta * (x @ m.mT), -1) / beta + 0.5 * (x * x).sum(-1)


def capsules(u: Tensor) -> Tensor:
    """Routing by agreement, two turns: softmax over outputs, squash."""
    b = torch.zeros_like(u[..., 0])
    for _ in range(2):
        c = b.softmax(-1)
        s = (c[..., None] * u).sum(1)
        n2 = (s * s).sum(-1, keepdim=True)
        o = n2 / (1 + n2) * s * torch.rsqrt(n2 + 1e-8)
        b = b + (u * o[:, None]).sum(-1)
    return o


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "decays")
    yield p("bf16 2x3x130 d64 forgetting", forgetting, *qkv((2, 3, 130, 64), "bf16"), In("f", (2, 3, 130), "bf16", shift=3.0))
    yield p("f16 1x4x150 d64 retention", retnet, *qkv((1, 4, 150, 64), "f16"))
    yield p("bf16 2x100x3 d32 state space duality", ssd, In("x", (2, 100, 3, 32), "bf16"),
            In("dt", (2, 100, 3), "bf16", shift=-2.0), In("a", (3,), "f32", "weight"), In("bb", (2, 100, 16), "bf16"),
            In("cc", (2, 100, 16), "bf16"), In("d", (3,), "f32", "weight"))
    yield p("bf16 1x2x64 d32 gated linear", chunked_gla, *qkv((1, 2, 64, 32), "bf16"),
            In("g", (1, 2, 64, 32), "bf16", shift=2.0))
    yield p("f32 2x65x40 WKV", wkv, *(In(n, (2, 65, 40), "f32") for n in "kvr"), In("w", (40,), "f32", "weight", 1.0, -3.0),
            In("u", (40,), "f32", "weight"))
    yield p("f32 2x33x24 selective scan", mamba_cumsum, In("x", (2, 33, 24), "f32"),
            In("dt", (2, 33, 24), "f32", "positive", 0.1), In("a", (24, 8), "f32", "positive", 0.3),
            In("bb", (2, 33, 8), "f32"), In("cc", (2, 33, 8), "f32"))
    yield p("bf16 2x130x64 norm behind", norm_after, In("x", (2, 130, 64), "bf16"), In("wq", (64, 64), "bf16", "weight", 0.125),
            In("wk", (64, 64), "bf16", "weight", 0.125), In("r", (), "bf16", "weight", 1.0, -2.0))
    yield p("f32 3x65 d16 causal linear", linear_norm, *qkv((3, 65, 16), "f32"))
    yield p("f32 2x130 d40 positive features", performer, *qkv((2, 130, 40), "f32"), In("proj", (96, 40), "f32", "weight"))
    yield p("bf16 2x130 d40 cosine reweighted", cosformer, *qkv((2, 130, 40), "bf16"))
    yield p("f32 2x129x72 attention-free with pairs", aft_full, *(In(n, (2, 129, 72), "f32") for n in "qkv"),
            In("w", (129, 129), "f32", "weight"))
    yield p("f32 2x2x64 d32 delta rule", delta_rule, *qkv((2, 2, 64, 32), "f32"),
            In("beta", (2, 2, 64), "f32", "positive", 0.1))
    yield p("bf16 1x2x136 d64 Nystrom", nystrom, *qkv((1, 2, 136, 64), "bf16"))
    yield p("bf16 2x200x64 slots", slot_round, In("x", (2, 200, 64), "bf16"), In("slots", (2, 7, 64), "bf16"),
            *(In(n, (64, 64), "bf16", "weight", 0.125) for n in ("wk", "wv", "wq")))
    yield p("f32 65x129 d64 Hopfield", hopfield, In("x", (65, 64), "f32"), In("m", (129, 64), "f32"))
    yield p("f32 3x130x10x16 capsules", capsules, In("u", (3, 130, 10, 16), "f32"))
