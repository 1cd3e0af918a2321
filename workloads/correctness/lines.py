"""Rows that lie side by side in memory, reduced several times by blocks that hold lines of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from workloads.correctness.program import In, Program, label


def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, skew and excess of each column."""
    z = (x - x.mean(-2, keepdim=True)) / (x.std(-2, keepdim=True) + 1e-3)
    return x.mean(-2), z.pow(3).mean(-2), z.pow(4).mean(-2) - 3


def together(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Correlation of columns, and how far they are apart at most."""
    a, b = x - x.mean(-2, keepdim=True), z - z.mean(-2, keepdim=True)
    return (a * b).mean(-2) / ((a * a).mean(-2) * (b * b).mean(-2) + 1e-3).sqrt(), (a - b).abs().amax(-2)


def between(x: Tensor) -> Tensor:
    """To [0, 1] along a column, NaN kept."""
    low, high = x.amin(-2, keepdim=True), x.amax(-2, keepdim=True)
    return (x - low) / (high - low + 1e-3)


def soft(x: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax down columns, and its entropy."""
    p = torch.softmax(x.float(), -2)
    return p.to(x.dtype), -(p * torch.log(p + 1e-6)).sum(-2)


def shown(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and greatest of the steps that a mask shows."""
    k = keep.unsqueeze(-1)
    return (x * k).sum(-2) / k.sum(-2).clamp(min=1), torch.where(k, x, -1e4).amax(-2)


def scaled(x: Tensor, w: Tensor) -> Tensor:
    """RMS norm of channels that come first."""
    return x * torch.rsqrt(x.float().square().mean(-2, keepdim=True) + 1e-5).to(x.dtype) * w.unsqueeze(-1)


def apart(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Two softmaxes of columns that may be nearly the same, subtracted."""
    m = torch.maximum(x.float().amax(-2, keepdim=True), z.float().amax(-2, keepdim=True))
    p, q = torch.exp(x.float() - m), torch.exp(z.float() - m)
    return (p - q).abs().sum(-2), (p - q).amax(-2)


def whole(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of integers: range and sum of a column."""
    return x.amax(-2) - x.amin(-2), x.sum(-2)


SHAPES = (((512, 1024), "f32"), ((3, 256, 320), "f16"), ((2, 512, 80), "f32"), ((2, 300, 96), "bf16"), ((5, 100, 48), "f16"),
          ((1024, 256), "f32"), ((2000, 64), "f32"), ((4, 96, 3136), "f16"))
"""Lines of 32 and 16 rows, those that leave the tensor, and rows that no tile of either holds."""


def programs() -> Iterator[Program]:
    for shape, dtype in SHAPES:
        x, z = In("x", shape, dtype), In("z", shape, dtype)
        keep, w = In("keep", shape[:-1], "bool", "keep"), In("w", (shape[-2],), dtype, shift=1.0)
        of = (("moments", moments, (x,)), ("together", together, (x, z)), ("between", between, (x,)), ("soft", soft, (x,)),
              ("shown", shown, (x, keep)), ("scaled", scaled, (x, w)), ("apart", apart, (x, z)))
        for what, fn, ins in of:
            yield Program("lines", f"{dtype} {'x'.join(map(str, shape))} {what}", fn, ins)
    for shape in ((512, 320), (3, 200, 80)):
        yield Program("lines", f"i64 {'x'.join(map(str, shape))} whole", whole, (label("x", *shape, high=1 << 20),))
