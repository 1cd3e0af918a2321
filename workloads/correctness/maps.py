"""Maps without a reduction, as they lie between products and cascades: activations, gates, residuals, rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program

Fn = Callable[..., Any]


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def geglu(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x) * y


def gated_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.sigmoid(a) * b


def residual(x: Tensor, y: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two results, of which the second reads the first; a vector for all rows."""
    h = x + y
    return h, (h.float() * 0.125 + b.float()).to(x.dtype)


def _turned(x: Tensor) -> Tensor:
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return torch.cat((-b, a), -1)


def rotary(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    q = x.transpose(1, 2)
    return q * c + _turned(q) * s


def rotary_cached(x: Tensor, c: Tensor, s: Tensor, k: Tensor) -> Tensor:
    return torch.cat((k, rotary(x, c, s)), 2)


def rotary_pairs(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Pairs of neighbours, in single precision."""
    h = x.float()
    a, b = h[..., ::2], h[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(x.dtype)


def angles(p: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    a = p[..., None].float() * f.float()
    a = torch.cat((a, a), -1)
    return a.cos().to(f.dtype), a.sin().to(f.dtype)


def masked(x: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, x * 0.5 + 1.0, torch.full_like(x, -65000.0))


def capped(x: Tensor) -> Tensor:
    return 30.0 * torch.tanh(x / 30.0)


def clipped(x: Tensor, y: Tensor) -> Tensor:
    return torch.clamp(torch.maximum(x, y), -1.5, 2.0) - torch.relu(y)


def turned(x: Tensor, y: Tensor) -> Tensor:
    """One operand read across the other."""
    return (x + y.mT) * 0.5


def both_ways(x: Tensor, r: Tensor, c: Tensor) -> Tensor:
    return (x + r[:, None]) * c[None, :]


def rounded(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() * y.float()).to(torch.bfloat16).float() + y.float()


def choice(x: Tensor, label: Tensor) -> Tensor:
    return torch.where((label > 2) & (label != 5), x.abs().sqrt(), x * x)


def mixed(x: Tensor, y: Tensor) -> Tensor:
    """What lies between the norms of a PoolFormer, with channels last: windows beside rows of channels."""
    own = x.permute(0, 3, 1, 2)
    return y + 0.5 * (F.avg_pool2d(own, 3, 1, 1, count_include_pad=False) - own).permute(0, 2, 3, 1)


def mixed_rows(x: Tensor, y: Tensor) -> Tensor:
    """The same row by row, where windows slide along rows."""
    return y + 0.5 * (F.avg_pool2d(x, 3, 1, 1) - x)


def largest_halves(x: Tensor) -> Tensor:
    return F.max_pool2d(torch.relu(x), 3, 2, 1) * 0.5


def averages_of_lines(x: Tensor) -> Tensor:
    return F.avg_pool1d(x, 5, 3, 2, ceil_mode=True) + 1.0


def programs() -> Iterator[Program]:
    def two(fn: Fn, dtype: str, *shape: int) -> Program:
        return Program("maps", f"{dtype} {'x'.join(map(str, shape))} {fn.__name__}", fn,
                       (In("x", shape, dtype), In("y", shape, dtype)))

    def one(fn: Fn, dtype: str, *shape: int) -> Program:
        return Program("maps", f"{dtype} {'x'.join(map(str, shape))} {fn.__name__}", fn, (In("x", shape, dtype),))

    yield from (one(gelu_new, d, 6, 70, 264) for d in ("bf16", "f32"))
    yield one(capped, "f16", 33, 77)
    yield two(swiglu, "bf16", 64, 688)
    yield two(geglu, "f16", 50, 100)
    yield one(gated_half, "bf16", 40, 528)
    yield two(clipped, "f32", 37, 41)
    yield two(rounded, "f32", 65, 129)
    yield Program("maps", "bf16 50x264 residual", residual, (In("x", (50, 264), "bf16"), In("y", (50, 264), "bf16"),
                                                             In("b", (264,), "bf16")))
    table = (In("c", (70, 64), "bf16"), In("s", (70, 64), "bf16"))
    yield Program("maps", "bf16 2x70x4 d64 rotary", rotary, (In("x", (2, 70, 4, 64), "bf16"), *table))
    yield Program("maps", "bf16 2x1x4 d64 rotary_cached", rotary_cached,
                  (In("x", (2, 1, 4, 64), "bf16"), *(In(n, (1, 64), "bf16") for n in "cs"), In("k", (2, 4, 37, 64), "bf16")))
    yield Program("maps", "f16 2x70x4 d32 rotary_pairs", rotary_pairs,
                  (In("x", (2, 4, 70, 32), "f16"), In("c", (70, 16), "f32"), In("s", (70, 16), "f32")))
    yield Program("maps", "f32 3x70 d32 angles", angles, (In("p", (3, 70), "i64", "label", high=4096),
                                                          In("f", (16,), "f32", "positive", 0.1)), only=("normal", "ties"))
    yield Program("maps", "f32 4x33x65 masked", masked, (In("x", (4, 33, 65), "f32"), In("keep", (4, 33, 65), "bool", "keep")))
    yield Program("maps", "f16 96x160 turned", turned, (In("x", (96, 160), "f16"), In("y", (160, 96), "f16")))
    yield Program("maps", "f32 45x91 both_ways", both_ways, (In("x", (45, 91), "f32"), In("r", (45,), "f32"),
                                                             In("c", (91,), "f32")))
    yield two(mixed, "f16", 2, 9, 7, 72)
    yield two(mixed_rows, "bf16", 2, 5, 9, 12)
    yield one(largest_halves, "f32", 2, 6, 17, 24)
    yield one(averages_of_lines, "f16", 3, 8, 101)
    yield Program("maps", "f32 45x91 choice", choice, (In("x", (45, 91), "f32"), In("label", (45, 91), "i64", "label", high=8)))
