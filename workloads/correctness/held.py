"""Rows that are reduced again by what does not merge: deviations, counts and losses about the row's own statistics."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program


def absolute_deviation(x: Tensor) -> Tensor:
    x = x.float()
    return (x - x.mean(-1, keepdim=True)).abs().mean(-1)


def by_absolute_deviation(x: Tensor) -> Tensor:
    d = x.float() - x.float().mean(-1, keepdim=True)
    return (d / (d.abs().mean(-1, keepdim=True) + 1e-3)).to(x.dtype)


def entropy(x: Tensor) -> Tensor:
    p = torch.softmax(x.float(), -1)
    return -(p * torch.log(p + 1e-9)).sum(-1)


def entropy_clamped(x: Tensor) -> Tensor:
    p = torch.softmax(x.float(), -1)
    return -(p * torch.log2(p.clamp_min(1e-9))).sum(-1)


def huber_about_mean(x: Tensor) -> Tensor:
    x = x.float()
    return F.huber_loss(x, x.mean(-1, keepdim=True).expand_as(x), reduction="none").mean(-1)


def biweight(x: Tensor) -> Tensor:
    d = x.float() - x.float().mean(-1, keepdim=True)
    u = d / (6.0 * d.abs().mean(-1, keepdim=True) + 1e-3)
    return ((1 - u * u) ** 2 * (u.abs() < 1)).sum(-1)


def farthest_from_mean(x: Tensor) -> Tensor:
    return (x.float() - x.float().mean(-1, keepdim=True)).abs().amax(-1)


def temperature_of_the_row(x: Tensor) -> Tensor:
    x = x.float()
    return torch.log(torch.exp(x / (x.abs().amax(-1, keepdim=True) + 1)).sum(-1))


def quantisation_error(x: Tensor) -> tuple[Tensor, Tensor]:
    s = x.float().abs().amax(-1, keepdim=True) / 7.0 + 1e-3
    q = torch.round(x.float() / s)
    return ((x.float() - q * s) ** 2).mean(-1), q.to(torch.int8)


def winsorised(x: Tensor) -> Tensor:
    x = x.float()
    m, s = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    c = torch.minimum(torch.maximum(x, m - 2 * s), m + 2 * s)
    return ((c - c.mean(-1, keepdim=True)) ** 2).mean(-1)


def down(x: Tensor) -> Tensor:
    x = x.float()
    return (x - x.mean(0, keepdim=True)).abs().mean(0)


OF_A_ROW = {"absolute deviation": absolute_deviation, "by absolute deviation": by_absolute_deviation, "entropy": entropy,
            "entropy clamped": entropy_clamped, "Huber": huber_about_mean, "biweight": biweight, "farthest": farthest_from_mean,
            "temperature": temperature_of_the_row, "quantisation error": quantisation_error, "winsorised": winsorised}


def programs() -> Iterator[Program]:
    for at, (what, fn) in enumerate(OF_A_ROW.items()):
        for n, dtype in enumerate(("f32", "f16", "bf16")):
            shape = ((37, 300), (24, 1024), (5, 7001))[(at + n) % 3]
            yield Program("held", f"{dtype} {shape[0]}x{shape[1]} {what}", fn, (In("x", shape, dtype),))
    yield Program("held", "f32 300x520 down", down, (In("x", (300, 520), "f32"),))
    yield Program("held", "f16 4x1 one column", absolute_deviation, (In("x", (4, 1), "f16"),))
    yield Program("held", "f32 60x200 expm1 of clamped", lambda x: (torch.expm1(x.clamp(max=3)) ** 2).sum(-1) + x.amax(-1),
                  (In("x", (60, 200), "f32"),))
