"""Matrix products of tensors that are kept in fewer bits than they are multiplied in, with what follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program, alternate

Fn = Callable[..., Any]


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q.float() @ k.float().mT


def half_scores(q: Tensor, k: Tensor) -> Tensor:
    return ((q.float() @ k.float().mT) / q.shape[-1] ** 0.5).to(q.dtype)


def linear(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.float(), w.float(), bias)


def gelu(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x.float(), w.float(), bias), approximate="tanh").to(x.dtype)


def residual(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return (r.float() + x.float() @ w.float()).to(x.dtype)


def scaled(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    return (a.float() @ b.float().T) * s


def per_channel(a: Tensor, b: Tensor, s: Tensor, t: Tensor) -> Tensor:
    return ((a.float() @ b.float().T) * s[:, None] * t).to(torch.bfloat16)


def weight_only(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return ((x.float() @ w.float().T) * s).to(x.dtype)


def halves() -> Iterator[Program]:
    for dtype in ("bf16", "f16"):
        for what, fn in (("scores", scores), ("half_scores", half_scores)):
            for b, h, m, n, c in ((2, 3, 65, 130, 64), (1, 2, 200, 33, 80), (1, 1, 300, 700, 40)):
                ins = (In("q", (b, h, m, c), dtype), In("k", (b, h, n, c), dtype))
                yield Program("product", f"{dtype} {b}x{h}x{m}x{c}x{n} {what}", fn, ins)
        for what, fn in (("linear", linear), ("gelu", gelu)):
            for m, c, n in ((65, 200, 96), (1, 256, 777), (130, 1000, 24), (257, 512, 1000)):
                ins = (In("x", (m, c), dtype), In("w", (n, c), dtype, "weight", 0.05), In("bias", (n,), "f32", "weight"))
                yield Program("product", f"{dtype} {m}x{c}x{n} {what}", fn, ins)
        for m, c, n in ((65, 200, 96), (200, 384, 600)):
            ins = (In("x", (m, c), dtype), In("w", (c, n), dtype, "weight", 0.05), In("r", (m, n), dtype))
            yield Program("product", f"{dtype} {m}x{c}x{n} residual", residual, ins)


def eight() -> Iterator[Program]:
    for m, c, n in ((65, 256, 96), (130, 1000, 300), (33, 5000, 200)):
        pair = (In("a", (m, c), "e4m3"), In("b", (n, c), "e4m3", "weight"))
        yield Program("product", f"e4m3 {m}x{c}x{n} scaled", scaled, (*pair, In("s", (1,), "f32", "weight", 0.1, 1.0)))
        yield Program("product", f"e4m3 {m}x{c}x{n} per_channel", per_channel, (
            *pair, In("s", (m,), "f32", "weight", 0.1, 1.0), In("t", (n,), "f32", "weight", 0.1, 1.0)))
    for dtype in ("bf16", "f16"):
        ins = (In("x", (65, 384), dtype), In("w", (200, 384), "e4m3", "weight"), In("s", (200,), "f32", "weight", 0.1, 1.0))
        yield Program("product", f"{dtype} 65x384x200 weight_only", weight_only, ins)


def programs() -> Iterator[Program]:
    yield from alternate(halves(), 1)
    yield from eight()
