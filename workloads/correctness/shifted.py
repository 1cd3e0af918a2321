"""Scores that are moved before their softmax, and softmaxes and quantisations of what a norm gives."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import HALVES, NEG_INF, In, Program


def sink_column(q: Tensor, k: Tensor, v: Tensor, sink: Tensor, mask: Tensor) -> Tensor:
    """GPT-OSS: a column of sinks beside the scores, the maximum of both taken off in half precision, a softmax, the column
    dropped."""
    s = q @ k.mT * 0.125 + mask
    s = torch.cat([s, sink.reshape(1, -1, 1, 1).expand(*s.shape[:-1], 1)], -1)
    s = s - s.max(-1, keepdim=True).values
    return torch.softmax(s, -1, dtype=s.dtype)[..., :-1] @ v


def mask_by_log(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """A row that is hidden as a whole is NaN, where torch's own attention makes 0 of it."""
    return (q @ k.mT * 0.17 + torch.log(keep.float())).softmax(-1) @ v


def standardised(x: Tensor) -> Tensor:
    return torch.softmax((x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6), -1)


def normed(x: Tensor) -> Tensor:
    return torch.softmax(F.layer_norm(x, x.shape[-1:]), -1)


def rms_of_8_bits(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.rms_norm(x.float(), x.shape[-1:], w.float(), 1e-6)
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448.0
    return (y / s).to(torch.float8_e4m3fn), s


def programs() -> Iterator[Program]:
    for dtype in HALVES:
        qkv = tuple(In(n, (2, 3, rows, 64), dtype) for n, rows in (("q", 100), ("k", 130), ("v", 130)))
        yield Program("shifted", f"{dtype} 100x130 d64 sink column", sink_column, (
            *qkv, In("sink", (3,), dtype, "weight"), In("mask", (2, 1, 100, 130), dtype, "hide", NEG_INF)))
    yield Program("shifted", "f32 17x65 d32 mask by log", mask_by_log, (
        *(In(n, (2, 3, rows, 32), "f32") for n, rows in (("q", 17), ("k", 65), ("v", 65))),
        In("keep", (17, 65), "bool", "keep")))
    yield Program("shifted", "f32 33x1000 standardised", standardised, (In("x", (33, 1000), "f32"),))
    yield Program("shifted", "bf16 33x1000 layer norm", normed, (In("x", (33, 1000), "bf16"),))
    yield Program("shifted", "bf16 33x1024 rms of 8 bits", rms_of_8_bits, (
        In("x", (33, 1024), "bf16"), In("w", (1024,), "bf16", "weight")))
