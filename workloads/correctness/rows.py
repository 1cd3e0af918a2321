"""Norms over the last axis, in the spellings models use, alone and before a product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program, alternate

EPS = 1e-5
Fn = Callable[..., Any]


def rms_float(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * w


def rms_plain(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w


def rms_root(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h / torch.sqrt((h * h).sum(-1, keepdim=True) / x.shape[-1] + EPS) * w.float()).to(x.dtype)


def rms_library(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w, EPS)


def rms_offset(x: Tensor, w: Tensor) -> Tensor:
    """Gemma: the weight is stored about one."""
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * (1.0 + w.float())).to(x.dtype)


def rms_residual(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return rms_float(h, w), h


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b, EPS)


def layer_bare(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


def layer_hand(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x.float()
    m = h.mean(-1, keepdim=True)
    v = ((h - m) ** 2).mean(-1, keepdim=True)
    return ((h - m) * torch.rsqrt(v + EPS) * w + b).to(x.dtype)


def layer_var(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + EPS) * w + b


def layer_activated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, x.shape[-1:], w, b, EPS))


def group(x: Tensor) -> Tensor:
    return F.group_norm(x, 4, eps=EPS)


def instance(x: Tensor) -> Tensor:
    return F.instance_norm(x, eps=EPS)


def l2(x: Tensor) -> Tensor:
    h = x.float()
    m = h.abs().amax(-1, keepdim=True)
    return (m * torch.sqrt(((h / m) ** 2).sum(-1, keepdim=True))).to(x.dtype)


def l2_plain(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


def normalised(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def rms_max(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * w).amax(-1).to(x.dtype)


def summed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.layer_norm(x, x.shape[-1:], w, b, EPS)).sum(-1)


ONE: dict[str, tuple[Fn, int]] = {
    "rms float": (rms_float, 1), "rms plain": (rms_plain, 1), "rms root": (rms_root, 1), "rms library": (rms_library, 1),
    "rms offset": (rms_offset, 1), "layer": (layer, 2), "layer bare": (layer_bare, 0), "layer hand": (layer_hand, 2),
    "layer var": (layer_var, 2), "layer gelu": (layer_activated, 2), "l2": (l2, 0), "l2 library": (l2_plain, 0),
    "normalize": (normalised, 0), "rms max": (rms_max, 1), "layer sum": (summed, 2),
}
SHAPES = ((5, 333), (64, 1024), (3, 5000))


def norms() -> Iterator[Program]:
    for dtype in ("f16", "bf16", "f32"):
        for what, (fn, columns) in ONE.items():
            shapes = SHAPES if what in ("rms float", "layer", "l2") else SHAPES[:1] if dtype == "bf16" else SHAPES[1:2]
            for rows, n in shapes:
                ins = (In("x", (rows, n), dtype), *(In(c, (n,), dtype, "weight") for c in "wb"[:columns]))
                yield Program("norms", f"{dtype} {rows}x{n} {what}", fn, ins)
        x = In("x", (6, 333), dtype)
        yield Program("norms", f"{dtype} 6x333 rms residual", rms_residual,
                      (x, In("w", (333,), dtype, "weight"), In("r", (6, 333), dtype)))
        yield Program("norms", f"{dtype} 3x12x7x5 group", group, (In("x", (3, 12, 7, 5), dtype),))
        yield Program("norms", f"{dtype} 3x4x9x11 instance", instance, (In("x", (3, 4, 9, 11), dtype),))
        for strategy, splits in (("single", 0), ("resident", 0), ("multi", 3)):
            for what in ("rms float", "layer", "l2"):
                fn, columns = ONE[what]
                ins = (In("x", (7, 1500), dtype), *(In(c, (1500,), dtype, "weight") for c in "wb"[:columns]))
                yield Program("norms", f"{dtype} 7x1500 {what}", fn, ins, strategy, splits)


def projected(norm: Fn, columns: int, residual: bool = False) -> Fn:
    def fn(x: Tensor, p: Tensor, *rest: Tensor) -> Tensor:
        h = x + rest[-1] if residual else x
        return norm(h, *rest[:columns]) @ p

    return fn


def joined() -> Iterator[Program]:
    """A norm read by a product."""
    for dtype in ("f16", "bf16"):
        for what, norm, columns, residual in (("rms", rms_float, 1, False), ("layer", layer, 2, False),
                                              ("rms residual", rms_float, 1, True), ("normalize", normalised, 0, False)):
            ins = [In("x", (65, 200), dtype), In("p", (200, 96), dtype, "weight", 0.1),
                   *(In(c, (200,), dtype, "weight") for c in "wb"[:columns])]
            ins += [In("r", (65, 200), dtype)] if residual else []
            yield Program("norm+product", f"{dtype} 65x200x96 {what}", projected(norm, columns, residual), tuple(ins))


def programs() -> Iterator[Program]:
    yield from alternate(norms())
    yield from alternate(joined())
