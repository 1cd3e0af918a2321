"""What was once cut in the wrong place: halves of a row merged by hand, statistics of both axes of one matrix, numbers that are
put together, diagonals, places of long rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program
from workloads.correctness.routing import alone, unlikely

USUAL = ("normal", "ties", "zeros", "outlier", "tiny")


def by_maximum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two halves of the keys, as flash decoding merges them: maximum, sum and unnormalised values of each."""
    def part(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s = (q @ k.mT).float() * q.shape[-1]**-0.5
        m = s.amax(-1, keepdim=True)
        p = (s - m).exp()
        return (p.to(v.dtype) @ v).float(), m, p.sum(-1, keepdim=True)

    n = k.shape[2] // 2
    (o, m, t), (p, w, u) = part(k[:, :, :n], v[:, :, :n]), part(k[:, :, n:], v[:, :, n:])
    top = torch.maximum(m, w)
    a, b = (m - top).exp(), (w - top).exp()
    return ((a * o + b * p) / (a * t + b * u)).to(q.dtype)


def by_logsumexp(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    def part(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s = (q @ k.mT).float() * q.shape[-1]**-0.5
        t = s.logsumexp(-1, keepdim=True)
        return ((s - t).exp().to(v.dtype) @ v).float(), t

    n = k.shape[2] // 2
    (o, s), (p, t) = part(k[:, :, :n], v[:, :, :n]), part(k[:, :, n:], v[:, :, n:])
    top = torch.maximum(s, t)
    a, b = (s - top).exp(), (t - top).exp()
    return ((a * o + b * p) / (a + b)).to(q.dtype), (top + (a + b).log()).squeeze(-1)


def both_ways(x: Tensor, y: Tensor) -> Tensor:
    """CLIP's loss by logsumexp: rows and columns of the same similarities, and their diagonal."""
    s = F.normalize(x.float(), dim=-1) @ F.normalize(y.float(), dim=-1).T / 0.07
    d = torch.diagonal(s)
    return (torch.logsumexp(s, 0) + torch.logsumexp(s, 1) - 2 * d).mean() / 2


def of_rows(s: Tensor, d: Tensor) -> Tensor:
    return (torch.logsumexp(s.float(), 0)[None] + torch.logsumexp(s.float(), 1)[:, None] - d.float()).mean(1)


def numbers(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Losses that are put together, as a training step's."""
    return x.float().abs().mean((0, 1)) * w[0] + 0.1 * y.float().amax() - w[1].tanh() * w[2]


def chain(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a + 0.1 * b * torch.sigmoid(c) - 0.01 * c


def diagonals(x: Tensor) -> tuple[Tensor, Tensor]:
    n = x.shape[1]
    return torch.diagonal(x, 1, -2, -1).float().exp() - 1, torch.einsum("bii->bi", x[:, :, :n]) * 2 + x[:, 0, :n]


def greedy(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next token, how sure the model is of it, and how unsure of all."""
    lp = torch.log_softmax(x.float(), -1)
    return x.argmax(-1), lp.amax(-1), -(lp.exp() * lp).sum(-1)


def least_likely(x: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(x.float(), -1)
    return p.argmin(-1), p.amin(-1)


def extremes(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.argmax(-1), x.amax(-1), x.amin(-1), x.mean(-1)


def places_of_long_rows() -> Iterator[Program]:
    """Of rows that no block holds, walked and shared out; and reductions of one row that have nothing else in common."""
    for shape, dtype in (((3, 50257), "f32"), ((3, 50257), "bf16"), ((300, 20011), "f16")):
        size = f"{dtype} {shape[0]}x{shape[1]}"
        yield Program("long", f"{size} greedy", greedy, (In("x", shape, dtype),), ranked=alone)
        yield Program("long", f"{size} least likely", least_likely, (In("x", shape, dtype),), ranked=unlikely)
    for shape, dtype in (((3, 50257), "f32"), ((37, 3000), "bf16"), ((2, 40000), "f16")):
        yield Program("long", f"{dtype} {shape[0]}x{shape[1]} extremes", extremes, (In("x", shape, dtype),), ranked=alone)


def programs() -> Iterator[Program]:
    for dtype, d, n in (("f16", 64, 200), ("bf16", 128, 333)):
        qkv = (In("q", (1, 2, 65, d), dtype), In("k", (1, 2, n, d), dtype), In("v", (1, 2, n, d), dtype))
        yield Program("merged", f"{dtype} 1xh2 65x{n} d{d} maximum", by_maximum, qkv)
        yield Program("merged", f"{dtype} 1xh2 65x{n} d{d} logsumexp", by_logsumexp, qkv)
    for dtype in ("f16", "f32"):
        yield Program("both", f"{dtype} 40x64 similarities", both_ways, (
            In("x", (40, 64), dtype), In("y", (40, 64), dtype)), only=USUAL)
        yield Program("both", f"{dtype} 40x333 rows", of_rows, (In("s", (40, 333), dtype), In("d", (40, 333), dtype)))
    yield Program("numbers", "f32 33x200", numbers, (
        In("x", (33, 200), "f32"), In("y", (33, 200), "f32"), In("w", (3,), "f32")))
    yield Program("numbers", "f32 1 chain", chain, (In("a", (1,), "f32"), In("b", (1,), "f32"), In("c", (1,), "f32")))
    for dtype in ("f32", "bf16"):
        yield Program("diagonals", f"{dtype} 3x20x33", diagonals, (In("x", (3, 20, 33), dtype),))
    yield from places_of_long_rows()
