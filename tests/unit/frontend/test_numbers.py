"""Numbers beside halves: one that a half does not hold is not rounded to it, whatever it is written as."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from redfuser import outer
from redfuser.frontend import import_model
from redfuser.frontend.aten.context import representable

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "an integer": lambda x: x * 257,
    "divided": lambda x: x / 70001,
    "a dividend": lambda x: torch.tensor(257) / x.abs().clamp(min=0.5),
    "numpy's": lambda x: x * np.int64(257),
    "added": lambda x: x + 2049,
    "taken from": lambda x: 2049 - x,
    "scaled and added": lambda x: torch.add(x, x, alpha=257),
    "a constant": lambda x: x / torch.tensor(70001.0),
    "an integer constant": lambda x: x * torch.tensor(257),
    "a count": lambda x: x / (x == x).sum(),
    "a wider sum": lambda x: x / x.float().square().sum(),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_near_as_one_rounding(name: str, dtype: torch.dtype) -> None:
    """Of the result alone: half a unit in its last place, and of float32's steps before."""
    f = PROGRAMS[name]
    x = torch.randn(300, 301, generator=torch.Generator().manual_seed(0)).to(dtype)
    (got,) = outer.emit(import_model(f, (x,))).function()(x)
    exact = f(x.double())
    assert got.dtype == f(x).dtype == dtype
    unit = torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert bool(((got.double() - exact).abs() <= 0.505 * unit + 2**-21 * exact.abs()).all()), name


def test_what_a_type_holds() -> None:
    assert representable(256, "bfloat16") and not representable(257, "bfloat16") and not representable(np.int64(257), "bfloat16")
    assert not representable(70000, "float16") and representable(70000, "float32") and not representable(2**24 + 1, "float32")
    assert representable(float("inf"), "float16") and representable(True, "float16") and representable(2**40, "int64")


def test_a_number_beyond_the_range_is_an_infinity_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imported = import_model(lambda x: x * 1e300, (torch.ones(2),))
    assert torch.equal(outer.emit(imported).function()(torch.ones(2))[0], torch.full((2,), torch.inf))
