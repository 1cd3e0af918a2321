"""Scans along rows, with the maps before and after them: running sums and products, of data and of masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from workloads.correctness.program import In, Program


def running_sum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def masked(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).cumsum(-1)


def positions(m: Tensor) -> Tensor:
    return (m.cumsum(-1) - 1).clamp(min=0)


def decay(x: Tensor) -> Tensor:
    return torch.exp(-torch.cumsum(x.float().abs() * 0.01, -1)).to(x.dtype)


def transmittance(x: Tensor) -> Tensor:
    return torch.cumprod(1.0 - torch.sigmoid(x.float()) * 0.1, -1)


def nucleus(x: Tensor) -> Tensor:
    p = torch.softmax(x.float(), -1)
    return (torch.cumsum(p, -1) - p).to(x.dtype)


def running_mean(x: Tensor) -> Tensor:
    n = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=torch.float32)
    return x.float().cumsum(-1) / n


def from_the_end(x: Tensor) -> Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def down(x: Tensor) -> Tensor:
    """Places of tokens in the queues of their experts, counted down the tokens."""
    return (x.cumsum(-2) * x - 1).to(x.dtype)


def gates(x: Tensor) -> Tensor:
    """What is left of a state after each step of a chunk, by channel."""
    return torch.exp(-torch.cumsum(x.float().abs() * 0.05, 1)).to(x.dtype)


def segments(x: Tensor) -> Tensor:
    """Sums from one step to another (Mamba-2): below the diagonal, down the steps."""
    n = x.shape[-1]
    below = torch.ones(n, n, dtype=torch.bool, device=x.device).tril(-1)
    return x[..., None].expand(*x.shape, n).masked_fill(~below, 0.0).cumsum(-2)


def programs() -> Iterator[Program]:
    def over(what: str, fn: Callable[..., Tensor], shape: tuple[int, ...], dtype: str, *more: In) -> Program:
        return Program("scans", f"{dtype} {'x'.join(map(str, shape))} {what}", fn, (In("x", shape, dtype), *more))

    yield over("sum", running_sum, (300, 1024), "f32")
    yield over("sum", running_sum, (64, 777), "f16")
    yield over("sum", running_sum, (40, 40000), "bf16")
    yield over("sum", running_sum, (3, 5, 37), "f32")
    yield over("masked", masked, (48, 777), "f32", In("m", (48, 777), "bool", "keep"))
    yield over("masked", masked, (40, 4096), "f16", In("m", (40, 4096), "bool", "keep"))
    yield Program("scans", "i64 9x37 positions", positions, (In("m", (9, 37), "i64", "label"),))
    yield Program("scans", "bool 40x40000 positions", positions, (In("m", (40, 40000), "bool", "keep"),))
    yield over("decay", decay, (2, 33, 777), "bf16")
    yield over("decay", decay, (40, 40000), "f32")
    yield over("transmittance", transmittance, (128, 192), "f16")
    yield over("nucleus", nucleus, (40, 777), "f16")
    yield over("running mean", running_mean, (40, 5000), "f32")
    yield over("from the end", from_the_end, (64, 777), "f32")
    yield over("down", down, (3000, 8), "f32")
    yield over("down", down, (2, 777, 4), "bf16")
    yield over("down", down, (900, 300), "f32")
    yield over("gates", gates, (3, 777, 70), "f32")
    yield over("gates", gates, (2, 300, 5, 40), "bf16")
    yield over("gates", gates, (2, 64, 48, 16), "f16")
    yield over("segments", segments, (2, 6, 100), "f32")
    yield Program("scans", "i64 700x96 down positions", lambda m: m.cumsum(0) - 1, (In("m", (700, 96), "i64", "label"),))
