"""Rows that begin at places that data say of what a library makes, and a bias that stays in its call."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from redfuser import pipeline


def launched(f: object, *args: torch.Tensor) -> list[tuple[str, str]]:
    report = pipeline.run(f, args, arch="sm_90a", build=False, verify="0").report
    return [(s.kind, s.op) for s in report.steps]


def test_a_row_begins_with_what_is_taken_of_a_product() -> None:
    """Messages along edges: the rows of a layer's result at the edges' ends were written once more before they were read."""
    def scores(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, at: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return (F.leaky_relu(F.linear(x, w, b)[at] + e, 0.2) * b).sum(-1)

    for dtype in (torch.float32, torch.bfloat16):
        x, w, b, e = (torch.randn(s, dtype=dtype) for s in ((4096, 256), (256, 256), (256,), (32768, 256)))
        steps = launched(scores, x, w, b, torch.randint(4096, (32768,)), e)
        assert [op for kind, op in steps if kind == "library"] == ["aten.linear.default"], steps
        assert ("map", "aten.index.Tensor") in steps and all(kind in ("library", "map") for kind, _ in steps), steps
        report = pipeline.run(scores, (x, w, b, torch.randint(4096, (32768,)), e), arch="sm_90a", build=False, verify="0").report
        assert len(report.maps) == 1, report


def test_a_bias_alone_stays_in_the_call() -> None:
    x, w, b = torch.randn(4096, 512), torch.randn(512, 512), torch.randn(512)
    assert launched(F.linear, x, w, b) == [("library", "aten.linear.default")]
