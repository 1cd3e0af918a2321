"""What is behind a row and beside it: several results of one that is written anyway, numbers that are joined, pieces behind one
another, filters whose taps are written out, positions that a view has skewed; rows of a warp, and rows that all weigh alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness.program import TAME, In, Program
from workloads.correctness.states import weighted_by_time


def coverage(s: Tensor, c: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = s.float().softmax(-1) * m
    p = p / p.sum(-1, keepdim=True).clamp(min=1e-6)
    return p, c.float().abs() + p, torch.minimum(p, c.float().abs()).sum(-1)


def clipped_step(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step of Adam with gradients clipped by the norm of all."""
    g = g * (1.0 / (g.norm() + 1e-6)).clamp(max=1.0)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v.abs() + 0.001 * g * g
    return p - 1e-3 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-4), m, v


def normed_and_gated(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    return y, y * torch.sigmoid(z), y.abs() + z


def label_step(a: Tensor, lp: Tensor, skip: Tensor) -> Tensor:
    """One step of CTC's forward algorithm: the state, the one before, the one before that where it may be skipped."""
    least = -1e4
    one, two = F.pad(a, (1, 0), value=least)[:, :-1], F.pad(a, (2, 0), value=least)[:, :-2]
    return torch.logsumexp(torch.stack([a, one, torch.where(skip, two, least)]), 0) + lp


def pieces(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a * 2, F.pad(b, (1, 0))[:, :-1].tanh(), b - a, a[:7].abs()])


def edges_kept(x: Tensor) -> Tensor:
    """A bilateral filter of five by five, its taps written out."""
    h, w = x.shape[-2:]
    p = F.pad(x, (2, 2, 2, 2), mode="reflect")
    total, weights = torch.zeros_like(x), torch.zeros_like(x)
    for i in range(5):
        for j in range(5):
            s = p[..., i:i + h, j:j + w]
            e = torch.exp(-((i - 2) ** 2 + (j - 2) ** 2) / 4.5 - (s - x).square() / 2)
            total, weights = total + e * s, weights + e
    return total / weights


def reflected(x: Tensor) -> Tensor:
    p = F.pad(x, (3, 1, 1, 2), mode="reflect")
    return p[..., 1:-2, 3:-1] - (p[..., :-3, 3:-1] + p[..., 1:-2, :-4] + p[..., 3:, 4:]) / 3


def skewed(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """Relative positions by a padded view (Transformer-XL)."""
    b, h, n, d = q.shape
    s = F.pad(q @ r.mT, (1, 0)).view(b, h, 2 * n, n)[:, :, 1:].reshape(b, h, n, 2 * n - 1)[..., :n]
    return ((q @ k.mT + s) * d**-0.5).softmax(-1) @ v


def shared_exponents(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A norm, rounded to 8 bits by groups of 32 with one exponent each (MX)."""
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * w.float()
    g = y.view(*y.shape[:-1], -1, 32)
    e = torch.floor(torch.log2(g.abs().amax(-1, keepdim=True).clamp(min=1e-30))) - 8
    return (g / torch.exp2(e)).clamp(-448, 448).to(torch.float8_e4m3fn).view(y.shape), e[..., 0]


def normed_groups(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A residual and its norm, as torch has it, rounded to 8 bits by groups of 64."""
    h = x + r
    g = F.rms_norm(h, h.shape[-1:], w, 1e-6).float().view(*h.shape[:-1], -1, 64)
    s = g.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    return (g / s).to(torch.float8_e4m3fn).view(h.shape), s[..., 0], h


def centred_groups(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    g = F.layer_norm(x, x.shape[-1:], w, b).view(*x.shape[:-1], -1, 16)
    return (g - g.mean(-1, keepdim=True)).view(x.shape)


def aggregated(x: Tensor, m: Tensor) -> Tensor:
    """Mean, extrema and deviation of the neighbours that a mask shows, joined (PNA)."""
    x, w = x.float(), m[..., None].float()
    n = w.sum(1).clamp(min=1)
    mean = (x * w).sum(1) / n
    deviation = ((x.square() * w).sum(1) / n - mean.square()).clamp(min=0).add(1e-2).sqrt()
    most, least = x.masked_fill(~m[..., None], -1e4).amax(1), x.masked_fill(~m[..., None], 1e4).amin(1)
    a = torch.cat([mean, most, least, deviation], -1)
    return torch.cat([a, a * (n + 1).log() / 2.5], -1)


def of_channels(x: Tensor) -> Tensor:
    return torch.sigmoid(torch.cat([x.amax(1, keepdim=True), x.mean(1, keepdim=True)], 1))


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    e = x.float().softmax(-1)
    return (e * torch.sigmoid(x.float())).sum(-1), (e * x.float().square()).sum(-1)


def tempered(x: Tensor) -> Tensor:
    return (x.float() * 1.5).softmax(-1).to(x.dtype)


def whitened(x: Tensor) -> Tensor:
    y = x.float() - x.float().mean(-1, keepdim=True)
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def columns(x: Tensor) -> Tensor:
    return (x * 1.5).sum(-2)


def lone(x: Tensor) -> Tensor:
    return x.sum(0)


def largest_of_columns(x: Tensor) -> Tensor:
    return (x * 1.5).abs().amax(-2)


def least_and_place(x: Tensor) -> tuple[Tensor, Tensor]:
    least, place = F.relu(x * 1.5 + 4).min(-2)
    return least, place


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = F.relu(x * 1.5 + 4)
    return -y.mT, -y.mT


SQUARES = (clipped_step, normed_and_gated, shared_exponents, normed_groups, centred_groups, aggregated, whitened,
           weighted_by_time)
"""Those that overflow where their inputs are as large as their type allows."""


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], *ins: In) -> Program:
        only = TAME if fn in SQUARES else ()
        return Program("behind", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins, only=only)

    def x(shape: tuple[int, ...], dtype: str = "f32", name: str = "x") -> In:
        return In(name, shape, dtype)

    for shape, dtype in (((200, 400), "f32"), ((60, 333), "f16")):
        yield of("coverage", coverage, x(shape, dtype), x(shape, dtype, "c"), In("m", shape, "bool", "keep"))
    for n in (50000, 777):
        yield of("clipped step", clipped_step, *(x((n,), "f32", a) for a in "pgmv"))
    yield of("normed and gated", normed_and_gated, x((300, 512)), x((300, 512), "f32", "z"))
    for shape in ((512, 101), (300, 60), (1025, 24)):
        yield of("label step", label_step, x(shape), x(shape, "f32", "lp"), In("skip", shape, "bool", "keep"))
    yield of("pieces", pieces, x((512, 40)), x((512, 40), "f32", "b"))
    yield of("pieces", pieces, x((2000, 24), "f16"), x((2000, 24), "f16", "b"))
    yield of("edges kept", edges_kept, x((2, 1, 40, 56)))
    yield of("edges kept", edges_kept, x((3, 33, 31)))
    yield of("reflected", reflected, x((2, 3, 40, 50)))
    yield of("reflected", reflected, x((2, 2, 17, 23), "f16"))
    for b, h, n, d, dtype in ((1, 2, 64, 32, "f16"), (2, 2, 130, 64, "bf16"), (1, 3, 48, 16, "f32")):
        yield of("skewed", skewed, *(x((b, h, n, d), dtype, a) for a in "qkv"), x((h, 2 * n - 1, d), dtype, "r"))
    yield of("shared exponents", shared_exponents, x((64, 1024), "bf16"), x((1024,), "bf16", "w"))
    yield of("shared exponents", shared_exponents, x((40, 96)), x((96,), "f32", "w"))
    for n, dtype in ((1024, "bf16"), (192, "f16")):
        yield of("normed groups", normed_groups, x((40, n), dtype), x((40, n), dtype, "r"), In("w", (n,), dtype))
    yield of("centred groups", centred_groups, x((60, 320)), x((320,), "f32", "w"), x((320,), "f32", "b"))
    for shape, dtype in (((100, 32, 64), "f16"), ((40, 20, 24), "f32")):
        yield of("aggregated", aggregated, x(shape, dtype), In("m", shape[:2], "bool", "keep"))
    yield of("of channels", of_channels, x((2, 256, 20, 24)))
    yield of("of channels", of_channels, x((3, 64, 17, 16), "f16"))
    for fn, what in ((moments, "moments"), (tempered, "tempered"), (whitened, "whitened")):
        for n, dtype in ((200, "f32"), (256, "f16"), (333, "bf16"), (512, "f32"), (130, "f16")):
            yield of(what, fn, x((4300, n), dtype))
    for shape, dtype in (((2500, 96), "f16"), ((3, 1100, 72), "f32"), ((6000, 40), "bf16")):
        yield of("columns", columns, x(shape, dtype))
        yield of("largest of columns", largest_of_columns, x(shape, dtype))
    yield of("lone", lone, x((16384, 128), "f16"))
    for shape, dtype in (((2, 1100, 128), "f32"), ((4096, 160), "f16"), ((2, 400, 96), "f32")):
        yield Program("behind", f"{dtype} {'x'.join(map(str, shape))} least and place", least_and_place, (x(shape, dtype),),
                      ranked=turned)
    for shape, dtype in (((3, 256, 64), "f16"), ((2, 500, 40), "f32"), ((2, 1000, 64), "bf16"), ((2, 1021, 32), "f32")):
        yield of("alike", weighted_by_time, x(shape, dtype), In("m", shape[:2], "bool", "keep"))
