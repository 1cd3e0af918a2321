"""A float becomes an unsigned byte as torch has it: -1 is 255. The instruction of a GPU that a kernel's cast compiles to saturates,
which nothing without a GPU would show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import redfuser
from redfuser.frontend import import_model


def wrapped(x: Tensor) -> Tensor:
    return (x.softmax(-1) * 300 - 20).to(torch.uint8)


def by_a_number(x: Tensor, s: Tensor) -> Tensor:
    return x.softmax(-1) * s.to(torch.uint8)


@pytest.mark.parametrize(("of", "args"), [(wrapped, (torch.randn(9, 65),)),
                                          (by_a_number, (torch.randn(9, 65), torch.tensor(-3.0)))])
def test_by_way_of_a_whole_number(of: object, args: tuple[Tensor, ...]) -> None:
    assert 'dtype="int64"' in import_model(of, args).mod.script()
    compiled = redfuser.compile(of, args, target="cpu")
    torch.testing.assert_close(compiled(*args), of(*args), rtol=1e-5, atol=1e-6)  # type: ignore[operator]
