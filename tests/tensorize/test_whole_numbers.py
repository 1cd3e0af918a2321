"""Whole numbers that float32 does not tell apart: their best and its place are theirs, ragged rows and walked ones too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import redfuser

PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "argmax": lambda x: (x - 1).argmax(1), "argmin": lambda x: (x - 1).argmin(1), "max and place": lambda x: (x - 1).max(1),
    "extrema": lambda x: ((x - 1).amax(1), (x - 1).amin(1))}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(7, 300), (9, 1024), (3, 9000)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_kernels_that_hold(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """As float32 they were others' places (found by draws of numbers close together), or no kernel of a ragged row (RF903),
    and the maximum of one with its place masked its padding for ever."""
    x = (2**30 + torch.randint(0, 64, shape)).to(dtype)
    report = redfuser.explain(PROGRAMS[name], (x,), target="sm_90a")
    assert report.maps and not report.refused and not [n for n in report.notes if n.code], report


def test_bytes_and_truth_values_are_numbers_in_float32() -> None:
    for f, x in ((lambda x: (x > 0).int().argmax(1), torch.randn(7, 300)), (lambda x: (x + 1).max(1), torch.ones(7, 300, dtype=torch.uint8))):
        report = redfuser.explain(f, (x,), target="sm_90a")
        assert report.maps, report


def test_of_several_they_are_torchs() -> None:
    report = redfuser.explain(lambda x: (x - 1).topk(3), (torch.randint(0, 9, (65, 300)),), target="sm_90a")
    assert not report.maps and "RF489" in {n.code for n in report.notes}, report
