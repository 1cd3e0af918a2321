"""Maps beside calls and choices: what is read and written of memory is in loops of its own, where that is the same and pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import redfuser

X = torch.randn(64, 512)


def text(of: Callable[..., Any], *args: torch.Tensor) -> str:
    model = redfuser.compile(of, args, target="sm_90a")
    (spec,) = model.kernels.values()
    assert spec.source is not None
    return spec.source


@pytest.mark.parametrize("of, dtype", [(lambda x: F.leaky_relu(x) * 2, torch.float32), (lambda x: F.hardtanh(x), torch.float16),
                                       (lambda x: F.gelu(x.exp()), torch.bfloat16), (lambda x: x.rsqrt() + 1, torch.float32)])
def test_what_a_call_reads_and_writes_is_apart(of: Callable[..., Any], dtype: torch.dtype) -> None:
    """Nothing but copies touches memory; TileLang takes these 16 bytes at a time."""
    loops = [line.strip() for line in text(of, X.to(dtype)).splitlines() if "l_block * " in line]
    assert len(loops) == 2
    assert loops[0].startswith("x0_here[j] = x0[l_block * ") and loops[1].startswith("out_y[l_block * ")
    assert loops[1].endswith(" = out_y_here[j]")


@pytest.mark.parametrize("of, args", [
    (lambda x: x.exp() * 2 + 1, (X,)), (lambda x: F.leaky_relu(x) * 2, (X[:63, :511].contiguous(),)),
    (lambda x, y: torch.cat((x, y), 1) * 2, (X, torch.randn(64, 512)))], ids=["vectors", "odd", "guarded"])
def test_what_is_read_so_anyway_or_cannot_be_is_not(of: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> None:
    """Arithmetic is taken by vectors as it is; rows that end within an access are not; and what a choice guards may not be there
    where the other is chosen."""
    assert "_here" not in text(of, *args)
