"""Norms in front of products, taken apart: where, what becomes of the weight, and that it is the same program."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from redfuser import pipeline
from redfuser.frontend import import_model, laid_out, row_scales
from redfuser.partition.cost import scaling_pays
from redfuser.partition.search import Partitioner
from redfuser.target import target
from redfuser.tvm_compat import bindings, op_name
from tests.partition.helpers import execute

H200 = partial(scaling_pays, target("sm_90a"))
HALF = torch.bfloat16


def written(h: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n = (h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(h.dtype)
    return F.linear(n * g, w)


def whole(h: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(F.rms_norm(h, h.shape[-1:], g, 1e-5), w)


def bare(h: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(F.rms_norm(h, h.shape[-1:], None, 1e-5), w) + 0 * g[0]


def read_twice(h: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n = F.rms_norm(h, h.shape[-1:], g, 1e-5)
    return n, F.linear(n, w)


def numbers(h: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (h.float().mean() * g.float().mean()).to(h.dtype) * w.mean() * 2


def given(rows: int = 4096, width: int = 256, out: int = 256) -> tuple[torch.Tensor, ...]:
    return (torch.randn(rows, width).to(HALF), 1 + torch.randn(width).to(HALF) / 4, torch.randn(out, width).to(HALF) / 16)


def operations(imported: Any) -> list[str]:
    return [op_name(b.value) for b in bindings(imported.mod["main"])]


@pytest.mark.parametrize("fn", [written, whole])
def test_a_weight_goes_into_the_matrix_under_elide_alone(fn: Any) -> None:
    args = given()
    imported = import_model(fn, args)
    assert row_scales(imported, "preserve", H200) == (imported, {})
    apart, names = row_scales(imported, "elide", H200)
    assert len(names) == 1 and "nn.rms_norm" not in operations(apart)
    assert len(apart.notes) == len(imported.notes) + 1 and "rounds once more" in apart.notes[-1]
    (weighted,) = [b.value for b in bindings(apart.mod["main"]) if b.var.name_hint.endswith("weighted")]
    assert [a.name_hint for a in weighted.args] == ["w", "g"]
    (got,) = execute(apart, Partitioner(apart, "elide").run(), args)
    true = fn(*(t.double() for t in args))
    eager = (fn(*args).double() - true).abs().max()
    assert (got.double() - true).abs().max() < 2 * eager + 2.0 ** -9 * true.abs().max()


def test_a_norm_without_weight_rounds_as_it_did() -> None:
    imported = import_model(bare, given())
    apart, names = row_scales(imported, "preserve", H200)
    assert len(names) == 1 and "nn.rms_norm" not in operations(apart) and apart.notes == imported.notes


@pytest.mark.parametrize(("fn", "args", "arch"), [
    (read_twice, given(), "sm_90a"), (whole, given(64), "sm_90a"), (whole, given(), "sm_80"),
    (whole, tuple(t.float() for t in given()), "sm_90a"), (numbers, given(), "sm_90a")],
    ids=["read besides", "a large matrix", "no roles", "float32", "numbers"])
def test_others_are_left_alone(fn: Any, args: Any, arch: str) -> None:
    imported = import_model(fn, args)
    assert row_scales(imported, "elide", partial(scaling_pays, target(arch))) == (imported, {})


def test_where_no_product_would_read_the_rows_the_program_stays() -> None:
    """Tiles that fill a machine take the scale in; where a kernel has the norm and the product already, nothing was written."""
    report = pipeline.run(whole, given(16896, 1032, 1024), arch="sm_90a", casts="elide", build=False, verify="0").report
    assert any("rounds once more" in n.text for n in report.notes)
    report = pipeline.run(whole, given(2048, 512, 64), arch="sm_90a", casts="elide", build=False, verify="0").report
    assert not any("rounds once more" in n.text for n in report.notes) and len(report.fused) == 1


def test_a_defect_of_ours_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """None of the ways in which a model is written down anew is needed for it to run."""
    imported = import_model(whole, given(64))
    for rewrite in ("scaled_rows.row_scales", "channels.channels_last", "steps.steps_first", "operands.lined_up"):
        with monkeypatch.context() as patch:
            patch.setattr(f"redfuser.frontend.{rewrite}", _broken)
            report = pipeline.run(whole, given(64), arch="sm_90a", build=False, verify="0").report
        assert any(n.code == "RF902" and "of no use" in n.text for n in report.notes), rewrite
        assert len(report.fused) == 1 and "please report it" in caplog.text
    assert laid_out(imported).notes == imported.notes


def _broken(*_: Any, **__: Any) -> Any:
    raise IndexError("of no use")
