"""Attention in the layouts and dtypes that callers have: caches in pages and 8 bits, packed and turned tensors, masks of
integers and floats, padding of both sides, parts that are merged, keys and values of several sources."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import NEG_INF, In, Program, made, qkv

# -- caches ------------------------------------------------------------------------------------------------------------


def paged_int8(q: Tensor, k: Tensor, v: Tensor, ks: Tensor, vs: Tensor, blocks: Tensor, n: Tensor) -> Tensor:
    """Pages of 16 tokens by a block table, 8-bit with a scale per token and head, lengths per sequence."""
    b, h, d = q.shape
    kk = ((k - 128).to(torch.int8)[blocks].to(q.dtype) * ks[blocks][..., None]).flatten(1, 2)
    vv = ((v - 128).to(torch.int8)[blocks].to(q.dtype) * vs[blocks][..., None]).flatten(1, 2)
    g = kk.shape[2]
    qq = q.view(b, g, h // g, d)
    s = torch.einsum("bgrd,btgd->bgrt", qq, kk).float() * d**-0.5
    seen = torch.arange(kk.shape[1], device=q.device) <= n[:, None]
    p = torch.softmax(s.masked_fill(~seen[:, None, None], NEG_INF), -1).to(q.dtype)
    return torch.einsum("bgrt,btgd->bgrd", p, vv).reshape(b, h, d)


def fp8_cache(q: Tensor, k: Tensor, v: Tensor, ks: Tensor, vs: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 keys and values, one scale each; lse beside."""
    kk = (k.to(torch.float32) * ks).to(q.dtype)
    vv = (v.to(torch.float32) * vs).to(q.dtype)
    s = torch.matmul(q, kk.permute(0, 1, 3, 2)).float() / math.sqrt(q.shape[-1])
    lse = s.logsumexp(-1)
    return ((s - lse.unsqueeze(-1)).exp().to(q.dtype) @ vv), lse


def mla_rope_odd(qn: Tensor, qp: Tensor, c: Tensor, kp: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    """Absorbed: queries into the latent space, latents seq-first, values out again."""
    q = torch.einsum("shd,hdr->shr", qn, wk)
    s = torch.einsum("shr,tr->hst", q, c) + torch.einsum("shp,tp->hst", qp, kp)
    s = s.float() * (qn.shape[-1] + qp.shape[-1]) ** -0.5
    p = torch.softmax(s, -1).to(c.dtype)
    return torch.einsum("hst,tr,hrd->shd", p, c, wv)


def best_keys(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Memorizing transformers: the eight best keys of each query, gathered values."""
    s, at = (q @ k.mT).topk(8, -1)
    p = s.float().softmax(-1).to(v.dtype)
    picked = v[:, None].expand(-1, q.shape[1], -1, -1).gather(2, at[..., None].expand(-1, -1, -1, v.shape[-1]))
    return (p[..., None] * picked).sum(2), s.amin(-1)


def scaled_queries(x: Tensor, heads: int, shift: float = 0.0) -> Tensor:
    """[windows, tokens, 3 of heads of d]: queries are scaled before the product, as most attention by hand is written."""
    q, k, v = x.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    q = q * q.shape[-1] ** -0.5 + shift if shift else q * q.shape[-1] ** -0.5
    return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def one_head(x: Tensor, w: Tensor) -> Tensor:
    """And of one head, before its projection."""
    return scaled_queries(x, 1) @ w


# -- layouts -----------------------------------------------------------------------------------------------------------


def packed(qkv: Tensor, seg: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens, 3, heads, d] by segment, weights averaged over heads beside."""
    q, k, v = qkv.unbind(1)
    n = q.shape[0]
    s = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
    at = torch.arange(n, device=q.device)
    ok = (seg[:, None] == seg[None, :]) & (at[:, None] >= at[None, :])
    p = torch.softmax(s.float().masked_fill(~ok, NEG_INF), -1)
    return torch.einsum("hts,shd->thd", p.to(v.dtype), v), p.mean(0)


def turned(qt: Tensor, kt: Tensor, v: Tensor) -> Tensor:
    """[b, h, d, n] queries and keys as they come out of convolutions, softmax over the first of the pair."""
    s = (kt.transpose(2, 3) @ qt).float() * qt.shape[2] ** -0.5
    p = s.softmax(dim=2)
    return (v @ p.to(v.dtype)).permute(0, 3, 1, 2).flatten(2)


def xca(qkv: Tensor, tau: Tensor) -> Tensor:
    """XCiT: channels attend to channels, from one packed tensor."""
    b, n, c3 = qkv.shape
    h = tau.shape[0]
    q, k, v = qkv.reshape(b, n, 3, h, c3 // 3 // h).permute(2, 0, 3, 4, 1).unbind(0)
    a = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)) * tau
    return (a.softmax(-1) @ v).permute(0, 3, 1, 2).reshape(b, n, -1)


def pooled_heads(x: Tensor, query: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """PMA by one learned query a head; weights too; empty rows give zeros by nan_to_num."""
    b, n, c = x.shape
    h = query.shape[0]
    y = x.view(b, n, h, c // h)
    s = torch.einsum("bnhd,hd->bhn", y, query).float() * (c // h) ** -0.5
    p = torch.softmax(s.masked_fill(~keep[:, None], NEG_INF), -1).nan_to_num(0.0)
    return torch.einsum("bhn,bnhd->bhd", p.to(x.dtype), y).flatten(1), p.mean(1)


# -- masks -------------------------------------------------------------------------------------------------------------


def int_mask(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """HF's oldest: an integer mask made float, subtracted from one, times the least."""
    ext = (1.0 - m[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min
    p = F.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) + ext, dim=-1)
    ctx = torch.matmul(p, v).permute(0, 2, 1, 3).contiguous()
    return ctx.view(*ctx.shape[:-2], -1)


def cross_where(q: Tensor, k: Tensor, v: Tensor, kq: Tensor, kk: Tensor) -> Tensor:
    """Padding of queries and keys, joined by a product of masks; padded queries give zeros."""
    ok = (kq[:, None, :, None].to(q.dtype) * kk[:, None, None, :].to(q.dtype)) > 0
    s = torch.einsum("bqhd,bkhd->bhqk", q, k).float() * q.shape[-1] ** -0.5
    p = torch.softmax(torch.where(ok, s, torch.full_like(s, -65504.0)), -1) * ok
    return torch.einsum("bhqk,bkhd->bqhd", p.to(v.dtype), v)


def perceiver(x: Tensor, latents: Tensor, wk: Tensor, wv: Tensor, wq: Tensor, keep: Tensor) -> Tensor:
    """Latents see the inputs and themselves, padded inputs hidden by a float mask."""
    kv = torch.cat([x, latents.expand(x.shape[0], -1, -1)], 1)
    q = F.layer_norm(latents, latents.shape[-1:]) @ wq
    k, v = kv @ wk, kv @ wv
    s = torch.einsum("ld,bnd->bln", q, k) * q.shape[-1] ** -0.5
    m = F.pad(keep.to(s.dtype), (0, latents.shape[0]), value=1.0)
    s = s + ((1.0 - m) * -10000.0)[:, None, :]
    return latents + s.softmax(-1) @ v


# -- dtypes and parts --------------------------------------------------------------------------------------------------


def mixed_dtypes(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """float16 queries, bfloat16 keys and values, a float32 bias."""
    s = torch.matmul(q.float() * q.shape[-1] ** -0.5, k.float().mT) + bias
    return torch.softmax(s, -1).to(torch.bfloat16) @ v


def shared_softmax(q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
    """One softmax over two sources whose values differ in dtype; IP-Adapter's joined form."""
    s = torch.cat([q @ k1.mT, (q.float() @ k2.float().mT).to(q.dtype)], -1).float() * q.shape[-1] ** -0.5
    a, b = s.softmax(-1).split([k1.shape[-2], k2.shape[-2]], -1)
    return a @ v1.float() + b @ v2.float()


def merged_parts(o1: Tensor, l1: Tensor, o2: Tensor, l2: Tensor) -> tuple[Tensor, Tensor]:
    """Ring attention's: two results by their lse."""
    lse = torch.logaddexp(l1, l2)
    return o1 * (l1 - lse).exp()[..., None] + o2 * (l2 - lse).exp()[..., None], lse


# -- the list ----------------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    p = partial(made, "packed")
    yield p("f16 65x49x2 d32 scaled queries", partial(scaled_queries, heads=2), In("x", (65, 49, 192), "f16"))
    yield p("bf16 2x300x3 d48 scaled queries", partial(scaled_queries, heads=3), In("x", (2, 300, 432), "bf16"))
    yield p("bf16 9x64x2 d64 shifted queries", partial(scaled_queries, heads=2, shift=0.25), In("x", (9, 64, 384), "bf16"))
    yield p("f32 5x33x2 d16 scaled queries", partial(scaled_queries, heads=2), In("x", (5, 33, 96), "f32"))
    yield p("f16 7x50x1 d96 one head projected", one_head, In("x", (7, 50, 288), "f16"),
            In("w", (96, 96), "f16", "weight", 0.1))
    yield p("f16 3x8/2 d64 pages of 8 bits", paged_int8, In("q", (3, 8, 64), "f16"),
            In("k", (20, 16, 2, 64), "i64", "label", high=256), In("v", (20, 16, 2, 64), "i64", "label", high=256),
            In("ks", (20, 16, 2), "f16", "positive", 0.02), In("vs", (20, 16, 2), "f16", "positive", 0.02),
            In("blocks", (3, 9), "i64", "label", high=20), In("n", (3,), "i64", "label", high=144))
    yield p("bf16 2x3x1x1023 d128 cache of e4m3", fp8_cache, In("q", (2, 3, 1, 128), "bf16"),
            In("k", (2, 3, 1023, 128), "e4m3"), In("v", (2, 3, 1023, 128), "e4m3"), In("ks", (), "f32", "positive", 0.5),
            In("vs", (), "f32", "positive", 0.5))
    yield p("bf16 7x4x257 absorbed", mla_rope_odd, In("qn", (7, 4, 64), "bf16"), In("qp", (7, 4, 32), "bf16"),
            In("c", (257, 128), "bf16"), In("kp", (257, 32), "bf16"), In("wk", (4, 64, 128), "bf16", "weight", 0.1),
            In("wv", (4, 128, 64), "bf16", "weight", 0.1))
    yield p("f32 2x65x257 d64 best keys", best_keys, *qkv((2, 65, 64), "f32", 257), only=("normal", "outlier", "tiny"))
    yield p("f16 200x3 d64 packed segments", packed, In("qkv", (200, 3, 3, 64), "f16"),
            In("seg", (200,), "i64", "segments", high=5))
    yield p("f16 2x3x129x70 d72 turned", turned, In("q", (2, 3, 72, 129), "f16"), In("k", (2, 3, 72, 70), "f16"),
            In("v", (2, 3, 72, 70), "f16"))
    yield p("bf16 2x197 d48 channels packed", xca, In("qkv", (2, 197, 432), "bf16"), In("tau", (3, 1, 1), "bf16", "positive"))
    yield p("f16 5x150x96 pooled by heads", pooled_heads, In("x", (5, 150, 96), "f16"), In("query", (4, 24), "f16", "weight"),
            In("keep", (5, 150), "bool", "keep"))
    yield p("f16 2x3x65x77 d40 integer mask", int_mask, *qkv((2, 3, 65, 40), "f16", 77), In("m", (2, 77), "i64", "label"))
    yield p("bf16 2x65x3 d112 padded both", cross_where, In("q", (2, 65, 3, 112), "bf16"), In("k", (2, 130, 3, 112), "bf16"),
            In("v", (2, 130, 3, 112), "bf16"), In("kq", (2, 65), "bool", "keep"), In("kk", (2, 130), "bool", "keep"))
    yield p("f32 2x129x64 latents", perceiver, In("x", (2, 129, 64), "f32"), In("latents", (16, 64), "f32"),
            *(In(n, (64, 64), "f32", "weight", 0.125) for n in ("wk", "wv", "wq")), In("keep", (2, 129), "bool", "keep"))
    yield p("mixed 2x3x65x129 d64", mixed_dtypes, In("q", (2, 3, 65, 64), "f16"), In("k", (2, 3, 129, 64), "bf16"),
            In("v", (2, 3, 129, 64), "bf16"), In("bias", (65, 129), "f32"))
    yield p("mixed 2x3x65x129+16 d64 two sources", shared_softmax, In("q", (2, 3, 65, 64), "bf16"),
            In("k1", (2, 3, 129, 64), "bf16"), In("k2", (2, 3, 16, 64), "f32"), In("v1", (2, 3, 129, 64), "bf16"),
            In("v2", (2, 3, 16, 64), "f32"))
    yield p("f16 2x3x130 d64 merged", merged_parts, In("o1", (2, 3, 130, 64), "f16"), In("l1", (2, 3, 130), "f32"),
            In("o2", (2, 3, 130, 64), "f16"), In("l2", (2, 3, 130), "f32"))
