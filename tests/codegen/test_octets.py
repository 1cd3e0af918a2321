"""Maps whose results are of one byte: stored sixteen at once, and divided by a scale of all as rows are by theirs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from redfuser.codegen.tilelang import print_program
from redfuser.frontend import import_model
from redfuser.partition import Partitioner
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import configs, tensorize

H200 = target("sm_90a")
X, S = torch.randn(64, 512), torch.rand(()) + 0.5
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def text(of: Callable[..., Any], *args: torch.Tensor, dialect: str = "cuda") -> str:
    (region,) = Partitioner(import_model(of, args)).run().parts
    program = realise(region.fused, "map")
    return print_program(tensorize(program, configs(program, H200)[0], H200), dialect)


@pytest.mark.parametrize("of", [
    lambda x, s: (x / s).clamp(-448, 448).to(E4M3), lambda x, s: (x * s).clamp(-57344, 57344).to(E5M2),
    lambda x, s: (x / s).round().clamp(-128, 127).to(torch.int8), lambda x, s: (x / s).round().clamp(0, 255).to(torch.uint8),
    lambda x, s: F.hardtanh(x / s) > 0.3, lambda x, s: F.gelu(x, approximate="tanh").to(E4M3)],
    ids=["e4m3", "e5m2", "int8", "uint8", "mask", "a function"])
def test_elements_leave_together(of: Callable[..., Any]) -> None:
    loops = [line.strip() for line in text(of, X, S).splitlines() if "l_block * " in line]
    assert loops[0].startswith("x0_here[j] = x0[l_block * ")
    assert loops[-1].startswith("out_y[l_block * ") and re.search(r" = \(?out_y_here\[j\]", loops[-1])


def test_one_scale_is_one_reciprocal() -> None:
    """What all elements are divided by, or all of a row, is turned over once; what each column is divided by, is not, nor
    anything on ROCm."""
    def quantised(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return (x / s).round().clamp(-128, 127).to(torch.int8)

    assert '"divided", x0_here[j], x1[0])' in text(quantised, X, S)
    assert '"divided", ' in text(quantised, X, torch.rand(64, 1))
    assert '"divided", ' not in text(quantised, X, torch.rand(512))
    assert '"divided", ' not in text(quantised, X, S, dialect="hip")


def test_what_a_mask_hides_is_read_all_the_same() -> None:
    """It lies where the mask does, and where the result is written: nothing there is outside. What is chosen by place stays
    guarded: it may not be there."""
    kept = text(lambda x, m: torch.where(m, x.half() / 0.9, 0.0), X.half(), X > 0)
    assert "x0_here[j] = " in kept and "x1_here[j] = x1[l_block * " in kept
    assert not re.search(r"if_then_else\([^\n]*x[01]\[", kept), "no element by itself"
    padded = text(lambda x: F.pad(x, (16, 16)).clamp(min=0.1), X)
    assert re.search(r"if_then_else\([^\n]*x0\[", padded)
