"""Rows of thousands of elements that are held on chip, and inputs that maps read where they lie."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from workloads.correctness import moved, wide
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()

P(*[In((4096, 12288), "bf16")] * 2, *[In((12288,), "bf16")] * 2)(wide.residual_norm)
P(*[In((4096, 12288), "bf16")] * 2, In((12288,), "bf16"))(wide.rms)
P(In((4096, 12288)), In((12288,)))(wide.biased)
P(*[In((4096, 14336), "f16")] * 2)(wide.gated)
P(*[In((512, 12288))] * 2)(wide.scaled_mean)
P(In((8, 4096, 4)), In((8, 4096, 3)))(moved.rotated)
P(In((32, 64, 56, 56), "f16"), In((3136,), "f16"))(moved.rolled)
P(In((4, 16, 2048, 64), "f16"), In((4, 2048, 1024), "f16"))(moved.gated_heads)
P(In((64, 336, 21)))(moved.smoothed)


@P(In((4096, 12288)), In((12288,)), In((12288,)))
def layer_norm_wide(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, w.shape, w, b)
