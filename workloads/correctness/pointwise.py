"""Element by element, and what is counted or summed of it: comparisons, choices and steps, which decide where NaN, the
infinities and both zeros go. A few to a program, whose results a sum over the row holds together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program, alternate

Fn = Callable[[Tensor], Tensor]

SETS: dict[str, tuple[Fn, ...]] = {
    "signs": (torch.sign, lambda x: 1 - (x > 0).to(x.dtype), lambda x: torch.where(x < 0, 0.0, x), lambda x: x * 0 + 1,
              lambda x: torch.where(x < 0, -1.0, torch.where(x >= 0, 1.0, 5.0))),
    "orders": (lambda x: ((x < 0) | (x > 0)).to(x.dtype), lambda x: ((x < 0) | (x >= 0)).to(x.dtype),
               lambda x: (~((x < 1) & (x > -1))).to(x.dtype), lambda x: torch.logical_not(x >= 0).to(x.dtype),
               lambda x: ((x < 0) ^ (x > 1)).to(x.dtype), lambda x: ((x < 0) == (x > 1)).to(x.dtype)),
    "kinds": (lambda x: torch.isfinite(x).to(x.dtype), lambda x: torch.isinf(x).to(x.dtype), lambda x: (x != x).to(x.dtype),
              lambda x: torch.where(x == x, 1.0, 2.0).to(x.dtype), lambda x: torch.nan_to_num(x, posinf=3.0, neginf=-3.0)),
    "differences": (lambda x: x - x, lambda x: x + 1.5 - x, lambda x: (x - 0.7) + (0.7 - x), lambda x: x + 4096.0 - 4096.0,
                    lambda x: (x + x.abs()) - x.abs(), lambda x: torch.where(x > 1.0, 1.0, x) - x),
    "zeros": (lambda x: x * 0 + 1, lambda x: 0 / x, lambda x: x / 0.0, lambda x: (x > 0) * x, lambda x: 1 - x * 0.0),
    "clamps": (lambda x: x.clamp(-1, 1), F.hardtanh, F.relu6, lambda x: x.clamp_min(0.3), lambda x: torch.maximum(x, -x),
               lambda x: torch.minimum(x, x * 2)),
    "shrinks": (lambda x: F.softshrink(x, 0.5), lambda x: F.hardshrink(x, 0.5), lambda x: F.threshold(x, 0.1, 20.0),
                F.hardswish, F.hardsigmoid, lambda x: F.leaky_relu(x, 0.1)),
    "curves": (F.elu, F.celu, F.selu, F.mish, F.softplus, F.logsigmoid, F.softsign),
    "steps": (torch.trunc, torch.floor, torch.round, lambda x: x - torch.floor(x), lambda x: torch.remainder(x, 0.75),
              lambda x: torch.fmod(x, 0.75)),
    "powers": (lambda x: x.abs() ** 0.7, lambda x: x**3, lambda x: (x.abs() + 1) ** -1.5,
               lambda x: torch.xlogy(x.abs(), x.abs()), lambda x: torch.logaddexp(x, x * 0.5), lambda x: torch.hypot(x, x + 1)),
    "circles": (torch.sin, torch.cos, torch.tan, torch.atan, lambda x: torch.asin(x.clamp(-1, 1)), torch.acos),
    "hyperbolas": (torch.sinh, torch.cosh, torch.asinh, lambda x: torch.acosh(x.abs() + 1), torch.atanh),
}


def side_by_side(fns: tuple[Fn, ...]) -> Callable[[Tensor], Any]:
    """Every function's result, and the sums of its rows."""
    def run(x: Tensor) -> tuple[Tensor, ...]:
        found = [f(x) for f in fns]
        return (*found, *(y.float().sum(-1) for y in found))
    return run


def some(x: Tensor) -> tuple[Tensor, ...]:
    """Of a comparison and its opposite: any, all, and how many."""
    low = x < 0
    return low.any(-1), low.all(-1), (~low).any(-1), (~low).all(-1), (~low).sum(-1), (low | (x >= 0)).sum(-1)


def unpacked(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """Weights of four bits, two to a number, as quantised models keep them."""
    low, high = packed & 15, (packed >> 4) & 15
    w = (torch.stack((low, high), -1).flatten(-2) - 8).to(x.dtype) * scale
    return x @ w.mT


def programs() -> Iterator[Program]:
    yield from alternate(Program("pointwise", f"{dtype} 33x200 {what}", side_by_side(fns), (In("x", (33, 200), dtype),))
                         for dtype in ("f32", "bf16", "f16") for what, fns in SETS.items())
    yield from (Program("pointwise", f"f32 33x200 {what}", side_by_side(SETS[what]), (In("x", (33, 200), "f32"),))
                for what in ("circles", "hyperbolas"))
    yield Program("pointwise", "f32 33x200 any and all", some, (In("x", (33, 200), "f32"),))
    yield Program("pointwise", "f16 40x128 by 4 bits", unpacked,
                  (In("x", (40, 128), "f16"), In("packed", (48, 64), "i64", "label", high=256),
                   In("scale", (48, 1), "f16", "weight", 0.1)))
