"""What tests of ``torch.compile(backend="redfuser")`` compile, and with what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from redfuser import dynamo

ROOT = Path(__file__).resolve().parents[2]
EAGER = {"otherwise": "eager"}


def ours(f: Any, **more: Any) -> Any:
    return torch.compile(f, backend=dynamo.backend, options={**EAGER, **more})


def came() -> list[str]:
    return [r.came for r in dynamo.reports()]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


class Step(nn.Module):
    """A softmax over a linear layer that writes a cache and its input, and returns all there is to alias."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, at: torch.Tensor, n: int) -> Any:
        y = torch.softmax(self.linear(x), -1)
        self.cache.index_copy_(0, at, y[:1])
        before = x.clone()
        x.add_(1)
        self.cache[:, 2:4] *= 2
        return y, y.t(), y[1:, ::2], x, x.view(-1), x[:, 1:3], self.cache, self.cache + 1, before, n
