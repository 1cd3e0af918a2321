from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from redfuser.report import Report
from redfuser.reported import BOUNDS, CascadeReport, Note, Numerics, Opaque, OpRef, Reason, Traffic


def sample() -> Report:
    """A model with like layers, a refusal with its reason, an unknown op and a note."""
    attention = [
        CascadeReport(f"attn.{i}", (OpRef("aten.scaled_dot_product_attention", "bert.py:88"),), True, strategy="single",
                      kernel=f"attn_{i}", config="cost model", traffic=Traffic(31_000_000, 10_000_000),
                      numerics=Numerics(0.5 + 0.1 * i, 1e-3, 1e-4, True))
        for i in range(4)
    ]
    split = CascadeReport("decode.0", (OpRef("aten.matmul"),), True, strategy="multi", splits=8, config="user cache",
                          traffic=Traffic(4_000, 2_000))
    refusal = Reason("RF203", "sum.7", "model.py:42", "finitely separable", "log(mean + x): no G * H",
                     "take the logarithm outside the sum")
    head = CascadeReport("head.sum", (OpRef("aten.sum", "model.py:42"),), False, refusal)
    return Report("model.pt2", "sm_90a", (attention[0], head, *attention[1:], split),
                  opaque=(Opaque("my::op", "model.py:7", 2),), notes=(Note("seq_len is fixed at 512", level="warning"),),
                  numerics=Numerics(0.9, 1e-3, 1e-4, True), timings={"import": 1.5}, versions={"torch": "2.13.0"})


def test_summary(golden: Callable[[str, str], None]) -> None:
    golden("report/summary.txt", sample().summary())


def test_numbers() -> None:
    report = sample()
    assert report.coverage == pytest.approx(5 / 6)
    assert report.bytes_saved == 4 * 21_000_000 + 2_000
    assert Report("m", "cpu").coverage == 1.0
    assert report.cascade("head.sum").reason is not None
    with pytest.raises(KeyError, match=r"decode\.0"):
        report.cascade("nope")


def test_like_cascades_share_a_row_and_show_the_worst_error() -> None:
    row = next(line for line in sample().summary().splitlines() if "attn" in line)
    assert "attn.0-3" in row and "0.8x baseline" in row


def test_json_round_trip_is_exact() -> None:
    report = sample()
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_modelled_time_is_called_that() -> None:
    """Of every kernel that was lowered for a GPU, as the model of resources has it; of none for the CPU."""
    from redfuser.cli.explain import detail
    from redfuser.kernels import produce
    from redfuser.target import target
    from redfuser.tensorize.ir.parse import parse
    from redfuser.tensorize.model import predicted
    from tests import fused_examples as examples

    fused = examples.softmax(512, 4096)
    made = produce("softmax", fused, "sm_90a", build=False, verify="0")
    report = Report("m", "sm_90a", (CascadeReport("softmax.0", (), True, modelled=made.modelled),))
    assert report.cascades[0].seconds == pytest.approx(predicted(parse(made.stages["tiles"]), target("sm_90a")))
    assert {m.bound for m in made.modelled} <= set(BOUNDS)
    assert " us modelled" in report.summary() and "modelled and not measured" in detail(report.cascades[0])
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert produce("softmax", fused, "cpu", build=False, verify="0").modelled == ()


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema"):
        Report.from_json({**sample().to_json(), "schema": 99})


def test_a_cascade_is_fused_or_has_a_reason() -> None:
    with pytest.raises(ValueError):
        CascadeReport("a", (), False)
    with pytest.raises(ValueError):
        CascadeReport("a", (), True, Reason("RF203"))


def test_reason_says_what_where_why_and_next() -> None:
    text = str(sample().refused[0].reason)
    for part in ("RF203", "sum.7", "model.py:42", "finitely separable", "no G * H", "outside the sum"):
        assert part in text
