"""The k smallest of a row: the k largest of what is negated, but that NaN comes last among them too."""

from __future__ import annotations

import math

import pytest
import torch

import redfuser
from tests.partition.helpers import partitioned

K = 4


def smallest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = (x * 2).topk(K, -1, largest=False)
    return values, places


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_values_and_places_are_torchs(dtype: torch.dtype) -> None:
    """Rows of numbers, ties, infinities, and of 1, all but 2 and all NaN: values as torch has them, at places that hold them."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(12, 40, generator=draw).to(dtype)
    x[1] = x[1].round()
    x[2, ::3], x[3, ::3], x[4, 5] = math.inf, -math.inf, math.nan
    x[5, 2:], x[6], x[7, :-1], x[8] = math.nan, math.nan, math.inf, math.inf
    compiled = redfuser.compile(smallest, (x,), target="cpu")
    assert [k.name for k in compiled.report.fused] and not compiled.report.opaque
    values, places = compiled(x)
    expected, _ = smallest(x)
    torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close((x * 2).gather(-1, places), expected, rtol=0, atol=0, equal_nan=True)
    assert all(len(set(row)) == K for row in places.tolist())


def test_integers_stay_torchs() -> None:
    """The lowest integer has no negative."""
    _, p = partitioned(lambda x: ((x + 1) * 2).topk(2, -1, largest=False), (torch.arange(30).reshape(3, 10),))
    assert not p.regions
