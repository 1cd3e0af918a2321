"""Rows of different tensors that meet in a result along both: each is reduced by itself, and one kernel holds them all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import redfuser
from tests.partition.helpers import execute, partitioned

Two = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def entropies(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    p = a.softmax(-1)
    return p * torch.log(p + 1e-6) - p * b.sigmoid()


ONE: dict[str, Two] = {
    "a product of weights": lambda a, b: a.softmax(-1) * b.softmax(-1),
    "two norms": lambda a, b: F.layer_norm(a, (65,)) + F.layer_norm(b, (65,)),
    "a norm less weights": lambda a, b: F.normalize(a, dim=-1) - b.softmax(-1),
    "a divergence, unreduced": lambda a, b: F.kl_div(F.log_softmax(a, -1), F.softmax(b, -1), reduction="none"),
    "of logarithms": lambda a, b: F.kl_div(a.log_softmax(-1), b.log_softmax(-1), reduction="none", log_target=True),
    "two readers of one row's weights": entropies,
    "a row whose elements are not in the result": lambda a, b: F.layer_norm(a, (65,)) * b.std(-1, keepdim=True),
    "statistics that are compared": lambda a, b: torch.where(a.norm(dim=-1, keepdim=True) > b.abs().amax(-1, keepdim=True), a, -a),
    "exponentials over another's maximum": lambda a, b: torch.exp(a - b.amax(-1, keepdim=True)).sum(-1),
    "rows that do not lie side by side": lambda a, b: a.softmax(-1) * a.roll(1, -1).softmax(-1),
}
TWO: dict[str, Two] = {
    "a row and a column": lambda a, b: a[:, :33].softmax(-1) * b[:, :33].softmax(-2),
    "a row and the statistics of a column": lambda a, b: a[:, :33].softmax(-1) * b[:, :33].std(-2)[:, None],
}


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_rows_that_meet_in_a_result_are_one_kernel(name: str, target: str) -> None:
    report = redfuser.explain(ONE[name], tuple(torch.randn(33, 65) for _ in range(2)), target=target)
    assert len(report.fused) == 1 and not report.refused and not report.opaque


@pytest.mark.parametrize("of", [*ONE.values(), *TWO.values()], ids=[*ONE, *TWO])
def test_torchs_values(of: Two) -> None:
    """Also where one of the two rows is of equal elements, far out, or masked altogether."""
    torch.manual_seed(0)
    a, b = torch.randn(33, 65), torch.randn(33, 65)
    a[1], b[2], a[3], b[4, 7:] = 2.5, -1.0, 3e4 * a[3], float("-inf")
    compiled = redfuser.compile(of, (a, b), target="cpu", fallback="allow")
    torch.testing.assert_close(compiled(a, b), of(a, b), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", TWO)
def test_others_keep_a_kernel_each(name: str) -> None:
    report = redfuser.explain(TWO[name], tuple(torch.randn(33, 65) for _ in range(2)), target="sm_90a")
    assert len(report.fused) == 2 and not report.refused


def test_a_chain_of_maps_of_a_statistic_that_meets_the_row_is_its_kernels() -> None:
    """The place of the largest weight as a one-hot row, cast, beside the weights: straight-through sampling."""
    def hard(x: torch.Tensor) -> torch.Tensor:
        p = (x / 0.5).softmax(-1)
        return torch.nn.functional.one_hot(p.argmax(-1), 8).to(p.dtype) + p - p.detach()

    x = torch.randn(300, 8)
    imported, p = partitioned(hard, (x,))
    assert len(p.parts) == 1 and not p.kept
    (mine,) = execute(imported, p, (x,))
    torch.testing.assert_close(mine, hard(x))
