"""Maps beside a reduction that read what it reads, rows of two tensors with statistics for the same places, moments under
weights that are written as log-probabilities; and what nobody computed for two kernels that read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.correctness.program import TAME, In, Program


def lion(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step, the momentum behind it, and how far both agree."""
    u = (m * 0.9 + g * 0.1).sign()
    return p * (1 - 1e-3) - 1e-2 * u, m * 0.99 + g * 0.01, (u * g).sum()


def descent(w: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows' sums beside what else is made of their elements."""
    return (g * w).sum(-1), 0.9 * m + g, g.abs() * w


def noised(x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """The mean error of a picture, and the picture that is left."""
    return (x - e).abs().mean((-2, -1)), (x - 0.3 * e) / 0.95


def clipped(w: Tensor, g: Tensor) -> Tensor:
    """A centred gradient, no longer than a part of what it belongs to."""
    g = g - g.mean(-1, keepdim=True)
    least, n = w.abs().sum(-1, keepdim=True).clamp(min=1e-3), g.abs().sum(-1, keepdim=True).clamp(min=1e-6)
    return torch.where(n > 0.5 * least, g * (0.5 * least / n), g)


def restyled(x: Tensor, y: Tensor) -> Tensor:
    """x with the mean and the deviation of y."""
    def moments(a: Tensor) -> tuple[Tensor, Tensor]:
        return a.mean((2, 3), keepdim=True), a.var((2, 3), keepdim=True).add(1e-3).sqrt()

    (m, s), (n, t) = moments(x), moments(y)
    return (x - m) / s * t + n


def over_another(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(x - y.amax(-1, keepdim=True).clamp(min=0)).sum(-1)


def louder(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x.abs().amax(-1, keepdim=True) > y.abs().amax(-1, keepdim=True), x, y.flip(0))


def varentropy(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of surprisal and its spread, at a temperature."""
    lp = (x.float() / (t.abs() + 0.5)).log_softmax(-1)
    p = lp.exp()
    h = -(p * lp).sum(-1, keepdim=True)
    return h, (p * (lp + h).square()).sum(-1)


def entropy(x: Tensor) -> Tensor:
    lp = x.float().log_softmax(-1)
    return -(lp.exp() * lp).sum(-1)


def between(x: Tensor, y: Tensor) -> Tensor:
    """How much further the first of two distributions is from the second than the second is surprising."""
    p, q = x.float().log_softmax(-1), y.float().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1) - (q.exp() * q).sum(-1)


def grams(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two kernels read a product with its maps."""
    d = x @ y.mT + x.abs().sum(-1)[:, None] + 1.5
    k = torch.exp(-d.abs())
    return k.sum(-1), (k * d.tanh()).sum(0)


def shares(a: Tensor, w: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of samples along a ray, of one more than there are, and their sums."""
    y = torch.sigmoid(a) * w[:, :-1]
    return y, y.sum(-1), (y * z).sum(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What a draft left to draw from."""
    r = (p.softmax(-1) - q.softmax(-1)).clamp(min=0)
    return r / (r.sum(-1, keepdim=True) + 1e-3)


def product_correction(x: Tensor) -> Tensor:
    x = x.abs() + 0.1
    return x - x.sum(-1, keepdim=True) * x.sum(-2, keepdim=True) / x.sum((-2, -1), keepdim=True)


def time_step(r: Tensor, k: Tensor, v: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A state that is read, and moved on."""
    kv = k[..., :, None] * v[..., None, :]
    return (r[..., :, None] * (s + kv)).sum(-2), torch.sigmoid(w)[..., None] * s + kv


APART = ("normal", "outlier", "spread")
"""Draws of elements that differ: of a row that is all alike the spread is the square of what rounding leaves of a difference of
two tens, 1e-12 for 0, unless that happens to be nothing."""
SQUARES = (restyled, descent)
"""Those that overflow where their inputs are as large as their type allows."""


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], *ins: In) -> Program:
        only = TAME if fn in SQUARES else APART if fn is varentropy else ()
        return Program("alongside", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins, only=only)

    def x(shape: tuple[int, ...], dtype: str = "f32", name: str = "x") -> In:
        return In(name, shape, dtype)

    for shape, dtype in (((50000,), "f32"), ((777,), "f32"), ((300, 64), "bf16")):
        yield of("lion", lion, *(x(shape, dtype, a) for a in "pgm"))
    for shape, dtype in (((64, 300), "f32"), ((7, 5000), "f16"), ((130, 75), "bf16")):
        yield of("descent", descent, *(x(shape, dtype, a) for a in "wgm"))
    for shape, dtype in (((3, 3, 64, 64), "f32"), ((5, 4, 33, 31), "f16")):
        yield of("noised", noised, x(shape, dtype), x(shape, dtype, "e"))
    for shape, dtype in (((64, 300), "f32"), ((3, 30000), "f32"), ((65, 1000), "f16")):
        yield of("clipped", clipped, x(shape, dtype, "w"), x(shape, dtype, "g"))
    for shape, dtype in (((2, 5, 20, 20), "f32"), ((3, 4, 33, 17), "f16")):
        yield of("restyled", restyled, x(shape, dtype), x(shape, dtype, "y"))
    for shape, dtype in (((33, 65), "f32"), ((4, 40000), "f32"), ((20, 333), "bf16")):
        yield of("over another", over_another, x(shape, dtype), x(shape, dtype, "y"))
    yield of("louder", louder, x((40, 200)), x((40, 200), "f32", "y"))
    for shape, dtype in (((40, 333), "f32"), ((7, 50000), "bf16"), ((20, 1024), "f16")):
        yield of("varentropy", varentropy, x(shape, dtype), x((shape[0], 1), "f32", "t"))
    for shape, dtype in (((40, 333), "f16"), ((3, 90000), "f32")):
        yield of("entropy", entropy, x(shape, dtype))
        yield of("between", between, x(shape, dtype), x(shape, dtype, "y"))
    yield of("grams", grams, x((130, 40)), x((75, 40), "f32", "y"))
    yield of("shares", shares, x((300, 64), "f32", "a"), x((300, 65), "f32", "w"), x((300, 64), "f32", "z"))
    for shape, dtype in (((60, 333), "f32"), ((20, 2048), "f16")):
        yield of("residual", residual, x(shape, dtype, "p"), x(shape, dtype, "q"))
    yield of("product correction", product_correction, x((3, 96, 96)))
    for b, h, d in ((2, 4, 64), (1, 3, 40)):
        yield of("time step", time_step, *(x((b, h, d), "f32", a) for a in "rkv"), x((b, h, d, d), "f32", "s"),
                 x((b, h, d), "f32", "w"))
