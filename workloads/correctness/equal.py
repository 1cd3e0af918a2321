"""Rows of equal elements: of ``n`` times one number that no float32 is, the mean is that number, and what is about it is 0.

Not here, as docs/algebra.md has it: a variance of float32 by itself, and a float32 layer norm times a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program

Fn = Callable[..., Any]


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def residual(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return F.layer_norm(h, h.shape[-1:], w, b), h


def groups(x: Tensor) -> Tensor:
    return F.group_norm(x.flatten(1)[..., None], 3)


def instances(x: Tensor) -> Tensor:
    return F.layer_norm(x.transpose(-1, -2), (x.shape[-2],))


def before_a_product(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) @ w.mT


def score(x: Tensor) -> Tensor:
    h = x.float()
    return (h - h.mean(-1, keepdim=True)) / (h.std(-1, correction=0, keepdim=True) + 1e-3)


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x.float(), -1, correction=0)


def shares(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.softmax(x, -1), F.normalize(x, dim=-1)


FORMS: dict[str, tuple[Fn, str]] = {"layer": (layer, "xwb"), "residual": (residual, "xrwb"), "groups": (groups, "x"),
                                    "score": (score, "x"), "spread": (spread, "x"), "shares": (shares, "x")}


def programs() -> Iterator[Program]:
    for k, n in enumerate((40, 300, 768, 3000)):
        for j, (what, (fn, reads)) in enumerate(FORMS.items()):
            half = ("f16", "bf16")[(j + k) % 2]
            for dtype in {"score": ("f32",), "spread": (half,)}.get(what, ("f32", half)):
                shape = {"x": (60, n) if what != "groups" else (24, 3, n), "r": (60, n), "w": (n,), "b": (n,)}
                yield Program("equal", f"{dtype} {n} {what}", fn, tuple(
                    In(i, shape[i], dtype, "weight" if i in "wb" else "data", 1.0 if i in "wb" else 300.0) for i in reads),
                    only=("equal", "normal", "ties"))
    yield Program("equal", "f32 300 columns", instances, (In("x", (4, 300, 33), "f32", scale=300.0),), only=("equal", "normal"))
    yield Program("equal", "f16 300 product", before_a_product, (
        In("x", (70, 300), "f16", scale=300.0), In("w", (48, 300), "f16", "weight", 0.1)), only=("equal", "normal"))
