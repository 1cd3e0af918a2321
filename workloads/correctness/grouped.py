"""Attention with shared keys: grouped and multi-query heads, single-query decode, latent attention (keys and values are one
tensor), differential attention, and one softmax over two products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workloads.correctness.attention import Shape, Way, library, program, qkv
from workloads.correctness.program import HALVES, In, Program, alternate


def grouped() -> Iterator[Program]:
    base = Shape(h=8, g=2, i=130, l=200)
    for dtype in HALVES:
        for group in ("repeat", "expand", "view"):
            for wide in ("", "scores"):
                yield program("gqa", Way("/", wide, group=group), base, dtype)
        yield program("gqa", Way("*", "scores", group="repeat"), replace(base, g=1), dtype)
        yield program("gqa", Way("*", "scores", group="repeat", mask="causal"), base, dtype)
        yield program("gqa", Way("q*", "", group="repeat", mask="causal", fill="finfo.min"), base, dtype)
        yield program("gqa", Way("*", "inputs", group="expand", cap=50.0), base, dtype)
        yield program("gqa", Way("*", "scores", group="repeat", also="lse"), base, dtype, "multi", 3)
        for causal in (False, True):
            s = replace(base, l=130) if causal else base
            what = f"{dtype} {s} sdpa gqa{' causal' if causal else ''}"
            yield Program("gqa", what, library(causal, grouped=True), qkv(s, dtype))
        one = replace(base, g=1)
        yield Program("gqa", f"{dtype} {one} sdpa broadcast", library(), qkv(one, dtype))


def decode() -> Iterator[Program]:
    base = Shape(b=2, h=4, g=4, i=1, l=777)
    for dtype in HALVES:
        for scale in ("/", "*", "q*"):
            for wide in ("", "scores"):
                yield program("decode", Way(scale, wide), base, dtype)
        shared = replace(base, h=8, g=2)
        for group in ("repeat", "expand", "view"):
            yield program("decode", Way("/", "scores", group=group), shared, dtype)
        yield program("decode", Way("*", "scores", group="repeat"), replace(base, h=8, g=1, d=128), dtype)
        yield program("decode", Way("*", "scores", group="repeat", mask="data", fill="finfo.min"), shared, dtype)
        yield program("decode", Way("*", "scores", mask="window"), base, dtype)
        yield program("decode", Way("*", "scores", bias="alibi"), base, dtype)
        yield program("decode", Way("*", "scores", cap=30.0), base, dtype)
        yield program("decode", Way("*", "scores", also="lse"), base, dtype)
        yield Program("decode", f"{dtype} {base} sdpa", library(), qkv(base, dtype))
        yield Program("decode", f"{dtype} {shared} sdpa gqa", library(grouped=True), qkv(shared, dtype))
        for strategy, splits in (("single", 0), ("multi", 4), ("multi", 7)):
            yield program("decode", Way("/", "scores", group="repeat"), shared, dtype, strategy, splits)


def latent(scale: str, wide: str, width: int) -> Any:
    def fn(q: Tensor, kv: Tensor) -> Tensor:
        c = q.shape[-1] ** 0.5
        s = (q / c if scale == "q/" else q) @ kv.transpose(-1, -2)
        s = s.float() if wide else s
        s = s / c if scale == "/" else s * (1 / c) if scale == "*" else s
        return torch.softmax(s, -1).to(q.dtype) @ kv[..., :width]

    return fn


def rotated(q: Tensor, qr: Tensor, c: Tensor, kr: Tensor) -> Tensor:
    """DeepSeek's: a latent part and a rotary part of the scores."""
    s = (q @ c.transpose(-1, -2) + qr @ kr.transpose(-1, -2)).float() * (q.shape[-1] + qr.shape[-1]) ** -0.5
    return torch.softmax(s, -1).to(q.dtype) @ c


def mla() -> Iterator[Program]:
    for dtype in HALVES:
        ins = (In("q", (2, 64, 192), dtype), In("k", (2, 333, 192), dtype))
        for scale in ("/", "*", "q/"):
            for wide in ("", "wide"):
                yield Program("mla", f"{dtype} 2x64x333 192/128 s{scale} {wide}".strip(), latent(scale, wide, 128), ins)
        big = (In("q", (1, 128, 576), dtype), In("k", (1, 500, 576), dtype))
        yield Program("mla", f"{dtype} 1x128x500 576/512 s/ wide", latent("/", "wide", 512), big)
        yield Program("mla", f"{dtype} 1x128x500 576/512 s*", latent("*", "", 512), big, "multi", 3)
        for strategy, splits in (("single", 0), ("multi", 3)):
            yield Program("mla", f"{dtype} 2x64x333 192/128 s/ wide", latent("/", "wide", 128), ins, strategy, splits)
        yield Program("mla", f"{dtype} rotary part", rotated, (In("q", (1, 64, 128), dtype), In("qr", (1, 64, 32), dtype),
                                                              In("k", (1, 333, 128), dtype), In("kr", (1, 333, 32), dtype)))


def differential(joined: bool) -> Any:
    """Two softmaxes over one set of values: of the results, or of the weights (which is one product)."""

    def fn(q: Tensor, k: Tensor, v: Tensor, q2: Tensor, k2: Tensor, lam: Tensor) -> Tensor:
        c = q.shape[-1] ** -0.5
        p = torch.softmax((q @ k.transpose(-1, -2)).float() * c, -1)
        r = torch.softmax((q2 @ k2.transpose(-1, -2)).float() * c, -1)
        if joined:
            return (p - lam * r).to(v.dtype) @ v
        return p.to(v.dtype) @ v - (lam * (r.to(v.dtype) @ v)).to(v.dtype)

    return fn


def two_products(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax((q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5, -1).to(v.dtype)
    return p @ v, p @ w


def gated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """No statistic of the row: a map between two products."""
    return torch.relu(q @ k.transpose(-1, -2)) @ v


def several() -> Iterator[Program]:
    for dtype in HALVES:
        for d in (64, 128):
            s = Shape(i=130, l=200, d=d)
            q, k, v = qkv(s, dtype)
            for joined in (False, True):
                yield Program("differential", f"{dtype} {s} {'weights' if joined else 'results'}", differential(joined),
                              (q, k, v, replace(q, name="q2"), replace(k, name="k2"), In("lam", (), "f32", "weight", 0.1, 0.5)))
        s = Shape(i=130, l=200)
        q, k, v = qkv(s, dtype)
        yield Program("products", f"{dtype} {s} two", two_products, (q, k, v, replace(v, name="w")))
        yield Program("products", f"{dtype} {s} relu", gated, (q, k, v))


def programs() -> Iterator[Program]:
    yield from alternate(grouped())
    yield from alternate(decode())
    yield from alternate(mla())
    yield from alternate(several())
