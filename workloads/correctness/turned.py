"""Maps whose results lie across what they are made of: transpositions, channels first or last, heads, colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program


def copied(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous()


def scaled(x: Tensor) -> Tensor:
    return (x * 2 + 1).transpose(-1, -2).contiguous()


def read_across(x: Tensor) -> Tensor:
    return (F.silu(x.transpose(-1, -2)) * 0.5).contiguous()


def doubled(x: Tensor) -> Tensor:
    return (x.transpose(-1, -2) * 2).contiguous()


def with_another(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x.transpose(-1, -2)) * y


def both_ways(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sums with what lies across, as they lie and the other way round."""
    z = x.transpose(-1, -2) + y * 3
    return z, z.transpose(-1, -2).contiguous()


def narrowed(x: Tensor) -> Tensor:
    return (x.float() * 2).clamp(-448, 448).transpose(-1, -2).contiguous().to(torch.float8_e4m3fn)


def quantised(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """8 bits for a product and for its gradient, which reads them the other way round."""
    s = x.abs().amax().float() / 448
    y = (x.float() / s).to(torch.float8_e4m3fn)
    return y, y.T.contiguous(), s


def channels_last(x: Tensor, b: Tensor) -> Tensor:
    return F.relu(x + b[:, None, None]).permute(0, 2, 3, 1).contiguous()


def channels_first(x: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """A picture as a network takes it."""
    return ((x / 255 - m) / (s.abs() + 0.1)).permute(0, 3, 1, 2).contiguous()


def heads(x: Tensor) -> tuple[Tensor, Tensor]:
    """Queries by heads, and as keys are laid for a product."""
    y = x * 0.125
    return y.permute(0, 2, 1, 3).contiguous(), y.permute(0, 2, 3, 1).contiguous()


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], *ins: In) -> Program:
        return Program("turned", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins)

    def x(shape: tuple[int, ...], dtype: str = "f32", name: str = "x") -> In:
        return In(name, shape, dtype)

    shapes = (("f32", (70, 129)), ("bf16", (3, 64, 192)), ("f16", (2, 40, 65)), ("f32", (5, 300, 6)), ("bf16", (3, 7, 90)))
    for dtype, shape in shapes:
        for fn in (copied, scaled, read_across, doubled):
            yield of(fn.__name__, fn, x(shape, dtype))
        other = (*shape[:-2], shape[-1], shape[-2])
        yield of("with another", with_another, x(shape, dtype), x(other, dtype, "y"))
        yield of("both ways", both_ways, x(shape, dtype), x(other, dtype, "y"))
        yield of("narrowed", narrowed, x(shape, dtype))
    for dtype, rows in (("bf16", (96, 160)), ("f32", (33, 70))):
        yield of("quantised", quantised, x(rows, dtype))
    for dtype, shape in (("f32", (2, 3, 20, 24)), ("f16", (2, 40, 9, 12)), ("bf16", (1, 130, 8, 8))):
        yield of("channels last", channels_last, x(shape, dtype), x(shape[1:2], dtype, "b"))
    for channels in (3, 4, 24):
        each = [x((channels,), "f32", name) for name in "ms"]
        yield of("channels first", channels_first, x((2, 20, 24, channels)), *each)
    yield of("heads", heads, x((2, 40, 3, 16), "f16"))
    yield of("heads", heads, x((1, 65, 4, 64)))
