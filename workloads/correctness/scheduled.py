"""Attention and products whose kernels have roles of warp groups, blocks that compute several tiles, and an order in which they
start, over grids that fill a large GPU: what the small programs of the other files are too small for. Kernels with roles are
tried first, also where the model would leave them for still larger grids. Rows are whole 16 bytes and no whole tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.attention import Shape, Way, library, program, qkv
from workloads.correctness.products import per_channel, two_results
from workloads.correctness.program import HALVES, In, Program, alternate

BASE = Shape(b=5, h=16, g=16, i=328, l=400, d=64)
"""240 tiles of 128 rows: with fewer, half of the multiprocessors would wait for a second one, and small tiles win."""
SQUARE = replace(BASE, l=328)
LONG = replace(BASE, b=4, i=384, l=640)
"""Three warp groups take 192 rows each."""
SHORT = replace(BASE, l=208)
"""Two steps a tile: products are carried from tile to tile, and totals are of the row."""
TALL = replace(BASE, b=3, i=520, l=520)
"""Steps enough that totals are kept by lane where tiles are of unequal work too."""

WAYS = (Way("/"), Way("*", "scores"), Way("q*"), Way("*", "scores", "hand"), Way("*", "scores", "last"),
        Way("*", "scores", cap=30.0), Way("/", "inputs"),
        Way("*", "scores", mask="data", fill="given"), Way("*", "scores", mask="data", fill="-1e4"),
        Way("*", "scores", mask="data", fill="finfo.min"), Way("*", "scores", mask="document"),
        Way("*", "scores", bias="tile"), Way("*", "scores", also="lse"), Way("/", "scores", also="max"),
        Way("/", "scores", sink="sink-max"))
CAUSAL = (Way("*", "scores", mask="causal"), Way("/", mask="causal", fill="finfo.min"), Way("*", "scores", mask="window"),
          Way("*", "scores", mask="prefix"), Way("/", "scores", mask="none-seen"),
          Way("*", "scores", mask="causal", also="lse"),
          Way("*", "scores", mask="causal", bias="alibi"), Way("*", "scores", cap=50.0, mask="window"))


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x.float() @ w.float().mT * 0.5).to(x.dtype)


def turned(x: Tensor, w: Tensor) -> Tensor:
    return (x.float() @ w.float() * 0.5).to(x.dtype)


def row_scale(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return (x.float() @ w.float().T * s[:, None]).to(x.dtype)


def residual(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return ((x.float() @ w.float().T).to(x.dtype).float() + r.float()).to(x.dtype)


def rounded_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = (x.float() @ w.float().T).to(x.dtype).float() + b.float()
    return F.gelu(h, approximate="tanh").to(x.dtype)


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x.float(), w.float(), b.float()), approximate="tanh").to(x.dtype)


def activated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def in_steps(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = F.linear(x, w, b)
    return 0.5 * h * (1.0 + torch.tanh(0.8 * (h + 0.044715 * h.pow(3))))


def two_gated(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, u)


def gated(x: Tensor, w: Tensor, g: Tensor) -> Tensor:
    h = (x.float() @ w.float().T).to(x.dtype).float()
    return (F.silu(h) * g.float()).to(x.dtype)


def gating(x: Tensor, w: Tensor, g: Tensor) -> Tensor:
    return F.silu(g) * (x.float() @ w.float().T).to(x.dtype)


def difference(q: Tensor, k: Tensor, v: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """Differential attention whose weights nothing rounds: two sums of 128 columns, and one that is rounded."""
    p, r = ((x.float() @ y.float().mT * 0.125).softmax(-1) for x, y in ((q, k), (g, h)))
    return ((p - 0.8 * r) @ v.float()).to(v.dtype)


def _products() -> Iterator[Program]:
    m, n = 2184, 2200
    for dtype in HALVES:
        x = In("x", (m, 264), dtype)

        def w(rows: int, c: int, d: str = dtype) -> In:
            return In("w", (rows, c), d, "weight", 0.1)

        yield Program("roles", f"{dtype} {m}x264x{n} product", product, (x, w(n, 264)))
        yield Program("roles", f"{dtype} {m}x264x{n} turned", turned, (x, w(264, n)))
        yield Program("roles", f"{dtype} {m}x264x{n} row_scale", row_scale, (
            x, w(n, 264), In("s", (m,), "f32", "weight", 0.1, 1.0)))
        for what, fn in (("rounded_gelu", rounded_gelu), ("gelu", gelu)):
            yield Program("roles", f"{dtype} {m}x264x{n} {what}", fn, (x, w(n, 264), In("b", (n,), dtype, "weight")))
        for what, fn in (("activated", activated), ("in_steps", in_steps)):
            yield Program("roles", f"{dtype} {m}x264x{n} {what}", fn, (x, w(n, 264), In("b", (n,), dtype, "weight")))
        yield Program("roles", f"{dtype} {m}x264x{n} two_gated", two_gated, (x, w(n, 264), replace(w(n, 264), name="u")))
        for what, fn in (("residual", residual), ("gated", gated)):
            yield Program("roles", f"{dtype} {m}x264x{n} {what}", fn, (x, w(n, 264), In("r", (m, n), dtype)))
        ins = (In("x", (5, 904, 328), dtype), In("w", (5, 1000, 328), dtype, "weight", 0.1))
        yield Program("roles", f"{dtype} 5x904x328x1000 product", product, ins)
        ins = (In("x", (1160, 2048), dtype), w(2312, 2048))
        yield Program("roles", f"{dtype} 1160x2048x2312 product", product, ins)
        for what, fn in (("residual", residual), ("gating", gating)):  # a loop of many steps, and a map of what it leaves
            yield Program("roles", f"{dtype} 1160x2048x2312 {what}", fn, (*ins, In("r", (1160, 2312), dtype)))


def programs() -> Iterator[Program]:
    pair = (In("a", (2184, 528), "e4m3"), In("b", (2224, 528), "e4m3", "weight"))
    eight = Program("roles", "e4m3 2184x528x2224 per_channel", per_channel, (
        *pair, In("s", (2184,), "f32", "weight", 0.1, 1.0), In("t", (2224,), "f32", "weight", 0.1, 1.0)))
    edges = program("roles", Way("/", cap=30.0, mask="wide window", bias="alibi"), TALL, "f16")
    wide = program("roles", Way("*", "inputs", cap=50.0, mask="causal"), TALL, "f16")
    three = Shape(h=11, g=11, i=2304, l=2304)
    masked = Program("roles", f"f16 {three} sdpa causal", library(True), qkv(three, "f16"))
    q, k, v = qkv(BASE, "bf16")
    two = Program("roles", f"bf16 {BASE} difference", difference, (
        q, k, replace(v, shape=(*v.shape[:-1], 128)), replace(q, name="g"), replace(k, name="h")))
    for each in (*alternate(_programs()), *alternate(_products()), eight, edges, wide, masked, two):
        yield replace(each, roles=True)


def _programs() -> Iterator[Program]:
    for dtype in HALVES:
        for way in WAYS:
            yield program("roles", way, BASE, dtype)
        for way in CAUSAL:
            yield program("roles", way, SQUARE, dtype)
        for way in (Way("*", "scores"), Way("/", also="lse")):
            yield program("roles", way, LONG, dtype)
        for way in (Way("*", "scores"), Way("/", "scores", also="lse"), Way("*", "scores", bias="tile"),
                    Way("*", "scores", mask="data", fill="finfo.min")):
            yield program("roles", way, SHORT, dtype)
        for way in (Way("*", "scores", mask="causal"), Way("/", "scores", mask="causal", also="lse"),
                    Way("*", "scores", mask="causal", bias="alibi"), Way("*", "scores", mask="window"),
                    Way("/", "scores", mask="none-seen"), Way("*", "scores", sink="sink-max")):
            yield program("roles", way, TALL, dtype)
        for d in (80, 96, 128, 256):
            yield program("roles", Way("*", "scores"), replace(BASE, d=d), dtype)
            yield program("roles", Way("*", "scores", mask="causal"), replace(SQUARE, d=d), dtype)
        shared = replace(SQUARE, g=4, d=128)
        yield program("roles", Way("*", "scores", group="repeat", mask="causal"), shared, dtype)
        for causal in (False, True):
            yield Program("roles", f"{dtype} {SQUARE} sdpa{' causal' * causal}", library(causal), qkv(SQUARE, dtype))
            yield Program("roles", f"{dtype} {shared} sdpa gqa{' causal' * causal}", library(causal, grouped=True),
                          qkv(shared, dtype))
        shapes = (("q", 328, 64), ("k", 400, 64), ("v", 400, 64), ("w", 400, 48))
        ins = tuple(In(name, (80, n, c), dtype) for name, n, c in shapes)
        yield Program("roles", f"{dtype} 80x328x400 d64 two_results", two_results, ins)
