"""Clips at results of a row that bound what is clipped, or nearly; matrices less the means of their rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.correctness.program import TAME, In, Program, mask


def kept(x: Tensor) -> tuple[Tensor, Tensor]:
    """A picture no further than its size or one, over that, and its mean."""
    s = x.abs().amax(-1, keepdim=True).clamp(min=1.0)
    y = torch.minimum(torch.maximum(x, -s), s) / s
    return y, y.mean(-1)


def shown(x: Tensor, keep: Tensor) -> Tensor:
    """Sums of what a mask shows, clipped at a size of all."""
    s = x.abs().amax(-1, keepdim=True)
    return torch.where(keep, torch.minimum(torch.maximum(x, -s), s), 0.0).sum(-1)


def hidden(x: Tensor, keep: Tensor) -> Tensor:
    """Clipped at a size of what the mask shows alone: it bounds nothing else."""
    s = torch.where(keep, x, 0.0).abs().amax(-1, keepdim=True)
    return torch.minimum(torch.maximum(x, -s), s).sum(-1)


def below_largest(x: Tensor) -> Tensor:
    """A bound from above alone, which is the maximum itself."""
    m = x.amax(-1, keepdim=True)
    return torch.exp(torch.minimum(x, m) - m).sum(-1)


def between(x: Tensor) -> Tensor:
    """Between the least and the largest, and over the room between them."""
    low, high = x.aminmax(dim=-1, keepdim=True)
    return ((x.clamp(low, high) - low) / (high - low + 1.0)).mean(-1)


def half_the_size(x: Tensor) -> Tensor:
    s = 0.5 * x.abs().amax(-1, keepdim=True)
    return (torch.minimum(torch.maximum(x, -s), s) / (s + 1.0)).sum(-1)


def another_rows(x: Tensor, z: Tensor) -> Tensor:
    s = z.abs().amax(-1, keepdim=True)
    return (torch.minimum(torch.maximum(x, -s), s) / (s + 1.0)).sum(-1)


def levels(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric levels of eight bits whose clip changes nothing, and the error of them."""
    s = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 127
    q = (x / s).round().clamp(-127, 127)
    return q.to(torch.int8), (q * s - x).abs().mean(-1)


def three_deviations(x: Tensor) -> Tensor:
    """Three deviations from the mean and no further."""
    m, d = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return torch.maximum(torch.minimum(x, m + 3 * d), m - 3 * d).mean(-1)


def centred(x: Tensor) -> Tensor:
    """A kernel's matrix less the means of its rows and columns."""
    k = torch.exp(-(x[..., :, None] - x[..., None, :]).abs())
    return k - k.mean(-1, keepdim=True) - k.mean(-2, keepdim=True) + k.mean((-2, -1), keepdim=True)


def centred_of(k: Tensor) -> Tensor:
    return k - k.mean(-1, keepdim=True) - k.mean(-2, keepdim=True) + k.mean((-2, -1), keepdim=True)


def crossed(k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows less their maxima, columns less theirs, and what both have in common."""
    a, b = (k - k.amax(-1, keepdim=True)).exp(), (k - k.amax(-2, keepdim=True)).exp()
    return a.sum(-1), b.sum(-2), (a * b).sum((-2, -1))


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], *ins: In) -> Program:
        only = TAME if fn is three_deviations else ()
        return Program("bounds", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins, only=only)

    def x(shape: tuple[int, ...], dtype: str = "f32", name: str = "x") -> In:
        return In(name, shape, dtype)

    for shape, dtype in (((33, 700), "f32"), ((3, 70000), "f16"), ((128, 64), "bf16")):
        yield of("kept", kept, x(shape, dtype))
        yield of("shown", shown, x(shape, dtype), mask("keep", *shape))
        yield of("half the size", half_the_size, x(shape, dtype))
    for shape, dtype in (((33, 700), "f32"), ((3, 50000), "f32")):
        yield of("hidden", hidden, x(shape, dtype), mask("keep", *shape))
        yield of("below the largest", below_largest, x(shape, dtype))
        yield of("between", between, x(shape, dtype))
        yield of("another row's", another_rows, x(shape, dtype), x(shape, dtype, "z"))
        yield of("three deviations", three_deviations, x(shape, dtype))
    for shape, dtype in (((40, 300), "f16"), ((5, 20000), "f32")):
        yield of("levels", levels, x(shape, dtype))
    yield of("centred kernel", centred, x((3, 70)))
    for shape, dtype in (((130, 130), "f32"), ((3, 40, 72), "f16"), ((300, 520), "f32")):
        yield of("centred", centred_of, x(shape, dtype, "k"))
        yield of("crossed", crossed, x(shape, dtype, "k"))
