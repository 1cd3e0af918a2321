"""What torch copies before a map reads it, pools, and many short rows; half precision for the most part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness import halves
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()
SHORT = (12288, 64)


@P(In((8, 64, 64, 64), "f16"), In((8, 64, 128, 128), "f16"))
def wide_and_sum(x: Tensor, y: Tensor) -> Any:
    """A level of a pyramid and the one below it."""
    return F.interpolate(x, scale_factor=2) + y


@P(In((8, 64, 64, 64), "f16"), In((8, 128, 128, 128), "f16"))
def wide_and_joined(x: Tensor, y: Tensor) -> Any:
    """A decoder's channels and those of its skip."""
    return torch.cat([F.interpolate(x, scale_factor=2), y], 1)


@P(In((8, 128, 128, 64), "f16"))
def turned_round(x: Tensor) -> Any:
    return x.flip(1, 2) + 1


@P(In((8, 56, 56, 96), "bf16"), In((96,), "bf16"))
def rolled_and_scaled(x: Tensor, w: Tensor) -> Any:
    return x.roll((-3, -3), (1, 2)) * w


P(In((8, 64, 112, 112), "f16"))(halves.pooled)
P(In(SHORT, "bf16"))(halves.softmax)
P(In(SHORT))(halves.entropy)
P(In((64, 24, 49, 32), "f16"), In((64, 24, 49, 32), "f16"))(halves.cosines)
P(In((4, 2048, 1024), "bf16"), In((4, 2048, 1), "bf16"), In((4, 512, 1024), "bf16"))(halves.over_rows)
