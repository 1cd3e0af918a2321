"""One reduction of mapped columns, whose neighbours in memory are not of one of them: pooling of tokens under a mask, the least
of channels, distances of lines of a matrix."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from workloads.correctness.program import In, Program


def masked_mean(h: Tensor, keep: Tensor) -> Tensor:
    """As sentence encoders pool."""
    m = keep[..., None].to(h.dtype)
    return (h * m).sum(1) / m.sum(1).clamp(min=1e-9)


def masked_mean_expanded(h: Tensor, mask: Tensor) -> Tensor:
    m = mask.unsqueeze(-1).expand(h.size()).float()
    return (h.float() * m).sum(1) / torch.clamp(m.sum(1), min=1e-9)


def masked_max(h: Tensor, keep: Tensor) -> Tensor:
    return h.masked_fill(~keep[..., None], -1e4).max(1).values


def weighted(h: Tensor, w: Tensor) -> Tensor:
    return (h.float() * w.float()[..., None]).sum(1)


def least_channel(x: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(torch.tanh(torch.min((x + b[:, None, None]) * 2.0, dim=1, keepdim=True)[0]))


def farthest(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs().amax(0)


def products(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() * y.float()).sum(0)


def gated_mean(x: Tensor) -> Tensor:
    return torch.relu(x.float()).mean(1)


def kept(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The sum is a result, and so is what it sums."""
    h = x.float() + y.float()
    return h, h.sum(1)


def votes(x: Tensor, y: Tensor) -> Tensor:
    return ((x > y) & (x > 0)).any(1)


def agree(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() * y.float() >= 0).all(0)


def spread(x: Tensor) -> Tensor:
    """Of both ends, behind one map."""
    h = x.float() * 0.5 + 1.0
    return h.amax(1) - h.amin(1)


def programs() -> Iterator[Program]:
    for dtype, shape in (("bf16", (5, 130, 200)), ("f32", (130, 97, 256))):
        size = "x".join(map(str, shape))
        yield Program("pooled", f"{dtype} {size} masked mean", masked_mean, (
            In("h", shape, dtype), In("keep", shape[:2], "bool", "keep")))
    yield Program("pooled", "f16 40x257x320 masked mean expanded", masked_mean_expanded, (
        In("h", (40, 257, 320), "f16"), In("mask", (40, 257), "i64", "label")))
    yield Program("pooled", "bf16 9x70x768 masked max", masked_max, (
        In("h", (9, 70, 768), "bf16"), In("keep", (9, 70), "bool", "keep")))
    yield Program("pooled", "f16 40x900x129 weighted", weighted, (
        In("h", (40, 900, 129), "f16"), In("w", (40, 900), "f16")))
    yield Program("pooled", "f32 6x48x20x31 least channel", least_channel, (
        In("x", (6, 48, 20, 31), "f32"), In("b", (48,), "f32", "weight")))
    for dtype, shape in (("f32", (40000, 70)), ("bf16", (40, 8200))):
        size = "x".join(map(str, shape))
        yield Program("pooled", f"{dtype} {size} farthest", farthest, (In("x", shape, dtype), In("y", shape, dtype)))
    yield Program("pooled", "f16 20000x136 products", products, (In("x", (20000, 136), "f16"), In("y", (20000, 136), "f16")))
    yield Program("pooled", "bf16 33x301x260 gated mean", gated_mean, (In("x", (33, 301, 260), "bf16"),))
    yield Program("pooled", "f32 64x512x49 gated mean", gated_mean, (In("x", (64, 512, 49), "f32"),))
    yield Program("pooled", "f16 33x203x192 kept", kept, (In("x", (33, 203, 192), "f16"), In("y", (33, 203, 192), "f16")))
    yield Program("pooled", "f32 8x400x1000 votes", votes, (In("x", (8, 400, 1000), "f32"), In("y", (8, 400, 1000), "f32")))
    yield Program("pooled", "bf16 64x4100 agree", agree, (In("x", (64, 4100), "bf16"), In("y", (64, 4100), "bf16")))
    yield Program("pooled", "f16 12x333x640 spread", spread, (In("x", (12, 333, 640), "f16"),))
