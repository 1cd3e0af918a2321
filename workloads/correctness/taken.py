"""Elements that are taken at places which data say, by the kernel that reads them: embeddings, neighbours in a graph or a
cloud, pages of a cache; counted from either end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program

Fn = Callable[..., Tensor | tuple[Tensor, ...]]


def embedded(ids: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Words and places, as GPT-2 begins."""
    return F.embedding(ids, w) * 8.0 + F.embedding(torch.arange(ids.shape[1], device=ids.device), p)


def typed(ids: Tensor, kinds: Tensor, w: Tensor, k: Tensor, g: Tensor, b: Tensor) -> Tensor:
    """BERT's beginning: two tables and the norm of their sum."""
    return F.layer_norm(F.embedding(ids, w) + F.embedding(kinds, k), g.shape, g, b)


def begun(ids: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """A language model's beginning: the row itself is read again behind the block."""
    x = F.embedding(ids, w)
    return x, F.rms_norm(x, g.shape, g, 1e-6)


def messages(x: Tensor, source: Tensor, to: Tensor, e: Tensor) -> Tensor:
    return torch.relu(x[source] + x[to] * e)


def neighbours(x: Tensor, at: Tensor, w: Tensor) -> Tensor:
    return (x[at] * w[..., None]).sum(-2)


def closest(x: Tensor, p: Tensor, at: Tensor) -> Tensor:
    """Of each cloud of a batch, the differences to what is near, weighed along the neighbours."""
    batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
    near = p[:, :, None] - p[batch, at]
    return ((x[:, :, None] - x[batch, at]) * near.square().sum(-1, keepdim=True).neg().exp()).amax(2)


def from_the_end(x: Tensor, at: Tensor) -> Tensor:
    return torch.tanh(x[:, at - 20] * 2) + 1


def along(x: Tensor, at: Tensor) -> Tensor:
    return torch.sigmoid(torch.gather(x, 1, at)) * 2


def turned(x: Tensor, at: Tensor) -> Tensor:
    """Columns are taken: what lies side by side is read apart."""
    return x.index_select(1, at) * 0.5 + 1


def pairs(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.tanh(x[i[:, None], j] * 2) - 1


def bags(ids: Tensor, w: Tensor) -> Tensor:
    return F.embedding(ids, w).mean(1)


def paged(q: Tensor, k: Tensor, v: Tensor, pages: Tensor) -> Tensor:
    """Keys and values in pages, by a table for each sequence."""
    k, v = (x[pages].flatten(1, 2).transpose(1, 2) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def programs() -> Iterator[Program]:
    def ids(name: str, shape: tuple[int, ...], high: int) -> In:
        return In(name, shape, "i64", "label", high=high)

    def program(what: str, fn: Fn, *ins: In) -> Program:
        return Program("taken", f"{what} {fn.__name__}", fn, ins)

    for dtype in ("f16", "bf16", "f32"):
        yield program(f"{dtype} 3x70x200", embedded, ids("ids", (3, 70), 500), In("w", (500, 200), dtype),
                      In("p", (70, 200), dtype))
        yield program(f"{dtype} 700x64", messages, In("x", (300, 64), dtype), ids("source", (700,), 300),
                      ids("to", (700,), 300), In("e", (700, 1), dtype))
        yield program(f"{dtype} 3x70x264", begun, ids("ids", (3, 70), 500), In("w", (500, 264), dtype), In("g", (264,), dtype))
    yield program("f16 2x70x768", typed, ids("ids", (2, 70), 500), ids("kinds", (2, 70), 2), In("w", (500, 768), "f16"),
                  In("k", (2, 768), "f16"), In("g", (768,), "f16"), In("b", (768,), "f16"))
    near = ids("at", (190, 12), 300)
    yield program("f32 190x12x96", neighbours, In("x", (300, 96), "f32"), near, In("w", (190, 12), "f32"))
    yield program("bf16 190x12x90", neighbours, In("x", (300, 90), "bf16"), near, In("w", (190, 12), "bf16"))
    yield program("f32 2x90x11 d32", closest, In("x", (2, 90, 32), "f32"), In("p", (2, 90, 3), "f32"),
                  ids("at", (2, 90, 11), 90))
    yield program("bf16 3x40x50", from_the_end, In("x", (3, 40, 50), "bf16"), ids("at", (33,), 40))
    yield program("f32 100x65", along, In("x", (100, 65), "f32"), ids("at", (100, 37), 65))
    yield program("f16 100x130", turned, In("x", (100, 130), "f16"), ids("at", (77,), 130))
    yield program("f32 40x50x24", pairs, In("x", (40, 50, 24), "f32"), ids("i", (30,), 40), ids("j", (30, 7), 50))
    yield program("bf16 70x21x256", bags, ids("ids", (70, 21), 500), In("w", (500, 256), "bf16"))
    yield program("f16 2x4x1 d64", paged, In("q", (2, 4, 1, 64), "f16"), *(In(n, (40, 16, 4, 64), "f16") for n in "kv"),
                  ids("pages", (2, 12), 40))
