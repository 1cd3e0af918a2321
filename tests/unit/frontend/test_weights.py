"""Softmax weights that are NaN replaced by zero, in the spellings people have: one and the same softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from redfuser import tvm_compat as tc
from redfuser.frontend import Imported, import_model
from tests.interpret import run

Guard = Callable[[Tensor], Tensor]
GUARDS: dict[str, Guard] = {
    "nan_to_num": lambda w: torch.nan_to_num(w),
    "nan_to_num 0": lambda w: w.nan_to_num(0.0),
    "masked_fill isnan": lambda w: w.masked_fill(torch.isnan(w), 0.0),
    "masked_fill unequal": lambda w: w.masked_fill(w != w, 0),
    "masked_fill not equal": lambda w: w.masked_fill(~(w == w), 0.0),
    "where known": lambda w: torch.where(w == w, w, torch.zeros_like(w)),
    "where isfinite": lambda w: torch.where(torch.isfinite(w), w, 0.0),
    "where not isnan": lambda w: torch.where(torch.isnan(w).logical_not(), w, 0.0),
    "isnan or isinf": lambda w: w.masked_fill(torch.isnan(w) | torch.isinf(w), 0.0),
}
NO_GUARDS: dict[str, Guard] = {
    "another number": lambda w: w.nan_to_num(nan=1.0),
    "small ones": lambda w: w.masked_fill(w < 1e-3, 0.0),
    "the opposite": lambda w: w.masked_fill(w == w, 0.0),
    "ones": lambda w: torch.where(torch.isnan(w), w, 0.0),
    "either": lambda w: w.masked_fill(torch.isnan(w) | (w > 0.5), 0.0),
    "both": lambda w: torch.where((w == w) & (w < 0.5), w, 0.0),
    "of another": lambda w: w.masked_fill(torch.isnan(w.flip(0)), 0.0),
}


def operators(imported: Imported) -> list[str]:
    return [tc.op_name(b.value) for b in tc.bindings(imported.mod["main"])]


def scores() -> list[Tensor]:
    s = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    s[1], s[2, 1], s[3, 2] = -math.inf, math.nan, math.inf
    return [s, s.t().contiguous()]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_every_spelling_is_the_softmax_that_is_zero_where_it_would_be_nan(guard: Guard, axis: int) -> None:
    def model(s: Tensor) -> Tensor:
        return guard(torch.softmax(s, axis))

    for s in scores():
        imported = import_model(model, (s,))
        assert not {"isnan", "isfinite", "nn.softmax"} & set(operators(imported))
        torch.testing.assert_close(run(imported, (s,))[0], model(s))


@pytest.mark.parametrize("guard", NO_GUARDS.values(), ids=NO_GUARDS)
def test_other_choices_stay_what_they_are(guard: Guard) -> None:
    def model(s: Tensor) -> Tensor:
        return guard(torch.softmax(s, 1))

    for s in scores():
        torch.testing.assert_close(run(import_model(model, (s,)), (s,))[0], model(s), equal_nan=True)


def test_what_a_weight_never_is_decides_nothing() -> None:
    def model(s: Tensor) -> Tensor:
        w = torch.softmax(s, 1)
        return torch.where(torch.isinf(w), 7.0, w).masked_fill(w == math.inf, -1.0)

    s = scores()[0]
    imported = import_model(model, (s,))
    assert operators(imported) == ["nn.softmax"]
    torch.testing.assert_close(run(imported, (s,))[0], model(s), equal_nan=True)


def test_a_weight_is_rounded_as_before() -> None:
    def model(s: Tensor) -> Tensor:
        w = F.softmax(s, -1, dtype=torch.float32).to(torch.bfloat16).float()
        return torch.where(torch.isfinite(w), w, 0.0)

    for s in scores():
        assert torch.equal(run(import_model(model, (s.half(),)), (s.half(),))[0], model(s.half()))
