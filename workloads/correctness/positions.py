"""Sequence mixing by where tokens are: relative positions, windows, chunks and blocks, trees of drafts, edges and pairs of
residues. The distance is a bias, a mask, or says which keys are gathered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import NEG_INF, In, Program, made, qkv

# -- relative positions ------------------------------------------------------------------------------------------------


def deberta(q: Tensor, k: Tensor, v: Tensor, pk: Tensor, pq: Tensor, keep: Tensor) -> Tensor:
    """Disentangled: content to content, content to position, position to content, gathered by clamped distance."""
    n, span = q.shape[-2], pk.shape[-2] // 2
    scale = 1 / math.sqrt(q.shape[-1] * 3)
    at = torch.arange(n, device=q.device)
    rel = (at[:, None] - at[None, :] + span).clamp(0, 2 * span - 1)
    c2c = q @ (k * scale).transpose(-1, -2)
    c2p = torch.gather(q @ pk.transpose(-1, -2), -1, rel.expand(*q.shape[:2], n, n))
    p2c = torch.gather(k @ pq.transpose(-1, -2), -1, (-(at[:, None] - at[None, :]) + span).clamp(0, 2 * span - 1)
                       .expand(*q.shape[:2], n, n)).transpose(-1, -2)
    s = c2c + (c2p + p2c) * scale
    s = s.masked_fill(~keep[:, None, None, :], torch.finfo(q.dtype).min)
    return torch.softmax(s, -1).masked_fill(~keep[:, None, None, :], 0) @ v


def xl_shift(q: Tensor, k: Tensor, v: Tensor, r: Tensor, u: Tensor, w: Tensor) -> Tensor:
    """Transformer-XL: pad, view, drop the first row."""
    ac = torch.einsum("bihd,bjhd->bhij", q + u, k)
    bd = torch.einsum("bihd,jhd->bhij", q + w, r)
    b, h, i, j = bd.shape
    bd = F.pad(bd, (1, 0)).view(b, h, j + 1, i)[:, :, 1:].reshape(b, h, i, j)
    p = torch.softmax((ac + bd).float() * q.shape[-1] ** -0.5, -1).to(v.dtype)
    return torch.einsum("bhij,bjhd->bihd", p, v)


def t5(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Buckets of distances, logarithmic beyond half; no scale."""
    n, m, buckets = q.shape[-2], k.shape[-2], table.shape[0]
    rel = torch.arange(m, device=q.device)[None, :] - torch.arange(n, device=q.device)[:, None]
    half = buckets // 2
    base = (rel > 0).long() * half
    gap = rel.abs()
    exact = half // 2
    far = exact + (torch.log(gap.float().clamp(min=1) / exact) / math.log(128 / exact) * (half - exact)).long()
    bucket = base + torch.where(gap < exact, gap, far.clamp(max=half - 1))
    bias = table[bucket].permute(2, 0, 1)[None]
    return torch.softmax((q @ k.mT + bias).float(), -1).type_as(v) @ v


def two_d_rel(q: Tensor, k: Tensor, v: Tensor, rh: Tensor, rw: Tensor) -> Tensor:
    """SAM: decomposed relative positions in height and width, from the queries."""
    b, n, d = q.shape
    hh, ww = rh.shape[0], rw.shape[0]
    s = (q * d**-0.5) @ k.transpose(-2, -1)
    r = q.reshape(b, hh, ww, d)
    a = torch.einsum("bhwc,hkc->bhwk", r, rh)
    e = torch.einsum("bhwc,wkc->bhwk", r, rw)
    s = (s.view(b, hh, ww, hh, ww) + a[..., :, None] + e[..., None, :]).view(b, n, n)
    return s.softmax(-1) @ v


def rotary_gqa(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Interleaved rotary made inside, grouped heads by expand and reshape, padded and causal."""
    b, n, h, d = q.shape
    inv = 10000.0 ** (-torch.arange(0, d, 2, device=q.device).float() / d)
    ang = torch.arange(n, device=q.device).float()[:, None] * inv
    co, si = ang.cos()[:, None], ang.sin()[:, None]
    def rope(t: Tensor) -> Tensor:
        x1, x2 = t.float()[..., 0::2], t.float()[..., 1::2]
        return torch.stack((x1 * co - x2 * si, x1 * si + x2 * co), -1).flatten(-2).type_as(t)
    q, k = rope(q), rope(k)
    r = h // k.shape[2]
    k, v = (t[:, :, :, None].expand(-1, -1, -1, r, -1).reshape(b, n, h, d) for t in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) / d**0.5
    ok = torch.ones(n, n, dtype=torch.bool, device=q.device).tril() & keep[:, None, None, :]
    s = torch.where(ok, s, torch.finfo(s.dtype).min)
    return torch.einsum("bhij,bjhd->bihd", torch.softmax(s.float(), -1).type_as(v), v)


def decode_rel(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, n: Tensor) -> Tensor:
    """One query of each sequence at its own place, ALiBi from there, a window behind it."""
    at = torch.arange(k.shape[2], device=q.device)
    gap = n[:, None] - at[None, :]
    s = torch.einsum("bhd,bhtd->bht", q, k).float() * q.shape[-1] ** -0.5
    s = s - slopes[None, :, None] * gap[:, None].float()
    ok = (gap >= 0) & (gap < 300)
    p = torch.softmax(s.masked_fill(~ok[:, None], -1e9), -1)
    return torch.einsum("bht,bhtd->bhd", p.to(v.dtype), v)


# -- windows, chunks, blocks -------------------------------------------------------------------------------------------


def swin_shifted(x: Tensor, w: Tensor, table: Tensor) -> Tensor:
    """Roll, windows of 7, packed qkv, bias from a table, regions that may not see each other, windows back, roll back."""
    b, hh, ww, c = x.shape
    heads, m, sh = table.shape[1], 7, 3
    y = torch.roll(x, (-sh, -sh), (1, 2))
    y = y.view(b, hh // m, m, ww // m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, m * m, c)
    qkv = (y @ w).reshape(-1, m * m, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    a = torch.arange(m, device=x.device)
    gy, gx = torch.meshgrid(a, a, indexing="ij")
    flat = torch.stack((gy, gx)).flatten(1)
    rel = (flat[:, :, None] - flat[:, None, :] + (m - 1))
    bias = table[rel[0] * (2 * m - 1) + rel[1]].permute(2, 0, 1)
    r = torch.arange(hh, device=x.device)
    c1 = torch.arange(ww, device=x.device)
    zone = ((r >= hh - m).long() + (r >= hh - sh).long())[:, None] * 3 + ((c1 >= ww - m).long() + (c1 >= ww - sh).long())
    zone = zone.view(hh // m, m, ww // m, m).permute(0, 2, 1, 3).reshape(-1, m * m)
    hide = (zone[:, None, :] != zone[:, :, None]).float() * -100.0
    s = (q * (c // heads) ** -0.5) @ k.transpose(-2, -1) + bias
    s = s.view(b, -1, heads, m * m, m * m) + hide[None, :, None].to(s.dtype)
    p = torch.softmax(s.view(-1, heads, m * m, m * m), -1)
    o = (p @ v).transpose(1, 2).reshape(-1, m, m, c)
    o = o.view(b, hh // m, ww // m, m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(b, hh, ww, c)
    return torch.roll(o, (sh, sh), (1, 2))


def longformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Chunks of 32 see themselves and both neighbours: padded keys unfolded, a band inside."""
    b, h, n, d = q.shape
    w = 32
    qc = q.reshape(b, h, n // w, w, d)
    kp, vp = F.pad(k, (0, 0, w, w)), F.pad(v, (0, 0, w, w))
    kc = kp.unfold(2, 3 * w, w).transpose(-1, -2)
    vc = vp.unfold(2, 3 * w, w).transpose(-1, -2)
    s = torch.einsum("bhcid,bhcjd->bhcij", qc, kc) * d**-0.5
    i, j = torch.arange(w, device=q.device)[:, None], torch.arange(3 * w, device=q.device)[None, :]
    band = (j - i >= 0) & (j - i <= 2 * w)
    at = torch.arange(n // w, device=q.device)[:, None, None] * w + j - w
    seen = band & (at >= 0) & (at < n)
    p = torch.softmax(s.float().masked_fill(~seen, NEG_INF), -1).to(v.dtype)
    return torch.einsum("bhcij,bhcjd->bhcid", p, vc).reshape(b, h, n, d)


def bigbird(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Blocks of 16: previous, own, next by roll, and the first block as a global one, joined."""
    b, h, n, d = q.shape
    w = 16
    qb, kb, vb = (t.view(b, h, n // w, w, d) for t in (q, k, v))
    def around(t: Tensor) -> Tensor:
        return torch.cat([t.roll(1, 2), t, t.roll(-1, 2), t[:, :, :1].expand_as(t)], 3)
    s = torch.einsum("bhnqd,bhnkd->bhnqk", qb, around(kb)) / math.sqrt(d)
    return torch.einsum("bhnqk,bhnkd->bhnqd", s.softmax(-1), around(vb)).reshape_as(q)


def multi_token(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Scores convolved over queries and keys before the softmax, causal twice."""
    n = q.shape[-2]
    s = (q @ k.mT) * q.shape[-1] ** -0.5
    seen = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    s = s.masked_fill(~seen, 0.0)
    s = F.conv2d(F.pad(s, (2, 2, 2, 0)), w, groups=q.shape[1])
    return torch.softmax(s.float().masked_fill(~seen, NEG_INF), -1).to(v.dtype) @ v


def nsa_blocks(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Compressed keys (means of blocks) and a window, gated together."""
    b, h, n, d = q.shape
    w = 16
    kc, vc = k.view(b, h, n // w, w, d).mean(3), v.view(b, h, n // w, w, d).mean(3)
    at = torch.arange(n, device=q.device)
    ends = (torch.arange(n // w, device=q.device) + 1) * w - 1
    s1 = ((q @ kc.mT).float() * d**-0.5).masked_fill(ends[None, :] > at[:, None], -1e30)
    p1 = torch.softmax(s1, -1) * (ends[None, :] <= at[:, None])
    gap = at[:, None] - at[None, :]
    s2 = ((q @ k.mT).float() * d**-0.5).masked_fill((gap < 0) | (gap >= 40), NEG_INF)
    o1, o2 = p1.to(v.dtype) @ vc, s2.softmax(-1).to(v.dtype) @ v
    w2 = torch.sigmoid(g)
    return w2[..., :1] * o1 + w2[..., 1:] * o2


def streaming(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Four sinks at the beginning and a window of 100, queries at the end."""
    i = torch.arange(q.shape[-2], device=q.device)[:, None] + k.shape[-2] - q.shape[-2]
    j = torch.arange(k.shape[-2], device=q.device)[None]
    ok = (j <= i) & ((j < 4) | (i - j < 100))
    s = torch.baddbmm(torch.zeros((), dtype=q.dtype, device=q.device).expand(q.shape[0], q.shape[1], k.shape[1]), q, k.mT,
                      beta=0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(torch.where(ok, s, NEG_INF).softmax(-1, dtype=torch.float32).to(v.dtype), v)


def neighbours(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> Tensor:
    """NAT in one dimension: the seven nearest, windows held inside, gathered."""
    n, w = q.shape[-2], 7
    start = (torch.arange(n, device=q.device) - w // 2).clamp(0, n - w)
    at = start[:, None] + torch.arange(w, device=q.device)
    s = (q[..., None, :] * k[..., at, :]).sum(-1) * q.shape[-1] ** -0.5
    s = s + rpb[:, at - torch.arange(n, device=q.device)[:, None] + w - 1]
    return (s.softmax(-1)[..., None] * v[..., at, :]).sum(-2)


# -- trees, edges, pairs -----------------------------------------------------------------------------------------------


def tree(q: Tensor, k: Tensor, v: Tensor, parent: Tensor, n: Tensor) -> Tensor:
    """Speculative decoding: a prefix of its own length and a tree of drafts by a mask, behind it."""
    m, t = q.shape[2], k.shape[2]
    at = torch.arange(t, device=q.device)
    prefix = at[None, None] < n[:, None, None]
    draft = F.pad(parent, (t - m, 0))
    ok = (prefix & (at < t - m)) | draft
    bias = torch.zeros(ok.shape, dtype=q.dtype, device=q.device).masked_fill_(~ok, torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, None])


def edges(q: Tensor, k: Tensor, v: Tensor, e: Tensor, adj: Tensor) -> tuple[Tensor, Tensor]:
    """Graph transformer: clamped scores times edges' features, exponentials summed by hand."""
    s = (q @ k.mT * q.shape[-1] ** -0.5).float() * e.float()
    w = torch.exp(s.clamp(-5, 5)) * adj[:, None].float()
    return ((w @ v.float()) / (w.sum(-1, keepdim=True) + 1e-6)).to(v.dtype), s


def triangle(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wb: Tensor, wg: Tensor, keep: Tensor) -> Tensor:
    """AlphaFold's triangle attention around starting nodes: pair bias, gate, mask by 1e9."""
    h = wb.shape[1]
    z = F.layer_norm(x, x.shape[-1:])
    q, k, v = ((z @ w).unflatten(-1, (h, -1)).movedim(-2, -3) for w in (wq, wk, wv))
    bias = (z @ wb).permute(2, 0, 1)
    s = q @ k.mT * q.shape[-1] ** -0.5 + (1e9 * (keep.to(q.dtype) - 1))[:, None, None, :] + bias[None]
    o = (s.softmax(-1) @ v).movedim(-3, -2).flatten(-2)
    return torch.sigmoid(z @ wg) * o


def invariant_points(q: Tensor, k: Tensor, v: Tensor, qp: Tensor, kp: Tensor, vp: Tensor, b: Tensor,
                     g: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of scalars, squared distances of points and pairs' bias; scalars and points out."""
    s = torch.einsum("ihc,jhc->hij", q, k) * q.shape[-1] ** -0.5 + b.permute(2, 0, 1)
    gap = ((qp[:, None] - kp[None]) ** 2).sum((-1, -2))
    s = s - 0.5 * F.softplus(g)[:, None, None] * gap.permute(2, 0, 1)
    a = (s * 3**-0.5).softmax(-1)
    return torch.einsum("hij,jhc->ihc", a, v), torch.einsum("hij,jhpx->ihpx", a, vp)


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "positions")
    yield p("f16 2x3x129 d40 disentangled", deberta, *qkv((2, 3, 129, 40), "f16"), In("pk", (3, 64, 40), "f16", "weight"),
            In("pq", (3, 64, 40), "f16", "weight"), In("keep", (2, 129), "bool", "keep"))
    yield p("bf16 2x65x3 d72 XL", xl_shift, *(In(n, (2, 65, 3, 72), "bf16") for n in "qkv"),
            In("r", (65, 3, 72), "bf16", "weight"), In("u", (3, 72), "bf16", "weight"), In("w", (3, 72), "bf16", "weight"))
    yield p("bf16 1x4x129x200 d64 T5", t5, *qkv((1, 4, 129, 64), "bf16", 200), In("table", (32, 4), "bf16", "weight"))
    yield p("f16 3x130 d80 two axes' distances", two_d_rel, *qkv((3, 130, 80), "f16"),
            In("rh", (10, 10, 80), "f16", "weight", 0.2), In("rw", (13, 13, 80), "f16", "weight", 0.2))
    yield p("bf16 2x129x6/2 d64 rotary inside", rotary_gqa, In("q", (2, 129, 6, 64), "bf16"), In("k", (2, 129, 2, 64), "bf16"),
            In("v", (2, 129, 2, 64), "bf16"), In("keep", (2, 129), "bool", "keep"))
    yield p("bf16 3x4x700 d96 own places", decode_rel, In("q", (3, 4, 96), "bf16"), In("k", (3, 4, 700, 96), "bf16"),
            In("v", (3, 4, 700, 96), "bf16"), In("slopes", (4,), "f32", "positive", 0.02),
            In("n", (3,), "i64", "label", high=700))
    yield p("f16 2x14x21x96 Swin shifted", swin_shifted, In("x", (2, 14, 21, 96), "f16"),
            In("w", (96, 288), "f16", "weight", 0.1), In("table", (169, 3), "f16", "weight", 0.1))
    yield p("bf16 1x2x192 d64 Longformer", longformer, *qkv((1, 2, 192, 64), "bf16"))
    yield p("f16 1x2x160 d96 BigBird", bigbird, *qkv((1, 2, 160, 96), "f16"))
    yield p("bf16 1x4x100 d64 multi-token", multi_token, *qkv((1, 4, 100, 64), "bf16"),
            In("w", (4, 1, 3, 5), "bf16", "weight", 0.3))
    yield p("bf16 1x2x160 d64 compressed and window", nsa_blocks, *qkv((1, 2, 160, 64), "bf16"),
            In("g", (1, 2, 160, 2), "bf16"))
    yield p("f16 3x65x1023 d72 sinks and a window", streaming, *qkv((3, 65, 72), "f16", 1023))
    yield p("f16 2x3x129 d32 neighbours", neighbours, *qkv((2, 3, 129, 32), "f16"), In("rpb", (3, 13), "f16", "weight"))
    yield p("bf16 2x3x7x300 d128 tree of drafts", tree, *qkv((2, 3, 7, 128), "bf16", 300),
            In("parent", (2, 7, 7), "bool", "keep"), In("n", (2,), "i64", "label", high=290))
    yield p("f16 2x3x130 d40 edges", edges, *qkv((2, 3, 130, 40), "f16"), In("e", (2, 3, 130, 130), "f16"),
            In("adj", (2, 130, 130), "bool", "keep"))
    yield p("bf16 20x37x64 triangle", triangle, In("x", (37, 37, 64), "bf16"),
            *(In(n, (64, 64), "bf16", "weight", 0.125) for n in ("wq", "wk", "wv")), In("wb", (64, 2), "bf16", "weight", 0.125),
            In("wg", (64, 64), "bf16", "weight", 0.125), In("keep", (37, 37), "bool", "keep"))
    yield p("f32 65x4 invariant points", invariant_points, *(In(n, (65, 4, 16), "f32") for n in "qkv"),
            *(In(n, (65, 4, 4, 3), "f32") for n in ("qp", "kp", "vp")), In("b", (65, 65, 4), "f32"),
            In("g", (4,), "f32", "weight"))
