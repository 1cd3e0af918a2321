"""One row that asks a long cache, each head its own: a step of decoding whose heads share nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import HALVES, In, Program, alternate

Fn = Callable[..., Any]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5
    return torch.softmax(s, -1).to(v.dtype) @ v, torch.logsumexp(s, -1)


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = 30.0 * torch.tanh((q @ k.mT).float() * q.shape[-1] ** -0.5 / 30.0)
    return torch.softmax(s, -1).to(v.dtype) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def biased(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    n = k.shape[-2]
    away = torch.arange(n, device=k.device) - (n - 1)
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5 + slopes[:, None, None] * away
    return torch.softmax(s, -1).to(v.dtype) @ v


def squeezed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [b, h, d], as servers have it."""
    s = torch.einsum("bhd,bhnd->bhn", q, k).float() * q.shape[-1] ** -0.5
    return torch.einsum("bhn,bhnd->bhd", torch.softmax(s, -1).to(v.dtype), v)


BESIDE = {masked: lambda b, h, n, dtype: (In("keep", (b, 1, 1, n), "bool", "keep"),),
          biased: lambda b, h, n, dtype: (In("slopes", (h,), "f32", "positive", 0.02),)}


def programs() -> Iterator[Program]:
    yield from alternate(_made(dtype, fn, n, d) for dtype in HALVES for fn in (plain, by_hand, capped, masked, biased, squeezed)
                         for n, d in ((1500, 64), (4096, 128), (1100, 96)))


def _made(dtype: str, fn: Fn, n: int, d: int) -> Program:
    one = (2, 5, d) if fn is squeezed else (2, 5, 1, d)
    return Program("asked", f"{dtype} 2x5x{n} d{d} {fn.__name__}", fn, (
        In("q", one, dtype), In("k", (2, 5, n, d), dtype), In("v", (2, 5, n, d), dtype),
        *(BESIDE[fn](2, 5, n, dtype) if fn in BESIDE else ())))
