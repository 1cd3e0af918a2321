"""Columns that are reduced several times, and what is made of the distances of points in few dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.correctness import lines
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()

P(In((32, 256, 1024), "f16"), In((32, 256, 1024), "f16"))(lines.together)
P(In((64, 512, 80)))(lines.between)
P(In((16, 96, 3136), "bf16"), In((96,), "bf16"))(lines.scaled)


@P(In((128, 256, 320), "f16"))
def whitened(x: Tensor) -> Tensor:
    """Features of each channel to zero mean and unit deviation, clipped."""
    return ((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3)).clamp(-3, 3)


@P(In((4096, 2)), In((4096, 2)))
def density(x: Tensor, y: Tensor) -> Tensor:
    """Of one cloud of points at those of another: a sum of Gaussians."""
    return torch.exp(-(x[:, None] - y[None]).square().sum(-1) * 2).mean(-1)


@P(In((4096, 3)))
def radius(x: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours within a radius, and how far these are away in the mean."""
    d = (x[:, None] - x[None]).square().sum(-1)
    near = d < 0.25
    n = near.sum(-1)
    return n, torch.where(near, d.sqrt(), 0.0).sum(-1) / n
