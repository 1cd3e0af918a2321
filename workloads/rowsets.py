"""Several results of one row x [rows, columns], read once: rows that are written and reduced again, and results that nothing
connects but the row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from workloads.case import DTYPES, Case, Inputs, normal, size
from workloads.norms import EPS, rmsnorm


class Weighted(torch.nn.Module):
    """A function of its inputs and of ``weights`` vectors over the columns, drawn from a fixed seed."""

    def __init__(self, fn: Callable[..., Any], weights: int, columns: int, dtype: str) -> None:
        super().__init__()
        self.fn, self.count = fn, weights
        generator = torch.Generator().manual_seed(7)
        for n in range(weights):
            weight = 1 + 0.1 * torch.randn(columns, generator=generator)
            self.register_parameter(f"weight{n}", torch.nn.Parameter(weight.to(DTYPES[dtype]), requires_grad=False))

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args, *(getattr(self, f"weight{n}") for n in range(self.count)))


def post_and_next(x: Tensor, h: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A block's last norm, the residual, and the next block's first norm."""
    h = h + rmsnorm(x, w)
    return h, rmsnorm(h, v)


def two_norms(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return rmsnorm(x, w), rmsnorm(x, v)


def normed_and_rounded(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A norm, and what it is in 8 bits with a scale per row."""
    y = rmsnorm(x, w)
    scale = y.abs().amax(-1, keepdim=True).float().clamp(min=EPS) / 448
    return y, (y.float() / scale).to(torch.float8_e4m3fn), scale


def entropy(x: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(x, -1)
    return p, -(p * torch.log_softmax(x, -1)).sum(-1)


def weights_and_total(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.softmax(x, -1), torch.logsumexp(x, -1)


def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return functional.layer_norm(x, x.shape[-1:]), x.mean(-1), x.var(-1)


# name: (function, tensors it reads, weights, bytes that it writes per element and per row)
PROGRAMS: dict[str, tuple[Callable[..., Any], int, int, Callable[[int], tuple[int, int]]]] = {
    "post-next": (post_and_next, 2, 2, lambda e: (2 * e, 0)),
    "two-norms": (two_norms, 1, 2, lambda e: (2 * e, 0)),
    "norm-quant": (normed_and_rounded, 1, 1, lambda e: (e + 1, 4)),
    "entropy": (entropy, 1, 0, lambda e: (e, e)),
    "softmax-lse": (weights_and_total, 1, 0, lambda e: (e, e)),
    "moments": (moments, 1, 0, lambda e: (e, 2 * e)),
}


def case(name: str, rows: int, columns: int, dtype: str, sets: tuple[str, ...]) -> Case:
    fn, tensors, weights, written = PROGRAMS[name]
    shape = (rows, columns)
    each, row = written(size((1,), dtype))
    moved = tensors * size(shape, dtype) + weights * size((columns,), dtype) + rows * columns * each + rows * row

    def inputs(device: str, seed: int) -> Inputs:
        return tuple(normal(shape, dtype, device, tensors * seed + n, 3.0) for n in range(tensors))

    return Case("rowsets", f"{name}-{rows}x{columns}-{dtype}", dtype, {"rows": rows, "columns": columns},
                build=lambda: Weighted(fn, weights, columns, dtype), inputs=inputs, flops=0, bytes=moved, sets=sets)


SHAPES: Sequence[tuple[int, int, str]] = ((16384, 1024, "bf16"), (4096, 4096, "bf16"), (65536, 128, "f32"), (2048, 8192, "f32"))


def cases() -> list[Case]:
    return [case(name, *shape, ("rows",)) for name in PROGRAMS for shape in SHAPES] + [
        case(name, 6, 200, "f16", ("smoke",)) for name in PROGRAMS]
