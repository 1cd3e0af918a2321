"""A sum of equal terms rounds the same way at every step: beside attention, whose rows lie side by side in the lanes of a
CPU, a register adds few of them in turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import redfuser

Args = tuple[torch.Tensor, ...]


def weighted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p = (q @ k.mT).softmax(-1)
    return p @ v, (p * w).sum(-1)


def entropy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p = (q @ k.mT).log_softmax(-1)
    return p.exp() @ v, (p.exp() * p).sum(-1)


@pytest.mark.parametrize("of", [weighted, entropy])
@pytest.mark.parametrize("length", [65, 129])
def test_equal_terms_are_summed_within_a_few_roundoffs(of: Callable[..., Args], length: int) -> None:
    q, k, v = torch.zeros(2, 33, 32), torch.randn(2, length, 32), torch.randn(2, length, 32)
    args = q, k, v, torch.full((2, 33, length), 1 / 33)
    compiled = redfuser.compile(of, args, target="cpu")
    assert len(compiled.report.fused) == 1
    truth = of(*(t.double() for t in args))[1]
    error = ((compiled(*args)[1].double() - truth) / truth).abs().max()
    assert error < 8 * 2.0**-24, error * 2**24
