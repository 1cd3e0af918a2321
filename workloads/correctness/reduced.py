"""One reduction of a mapped row (losses, distances, votes, places), and matrices times one vector, as in a step of decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program

Fn = Callable[..., Any]


def squares(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x.float(), y.float())


def distances(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() - y.float()).abs().mean(-1)


def farthest(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs().amax()


def votes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return ((x > y) & (x > 0)).any(-1), (x.sign() == y.sign()).sum(-1)


def kept(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The sum is a result, and so is what it sums."""
    h = x.float() + y.float()
    return h, h.sum(-1)


def gated_mean(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(1 - (torch.sigmoid(x.float()) * y.float()).mean(-1))


def nearest(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() - y.float()).square().argmin(-1)


def vector(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def vector_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return r + F.relu(F.linear(x, w, b))


def vector_gate(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, u)


def vectors(x: Tensor, w: Tensor) -> Tensor:
    """Each of a batch with a matrix of its own."""
    return torch.matmul(w, x[..., None])[..., 0] * 0.5


def bent(of: Fn) -> Fn:
    def run(x: Tensor) -> Tensor:
        y = of(x)
        return (y * y).sum(-1)

    return run


BENDS: dict[str, Fn] = {"tanh": torch.tanh, "exp": torch.exp, "abs": torch.abs, "root": lambda x: x.abs().sqrt(),
                        "twice": lambda x: torch.tanh(torch.tanh(x)), "rounded": lambda x: x.half().float() * x}
"""A row of so few elements that a thread has one vector of them: what is written over in it is read again behind that."""

ROUNDED: dict[str, Fn] = {"log": lambda x: torch.log1p(F.log_softmax(x, -1).abs()),
                          "norm": lambda x: F.softplus(F.gelu(F.layer_norm(x, x.shape[-1:]))),
                          "weights": lambda x: torch.logit(torch.softmax(x, -1), 1e-3).tanh() * x}
"""The same of halves, each map rounded, and converted again for the next."""

PAIRS: tuple[Fn, ...] = (squares, distances, farthest, votes, kept, gated_mean)


def programs() -> Iterator[Program]:
    for n, fn in enumerate(PAIRS):
        for dtype, shape in ((("f16", "f32", "bf16")[n % 3], (33, 200)), (("bf16", "f16", "f32")[n % 3], (9, 3000))):
            size = "x".join(map(str, shape))
            yield Program("reduced", f"{dtype} {size} {fn.__name__}", fn, (In("x", shape, dtype), In("y", shape, dtype)))
    yield Program("reduced", "f32 5x20x64 nearest", nearest, (In("x", (5, 20, 64), "f32"), In("y", (5, 1, 64), "f32")),
                  ranked=lambda x, y: (s := -(x.float() - y.float()).square(), s), only=("normal", "tiny", "outlier"))
    for name, of in BENDS.items():
        for shape in ((4, 64), (16, 128)):
            size = "x".join(map(str, shape))
            yield Program("reduced", f"f32 {size} squares of {name}", bent(of), (In("x", shape, "f32"),))
    for n, (name, of) in enumerate(ROUNDED.items()):
        for k, shape in enumerate(((5, 64), (9, 128))):
            dtype, size = ("f16", "bf16")[(n + k) % 2], "x".join(map(str, shape))
            yield Program("reduced", f"{dtype} {size} rounded {name}", of, (In("x", shape, dtype),))
    for dtype in ("f16", "bf16", "f32"):
        x, w = In("x", (1, 1040), dtype), In("w", (641, 1040), dtype, "weight", 0.1)
        yield Program("vector", f"{dtype} 641x1040", vector, (x, w))
        yield Program("vector", f"{dtype} 641x1040 residual", vector_residual, (
            x, w, In("b", (641,), dtype, "weight"), In("r", (1, 641), dtype)))
    yield Program("vector", "bf16 300x2000 gate", vector_gate, (
        In("x", (1, 1, 2000), "bf16"), *(In(n, (300, 2000), "bf16", "weight", 0.1) for n in "wu")))
    yield Program("vector", "f16 5x700x256 batch", vectors, (
        In("x", (5, 256), "f16"), In("w", (5, 700, 256), "f16", "weight", 0.1)))
