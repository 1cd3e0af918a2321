"""Two tensors whose rows are reduced apart and meet in a result along the row: one kernel reads both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program

Fn = Callable[..., Tensor | tuple[Tensor, ...]]


def agreed(x: Tensor, y: Tensor) -> Tensor:
    return F.softmax(x, -1) * F.softmax(y, -1)


def two_norms(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) + F.layer_norm(y, y.shape[-1:])


def mixed(x: Tensor, y: Tensor) -> Tensor:
    """Of two heads, each by its own largest score."""
    return 0.3 * torch.sigmoid(x - x.amax(-1, keepdim=True)) + 0.7 * torch.exp(y - y.logsumexp(-1, keepdim=True))


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(x, -1), F.log_softmax(y, -1), reduction="none", log_target=True)


def scaled_both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each by its root mean square, and what they are apart."""
    a, b = F.rms_norm(x, x.shape[-1:], eps=1e-6), F.rms_norm(y, y.shape[-1:], eps=1e-6)
    return a + b, (a - b).square().mean(-1)


def programs() -> Iterator[Program]:
    def two(fn: Fn, dtype: str, *shape: int) -> Program:
        return Program("meeting", f"{dtype} {'x'.join(map(str, shape))} {fn.__name__}", fn,
                       (In("x", shape, dtype), In("y", shape, dtype)))

    yield from (two(agreed, dtype, 33, 515) for dtype in ("f16", "bf16", "f32"))
    yield two(two_norms, "bf16", 130, 768)
    yield two(two_norms, "f32", 9, 6000)
    yield two(mixed, "f32", 70, 200)
    yield two(divergence, "f32", 33, 1000)
    yield two(scaled_both, "f16", 3, 70, 264)
