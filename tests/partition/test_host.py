"""On a CPU a settled region gives the product back to the library that its function is slower at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import redfuser
from redfuser import pipeline
from redfuser.frontend import import_model
from redfuser.partition import Partitioner, host
from redfuser.untuned import abreast


def planned(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    return pipeline.run(f, tuple(torch.randn(s, dtype=dtype) for s in shapes), arch="cpu", build=False, verify="0").report


def names(report: Any) -> list[str]:
    return [c.name for c in report.fused]


def library(report: Any) -> int:
    return sum(s.kind == "library" for s in report.steps)


def ln(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(F.layer_norm(x, x.shape[-1:]), w)


def ln_kn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:]) @ w.mT.contiguous()


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(F.rms_norm(x, x.shape[-1:]), w)


def weighed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) @ w.mT


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / 8, -1) @ v


def largest(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w.mT).amax(-1)


def squares(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w.mT).square().sum(-1)


def place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w.mT).argmax(-1)


def nearest(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x * x).sum(-1, keepdim=True) - 2 * x @ w.mT + (w * w).sum(-1)).argmin(-1)


def total(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x @ w.mT, -1)


MEASURED = [  # one thread, us: rows, depth, columns; whole as one function, with the product as a library's
    (ln, 256, 32, 32, 49, 21), (ln, 2048, 32, 8, 105, 86), (ln, 512, 128, 128, 493, 188), (ln, 512, 256, 64, 400, 208),
    (ln, 128, 512, 16, 57, 49), (ln, 1024, 64, 64, 334, 112), (ln, 2048, 16, 8, 91, 65), (ln, 64, 512, 256, 319, 185),
    (rms, 2048, 32, 8, 46, 66), (rms, 128, 512, 16, 49, 41), (rms, 1024, 64, 64, 114, 97), (rms, 64, 1024, 16, 62, 40),
    (rms, 2048, 16, 8, 32, 46), (weighed, 2048, 32, 8, 62, 90), (weighed, 512, 256, 64, 229, 252), (weighed, 512, 64, 64, 77, 70),
    (weighed, 64, 1024, 16, 83, 69), (weighed, 2048, 16, 8, 38, 65), (weighed, 512, 64, 10, 36, 47), (largest, 512, 64, 64, 57, 47),
    (squares, 512, 64, 64, 54, 51), (squares, 256, 256, 256, 301, 318), (place, 512, 64, 64, 539, 83), (place, 256, 256, 256, 27719, 358),
    (place, 1, 256, 4000, 408, 66), (nearest, 512, 32, 64, 123, 87), (total, 512, 64, 256, 214, 239)]


@pytest.mark.parametrize(("of", "rows", "depth", "columns", "whole", "apart"), MEASURED, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_product_is_where_it_was_measured_faster(of: Any, rows: int, depth: int, columns: int, whole: float, apart: float) -> None:
    report = planned(of, (rows, depth), (columns, depth))
    assert library(report) == (apart < whole), report


def test_what_a_norm_is_in_front_of_is_the_librarys_and_the_norm_a_function() -> None:
    """279 us for eager's 30, as one function. How the matrix lies changes neither."""
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.out(self.norm(x)))

    for of, shapes in ((Net().eval(), ((8, 64, 32),)), (ln_kn, ((512, 64), (64, 64)))):
        report = planned(of, *shapes)
        assert names(report) == ["norm.0"] and library(report) == 1, report


def test_several_products_of_a_norm_are_all_given_back() -> None:
    def three(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        n = F.layer_norm(x, x.shape[-1:])
        return n @ a, n @ b, n @ c

    report = planned(three, (256, 64), *((64, 64),) * 3)
    assert names(report) == ["norm.0"] and library(report), report


@pytest.mark.parametrize("shapes", [
    ((4, 64, 32),) * 3, ((8, 256, 64),) * 3, ((2, 16, 16),) * 3, ((12, 64, 64),) * 3, ((12, 32, 64),) * 3, ((12, 64, 128),) * 3, ((1024, 4, 16),) * 3,
    ((8, 1, 64), (8, 512, 64), (8, 512, 64)), ((8, 2, 64), (8, 256, 64), (8, 256, 64))], ids=str)
def test_attention_is_one_function(shapes: Any) -> None:
    """.14 to 1.1 of torch's time, and on two threads less than its parts. The last two have too few rows to be lanes."""
    report = planned(attention, *shapes)
    assert names(report) == ["attn.0"] and not library(report), report


def test_attention_over_few_keys_is_not() -> None:
    """67 us for eager's 36: results that leave are most of it; now 47."""
    for rows in (((1, 512, 64), (1, 16, 64)), ((64, 16, 64),) * 2):
        report = planned(attention, *rows, rows[1])
        assert names(report) == ["softmax.0"] and library(report), report


@pytest.mark.parametrize(("dtype", "many", "few"), [(torch.bfloat16, 1, 0), (torch.float64, 1, 0), (torch.float16, 0, 0)], ids=str)
def test_a_product_is_weighed_as_what_it_multiplies(dtype: torch.dtype, many: int, few: int) -> None:
    """512 x 128 with 128 columns took 352, 488 and 442 us as one function, with a library's product 83, 366 and 6650 (torch has
    no instructions for float16 there); 2048 x 32 with 8 columns 58, 79 and 61, apart 75, 107 and 207."""
    assert library(planned(rms, (512, 128), (128, 128), dtype=dtype)) == many
    assert library(planned(rms, (2048, 32), (8, 32), dtype=dtype)) == few


def test_it_is_said_and_no_loss() -> None:
    args = (torch.randn(256, 32), torch.randn(32, 32))
    compiled = redfuser.compile(ln, args, target="cpu", fallback="error")
    torch.testing.assert_close(compiled(*args), ln(*args), rtol=2e-5, atol=2e-5)
    for of in (ln, place):
        report = planned(of, (256, 32), (32, 32))
        assert not report.refused and any(n.code == "RF305" and "estimated" in n.text for n in report.notes), report


def test_what_was_measured_is_not_cut_for_what_rates_say() -> None:
    imported = import_model(ln, (torch.randn(256, 32), torch.randn(32, 32)))

    def found(measured: bool) -> list[str]:
        search = Partitioner(imported, arch="cpu", maps=False, measured=lambda _: measured, abreast=abreast)
        return [r.name for r in search.run().regions]

    assert found(True) == ["norm_linear.0"] and found(False) == ["norm.0"]


def test_rates_are_asked_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "slower", lambda *_: pytest.fail("a GPU has a model of resources"))
    args = (torch.randn(256, 32, dtype=torch.float16), torch.randn(32, 32, dtype=torch.float16))
    assert pipeline.run(ln, args, arch="sm_90a", build=False, verify="0").report.fused
