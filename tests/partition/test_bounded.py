"""No kernel reads beside its tensors: padding computes rows that are not there, and takes nothing of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import redfuser
from tests.partition.helpers import outside, partitioned


def windows(x: Tensor, w: Tensor, b: Tensor, p: Tensor) -> Tensor:
    """A norm, windows of 3 x 3 of what is padded from 8 to 9, and their projection, as image models have it."""
    y = F.pad(F.layer_norm(x, (32,), w, b, 1e-6), (0, 0, 0, 1, 0, 1))
    y = y.reshape(1, 3, 3, 3, 3, 32).permute(0, 1, 3, 2, 4, 5).reshape(9, 3, 3, 32)
    return F.linear(y, p)


def before(x: Tensor) -> Tensor:
    """Places below 0."""
    y = torch.softmax(x, -1)
    return F.pad(y, (0, 0, 2, 0)) * 2


def twice(x: Tensor) -> Tensor:
    y = F.normalize(x, dim=-1)
    return F.pad(y * 2, (0, 0, 0, 3)) + F.pad(y.exp(), (0, 0, 3, 0))


Padded = Callable[..., Tensor]
X = torch.randn(1, 8, 8, 32, generator=torch.Generator().manual_seed(1))
PADDED: dict[str, tuple[Padded, tuple[Tensor, ...]]] = {
    "windows": (windows, (X, X[0, 0, 0], X[0, 1, 1], X.reshape(-1, 32)[:22].contiguous())),
    "before": (before, (X[0, 0],)), "twice": (twice, (X[0, 0],))}


@pytest.mark.parametrize("name", PADDED)
def test_padding_reads_nothing_beside(name: str) -> None:
    f, args = PADDED[name]
    _, p = partitioned(f, args)
    assert p.regions and not [o for r in p.parts for o in outside(r.cascade)]
    compiled = redfuser.compile(f, args, target="cpu")
    assert compiled.report.fused
    torch.testing.assert_close(compiled(*args), f(*args))


def test_the_projection_of_padded_windows_is_joined() -> None:
    _, p = partitioned(*PADDED["windows"])
    assert [r.name for r in p.regions] == ["norm_linear.0"]
