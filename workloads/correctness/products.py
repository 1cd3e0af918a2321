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


def two_results(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax((q @ k.mT).float() / q.shape[-1] ** 0.5, -1).to(q.dtype)
    return p @ v, p @ w


def two_wide(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax((q.float() @ k.float().mT) / q.shape[-1] ** 0.5, -1)
    return p @ v.float(), p @ w.float()


def rectified(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.relu(q @ k.mT) @ v


def sigmoid_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid((q.float() @ k.float().mT) * 0.125).to(q.dtype) @ v


def small_mlp(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(x @ w.mT) @ v.mT


def between_products(x: Tensor, r: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = r + F.linear(x, w)
    n = (h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype)
    return h, F.linear(n, v)


def scaled_gate(h: Tensor, w: Tensor, v: Tensor) -> Tensor:
    n = F.rms_norm(h, h.shape[-1:])
    return F.silu(F.linear(n, w)) * F.linear(n, v)


def gate(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def with_bias(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, bias), approximate="tanh")


def one_head(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """With the projections of its queries and results, which its kernel leaves alone."""
    p = torch.softmax(F.linear(x, w) @ y.mT * x.shape[-1] ** -0.5, -1)
    return F.linear(p @ y, v)


def few() -> Iterator[Program]:
    """Few rows, which are columns of their matrices' tiles."""
    for dtype in ("bf16", "f16"):
        for m, k, n in ((3, 1032, 8200), (40, 520, 6200), (64, 264, 1528)):
            ins = (In("x", (m, k), dtype), *(In(name, (n, k), dtype, "weight", k ** -0.5) for name in "wv"))
            yield Program("product", f"{dtype} {m}x{k}x{n} gate", gate, ins)
        ins = (In("x", (17, 520), dtype), In("w", (8460, 520), dtype, "weight", 520 ** -0.5), In("bias", (8460,), dtype))
        yield Program("product", f"{dtype} 17x520x8460 bias_gelu", with_bias, ins)
        ins = (In("x", (4, 1300, 32), dtype), In("y", (4, 250, 32), dtype),
               *(In(n, (32, 32), dtype, "weight", 0.2) for n in "wv"))
        yield Program("product", f"{dtype} 4x1300x250 one_head", one_head, ins)


def chains() -> Iterator[Program]:
    """Norms between products that fill a machine: a row written with its squares, and a scale behind the sums."""
    for dtype in ("bf16", "f16"):
        ins = (In("x", (1400, 1032), dtype), In("r", (1400, 1528), dtype), In("w", (1528, 1032), dtype, "weight", 0.03),
               In("v", (1528, 1528), dtype, "weight", 0.03))
        yield Program("product", f"{dtype} 1400x1032x1528 residual_norm", between_products, ins)
        ins = (In("h", (1400, 1032), dtype), *(In(n, (760, 1032), dtype, "weight", 0.03) for n in "wv"))
        yield Program("product", f"{dtype} 1400x1032x760 scaled_gate", scaled_gate, ins)


def weights() -> Iterator[Program]:
    for dtype in ("bf16", "f16"):
        for what, fn in (("two_results", two_results), ("two_wide", two_wide)):
            for m, n, c, e in ((65, 130, 64, 48), (200, 96, 32, 128)):
                ins = tuple(In(name, shape, dtype) for name, shape in (
                    ("q", (2, m, c)), ("k", (2, n, c)), ("v", (2, n, c)), ("w", (2, n, e))))
                yield Program("weights", f"{dtype} 2x{m}x{n} d{c} {what}", fn, ins)
        for what, fn in (("rectified", rectified), ("sigmoid", sigmoid_attention)):
            for m, n in ((65, 130), (192, 256)):
                ins = (In("q", (2, 3, m, 64), dtype), In("k", (2, 3, n, 64), dtype), In("v", (2, 3, n, 64), dtype))
                yield Program("weights", f"{dtype} 2x3x{m}x{n} d64 {what}", fn, ins)
        ins = (In("x", (200, 64), dtype), In("w", (256, 64), dtype, "weight", 0.1), In("v", (48, 256), dtype, "weight", 0.1))
        yield Program("weights", f"{dtype} 200x64x256x48 small_mlp", small_mlp, ins)


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
    yield from alternate(weights(), 1)
    yield from chains()
    yield from few()
