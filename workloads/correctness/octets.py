"""Results of one byte: quantisers whose scale is given, or one for a whole tensor, masks, pictures, 8-bit floats of what a map
computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def whole_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """One scale for a tensor, and what it makes of it."""
    s = x.abs().max().float() / 127.0
    return (x.float() / s).round().clamp(-128, 127).to(torch.int8), s


def whole_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    s = x.abs().max().float() / 448.0
    return (x.float() / s).clamp(-448, 448).to(E4M3), s


def whole_fp8_times(x: Tensor) -> tuple[Tensor, Tensor]:
    s = 448.0 / x.abs().max().float().clamp(min=1e-12)
    return (x.float() * s).clamp(-448, 448).to(E4M3), s.reciprocal()


def static_fp8(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / (s.abs() + 0.1)).clamp(-448, 448).to(E4M3)


def static_int8(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / (s.abs() + 0.1)).round().clamp(-128, 127).to(torch.int8)


def static_uint8(x: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """By channels, with the number that 0 becomes."""
    return (x.float() / (s.abs() + 0.1) + z.round()).round().clamp(0, 255).to(torch.uint8)


def gelu_fp8(x: Tensor) -> Tensor:
    return F.gelu(x.float(), approximate="tanh").to(E4M3)


def gate_e5m2(x: Tensor, g: Tensor) -> Tensor:
    return (F.silu(g.float()) * x.float()).clamp(-57344, 57344).to(E5M2)


def relu_and_mask(x: Tensor) -> tuple[Tensor, Tensor]:
    """An activation, and where it has a gradient."""
    return F.leaky_relu(x, 0.1), x > 0


def hard_mask(x: Tensor, s: Tensor) -> Tensor:
    return (F.hardsigmoid(x) > s) | (x.abs() > 3)


def pixels(x: Tensor) -> Tensor:
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)


def residual_norm_fp8(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a block's first product reads in 8 bits, with the scale of each row."""
    h = x + r
    f = h.float()
    y = f * torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-6) * w.float()
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (y / s).to(E4M3), s, h


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], *ins: In) -> Program:
        return Program("octets", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins)

    def x(shape: tuple[int, ...], dtype: str = "f32", name: str = "x") -> In:
        return In(name, shape, dtype)

    for dtype, shape in (("bf16", (64, 512)), ("f16", (37, 129)), ("f32", (65, 96))):
        for fn in (whole_int8, whole_fp8, whole_fp8_times):
            yield of(fn.__name__, fn, x(shape, dtype))
    for dtype, shape in (("bf16", (40, 256)), ("f32", (33, 100))):
        for what, scale in (("of all", ()), ("of rows", (shape[0], 1)), ("of columns", shape[1:])):
            for fn in (static_fp8, static_int8):
                yield of(f"{fn.__name__} {what}", fn, x(shape, dtype), x(scale, "f32", "s"))
        yield of("static_uint8", static_uint8, x(shape, dtype), x(shape[1:], "f32", "s"), x(shape[1:], "f32", "z"))
        yield of("gelu_fp8", gelu_fp8, x(shape, dtype))
        yield of("gate_e5m2", gate_e5m2, x(shape, dtype), x(shape, dtype, "g"))
        yield of("relu_and_mask", relu_and_mask, x(shape, dtype))
        yield of("hard_mask", hard_mask, x(shape, dtype), x((), dtype, "s"))
    yield of("pixels", pixels, x((2, 3, 40, 48)))
    for dtype in ("bf16", "f32"):
        yield of("residual_norm_fp8", residual_norm_fp8, *(x((70, 384), dtype, n) for n in "xr"), x((384,), dtype, "w"))
