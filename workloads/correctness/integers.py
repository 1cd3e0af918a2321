"""Integers between floats: truncated, wider or narrower than a machine's word, places that arithmetic makes; the nearest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, Program, made, of

# -- casts -------------------------------------------------------------------------------------------------------------


def whole(x: Tensor) -> Tensor:
    return (x * 0.5).long().float() * x


def shares(x: Tensor) -> Tensor:
    return torch.softmax((x * 2.5).long().float(), -1)


def remains(x: Tensor) -> Tensor:
    return torch.softmax(x - (x / 3).long() * 3.0, -1)


def hashed(ids: Tensor, x: Tensor) -> Tensor:
    """Several hashes of an id, one of a float's bucket."""
    h = (ids * 2654435761 + (x * 8).long() * 40503) % 1024
    return torch.softmax(h.float() / 1024 + x, -1)


def wide(a: Tensor, b: Tensor) -> Tensor:
    """Products of 8 bits, summed as integers."""
    return ((a * 3).to(torch.int8).long() * (b * 70000).to(torch.int32).long()).sum(-1)


def wrapped(a: Tensor, b: Tensor) -> Tensor:
    """Sums of 8 bits begin again at the other end, and -128 has no negative."""
    x, y = (a * 30).clamp(-128, 127).to(torch.int8), (b * 30).clamp(-128, 127).to(torch.int8)
    s = x + y
    return torch.softmax(torch.where(s > 0, s, -x).float() / 16, -1)


def levels(x: Tensor) -> tuple[Tensor, Tensor]:
    """To 256 levels and back."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = ((high - low) / 255).clamp(min=1e-6)
    q = ((x - low) / step).round().clamp(0, 255).to(torch.uint8)
    return q, q.float() * step + low


def halved(x: Tensor) -> Tensor:
    """An integer quotient of a row's sum."""
    return x - (x.sum(-1, keepdim=True).long() // 3).to(x.dtype)


# -- places ------------------------------------------------------------------------------------------------------------


def bucketed(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """T5's buckets, of places as they come."""
    n = torch.arange(q.shape[-2], device=q.device)[:, None] - torch.arange(k.shape[-2], device=q.device)
    n = n.clamp(min=0)
    far = 8 + (torch.log(n.clamp(min=1).float() / 8) / 2.7725887 * 8).to(torch.long)
    bias = table[torch.where(n < 8, n, far.clamp(max=15))]
    return torch.softmax(q @ k.mT + bias.permute(2, 0, 1), -1) @ v


def looked_up(table: Tensor, x: Tensor) -> Tensor:
    return F.layer_norm(table[(x[:, 0].abs() * 2.5).long().clamp(max=table.shape[0] - 1)] + x, (x.shape[1],))


# -- the nearest -------------------------------------------------------------------------------------------------------


def neighbours(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x[:, :, None] - y[:, None]).square().sum(-1).topk(5, dim=-1, largest=False)


def distances(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    d = (x[:, :, None] - y[:, None]).square().sum(-1)
    return -d, -d


def weighed(x: Tensor) -> Tensor:
    """Inverse distances to the smallest, summed to 1."""
    v, _ = x.abs().topk(6, -1, largest=False)
    w = 1 / (v + 1e-3)
    return w / w.sum(-1, keepdim=True)


# -- infinite values ---------------------------------------------------------------------------------------------------


def kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in float32, and a bound behind it in a kernel of its own."""
    o = torch.softmax(q.float() @ k.float().mT / q.shape[-1] ** 0.5, -1) @ v.float()
    return F.layer_norm(torch.tanh(o), (v.shape[-1],))


def programs() -> Iterator[Program]:
    p = partial(made, "integers")
    yield p("f32 5x70 whole", whole, of("x", 5, 70, scale=5.0), only=CALM)
    yield p("f32 33x257 shares", shares, of("x", 33, 257), only=CALM)
    yield p("f16 33x130 shares", shares, of("x", 33, 130, dtype="f16"), only=CALM)
    yield p("f32 33x100 remains", remains, of("x", 33, 100, scale=5.0), only=("normal", "ties", "zeros"))
    yield p("f32 65x100 hashed", hashed, of("ids", 65, 100, dtype="i64", kind="label", high=50000), of("x", 65, 100),
            only=("normal", "ties", "zeros"))
    yield p("f32 33x300 wide", wide, of("a", 33, 300), of("b", 33, 300), only=("normal", "ties", "zeros"))
    yield p("f32 33x130 wrapped", wrapped, of("a", 33, 130, scale=3.0), of("b", 33, 130, scale=3.0), only=("normal", "ties"))
    yield p("f32 33x777 levels", levels, of("x", 33, 777), only=CALM)
    yield p("f32 33x130 halved", halved, of("x", 33, 130), only=CALM)
    for dtype in ("f16", "bf16"):
        yield p(f"{dtype} 2x3x65x32 bucketed", bucketed, *(of(n, 2, 3, 65, 32, dtype=dtype, scale=0.5) for n in "qk"),
                of("v", 2, 3, 65, 32, dtype=dtype), of("table", 16, 3, dtype=dtype, kind="weight"))
        yield p(f"{dtype} 2x3x130x64 kept", kept, *(of(n, 2, 3, 130, 64, dtype=dtype) for n in "qk"),
                of("v", 2, 3, 130, 64, dtype=dtype), only=(*CALM, "inf:v", "-inf:v", "nan:v"))
    yield p("f32 65x96 looked up", looked_up, of("table", 40, 96), of("x", 65, 96), only=("normal", "ties", "zeros", "outlier"))
    yield Program("integers", "f32 2x33x70x3 neighbours", neighbours, (of("x", 2, 33, 3), of("y", 2, 70, 3)), ranked=distances)
    yield p("f32 33x300 weighed", weighed, of("x", 33, 300), only=(*CALM, "nan:x", "inf:x"))
