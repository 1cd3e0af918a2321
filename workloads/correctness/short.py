"""Rows of three to sixteen elements: few experts, few neighbours, the bins of a spline, small matrices that steps make doubly
stochastic, groups of a quantiser. Many of them lie in one block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.correctness.program import In, Program


def weights(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def bins(x: Tensor) -> tuple[Tensor, Tensor]:
    """Widths and heights of a spline's pieces, of one tensor that also has its slopes."""
    w, h = (torch.softmax(y, -1) * 0.992 + 1e-3 for y in x[..., :-7].chunk(2, -1))
    return w, h


def surprise(x: Tensor) -> Tensor:
    p = torch.log_softmax(x.float(), -1)
    return -(p.exp() * p).sum(-1)


def groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric steps of four bits, a scale for each group."""
    s = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-6) / 7
    return torch.round(x.float() / s).clamp(-8, 7).to(torch.int8), s[..., 0]


def balanced(x: Tensor) -> Tensor:
    """Two of Sinkhorn's steps, along the rows of small matrices and down their columns."""
    p = torch.exp(x.float())
    for _ in range(2):
        p = p / p.sum(-1, keepdim=True)
        p = p / p.sum(-2, keepdim=True)
    return p.to(x.dtype)


def pooled(x: Tensor) -> Tensor:
    """Neighbours' features by channel, each weighed by a softmax over them."""
    return (torch.softmax(x.float(), -2) * x.float()).sum(-2).to(x.dtype)


def norm(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.float().mean(-1), x.float().var(-1, unbiased=False)


def best(x: Tensor) -> tuple[Tensor, Tensor]:
    """Who of a few experts is asked, and how sure one is."""
    p = torch.softmax(x.float(), -1).max(-1)
    return p.values, p.indices


def hidden(x: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(x.float().masked_fill(~m, float("-inf")), -1).to(x.dtype)


def scaled(x: Tensor, w: Tensor) -> Tensor:
    """A weight for each element of a row, and one result for each row of each head."""
    return (torch.nn.functional.leaky_relu(x, 0.2) * w).sum(-1)


def programs() -> Iterator[Program]:
    def over(what: str, fn: Callable[..., Any], shape: tuple[int, ...], dtype: str, *more: In) -> Program:
        return Program("short", f"{dtype} {'x'.join(map(str, shape))} {what}", fn, (In("x", shape, dtype), *more))

    yield over("weights", weights, (20000, 8), "f32")
    yield over("weights", weights, (3, 5, 4), "f16")
    yield over("weights", weights, (2, 777, 3), "bf16")
    yield over("weights", weights, (7, 33, 16), "f32")
    yield over("bins", bins, (130, 32, 23), "f32")
    yield over("bins", bins, (9, 5, 31), "f16")
    yield over("surprise", surprise, (30001, 5), "f32")
    yield over("surprise", surprise, (40, 12), "f16")
    yield over("groups", groups, (33, 48, 16), "f16")
    yield over("groups", groups, (50, 777, 8), "f32")
    yield over("balanced", balanced, (3, 65, 4, 4), "f32")
    yield over("balanced", balanced, (130, 8, 8), "f16")
    yield over("balanced", balanced, (9, 5, 7), "f32")
    yield over("pooled", pooled, (4, 65, 16, 64), "f16")
    yield over("pooled", pooled, (300, 9, 12), "f32")
    yield over("norm", norm, (20001, 6), "f32")
    yield over("norm", norm, (65, 3, 16), "bf16")
    yield over("spread", spread, (40000, 10), "f16")
    yield over("spread", spread, (11, 3, 3), "f32")
    yield Program("short", "f32 5000x9 best", best, (In("x", (5000, 9), "f32"),), ranked=lambda x: (x, x))
    yield Program("short", "f32 400x3x12 hidden", hidden, (In("x", (400, 3, 12), "f32"), In("m", (400, 1, 12), "bool", "keep")))
    yield Program("short", "f16 65x8 hidden", hidden, (In("x", (65, 8), "f16"), In("m", (65, 8), "bool", "keep")))
    yield Program("short", "f32 700x8x16 scaled", scaled, (In("x", (700, 8, 16), "f32"), In("w", (8, 16), "f32")))
    yield Program("short", "bf16 33x2x5 scaled", scaled, (In("x", (33, 2, 5), "bf16"), In("w", (2, 5), "bf16")))
