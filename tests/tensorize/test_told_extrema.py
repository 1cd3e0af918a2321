"""An extremum that is a result is one of the program's own numbers, in every kernel of a cascade."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from redfuser.bench.correctness.interpret import interpreted
from workloads.correctness.program import In, Program

STRATEGIES = (("single", 0), ("multi", 4))


def ours(f: Callable[..., object], x: Tensor, strategy: str = "", splits: int = 0) -> tuple[Tensor, ...]:
    run = interpreted(Program("told", "it", f, (In("x", tuple(x.shape), "f32"),), strategy, splits), "sm_90a")
    assert callable(run)
    out = run(x)
    return out if isinstance(out, tuple) else (out,)


def softened(x: Tensor) -> tuple[Tensor, Tensor]:
    s = x / 0.3
    m = s.amax(-1, keepdim=True)
    return (s - m).exp().sum(-1), m


@pytest.mark.parametrize(("strategy", "splits"), STRATEGIES)
def test_the_largest_quotient_is_a_quotient(strategy: str, splits: int) -> None:
    x = torch.randn(5, 4000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(softened, x, strategy, splits)[1], softened(x)[1])
    y = torch.softmax(x / 0.3, -1)  # of which no extremum is a result: kernels of one cascade still have one rounding
    torch.testing.assert_close(ours(lambda x: torch.softmax(x / 0.3, -1), x, strategy, splits)[0], y)


def test_two_factors_are_rounded_one_after_the_other() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        s = x * 1.1 * 0.7
        return torch.logsumexp(s, -1), s.amax(-1)

    x = torch.randn(9, 37, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(f, x)[1], f(x)[1])


def test_what_is_left_of_large_scores_is_what_the_program_leaves() -> None:
    def f(x: Tensor) -> Tensor:
        s = x / 0.3
        s = s - torch.logsumexp(s, -1, keepdim=True)
        return (s - torch.logsumexp(s, -2, keepdim=True)).exp()

    x = torch.randn(3, 23, 17, generator=torch.Generator().manual_seed(0)) * 1e10
    torch.testing.assert_close(ours(f, x)[0], f(x))
