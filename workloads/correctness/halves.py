"""Half precision where most programs have single: scales of contractions, numbers alone, many short rows, pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program


def over_rows(x: Tensor, a: Tensor, w: Tensor) -> Tensor:
    return (x / (a.abs() + 0.5)) @ w.mT


def over_both(x: Tensor, a: Tensor, w: Tensor) -> Tensor:
    b = w.abs().amax(-1, keepdim=True) + 0.25
    return (x * a) @ (w / b).mT


def over_rounded(x: Tensor, a: Tensor, w: Tensor) -> Tensor:
    b = w.abs().amax(-1, keepdim=True) + 0.25
    return (x * a) @ (w / b).to(x.dtype).mT


def by_a_constant(x: Tensor, a: Tensor, w: Tensor) -> Tensor:
    return (x / 3.0 * a) @ w.mT


def cosines(q: Tensor, k: Tensor) -> Tensor:
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 10


def cosine_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 10).softmax(-1) @ v


def heads_in_columns(x: Tensor, w: Tensor) -> Tensor:
    """Cosines of heads that lie side by side."""
    q = F.normalize(x.unflatten(-1, (w.shape[1], w.shape[-1])).transpose(1, 2), dim=-1)
    return q @ F.normalize(w, dim=-1).mT


def numbers(x: Tensor, y: Tensor) -> Tensor:
    return x.mean() * y.mean() * 2 + x.amax() * y.std()


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    def near(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-(a[:, None] - b[None]).pow(2).sum(-1) / 64).mean()

    return near(x, x) + near(y, y) - 2 * near(x, y)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def entropy(x: Tensor) -> Tensor:
    return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)


def normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    m = x.float().softmax(-1).max(-1)
    return m.values.to(x.dtype), m.indices


def room(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A count of whole numbers that says which maxima of a row count: tiles of two widths."""
    n, m = y.sum(-1), x.amax(-1)
    return torch.where(n < 70, m, 0.0), torch.where(n < 70, n, -1)


def steps(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """What takes few values, of arithmetic that is rounded on the way."""
    d = x - y + 1.5
    return torch.remainder(d, 3.0) - 1.5, ((x * 2.5 + y) * 3.0).floor(), torch.floor_divide(x, 0.37), (y - 0.75).round().sum(-1)


def timed(x: Tensor, t: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.group_norm(x + t[..., None, None], 4, w, b))


def windows(x: Tensor, w: Tensor) -> Tensor:
    """A short convolution of each channel, as windows of the sequence."""
    return F.silu((F.pad(x.mT, (3, 0)).unfold(-1, 4, 1) * w).sum(-1)).mT


def by_value(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x


def smoothed(x: Tensor, y: Tensor) -> Tensor:
    t = F.one_hot(y, x.shape[-1]).to(x.dtype) * 0.9 + 0.1 / x.shape[-1]
    return -(t * x.log_softmax(-1)).sum(-1)


def pooled(x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(x), 3, 2, 1)


def averaged(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 2) * 2


def programs() -> Iterator[Program]:
    def of(fn: Callable[..., Any], *ins: In) -> Program:
        what = fn.__name__.replace("_", " ")
        return Program("halves", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins,
                       ranked=by_value if fn is largest else None)

    for dtype in ("f16", "bf16", "f32"):
        for fn in (over_rows, by_a_constant, over_both):
            yield of(fn, In("x", (2, 70, 48), dtype), In("a", (2, 70, 1), dtype), In("w", (2, 33, 48), dtype))
    for dtype in ("f16", "bf16"):
        yield of(over_rounded, In("x", (2, 70, 48), dtype), In("a", (2, 70, 1), dtype), In("w", (2, 33, 48), "f32"))
        yield of(cosines, In("q", (2, 3, 49, 32), dtype), In("k", (2, 3, 49, 32), dtype))
        yield of(cosine_attention, *(In(n, (2, 3, 49, 32), dtype) for n in "qkv"))
        yield of(heads_in_columns, In("x", (2, 49, 96), dtype), In("w", (2, 3, 49, 32), dtype))
        yield of(numbers, In("x", (300,), dtype), In("y", (40, 30), dtype))
        yield of(discrepancy, In("x", (60, 24), dtype), In("y", (50, 24), dtype))
    for shape, dtype in (((1100, 40), "f16"), ((2050, 64), "f32"), ((1500, 33), "bf16"), ((3, 700, 20), "f16"),
                         ((1030, 64), "bf16")):
        for fn in (softmax, entropy, normed, largest):
            yield of(fn, In("x", shape, dtype))
        yield of(smoothed, In("x", shape, dtype), In("y", shape[:-1], "i64", "label", high=shape[-1]))
    for dtype in ("f16", "bf16", "f32"):
        yield of(room, In("x", (300, 64), dtype), In("y", (300, 64), "i64", "label", high=3))
        yield of(steps, In("x", (70, 130), dtype), In("y", (70, 130), dtype))
        yield of(timed, In("x", (2, 40, 64, 64), dtype), In("t", (2, 40), dtype), In("w", (40,), dtype), In("b", (40,), dtype))
        yield of(windows, In("x", (2, 2048, 96), dtype), In("w", (96, 1, 4), dtype))
    for shape, dtype in (((2, 6, 30, 112), "f16"), ((1, 5, 56, 56), "f32"), ((2, 3, 40, 48), "bf16")):
        for fn in (pooled, averaged):
            yield of(fn, In("x", shape, dtype))
