"""Regions whose one kernel is modelled far behind a library's products and a kernel between them are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import redfuser
from redfuser import pipeline


def planned(f: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> Any:
    return pipeline.run(f, args, arch="sm_90a", build=False, verify="0").report


def triangle(z: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A product per channel, whose operands are products themselves: made again for each of its rows, 33 ms on an H200 where
    torch took 2.9 for the model."""
    return torch.einsum("ikc,jkc->ijc", torch.sigmoid(z @ a) * z, torch.sigmoid(z @ b) * z)


def neighbours(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A softmax by channel over the few neighbours of a point, of a product in float32: .30 of torch.compile."""
    return (torch.softmax(x @ w, 2) * v).sum(2)


CASES = {
    "triangle": (triangle, ((256, 256, 128), (128, 128), (128, 128)), torch.bfloat16),
    "neighbours": (neighbours, ((4, 4096, 16, 64), (64, 64), (4, 4096, 16, 64)), torch.float32),
}


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_is_modelled_far_behind_a_librarys_products(name: str) -> None:
    of, shapes, dtype = CASES[name]
    report = planned(of, tuple(torch.randn(s, dtype=dtype) for s in shapes))
    assert report.fused and all(c.seconds < 100e-6 for c in report.fused), report
    assert any(n.code == "RF305" and "modelled" in n.text and "apart" in n.text for n in report.notes), report


def test_it_is_right_and_what_is_left_is_said() -> None:
    args = (torch.randn(2, 64, 16, 32), torch.randn(32, 32), torch.randn(2, 64, 16, 32))
    compiled = redfuser.compile(neighbours, args, target="cpu")
    torch.testing.assert_close(compiled(*args), neighbours(*args), rtol=2e-5, atol=2e-5)


def test_attention_stays_one_kernel() -> None:
    """Also where launches are most of what either takes."""
    for dtype, length in ((torch.float16, 64), (torch.bfloat16, 2048), (torch.float32, 128)):
        report = planned(lambda q, k, v: torch.softmax(q @ k.mT / 8, -1) @ v, (torch.randn(2, 4, length, 64, dtype=dtype),) * 3)
        assert [c.name.split(".")[0] for c in report.fused] == ["attn"]
