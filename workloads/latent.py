"""MLA decode: 128 query heads [batch, 128, 576] over one latent head [batch, keys, 576], whose first 512 columns are the values
(DeepSeek's absorbed form; 64 of the 576 columns carry the rotary part), bfloat16. The same with the rotary part in tensors of
its own."""

from __future__ import annotations

from collections.abc import Callable

import torch

from workloads.case import Case, Inputs, normal, size
from workloads.norms import Function

HEADS, WIDTH, VALUES = 128, 576, 512


def latent(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ kv.mT).float() * WIDTH ** -0.5, -1).to(q.dtype) @ kv[..., :VALUES]


def rotary(q: torch.Tensor, turned: torch.Tensor, kv: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    scores = (q @ kv.mT).float() + (turned @ keys.mT).float()
    return torch.softmax(scores * WIDTH ** -0.5, -1).to(q.dtype) @ kv


def make(name: str, batch: int, keys: int, heads: int = HEADS, width: int = WIDTH, values: int = VALUES,
         sets: tuple[str, ...] = ("paper",), apart: bool = False) -> Case:
    rest = width - values
    shapes: tuple[tuple[int, ...], ...] = ((batch, heads, width), (batch, keys, width))
    if apart:
        shapes = ((batch, heads, values), (batch, heads, rest), (batch, keys, values), (batch, keys, rest))
    fn: Callable[..., torch.Tensor] = rotary if apart else latent

    def inputs(device: str, seed: int) -> Inputs:
        return tuple(normal(s, "bf16", device, len(shapes) * seed + i) for i, s in enumerate(shapes))

    return Case("mla", name, "bf16", {"batch": batch, "heads": heads, "kv": keys, "width": width, "values": values},
                build=lambda: Function(fn), inputs=inputs, flops=2 * batch * heads * keys * (width + values),
                bytes=sum(size(s, "bf16") for s in shapes) + size((batch, heads, values), "bf16"), sets=sets,
                sample=lambda args: tuple(a[:8] for a in args), pick=lambda out: out[:8], sample_note="batch 0:8")


def cases() -> list[Case]:
    grid = [(b, keys) for b in (32, 16, 1) for keys in (1024, 2048, 4096)]
    out = [make(f"L{i + 1}", b, keys) for i, (b, keys) in enumerate(grid)]
    out += [make("128x4096", 128, 4096, sets=("long",)), make("rotary-32x4096", 32, 4096, sets=("long",), apart=True)]
    return [*out, make("smoke", 2, 80, 16, sets=("smoke",)), make("rotary-smoke", 2, 80, 16, sets=("smoke",), apart=True)]
