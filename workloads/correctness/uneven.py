"""Rows that are no power of two long, as pictures' channels are: maps with numbers of each channel, rows that share blocks,
layers of two products over grids of few rows, and halves that are clamped, with padding around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import In, Program


def settled(x: Tensor, m: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
    """A batch norm's numbers by channel, and what follows it in a small network."""
    return ((x.float() - m.float()) * torch.rsqrt(v.float().abs() + 1e-3) * g.float() + b.float()).to(x.dtype).clamp(0, 6)


def gated(x: Tensor, m: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return torch.where(x > m, torch.sigmoid(x) * v, torch.maximum(g + b, x))


def framed(x: Tensor, m: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
    """Zeros around a picture whose channels lie last."""
    return F.pad(settled(x, m, v, g, b), (0, 0, 0, 1, 1, 1))


def between(x: Tensor) -> Tensor:
    """The least of the greatest, of halves alone: each rounded before it is compared."""
    return torch.minimum(torch.maximum(x * 0.3, x + 0.1), (x * 3).clamp(max=0.7)).relu()


def layers(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, s: Tensor) -> Tensor:
    """Two products over the channels of a small picture, beside it."""
    return x + s * (F.gelu(x @ w1.mT + b1) @ w2.mT)


def turned(x: Tensor, g: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:]) * g


def total(x: Tensor, g: Tensor) -> Tensor:
    return (x.float() * g.float()).square().sum(-1)


def weights(x: Tensor, g: Tensor) -> Tensor:
    return torch.softmax(x * g, -1)


def substituted(k: Tensor, beta: Tensor, a: Tensor) -> Tensor:
    """The inverse within a chunk of a gated delta rule, by a loop over its rows, and what it makes of the keys."""
    n = k.shape[-2]
    decay = (a[..., :, None] - a[..., None, :]).tril().exp().tril()
    m = -((k * beta[..., None]) @ k.mT * decay).masked_fill(torch.ones(n, n, dtype=torch.bool, device=k.device).triu(), 0)
    for i in range(1, n):
        m[..., i, :i] += (m[..., i, :i, None] * m[..., :i, :i]).sum(-2)
    return (m + torch.eye(n, device=k.device)) @ (k * beta[..., None])


def programs() -> Iterator[Program]:
    def by_channel(what: str, fn: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> Program:
        return Program("uneven", f"{dtype} {'x'.join(map(str, shape))} {what}", fn,
                       (In("x", shape, dtype), *(In(n, shape[-1:], dtype) for n in "mvgb")))

    yield by_channel("settled", settled, (700, 144), "f16")
    yield by_channel("settled", settled, (2, 7, 9, 40), "f32")
    yield by_channel("settled", settled, (77, 1000), "bf16")
    yield by_channel("gated", gated, (2000, 100), "f16")
    yield by_channel("gated", gated, (333, 36), "f32")
    yield by_channel("gated", gated, (65, 3000), "bf16")
    yield by_channel("framed", framed, (3, 14, 14, 240), "f16")
    yield by_channel("framed", framed, (2, 9, 7, 24), "bf16")
    for dtype, shape in (("f16", (130, 72)), ("bf16", (33, 75))):
        yield Program("uneven", f"{dtype} {shape[0]}x{shape[1]} between", between, (In("x", shape, dtype),))
    for dtype, shape, wide in (("f16", (32, 7, 7, 56), 224), ("bf16", (3, 14, 9, 40), 96), ("f16", (5, 3, 48), 64)):
        n = shape[-1]
        yield Program("uneven", f"{dtype} {'x'.join(map(str, shape))}x{wide} layers", layers,
                      (In("x", shape, dtype), In("w1", (wide, n), dtype), In("b1", (wide,), dtype), In("w2", (n, wide), dtype),
                       In("s", (n,), dtype)))
    for what, fn, dtype, shape in (("turned", turned, "f16", (20000, 72)), ("turned", turned, "f32", (17000, 24)),
                                   ("total", total, "f16", (20000, 144)), ("total", total, "bf16", (16500, 49)),
                                   ("weights", weights, "f16", (17000, 72)), ("weights", weights, "f32", (4, 4100, 200))):
        yield Program("uneven", f"{dtype} {'x'.join(map(str, shape))} {what}", fn,
                      (In("x", shape, dtype), In("g", shape[-1:], dtype)))
    yield Program("uneven", "f32 2x3x16x32 substituted", substituted,
                  (In("k", (2, 3, 16, 32), "f32"), In("beta", (2, 3, 16), "f32"), In("a", (2, 3, 16), "f32")))
