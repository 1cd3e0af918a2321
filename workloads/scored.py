"""Attention of other kinds, as their papers write them: differential (two softmaxes over one set of values, joined as weights
or as results), AlphaFold's row attention with a pair bias and a gate (Evoformer) and its attention over points in float32
(IPA), Performer's positive features, queries, keys and values of 8 bits, scores that are nobody's (sinks), and T5's bias of
relative positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from workloads.case import Case, Inputs, normal, size
from workloads.norms import Function

LAMBDA = 0.8
POINTS, POINT_VALUES = 4, 8
BUCKETS, FARTHEST = 32, 128
"""T5's buckets of relative positions, and the distance from which on all are in the last."""


def joined_weights(q: Tensor, k: Tensor, q2: Tensor, k2: Tensor, v: Tensor) -> Tensor:
    c = q.shape[-1] ** -0.5
    a = torch.softmax((q @ k.mT).float() * c, -1)
    b = torch.softmax((q2 @ k2.mT).float() * c, -1)
    return (a - LAMBDA * b).to(v.dtype) @ v


def joined_results(q: Tensor, k: Tensor, q2: Tensor, k2: Tensor, v: Tensor) -> Tensor:
    c = q.shape[-1] ** -0.5
    a = torch.softmax((q @ k.mT).float() * c, -1).to(v.dtype) @ v
    b = torch.softmax((q2 @ k2.mT).float() * c, -1).to(v.dtype) @ v
    return a - LAMBDA * b


def differential(name: str, fn: Callable[..., Tensor], b: int, h: int, n: int, d: int, sets: tuple[str, ...]) -> Case:
    shapes = ((b, h, n, d),) * 4 + ((b, h, n, 2 * d),)
    return make(f"differential-{name}", fn, shapes, "bf16", flops=8 * b * h * n * n * d + 4 * b * h * n * n * d,
                written=(b, h, n, 2 * d), sets=sets, heads=True, casts="elide" if name.startswith("weights") else "preserve")


def row_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, pair: Tensor, gate: Tensor) -> Tensor:
    """q, k, v, gate [rows, heads, n, d], mask [rows, 1, 1, n] added, pair [1, heads, n, n]."""
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5 + mask + pair
    return torch.sigmoid(gate) * (torch.softmax(s, -1).to(v.dtype) @ v)


def point_attention(q: Tensor, k: Tensor, v: Tensor, qp: Tensor, kp: Tensor, vp: Tensor, bias: Tensor,
                    weight: Tensor) -> tuple[Tensor, Tensor]:
    """q, k [heads, n, c], v likewise, qp, kp [heads, n, 3 POINTS], vp [heads, n, 3 POINT_VALUES], bias [heads, n, n]."""
    apart = ((qp[:, :, None] - kp[:, None]) ** 2).sum(-1)
    s = q @ k.mT * (3 * q.shape[-1]) ** -0.5 + bias * 3 ** -0.5 - apart * weight[:, None, None]
    p = torch.softmax(s, -1)
    return p @ v, p @ vp


def performer(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """FAVOR+: positive features of q, k [b, h, n, d] by w [m, d], normal rows."""
    c = q.shape[-1] ** -0.25
    q, k = q * c, k * c
    a, b = q @ w.mT, k @ w.mT
    fq = torch.exp(a - (q * q).sum(-1, keepdim=True) / 2 - a.amax(-1, keepdim=True)) + 1e-4
    fk = torch.exp(b - (k * k).sum(-1, keepdim=True) / 2 - b.amax((-1, -2), keepdim=True)) + 1e-4
    return (fq @ (fk.mT @ v)) / (fq @ fk.sum(-2)[..., None])


def with_sinks(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """q [b, heads, n, d], k and v [b, groups, n, d], sink [1, heads, 1, 1]: a score of its own for each head that takes weight
    and has no value; causal (GPT-OSS)."""
    n, share = q.shape[-2], q.shape[1] // k.shape[1]
    s = (q @ k.repeat_interleave(share, 1).mT).float() * q.shape[-1] ** -0.5
    places = torch.arange(n, device=q.device)
    s = s.masked_fill(places[None] > places[:, None], float("-inf"))
    s = torch.cat([s, sink.float().expand(*s.shape[:-1], 1)], -1)
    return torch.softmax(s, -1)[..., :-1].to(v.dtype) @ v.repeat_interleave(share, 1)


def relative(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """T5: no scale, and a bias [1, heads, n, n] of relative positions, which all layers read."""
    return torch.softmax((q @ k.mT).float() + bias.float(), -1).to(v.dtype) @ v


def bucketed(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """The same with the bias taken from its table [heads, buckets], as T5's first layer does: half of the buckets for a side,
    of each half the first half one position wide, the others wider and wider up to FARTHEST."""
    place = torch.arange(q.shape[-2], device=q.device)
    apart = place[None] - place[:, None]
    half, far = BUCKETS // 2, apart.abs()
    near = half // 2
    wide = near + (torch.log(far.clamp(min=1).float() / near) / math.log(FARTHEST / near) * near).long()
    bucket = (apart > 0).long() * half + torch.where(far < near, far, wide.clamp(max=half - 1))
    return relative(q, k, v, table[:, bucket][None])


def eight_bits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5
    return (torch.softmax(s, -1) @ v.float()).to(torch.bfloat16)


def make(name: str, fn: Callable[..., Tensor | tuple[Tensor, Tensor]], shapes: tuple[tuple[int, ...], ...], dtype: str,
         flops: int, written: tuple[int, ...], sets: tuple[str, ...], heads: bool = False, eight: bool = False,
         casts: str = "preserve") -> Case:
    """``heads``: inputs are [b, h, n, d] and independent by h; float64 takes the first four of the first b. ``eight``: drawn
    in float32 and kept in e4m3."""
    def inputs(device: str, seed: int) -> Inputs:
        drawn = tuple(normal(s, "f32" if eight else dtype, device, len(shapes) * seed + i) for i, s in enumerate(shapes))
        return tuple(x.to(torch.float8_e4m3fn) for x in drawn) if eight else drawn

    read = sum(size(s, "f16") // 2 if eight else size(s, dtype) for s in shapes)
    part = (lambda args: tuple(a[:1, :4] for a in args)) if heads else (lambda args: args)
    return Case("scored", name, "e4m3" if eight else dtype, {f"x{i}": list(s) for i, s in enumerate(shapes)},
                build=lambda: Function(fn), inputs=inputs, flops=flops, bytes=read + size(written, "bf16" if eight else dtype),
                sets=sets, casts=casts, sample=part, pick=(lambda out: out[:1, :4]) if heads else (lambda out: out),
                sample_note="heads 0:4 of batch 0" if heads else "")


def evoformer(rows: int, h: int, n: int, d: int, sets: tuple[str, ...]) -> Case:
    shapes = ((rows, h, n, d),) * 3 + ((rows, 1, 1, n), (1, h, n, n), (rows, h, n, d))
    return make(f"evoformer-{rows}x{n}", row_attention, shapes, "bf16", 4 * rows * h * n * n * d, (rows, h, n, d), sets)


def points(h: int, n: int, c: int, sets: tuple[str, ...]) -> Case:
    shapes = ((h, n, c),) * 3 + ((h, n, 3 * POINTS),) * 2 + ((h, n, 3 * POINT_VALUES), (h, n, n), (h,))
    flops = 2 * h * n * n * (c + 3 * POINTS + c + 3 * POINT_VALUES)
    return make(f"ipa-{n}", point_attention, shapes, "f32", flops, (h, n, c + 3 * POINT_VALUES), sets)


def sinks(h: int, groups: int, n: int, d: int, sets: tuple[str, ...]) -> Case:
    shapes = ((1, h, n, d), (1, groups, n, d), (1, groups, n, d), (1, h, 1, 1))
    case = make(f"sinks-{n}", with_sinks, shapes, "bf16", 2 * h * n * (n + 1) * d, (1, h, n, d), sets)
    share = h // groups
    return replace(case, sample=lambda args: (args[0][:, :share], *(a[:, :1] for a in args[1:3]), args[3][:, :share]),
                   pick=lambda out: out[:, :share], sample_note="the heads of the first key head")


def t5(b: int, h: int, n: int, d: int, sets: tuple[str, ...]) -> list[Case]:
    rows, flops = ((b, h, n, d),) * 3, 4 * b * h * n * n * d
    table = make(f"t5-table-{n}", bucketed, (*rows, (h, BUCKETS)), "bf16", flops, (b, h, n, d), sets)
    return [make(f"t5-bias-{n}", relative, (*rows, (1, h, n, n)), "bf16", flops, (b, h, n, d), sets, heads=True),
            replace(table, sample=lambda args: (*(a[:1, :4] for a in args[:3]), args[3][:4]), pick=lambda out: out[:1, :4],
                    sample_note="heads 0:4 of batch 0")]


def cases() -> list[Case]:
    forms = {"weights": joined_weights, "results": joined_results}
    out = [differential(f"{name}-4096", fn, 1, 16, 4096, 64, ("paper",)) for name, fn in forms.items()]
    out += [evoformer(128, 8, 256, 32, ("paper",)), points(12, 512, 16, ("paper",)),
            make("performer-4096", performer, ((1, 16, 4096, 64),) * 3 + ((256, 64),), "f32",
                 2 * 16 * 4096 * 256 * (64 * 4 + 1), (1, 16, 4096, 64), ("paper",)),
            make("eight-bits-4096", eight_bits, ((1, 32, 4096, 128),) * 3, "e4m3", 4 * 32 * 4096 * 4096 * 128,
                 (1, 32, 4096, 128), ("paper",), heads=True, eight=True)]
    out += [sinks(64, 8, 4096, 64, ("paper",)), *t5(8, 16, 1024, 64, ("paper",)), sinks(4, 2, 48, 16, ("smoke",)),
            *t5(2, 4, 48, 16, ("smoke",))]
    out += [differential(f"{name}-smoke", fn, 1, 4, 48, 16, ("smoke",)) for name, fn in forms.items()]
    out += [evoformer(3, 2, 40, 16, ("smoke",)), points(3, 40, 16, ("smoke",)),
            make("performer-smoke", performer, ((1, 2, 48, 16),) * 3 + ((32, 16),), "f32", 2 * 2 * 48 * 32 * 65,
                 (1, 2, 48, 16), ("smoke",)),
            make("eight-bits-smoke", eight_bits, ((1, 4, 48, 16),) * 3, "e4m3", 4 * 4 * 48 * 48 * 16, (1, 4, 48, 16),
                 ("smoke",), heads=True, eight=True)]
    return out
