"""Shapes that tiles do not fit by themselves: columns of any width, statistics of columns, odd widths, few rows, views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.correctness.program import HALVES, In, Program, alternate

Fn = Callable[..., Any]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT) * 0.125, -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(((q @ k.mT) * 0.125).masked_fill(hidden, float("-inf")), -1) @ v


def flipped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q.flip(1), k.flip(1), v.flip(1))


def strided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q[:, ::2], k[:, ::2], v[:, ::2])


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -2)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -2)


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean(-2, keepdim=True)) * torch.rsqrt(x.var(-2, keepdim=True, unbiased=False) + 1e-5)


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, -2)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    s = x.abs().amax(-2, keepdim=True).float() / 127 + 1e-12
    return (x / s).round().clamp(-127, 127).to(torch.int8), s


def flipped_rows(x: Tensor) -> Tensor:
    return torch.softmax(x.flip(-1), -1)


def every_other(x: Tensor) -> Tensor:
    return torch.softmax(x[::2, ::2], 0)


COLUMNS: dict[str, Fn] = {"softmax": softmax, "logsumexp": logsumexp, "normalised": normalised, "moments": moments,
                          "quantised": quantised}


def heads(dtype: str, b: int, m: int, n: int, e: int) -> tuple[In, ...]:
    return In("q", (b, m, 64), dtype), In("k", (b, n, 64), dtype), In("v", (b, n, e), dtype)


def wide() -> Iterator[Program]:
    for dtype in (*HALVES, "f32"):
        for m, n, e in ((128, 200, 640), (65, 130, 1024), (3, 700, 776)):
            yield Program("wide", f"{dtype} 2x{m}x{n} columns {e}", attention, heads(dtype, 2, m, n, e))
        yield Program("wide", f"{dtype} 1x130x130 columns 640 causal", causal, heads(dtype, 1, 130, 130, 640))


def columns() -> Iterator[Program]:
    for dtype in (*HALVES, "f32"):
        for what, fn in COLUMNS.items():
            for shape in ((3000, 40), (2501, 7), (2, 300, 72)):
                yield Program("columns", f"{dtype} {'x'.join(map(str, shape))} {what}", fn, (In("x", shape, dtype, shift=0.5),))


def views() -> Iterator[Program]:
    for dtype in HALVES:
        for fn in (flipped, strided):
            yield Program("views", f"{dtype} 2x65x90 {fn.__name__}", fn, heads(dtype, 2, 65, 90, 64))
        for fn in (flipped_rows, every_other):
            yield Program("views", f"{dtype} 130x200 {fn.__name__}", fn, (In("x", (130, 200), dtype),))
        for rows, n in ((1, 40), (3, 72), (5, 264), (3, 520)):
            yield Program("views", f"{dtype} {rows}x{n} heads of 40", attention, heads(dtype, 1, rows, n, 40))


def programs() -> Iterator[Program]:
    yield from alternate(wide(), 2)
    yield from alternate(columns(), 1)
    yield from alternate(views(), 1)
