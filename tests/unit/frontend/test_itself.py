"""Operators that give their operand itself: what is written into the result is written into the operand, and who gets it holds
the model's input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import redfuser
from redfuser.errors import InputError

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(5))


def doubled(x: Tensor) -> Tensor:
    h = x @ x.T
    F.dropout(h, 0.5, False).mul_(2)
    return h.softmax(-1)


def of_no_chance(x: Tensor) -> Tensor:
    h = x @ x.T
    F.dropout(h, 0.0, True)[0] = 0
    return h.softmax(-1)


def gated(x: Tensor) -> Tensor:
    h = x @ x.T / 16
    return (h + nn.Sequential(nn.Dropout(), nn.ReLU(inplace=True)).eval()(h)).softmax(-1)


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = x @ x.T
        F.dropout(h, 0.5, False).mul_(2)
        return h.float().softmax(-1)


def inverse_under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (torch.linalg.inv(torch.eye(4) * 4 + x[:, :4]) @ x).float().softmax(-1)


@pytest.mark.parametrize("f", [doubled, of_no_chance, gated, under_autocast, inverse_under_autocast])
def test_what_is_written_there_is_seen(f: Callable[[Tensor], Tensor]) -> None:
    compiled = redfuser.compile(f, (X,), target="cpu", fallback="allow")
    torch.testing.assert_close(compiled(X), f(X), rtol=2e-2 if "autocast" in f.__name__ else 1e-5, atol=1e-6)


def test_an_input_that_is_written_so_is_refused() -> None:
    with pytest.raises(InputError, match="RF114"):
        redfuser.compile(lambda x: F.dropout(x, 0.5, False).add_(1).softmax(-1), (X.clone(),), target="cpu")


@pytest.mark.parametrize("f", [lambda x: F.dropout(x, 0.5, False), lambda x: x.type_as(x), lambda x: F.dropout(x.T, 0.5, False)[0],
                               lambda x: F.dropout(F.dropout(x, 0.1, False).type_as(x), 0.1, False)])
def test_a_result_is_the_input(f: Callable[[Tensor], Tensor]) -> None:
    given = redfuser.compile(lambda x: (f(x), x.softmax(-1)), (X,), target="cpu")(X)[0]
    assert given.data_ptr() == f(X).data_ptr() and given.stride() == f(X).stride()
