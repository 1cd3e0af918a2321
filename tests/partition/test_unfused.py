"""Regions whose one kernel is modelled far behind a library's products and a kernel between them are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import redfuser
from redfuser import pipeline
from redfuser.autotune import records
from redfuser.autotune.lookup import Decision, Records
from redfuser.autotune.records import Choice
from redfuser.outline import on_cores, turns
from redfuser.target import target
from tests.autotune.planted import record
from workloads import scored


def planned(f: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> Any:
    return pipeline.run(f, args, arch="sm_90a", build=False, verify="0").report


def triangle(z: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A product per channel, whose operands are products themselves: made again for each of its rows, 33 ms on an H200 where
    torch took 2.9 for the model."""
    return torch.einsum("ikc,jkc->ijc", torch.sigmoid(z @ a) * z, torch.sigmoid(z @ b) * z)


def neighbours(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A softmax by channel over the few neighbours of a point, of a product in float32: .30 of torch.compile."""
    return (torch.softmax(x @ w, 2) * v).sum(2)


def spans(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Dynamic convolution over spans (ConvBERT): a projection made again for each of the places that read it, 5 ms for 40 us."""
    y = torch.nn.functional.unfold((x @ w).mT[..., None], (9, 1), padding=(4, 0)).mT
    return y.reshape(-1, 64, 9) @ torch.softmax(k, 1)


CASES = {
    "spans": (spans, ((8, 512, 768), (768, 384), (8 * 512 * 6, 9, 1)), torch.float16),
    "triangle": (triangle, ((256, 256, 128), (128, 128), (128, 128)), torch.bfloat16),
    "neighbours": (neighbours, ((4, 4096, 16, 64), (64, 64), (4, 4096, 16, 64)), torch.float32),
}


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_is_modelled_far_behind_a_librarys_products(name: str) -> None:
    of, shapes, dtype = CASES[name]
    report = planned(of, tuple(torch.randn(s, dtype=dtype) for s in shapes))
    assert report.fused and all(c.seconds < 100e-6 for c in report.fused), report
    told = [n.text for n in report.notes if n.code == "RF305"] + [c.reason.why for c in report.refused if c.reason and c.reason.code == "RF305"]
    assert any("modelled" in why and "apart" in why for why in told), report


def shifted(q: torch.Tensor, k: torch.Tensor, r: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """XLNet's and Transformer-XL's attention: a product read along its diagonals."""
    x = q @ r.mT
    b, n, j = x.shape
    x = x.reshape(b, j, n)[:, 1:].reshape(b, n, j - 1)[..., :n]
    return torch.softmax((q @ k.mT + x) / 8, -1) @ v


def late(q: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """ColBERT's scores: the best word of a document for each of a query, added up."""
    return torch.einsum("qie,dje->qdij", q, d).amax(-1).sum(-1)


def decomposed(q: torch.Tensor, k: torch.Tensor, h: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """SAM's attention over an image, whose positions are products of lines and of columns."""
    b, n, c = q.shape
    r = q.view(b, 32, 32, c)
    up, along = torch.einsum("bhwc,hkc->bhwk", r, h), torch.einsum("bhwc,wkc->bhwk", r, w)
    x = (up[..., :, None] + along[..., None, :]).reshape(b, n, n)
    return torch.softmax(q @ k.mT / 8 + x, -1) @ v


@pytest.mark.parametrize(("of", "shapes", "names"), [
    (decomposed, ((24, 1024, 64), (24, 1024, 64), (32, 32, 64), (32, 32, 64), (24, 1024, 64)), ["attn.0"]),
    (shifted, ((96, 512, 64), (96, 512, 64), (96, 1024, 64), (96, 512, 64)), ["attn.0"]),
    (late, ((64, 32, 128), (64, 180, 128)), ["linear_statistics.0"])])
def test_what_no_tile_has_is_left_out_of_a_region_and_the_rest_is_one_kernel(of: Any, shapes: Any, names: list[str]) -> None:
    """They were refused by lowering (RF491, RF493) or modelled at milliseconds, and given up one reduction after the other, the
    row's own products first."""
    report = planned(of, tuple(torch.randn(s, dtype=torch.bfloat16) for s in shapes))
    assert not any("modelled" in n.text or n.code in ("RF491", "RF493") for n in report.notes), report
    assert [c.name for c in report.fused if c.name.split(".")[0] != "statistics"] == names and not report.refused, report


def test_it_is_right_and_what_is_left_is_said() -> None:
    args = (torch.randn(2, 64, 16, 32), torch.randn(32, 32), torch.randn(2, 64, 16, 32))
    compiled = redfuser.compile(neighbours, args, target="cpu")
    torch.testing.assert_close(compiled(*args), neighbours(*args), rtol=2e-5, atol=2e-5)


def test_attention_stays_one_kernel() -> None:
    """Also where launches are most of what either takes."""
    for dtype, length in ((torch.float16, 64), (torch.bfloat16, 2048), (torch.float32, 128)):
        report = planned(lambda q, k, v: torch.softmax(q @ k.mT / 8, -1) @ v, (torch.randn(2, 4, length, 64, dtype=dtype),) * 3)
        assert [c.name.split(".")[0] for c in report.fused] == ["attn"]


def test_a_librarys_float32_product_takes_as_long_as_the_multiprocessor_with_most_tiles() -> None:
    """Microseconds of one H200, launches left out; by operations alone the first is 2."""
    for count, rows, columns, depth, took in ((12, 512, 16, 512, 14.3), (12, 512, 64, 512, 19.0), (12, 512, 128, 512, 29.9),
                                              (1, 512, 512, 512, 13.1), (1, 1024, 1024, 1024, 55.7), (96, 512, 64, 512, 85.0)):
        flops, on = 2.0 * count * rows * columns * depth, target("sm_90a")
        found = on_cores(on, flops, 0.0, turns(on, count, rows, columns, depth)) * 1e6
        assert took / 1.7 < found < took * 1.1, (count, rows, columns, depth, found)


def test_invariant_points_stay_one_kernel() -> None:
    """37 us on an H200; products and a softmax apart took 76."""
    case = next(c for c in scored.cases() if c.name == "ipa-512")
    report = pipeline.run(case.build(), case.inputs("cpu", 0), arch="sm_90a", build=False, verify="0").report
    assert [c.name for c in report.fused] == ["attn.0"], report


def test_what_was_measured_is_not_cut_for_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    args = (torch.randn(2, 4, 512, 64, dtype=torch.float16),) * 3

    def found(known: Records | None = None) -> Any:
        return pipeline.run(lambda q, k, v: torch.softmax(q @ k.mT / 8, -1) @ v, args, arch="sm_90a", build=False, verify="0",
                            records=known).partition.parts

    whole = found()[0].fused
    monkeypatch.setattr(pipeline, "priced", lambda fused, arch: 7e-5)
    key = records.key(whole, "sm_90a")

    def stays(fuse: bool) -> bool:
        planted = Decision(record(whole, Choice("single", 1, None), fuse=fuse), "project")
        return found(Records("H200", {key: planted}))[0].name.startswith("attn")

    assert stays(fuse=True) and not stays(fuse=False) and not found()[0].name.startswith("attn")


def test_a_product_is_a_librarys_on_a_cpu_where_a_list_goes_number_by_number() -> None:
    """4096 tokens, 64 experts, 1024 deep: 71 ms as one function, 4 as two calls (two cores)."""
    def router(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.softmax(x @ w, -1).topk(2, -1)

    report = pipeline.run(router, (torch.randn(512, 64), torch.randn(64, 32)), arch="cpu", build=False, verify="0").report
    assert [c.name for c in report.cascades] == ["topk.0"] and [s.op for s in report.steps if s.kind == "library"] == ["aten.matmul.default"]
