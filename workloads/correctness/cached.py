"""Attention behind a cache, and rows with appended columns: the new token's key and value are joined to those that are there,
scores of sinks to scores, in the spellings of generation loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import HALVES, In, Program, alternate

Fn = Callable[..., Any]


def joined(q: Tensor, k: Tensor, v: Tensor, k1: Tensor, v1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The caches are results as well."""
    keys, values = torch.cat([k, k1], -2), torch.cat([v, v1], -2)
    return F.scaled_dot_product_attention(q, keys, values), keys, values


def by_hand(q: Tensor, k: Tensor, v: Tensor, k1: Tensor, v1: Tensor) -> Tensor:
    keys, values = torch.cat([k, k1], -2), torch.cat([v, v1], -2)
    s = (q @ keys.mT) * q.shape[-1] ** -0.5
    return torch.softmax(s, -1, dtype=torch.float32).to(q.dtype) @ values


def ahead(q: Tensor, k: Tensor, v: Tensor, k1: Tensor, v1: Tensor) -> Tensor:
    """The new one comes first."""
    s = q.float() @ torch.cat([k1, k], -2).float().mT * 0.125
    return (torch.softmax(s, -1) @ torch.cat([v1, v], -2).float()).to(q.dtype)


def grouped(q: Tensor, k: Tensor, v: Tensor, k1: Tensor, v1: Tensor) -> Tensor:
    """Llama's: heads are repeated after the join."""
    n = q.shape[1] // k.shape[1]
    keys = torch.cat([k, k1], -2).repeat_interleave(n, 1)
    values = torch.cat([v, v1], -2).repeat_interleave(n, 1)
    p = torch.softmax(q @ keys.mT * 0.125, -1, dtype=torch.float32).to(q.dtype)
    return p @ values


def masked(q: Tensor, k: Tensor, v: Tensor, k1: Tensor, v1: Tensor, keep: Tensor) -> Tensor:
    """Rows of the batch have their own lengths; the new token is always seen."""
    s = (q @ torch.cat([k, k1], -2).mT) * 0.125
    seen = F.pad(keep, (0, 1), value=True)[:, None, None, :]
    return torch.softmax(s.float().masked_fill(~seen, float("-inf")), -1).to(q.dtype) @ torch.cat([v, v1], -2)


def capped(q: Tensor, k: Tensor, v: Tensor, k1: Tensor, v1: Tensor) -> Tensor:
    s = 30.0 * torch.tanh((q @ torch.cat([k, k1], -2).mT).float() * (0.125 / 30.0))
    return torch.softmax(s, -1).to(q.dtype) @ torch.cat([v, v1], -2)


def latent(q: Tensor, c: Tensor, c1: Tensor) -> Tensor:
    """MLA absorbed: keys are the latents and their rotary part, values the latents, in one buffer."""
    both = torch.cat([c, c1], -2)
    p = torch.softmax((q @ both.mT) * 0.07, -1, dtype=torch.float32).to(q.dtype)
    return p @ both[..., : both.shape[-1] - 32]


def two_more(q: Tensor, k: Tensor, v: Tensor, k1: Tensor, v1: Tensor, sink: Tensor) -> Tensor:
    """A new token and a sink, whose weight is thrown away."""
    s = (q @ torch.cat([k, k1], -2).mT).float() * 0.125
    s = torch.cat([s, sink.float()[None, :, None, None].expand(*s.shape[:-1], 1)], -1)
    return torch.softmax(s, -1)[..., :-1].to(q.dtype) @ torch.cat([v, v1], -2)


def sizes(q: Tensor, k: Tensor, v: Tensor, k1: Tensor, v1: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the sum is a result too, as for merging parts."""
    s = (q @ torch.cat([k, k1], -2).mT).float() * 0.125
    lse = torch.logsumexp(s, -1, keepdim=True)
    return (torch.exp(s - lse) @ torch.cat([v, v1], -2).float()).to(q.dtype), lse


def statistics(x: Tensor, one: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a row and what is appended to it."""
    y = torch.cat([x.float(), one.float()], -1)
    return y.mean(-1), y.var(-1), y.amax(-1)


def normalised(x: Tensor, one: Tensor, g: Tensor) -> Tensor:
    """A class token's place at the end of each row of channels."""
    y = torch.cat([x, one], -1)
    return F.layer_norm(y.float(), y.shape[-1:]).to(x.dtype) * g


def likeliest(x: Tensor, other: Tensor) -> Tensor:
    """CTC and transducers: one column more, log-probabilities of all."""
    return F.log_softmax(torch.cat([other, x], -1).float(), -1).to(x.dtype)


def programs() -> Iterator[Program]:
    yield from alternate(_attention())
    yield from alternate(_rows())


def _attention() -> Iterator[Program]:
    for dtype in (*HALVES, "f32"):
        def ins(b: int, h: int, g: int, n: int, d: int, dtype: str = dtype, queries: int = 1) -> tuple[In, ...]:
            return (In("q", (b, h, queries, d), dtype), In("k", (b, g, n, d), dtype), In("v", (b, g, n, d), dtype),
                    In("k1", (b, g, 1, d), dtype), In("v1", (b, g, 1, d), dtype))
        yield Program("cached", f"{dtype} 2x4x300 d64 results joined", joined, ins(2, 4, 4, 300, 64))
        yield Program("cached", f"{dtype} 2x4x257 d64 by hand", by_hand, ins(2, 4, 4, 257, 64))
        yield Program("cached", f"{dtype} 1x3x200 d64 ahead, 5 queries", ahead, ins(1, 3, 3, 200, 64, queries=5))
        yield Program("cached", f"{dtype} 2x8/2x511 d64 grouped", grouped, ins(2, 8, 2, 511, 64))
        yield Program("cached", f"{dtype} 3x4x140 d64 masked", masked, (
            *ins(3, 4, 4, 140, 64), In("keep", (3, 140), "bool", "keep")))
        yield Program("cached", f"{dtype} 2x4x300 d128 soft cap", capped, ins(2, 4, 4, 300, 128))
        yield Program("cached", f"{dtype} 2x16x333 latent", latent, (
            In("q", (2, 16, 288), dtype), In("c", (2, 333, 288), dtype), In("c1", (2, 1, 288), dtype)))
        yield Program("cached", f"{dtype} 2x4x150 d64 and a sink", two_more, (*ins(2, 4, 4, 150, 64), In("sink", (4,), dtype)))
        yield Program("cached", f"{dtype} 2x4x190 d64 lse", sizes, ins(2, 4, 4, 190, 64))


def _rows() -> Iterator[Program]:
    for dtype in (*HALVES, "f32"):
        row, one = In("x", (6, 37, 600), dtype), In("one", (6, 37, 1), dtype)
        yield Program("cached", f"{dtype} 6x37x601 statistics", statistics, (row, one))
        yield Program("cached", f"{dtype} 6x37x601 norm", normalised, (row, one, In("g", (601,), dtype, "weight")))
        yield Program("cached", f"{dtype} 6x37x601 log-softmax", likeliest, (row, In("other", (6, 37, 1), dtype)))
