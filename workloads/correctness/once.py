"""Values that a comparison finds again, rows whose reduction is all there is, small matrices by the thousand, rows read along
one axis and written along another, counts, and sums of whole tensors in pieces that no tile divides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.correctness.program import TAME, In, Program


def brightest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Hue and value of a picture: which colour is the largest."""
    r, g, b = x.sigmoid().unbind(1)
    every = torch.stack([r, g, b], 1)
    most = every.amax(1)
    d = (most - every.amin(1)).clamp(min=0.01)
    return torch.where(most == r, (g - b) / d, torch.where(most == g, (b - r) / d + 2, (r - g) / d + 4)), most


def kept_of_the_best(x: Tensor) -> Tensor:
    s = (x * 0.3 + 0.1).tanh()
    return s.masked_fill(s < s.topk(3, -1).values[..., -1:], 0.0)


def peaks(x: Tensor) -> Tensor:
    """Elements that are the largest of their row and of their column."""
    p = (x * 0.7).exp()
    return torch.where((p == p.amax(-1, keepdim=True)) & (p == p.amax(-2, keepdim=True)), p, 0.0)


def pairs(x: Tensor) -> Tensor:
    d = (x[:, :, None] - x[:, None]).pow(2).sum(-1)
    near = ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device) & (d < 6.25)
    i3 = 1 / torch.where(near, d.clamp(min=0.5), 1.0)
    return torch.where(near, i3 * i3 - i3, 0.0).sum((1, 2)) * 0.5


def farthest(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = torch.cdist(a, b)
    return d.amin(1).amax(), d.amin(0).amax()


def most(x: Tensor) -> Tensor:
    return x.amax(-1)


def total(x: Tensor) -> Tensor:
    return x.sum(-1)


def mixed(a: Tensor, h: Tensor) -> Tensor:
    return torch.einsum("bnm,bnd->bmd", a, h)


def turned(q: Tensor, p: Tensor) -> Tensor:
    return torch.einsum("nij,npj->npi", q, p)


def heads_last(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2).softmax(-1)


def normed_heads_last(x: Tensor) -> Tensor:
    y = x.permute(0, 3, 1, 2)
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)


def agreement(u: Tensor, v: Tensor) -> Tensor:
    return (u * v[:, None]).sum(-1)


def flow_error(f: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    e = (f - g).pow(2).sum(1).sqrt()
    v = m & (g.pow(2).sum(1) < 9)
    return (e * v).sum() / v.sum().clamp(min=1), (e.gt(1.5) & v).sum(), v.sum()


def counted(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hit = (x > 0) & k
    return hit.sum(-1), (x * hit).sum(-1), k.sum(-1)


def variation(x: Tensor) -> Tensor:
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean((1, 2, 3)) + (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3))


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], dtype: str, shape: tuple[int, ...], *more: In, **how: Any) -> Program:
        return Program("once", f"{dtype} {'x'.join(map(str, shape))} {what}", fn, (In("x", shape, dtype), *more), **how)

    yield of("brightest", brightest, "f32", (2, 3, 96, 100), only=TAME)
    yield of("brightest", brightest, "f32", (4, 3, 33, 31), only=TAME)
    yield of("best kept", kept_of_the_best, "f32", (300, 200), only=TAME)
    yield of("peaks", peaks, "f32", (8, 40, 56), only=TAME)
    yield of("pairs", pairs, "f32", (3, 130, 3), only=TAME)
    yield of("pairs", pairs, "f32", (16, 512, 3), only=TAME)
    yield of("farthest", farthest, "f32", (500, 64), In("b", (700, 64), "f32"), only=TAME)
    for dtype, shape in (("f16", (9000, 130, 4)), ("f32", (300000, 7)), ("bf16", (70000, 16)), ("f32", (40000, 32))):
        yield of("most", most, dtype, shape)
    yield of("total", total, "f32", (100000, 12))
    yield of("total", total, "f16", (90000, 31))
    yield of("mixed", mixed, "bf16", (1024, 4, 4), In("h", (1024, 4, 256), "bf16"))
    yield of("mixed", mixed, "f32", (513, 3, 5), In("h", (513, 3, 150), "f32"))
    yield of("turned", turned, "f32", (20000, 3, 3), In("p", (20000, 8, 3), "f32"))
    yield of("heads last", heads_last, "f32", (2, 40, 128, 32))
    yield of("heads last", heads_last, "f16", (3, 33, 65, 16))
    yield of("heads last", heads_last, "bf16", (2, 20, 200, 48))
    yield of("normed heads last", normed_heads_last, "f16", (2, 31, 96, 24))
    yield of("agreement", agreement, "f16", (8, 500, 10, 16), In("v", (8, 10, 16), "f16"))
    yield of("flow", flow_error, "f32", (3, 2, 64, 1024), In("g", (3, 2, 64, 1024), "f32"),
             In("m", (3, 64, 1024), "bool", "keep"), only=TAME)
    yield of("counted", counted, "f32", (40, 3000), In("k", (40, 3000), "bool", "keep"))
    yield of("counted", counted, "f16", (2000, 77), In("k", (2000, 77), "bool", "keep"))
    yield of("variation", variation, "f32", (3, 3, 256, 512))
    yield of("variation", variation, "f16", (2, 3, 200, 321))
