"""Norms and row statistics over the last axis of x [rows, columns]: softmax, LayerNorm, RMSNorm, the stable L2 norm
m * sqrt(sum (x/m)^2) with m = max|x|, RMSNorm followed by the row's maximum, variance, and the moment of inertia."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from workloads.case import DTYPES, Case, Inputs, normal, size

EPS = 1e-6


class Function(torch.nn.Module):
    """A function of its inputs, and of a weight per column when ``columns`` is given (drawn from a fixed seed)."""

    def __init__(self, fn: Callable[..., torch.Tensor], columns: int = 0, dtype: str = "f16") -> None:
        super().__init__()
        self.fn = fn
        if columns:
            generator = torch.Generator().manual_seed(7)
            weight = 1 + 0.1 * torch.randn(columns, generator=generator)
            self.weight = torch.nn.Parameter(weight.to(DTYPES[dtype]), requires_grad=False)

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.fn(*args, self.weight) if hasattr(self, "weight") else self.fn(*args)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def layernorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], w, None, EPS)


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * w


def l2norm(x: torch.Tensor) -> torch.Tensor:
    h = x.float()
    m = h.abs().amax(-1, keepdim=True)
    return (m * torch.sqrt(((h / m) ** 2).sum(-1, keepdim=True))).to(x.dtype)


def rmsnorm_max(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * w).amax(-1).to(x.dtype)


def logsumexp(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x.float(), -1)


def sum_of_sums(x: torch.Tensor) -> torch.Tensor:
    """A sum, and a sum of what it divides."""
    p = x / x.abs().sum(-1, keepdim=True)
    return (p * p).sum(-1)


def cross_entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(x.float(), y, reduction="none")


def variance(x: torch.Tensor) -> torch.Tensor:
    return torch.var(x, -1, correction=0)


def inertia(m: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """About the centre of mass: masses m [batch, n], positions x [batch, n, 3]."""
    total = m.sum(-1)
    centre = (m[..., None] * x).sum(1) / total[:, None]
    return (m * ((x - centre[:, None]) ** 2).sum(-1)).sum(-1)


# name: (function, has a weight, outputs the whole row)
ROWWISE: dict[str, tuple[Callable[..., torch.Tensor], bool, bool]] = {
    "softmax": (softmax, False, True),
    "layernorm": (layernorm, True, True),
    "rmsnorm": (rmsnorm, True, True),
    "l2norm": (l2norm, False, False),
    "rmsnorm-max": (rmsnorm_max, True, False),
    "logsumexp": (logsumexp, False, False),
    "sum-sum": (sum_of_sums, False, False),
    "cross-entropy": (cross_entropy, False, False),
}


WIDE = (*(("softmax", 2048, n, "f16") for n in (1024, 8192, 32768, 131072)), ("rmsnorm", 8192, 4096, "f16"),
        ("layernorm", 4096, 16384, "f16"), ("logsumexp", 4096, 32768, "f16"), ("cross-entropy", 4096, 32000, "f16"),
        ("sum-sum", 4096, 8192, "f32"))
"""(function, rows, columns, dtype) of grids that fill a GPU."""


def rowwise(name: str, rows: int, columns: int, dtype: str, sets: tuple[str, ...]) -> Case:
    """``x`` [rows, columns]; those with a label per row [rows] get one."""
    fn, weighted, whole_row = ROWWISE[name]
    shape = (rows, columns)
    labelled = name == "cross-entropy"
    moved = size(shape, dtype) * (2 if whole_row else 1) + (size((columns,), dtype) if weighted else 0) + 8 * rows * labelled

    def inputs(device: str, seed: int) -> Inputs:
        x = normal(shape, dtype, device, seed, 3.0)
        generator = torch.Generator(device).manual_seed(seed)
        return (x, torch.randint(columns, (rows,), generator=generator, device=device)) if labelled else (x,)

    return Case("norms", f"{name}-{rows}x{columns}", dtype, {"rows": rows, "columns": columns},
                build=lambda: Function(fn, columns if weighted else 0, dtype),
                inputs=inputs, flops=0,
                bytes=moved + (0 if whole_row else size((rows,), dtype)), sets=sets)


def variance_case(name: str, batch: int, n: int, sets: tuple[str, ...]) -> Case:
    def inputs(device: str, seed: int) -> Inputs:
        return (normal((batch, n), "f32", device, seed) + 3,)

    return Case("variance", name, "f32", {"batch": batch, "l": n}, build=lambda: Function(variance), inputs=inputs, flops=0,
                bytes=size((batch, n), "f32") + size((batch,), "f32"), sets=sets)


def inertia_case(name: str, batch: int, n: int, sets: tuple[str, ...]) -> Case:
    def inputs(device: str, seed: int) -> Inputs:
        return normal((batch, n), "f32", device, 2 * seed).abs() + 0.1, normal((batch, n, 3), "f32", device, 2 * seed + 1) + 5

    return Case("inertia", name, "f32", {"batch": batch, "n": n}, build=lambda: Function(inertia), inputs=inputs, flops=0,
                bytes=4 * size((batch, n), "f32") + size((batch,), "f32"), sets=sets)


def cases() -> list[Case]:
    out: list[Case] = []
    for name in ROWWISE:
        out += [rowwise(name, rows, 1 << p, "f16", ("paper",)) for rows in (32, 256) for p in (10, 13, 17)]
        out.append(rowwise(name, 6, 200, "f16", ("smoke",)))
    out += [rowwise(name, rows, columns, dtype, ("rows",)) for name, rows, columns, dtype in WIDE]
    grid = [(b, n) for b in (1, 128, 512, 1024) for n in (8192, 32768)]
    out += [variance_case(f"V{i + 1}", b, n, ("paper",)) for i, (b, n) in enumerate(grid)]
    out += [inertia_case(f"I{i + 1}", b, n, ("paper",)) for i, (b, n) in enumerate(grid)]
    out += [variance_case("smoke", 3, 500, ("smoke",)), inertia_case("smoke", 3, 500, ("smoke",))]
    return out

