"""Rows whose elements lie apart while they lie side by side, as classes and channels of pictures do: a few, odd numbers of
them, more than a thread has; and what is computed where it is read: distances, margins, large windows, running sums of few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import TAME, In, Program


def classes(x: Tensor) -> Tensor:
    return x.softmax(1)


def entropy(x: Tensor) -> Tensor:
    p = x.float().softmax(1)
    return -(p * (p + 1e-8).log()).sum(1)


def labelled(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), t, reduction="none")


def drawn_map(x: Tensor) -> tuple[Tensor, Tensor]:
    """The best class of a pixel, and how sure."""
    return x.softmax(1).max(1)


def centred(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A layer norm over channels that come first."""
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return w[:, None, None] * ((x - u) / (s + 1e-6).sqrt()) + b[:, None, None]


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=1)


def trimmed(x: Tensor) -> Tensor:
    """A mean of what is near the mean, down the columns of a few."""
    m, s = x.mean(1, keepdim=True), x.std(1, keepdim=True)
    keep = (((x - m) / (s + 1e-6)).abs() < 2.5).to(x.dtype)
    return (x * keep).sum(1) / keep.sum(1)


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x.softmax(1) * y).sum(1), x.logsumexp(1)


def stitched(a: Tensor, c: Tensor) -> Tensor:
    return torch.stack((a.softmax(-1), c.softmax(-1))).mean(0)


def generalised(x: Tensor) -> Tensor:
    """A generalised mean of each picture."""
    return F.avg_pool2d(x.float().clamp(min=1e-3).pow(3), x.shape[-2:]).pow(1 / 3)


def blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.avg_pool2d(x, (20, 15)) * 2, F.max_pool2d(x, 16) + 1


def nearest(a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Of either set the distances to the other's nearest."""
    d = (a[:, :, None] - c[:, None]).pow(2).sum(-1)
    return d.amin(2), d.amin(1)


def margin(x: Tensor, t: Tensor) -> Tensor:
    z = torch.where(F.one_hot(t, x.shape[-1]).bool(), (x.clamp(-0.9, 0.9).acos() + 0.5).cos(), x) * 16
    return z.log_softmax(-1).gather(1, t[:, None])


def knots(x: Tensor) -> Tensor:
    return F.pad(x.cumsum(-1), (1, 0)) * 6 - 3


def survived(x: Tensor) -> Tensor:
    """Products that run, of a few."""
    return (1 - x.sigmoid()).cumprod(-1) * 2


def odd(x: Tensor, w: Tensor) -> Tensor:
    return (x * w + 1).relu()


def overlap(a: Tensor, c: Tensor) -> Tensor:
    """How much of two boxes' union is of both, by products of two sides."""
    a, c = a[:, :, None], c[:, None]
    inside = (torch.minimum(a[..., 2:], c[..., 2:]) - torch.maximum(a[..., :2], c[..., :2])).clamp(min=0).prod(-1)
    areas = [(x[..., 2:] - x[..., :2]).prod(-1).abs() for x in (a, c)]
    return (inside / (areas[0] + areas[1] + 1 - inside)).amax(-1)


def weights(x: Tensor) -> tuple[Tensor, Tensor]:
    """What decides the best class, and what it is the best of."""
    p = x.softmax(1).movedim(1, -1)
    return p, p


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], dtype: str, shape: tuple[int, ...], *more: In, **how: Any) -> Program:
        return Program("planes", f"{dtype} {'x'.join(map(str, shape))} {what}", fn, (In("x", shape, dtype), *more), **how)

    yield of("classes", classes, "f16", (4, 21, 64, 64))
    yield of("classes", classes, "f32", (2, 19, 50, 77))
    yield of("classes", classes, "bf16", (2, 150, 48, 40))
    yield of("classes", classes, "f32", (4, 8, 256, 256))
    yield of("classes", classes, "f16", (3, 33, 40, 41))
    yield of("classes", classes, "f32", (4096, 5, 64))
    yield of("entropy", entropy, "f16", (2, 19, 96, 96))
    yield of("labelled", labelled, "f16", (2, 150, 40, 40), In("t", (2, 40, 40), "i64", "label", high=150))
    yield of("best", drawn_map, "f32", (4, 21, 64, 64), ranked=weights)
    yield of("best", drawn_map, "f16", (2, 40, 64, 48), ranked=weights)
    for dtype, shape in (("f16", (3, 96, 28, 28)), ("f32", (2, 40, 30, 31)), ("bf16", (2, 57, 33, 20)),
                         ("f16", (2, 24, 56, 56))):
        yield of("centred", centred, dtype, shape, In("w", shape[1:2], dtype), In("b", shape[1:2], dtype))
    yield of("unit", unit, "f32", (4, 3, 300, 301))
    yield of("unit", unit, "f16", (2, 65, 64, 70))
    yield of("trimmed", trimmed, "f32", (8, 1000, 16), only=TAME)
    yield of("mixed", mixed, "f32", (4096, 8, 64), In("y", (4096, 8, 64), "f32"))
    yield of("stitched", stitched, "f32", (20000, 2, 32), In("c", (20000, 2, 32), "f32"))
    yield of("generalised", generalised, "f16", (4, 24, 33, 32))
    yield of("blocks", blocks, "f32", (2, 7, 41, 47))
    yield Program("planes", "f32 4x1200x1300x3 nearest", nearest, (In("a", (4, 1200, 3), "f32"), In("c", (4, 1300, 3), "f32")))
    yield of("margin", margin, "f16", (200, 500), In("t", (200,), "i64", "label", high=500))
    yield of("knots", knots, "f32", (150000, 8))
    yield of("survived", survived, "f32", (200000, 7))
    for dtype, shape in (("f32", (5000, 9)), ("f16", (3001, 7)), ("bf16", (999, 27))):
        yield of("odd", odd, dtype, shape, In("w", shape[-1:], dtype))
    yield Program("planes", "f32 8x100x50 overlap", overlap, (In("a", (8, 100, 4), "f32"), In("c", (8, 50, 4), "f32")))
