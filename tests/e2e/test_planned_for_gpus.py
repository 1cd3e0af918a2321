"""Functions as people write them whose kernels for a GPU were refused by a check, or raised, are planned whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import redfuser
from redfuser.errors import UnsupportedError

K: dict[str, Any] = {"dim": -1, "keepdim": True}


def outliers(h: torch.Tensor) -> torch.Tensor:
    return ((h - h.mean(**K)).abs() > 3 * h.std(**K)).any(-1)


def above_a_half(h: torch.Tensor) -> torch.Tensor:
    p = h.softmax(-1)
    return (p > p.amax(**K) * 0.5).to(torch.int32).amax(-1)


def best_values(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).topk(4, -1).values


def flatness(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x - y).square().mean(-1) / (x - y).square().amax(-1)


def scaled_and_soft(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x / x.abs().amax(**K), x.softmax(-1)


@pytest.mark.parametrize("of, shapes, dtype", [
    (outliers, [(7, 300)], torch.float32), (above_a_half, [(7, 300)], torch.float16),
    (best_values, [(65, 64), (64, 64)], torch.float16), (flatness, [(7, 300)] * 2, torch.float32),
    (scaled_and_soft, [(65, 300)], torch.float32)])
def test_it_fuses_and_no_check_stops_it(of: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    report = redfuser.explain(of, tuple(torch.randn(s).to(dtype) for s in shapes), target="sm_90a")
    assert report.cascades and all(c.fused for c in report.cascades) and not [n.code for n in report.notes if n.code.startswith("RF9")]


def test_an_exponential_of_what_a_logarithm_was_taken_from() -> None:
    """All of 1025 equal elements' arguments are -6.9, none near 0: the change of base would cost each the same digits."""
    def collisions(x: torch.Tensor) -> torch.Tensor:
        return ((x - torch.logsumexp(x, 1, keepdim=True)).exp() ** 2).sum(1)

    for dtype, kept in ((torch.float32, True), (torch.bfloat16, False)):
        report = redfuser.explain(collisions, (torch.randn(7, 1025).to(dtype),), target="sm_90a")
        (text,) = report.texts.values()
        assert (" = T.exp(" in str(text)) == kept


def test_a_shape_that_depends_on_data_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"RF115.*bincount"):
        redfuser.compile(lambda x, y: (x.softmax(-1), torch.bincount(y, minlength=4)),
                         (torch.randn(8, 30), torch.randint(0, 4, (8,))), target="cpu")
