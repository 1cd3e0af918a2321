"""Programs whose tuning records ship beside those of the workloads: ``redfuser tune benchmarks.tuned:mla --target sm_90a ...``

Shapes: L4 (latent attention, 16 x 1024 keys) and Q1 (a product of rows quantised to e4m3) of the papers' tables, and a gate of
8192 x 4096, which is no reduction. Inputs are random; what is measured draws its own.
"""

from __future__ import annotations

import torch
from torch.nn import functional

MAX8 = 448.0


class Latent(torch.nn.Module):
    """Attention of 128 heads with one buffer of keys, whose first 512 columns are the values."""

    def forward(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ kv.mT).float() * q.shape[-1] ** -0.5, -1).to(q.dtype) @ kv[..., :512]


class Quantised(torch.nn.Module):
    """Rows quantised to e4m3 by their largest element, and their product with weights in e4m3."""

    def forward(self, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        largest = x.float().abs().amax(-1, keepdim=True)
        eight = (MAX8 * x.float() / largest).to(torch.float8_e4m3fn)
        return ((eight.float() @ w.float().mT) * (largest / MAX8) * scale).to(torch.bfloat16)


class Gate(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.silu(x) * y


def mla() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Latent(), (torch.randn(16, 128, 576).bfloat16(), torch.randn(16, 1024, 576).bfloat16())


def quant() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Quantised(), (torch.randn(4096, 2560).bfloat16(), torch.randn(1536, 2560).to(torch.float8_e4m3fn), torch.rand(1536))


def gate() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Gate(), (torch.randn(8192, 4096).bfloat16(), torch.randn(8192, 4096).bfloat16())
