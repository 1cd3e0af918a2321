"""Rows of thousands of elements that are held on chip: with weights that all rows have, made of several tensors, and such whose
reductions wait for one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import TAME, In, Program


def residual_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    x = x + r
    return F.layer_norm(x, w.shape, w, b), x


def rms(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
    x = x.float() + r.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).to(r.dtype) * w


def biased(x: Tensor, b: Tensor) -> Tensor:
    return (x * 0.5 + b).softmax(-1)


def gated(x: Tensor, y: Tensor) -> Tensor:
    return F.normalize(F.silu(x.float()) * y.float(), dim=-1).to(x.dtype)


def scaled_mean(x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """The mean waits for the size, of a row that has its noise taken away."""
    x = (x - 0.6 * e) / 0.8
    y = x / x.abs().amax(-1, keepdim=True)
    return y + e, y.mean(-1)


def apart(x: Tensor, y: Tensor) -> Tensor:
    d = (x - y).abs()
    return (d / (1 + d.amax(-1, keepdim=True))).mean(-1)


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], shape: tuple[int, ...], dtype: str, rows: str, each: str = "") -> Program:
        ins = (*(In(n, shape, dtype) for n in rows), *(In(n, shape[-1:], dtype) for n in each))
        return Program("wide", f"{dtype} {'x'.join(map(str, shape))} {what}", fn, ins, only=TAME if fn in (rms, gated) else ())

    for shape, dtype in (((150, 12288), "bf16"), ((3, 14336), "f16"), ((140, 8192), "f32")):
        yield of("residual norm", residual_norm, shape, dtype, "xr", "wb")
    for shape, dtype in (((140, 10240), "bf16"), ((4, 16384), "f16")):
        yield of("rms", rms, shape, dtype, "xr", "w")
    for shape, dtype in (((150, 12288), "f32"), ((5, 16384), "f32"), ((140, 20000), "f16")):
        yield of("biased", biased, shape, dtype, "x", "b")
    for shape, dtype in (((140, 14336), "f16"), ((3, 12000), "f32")):
        yield of("gated", gated, shape, dtype, "xy")
    for shape, dtype in (((16, 12288), "f32"), ((140, 9000), "f16"), ((3, 30000), "f32")):
        yield of("scaled mean", scaled_mean, shape, dtype, "xe")
    for shape, dtype in (((100, 12288), "f32"), ((5, 16384), "bf16")):
        yield of("apart", apart, shape, dtype, "xy")
