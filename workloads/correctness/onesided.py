"""Sums of one sign that are kept in float32: what a matrix unit cuts off as it adds always goes the same way.

Weights of a softmax and positive values, products of positive numbers, deep or along many keys, of halves that the program
widens, of float32 and of 8-bit floats. Without sums that begin afresh, 4096 keys err by 3e-5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import HALVES, In, Program, alternate

Fn = Callable[..., Any]
DRAWS = ("normal", "ties", "outlier")


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q.float() @ k.float().mT * q.shape[-1] ** -0.5, -1) @ v.float()


def with_total(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    return torch.softmax(s, -1) @ v.float(), torch.logsumexp(s, -1)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    n = s.shape[-1]
    hidden = torch.ones(n, n, dtype=torch.bool, device=s.device).triu(1)
    return torch.softmax(s.masked_fill(hidden, float("-inf")), -1) @ v.float()


def rectified(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.relu(q.float() @ k.float().mT) @ v.float()


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.float() @ (k.float().mT @ v.float())


def product(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a.float() @ b.float().mT)


def scaled(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    return (a.float() @ b.float().mT) * s


def total(a: Tensor, b: Tensor) -> Tensor:
    return torch.logsumexp(a.float() @ b.float().mT, -1)


def largest(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    s = a.float() @ b.float().mT
    return s.amax(-1), (s - s.amax(-1, keepdim=True)).exp().sum(-1)


ROWS: tuple[tuple[Fn, int, int, int], ...] = (
    (attention, 130, 1000, 64), (attention, 130, 3000, 128), (attention, 70, 520, 256), (attention, 1, 3000, 64),
    (attention, 5, 2000, 128), (with_total, 200, 1100, 64), (causal, 700, 700, 128), (rectified, 130, 1500, 64),
    (linear_attention, 900, 900, 64))
PRODUCTS: tuple[tuple[Fn, int, int, int], ...] = (
    (product, 300, 700, 192), (product, 130, 3000, 256), (total, 300, 320, 1000), (total, 200, 1500, 700),
    (largest, 500, 700, 900))


def programs() -> Iterator[Program]:
    made = [_attention(dtype, *row) for dtype in HALVES for row in ROWS]
    yield from alternate([*made, *(_product(dtype, *row) for dtype in HALVES for row in PRODUCTS)])
    yield from (_attention("f32", *row) for row in ROWS if row[0] is attention and row[3] == 64)
    yield Program("onesided", "e4m3 200x2000x192 scaled", scaled, (
        In("a", (200, 2000), "e4m3", "positive"), In("b", (192, 2000), "e4m3", "positive"),
        In("s", (192,), "f32", "positive", 0.1)), only=("normal", "ties"))


def _attention(dtype: str, fn: Fn, rows: int, n: int, d: int) -> Program:
    scale = n ** -0.5 if fn in (rectified, linear_attention) else 1.0
    return Program("onesided", f"{dtype} {rows}x{n} d{d} {fn.__name__}", fn, (
        In("q", (1, 3, rows, d), dtype, "positive", scale), In("k", (1, 3, n, d), dtype, "positive"),
        In("v", (1, 3, n, d), dtype, "positive")), only=DRAWS)


def _product(dtype: str, fn: Fn, rows: int, depth: int, columns: int) -> Program:
    return Program("onesided", f"{dtype} {rows}x{depth}x{columns} {fn.__name__}", fn, (
        In("a", (rows, depth), dtype, "positive", 0.3), In("b", (columns, depth), dtype, "positive", 0.3)), only=DRAWS)
