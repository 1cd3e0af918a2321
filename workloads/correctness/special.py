"""Special functions of physics and statistics, and what a quotient leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.correctness.program import In, Program

TURN = 2 * math.pi


def ewald(x: Tensor, q: Tensor, box: float = 3.0) -> Tensor:
    """The near part of electrostatic energies in a periodic box: the nearest image of every pair, screened."""
    d = torch.remainder(x[:, :, None] - x[:, None] + box / 2, box) - box / 2
    r = (d * d).sum(-1).add(1e-3).sqrt()
    pairs = 1 - torch.eye(x.shape[1], device=x.device)
    return (q[:, :, None] * q[:, None] * torch.erfc(0.9 * r) / r * pairs).sum(-1)


def headings(v: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
    """Speeds, and how far each heading is from a wanted one, within half a turn."""
    ahead = torch.atan2(v[..., 1], v[..., 0])
    return torch.hypot(v[..., 0], v[..., 1]), torch.remainder(ahead - to + math.pi, TURN) - math.pi


def dirichlet(evidence: Tensor, y: Tensor) -> Tensor:
    """The evidential loss: the expected cross-entropy of a Dirichlet's classes, and its divergence from the uniform one."""
    y = torch.softmax(y, -1)
    alpha = torch.nn.functional.softplus(evidence) + 1
    total = alpha.sum(-1, keepdim=True)
    fit = (y * (torch.digamma(total) - torch.digamma(alpha))).sum(-1)
    left = y + (1 - y) * alpha
    s = left.sum(-1, keepdim=True)
    apart = ((left - 1) * (torch.digamma(left) - torch.digamma(s))).sum(-1)
    return fit + 0.1 * (torch.lgamma(s).squeeze(-1) - torch.lgamma(left).sum(-1) - math.lgamma(evidence.shape[-1]) + apart)


def counts(mean: Tensor, spread: Tensor, seen: Tensor) -> Tensor:
    """The log-likelihood of counts that are spread more than Poisson's."""
    r, m, k = torch.nn.functional.softplus(spread) + 0.1, mean.exp(), seen.abs().round()
    chosen = torch.lgamma(k + r) - torch.lgamma(r) - torch.lgamma(k + 1)
    return (chosen + r * torch.log(r / (r + m)) + k * torch.log(m / (r + m))).mean(-1)


def gaussianised(x: Tensor) -> Tensor:
    """Shares of a row as a normal's quantiles, standardised."""
    lo, hi = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    z = torch.erfinv((x - lo) / (hi - lo + 1e-6) * 1.9 - 0.95) * math.sqrt(2)
    return (z - z.mean(-1, keepdim=True)) / (z.std(-1, keepdim=True) + 1e-6)


def improvement(mean: Tensor, spread: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Expected improvement of candidates, and the best of them."""
    s = torch.nn.functional.softplus(spread) + 1e-3
    z = (mean - best) / s
    gain = s * (z * 0.5 * torch.erfc(-z / math.sqrt(2)) + torch.exp(-0.5 * z * z) / math.sqrt(TURN))
    return gain, gain.amax(-1)


def coded(t: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """Cells of a grid, and sines of what is left in each."""
    cell, left = torch.floor_divide(t, 0.37), torch.fmod(t, 0.37)
    return cell, torch.sin(left[..., None] * f) * 0.5 + 0.5


def phases(t: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """A row of a table by the phase that each step is in."""
    return (table[(torch.remainder(t, 0.5) * 32).long().clamp(0, 15)] + x).softmax(-1)


def programs() -> Iterator[Program]:
    def of(what: str, fn: Callable[..., Any], *ins: In) -> Program:
        return Program("special", f"{ins[0].dtype} {'x'.join(map(str, ins[0].shape))} {what}", fn, ins)

    def x(shape: tuple[int, ...], dtype: str = "f32", name: str = "x") -> In:
        return In(name, shape, dtype)

    yield of("ewald", ewald, x((3, 60, 3)), x((3, 60), "f32", "q"))
    for dtype in ("f32", "f16"):
        yield of("headings", headings, x((40, 70, 2), dtype, "v"), x((40, 70), dtype, "to"))
        yield of("gaussianised", gaussianised, x((33, 200), dtype))
    for shape in ((70, 10), (17, 300)):
        yield of("dirichlet", dirichlet, x(shape), x(shape, "f32", "y"))
    yield of("counts", counts, *(x((20, 130), "f32", name) for name in ("mean", "spread", "seen")))
    for dtype in ("f32", "bf16"):
        rows = (x((30, 500), dtype, name) for name in ("mean", "spread"))
        yield of("improvement", improvement, *rows, x((30, 1), dtype, "best"))
    yield of("coded", coded, x((50, 12), "f32", "t"), x((16,), "f32", "f"))
    yield of("phases", phases, x((65,), "f32", "t"), x((16, 130), "f32", "table"), x((65, 130)))
