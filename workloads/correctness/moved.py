"""Inputs that maps read where they lie: at computed places (crosses, rolls, ends repeated) and before axes are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program


def crossed(u: Tensor, v: Tensor) -> Tensor:
    return torch.linalg.cross(u[..., 1:], v) * 2 + v


def rotated(q: Tensor, v: Tensor) -> Tensor:
    """Points turned by quaternions."""
    q = F.normalize(q, dim=-1)
    w, u = q[..., :1], q[..., 1:]
    t = 2 * torch.linalg.cross(u, v)
    return v + w * t + torch.linalg.cross(u, t)


def rolled(x: Tensor, b: Tensor) -> Tensor:
    return torch.roll(x, (3, -1), (2, 3)).flatten(2) * 2 + b


def halves_swapped(x: Tensor, y: Tensor) -> Tensor:
    at = (torch.arange(x.shape[-1], device=x.device) + x.shape[-1] // 2) % x.shape[-1]
    return x[..., at] * y + x


def smoothed(x: Tensor) -> tuple[Tensor, Tensor]:
    """What a series does over five steps, its ends repeated, and what is left."""
    y = F.avg_pool1d(F.pad(x.transpose(1, 2), (2, 2), mode="replicate"), 5, 1).transpose(1, 2)
    return y, x - y


def gated_heads(o: Tensor, g: Tensor) -> Tensor:
    b, h, n, d = o.shape
    return o.transpose(1, 2).reshape(b, n, h * d) * torch.sigmoid(g)


def channels_apart(x: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(x.transpose(1, 2).reshape(-1, x.shape[1]) + b)


def windows(x: Tensor, y: Tensor) -> Tensor:
    """Windows of a picture with channels last, rolled."""
    b, h, w, c = x.shape
    return x.roll((-2, -2), (1, 2)).reshape(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c) * y.exp()


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], *ins: In) -> Program:
        return Program("moved", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins)

    def x(shape: tuple[int, ...], dtype: str = "f32", name: str = "x") -> In:
        return In(name, shape, dtype)

    yield of("crossed", crossed, x((700, 4), "f32", "u"), x((700, 3), "f32", "v"))
    yield of("rotated", rotated, x((5, 130, 4), "f32", "q"), x((5, 130, 3), "f32", "v"))
    for shape, dtype in (((2, 3, 14, 10), "f32"), ((3, 8, 16, 16), "f16")):
        yield of("rolled", rolled, x(shape, dtype), x((shape[2] * shape[3],), dtype, "b"))
    for shape, dtype in (((3, 40, 64), "f16"), ((7, 30), "f32")):
        yield of("halves swapped", halves_swapped, x(shape, dtype), x(shape, dtype, "y"))
    yield of("smoothed", smoothed, x((3, 70, 21)))
    for b, h, n, d, dtype in ((2, 4, 33, 64, "f16"), (1, 3, 20, 40, "f32"), (2, 4, 33, 8, "bf16")):
        yield of("gated heads", gated_heads, x((b, h, n, d), dtype, "o"), x((b, n, h * d), dtype, "g"))
    for shape, dtype in (((3, 65, 24), "f32"), ((3, 65, 21), "f32"), ((2, 33, 64), "bf16")):
        yield of("channels apart", channels_apart, x(shape, dtype), x((shape[1],), dtype, "b"))
    yield of("windows", windows, x((2, 8, 12, 32), "f16"), x((16, 32), "f16", "y"))
