"""Statistics of a row: moments in the ways books and programs write them, inertia, distances, and sums of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.correctness.program import In, Program

Fn = Callable[..., Any]


def variance(x: Tensor) -> Tensor:
    return torch.var(x, -1, correction=0)


def variance_sample(x: Tensor) -> Tensor:
    return x.var(-1)


def variance_hand(x: Tensor) -> Tensor:
    return ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)


def deviation(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(-1), x.std(-1)


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


def skewness(x: Tensor) -> Tensor:
    c = x - x.mean(-1, keepdim=True)
    return (c**3).mean(-1) / ((c**2).mean(-1) ** 1.5)


def kurtosis(x: Tensor) -> Tensor:
    c = x - x.mean(-1, keepdim=True)
    return (c**4).mean(-1) / (c**2).mean(-1) ** 2


def coefficient(x: Tensor) -> Tensor:
    return x.std(-1) / x.mean(-1)


def span(x: Tensor) -> Tensor:
    lo, hi = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return ((x - lo) / (hi - lo)).mean(-1)


def spread_of_span(x: Tensor) -> Tensor:
    lo, hi = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return ((x - lo) / (hi - lo)).var(-1)


def absolute(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)).abs().mean(-1)


def beside(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.amax(-1), x.sum(-1), torch.logsumexp(x, -1)


def sums(x: Tensor) -> Tensor:
    """A sum, and a sum of what it is divided by."""
    p = x / x.abs().sum(-1, keepdim=True)
    return (p * p).sum(-1)


def totals(x: Tensor) -> Tensor:
    return (x / x.sum(-1, keepdim=True)).sum(-1) + x.sum(-1)


def gini(x: Tensor) -> Tensor:
    p = torch.softmax(x, -1)
    return 1.0 - (p * p).sum(-1)


def power_mean(x: Tensor) -> Tensor:
    m = x.abs().amax(-1, keepdim=True)
    return m[..., 0] * ((x / m).abs() ** 3).mean(-1) ** (1 / 3)


ROW: dict[str, Fn] = {
    "variance": variance, "variance sample": variance_sample, "variance hand": variance_hand, "deviation": deviation,
    "standardised": standardised, "skewness": skewness, "kurtosis": kurtosis, "coefficient": coefficient, "span": span,
    "variance of span": spread_of_span, "absolute": absolute, "three beside": beside, "squares of shares": sums,
    "totals": totals, "gini": gini, "power mean": power_mean,
}


def inertia(m: Tensor, x: Tensor) -> Tensor:
    c = (m[..., None] * x).sum(1) / m.sum(1, keepdim=True)
    return (m * ((x - c[:, None]) ** 2).sum(-1)).sum(1)


def inertia_full(m: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    c = torch.einsum("bn,bnc->bc", m, x) / m.sum(1, keepdim=True)
    return c, (m * ((x - c[:, None]) ** 2).sum(-1)).sum(1)


def correlation(x: Tensor, y: Tensor) -> Tensor:
    a, b = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (a * b).sum(-1) / torch.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def covariance(x: Tensor, y: Tensor) -> Tensor:
    return ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).mean(-1)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return torch.cosine_similarity(x, y, dim=-1)


def weighted(x: Tensor, w: Tensor) -> Tensor:
    mean = (w * x).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
    return (w * (x - mean) ** 2).sum(-1) / w.sum(-1)


def pooled(x: Tensor, s: Tensor) -> Tensor:
    """Attention pooling: a softmax over positions weighs vectors."""
    return (torch.softmax(s, -1)[..., None] * x).sum(-2)


def programs() -> Iterator[Program]:
    for what, fn in ROW.items():
        yield Program("statistics", f"f32 9x777 {what}", fn, (In("x", (9, 777), "f32", shift=3.0),))
        if what in ("variance", "deviation", "gini", "three beside", "squares of shares"):
            yield Program("statistics", f"bf16 9x777 {what}", fn, (In("x", (9, 777), "bf16", shift=1.0),))
    for what in ("variance", "variance hand"):
        for rows, n in ((1, 8192), (128, 2048), (3, 131072)):
            yield Program("variance", f"f32 {rows}x{n} {what}", ROW[what], (In("x", (rows, n), "f32", shift=3.0),))
        for strategy, splits in (("single", 0), ("resident", 0), ("multi", 4)):
            ins = (In("x", (6, 3000), "f32", shift=3.0),)
            yield Program("variance", f"f32 6x3000 {what}", ROW[what], ins, strategy, splits)
    for what, fn in (("inertia", inertia), ("with its centre", inertia_full)):
        for b, n in ((3, 500), (1, 8192)):
            yield Program("inertia", f"f32 {b}x{n} {what}", fn, (In("m", (b, n), "f32", "positive"),
                                                                In("x", (b, n, 3), "f32", shift=5.0)))
    for what, fn in (("correlation", correlation), ("covariance", covariance), ("cosine", cosine)):
        for dtype in ("f32", "bf16"):
            yield Program("statistics", f"{dtype} 9x777 {what}", fn, (In("x", (9, 777), dtype), In("y", (9, 777), dtype)))
    yield Program("statistics", "f32 9x777 weighted", weighted,
                  (In("x", (9, 777), "f32"), In("w", (9, 777), "f32", "positive")))
    for dtype in ("f16", "f32"):
        ins = (In("x", (5, 200, 64), dtype), In("s", (5, 200), dtype))
        yield Program("statistics", f"{dtype} 5x200x64 pooled", pooled, ins)
    for dtype in ("bf16", "f32"):
        yield Program("statistics", f"{dtype} 33x4096 sum of sums", sums, (In("x", (33, 4096), dtype),))
