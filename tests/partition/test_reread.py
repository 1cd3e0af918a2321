"""What each of its readers computes for itself, and what begins at places that data say of what a library makes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from redfuser import pipeline
from tests.partition.helpers import execute, flat, partitioned

X, Y, Z = torch.randn(12, 40), torch.randn(12, 40), torch.randn(12, 40)


def steps(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two sums of one decay, of a running sum that is read as it is too."""
    run = x.cumsum(1)
    left = torch.exp(run[:, -1:] - run)
    return (y * left).cumsum(1), (z * left).cumsum(1), torch.exp(run) * z


def test_a_difference_from_a_rows_end_is_nobodys_kernel() -> None:
    imported, p = partitioned(steps, (X, Y, Z))
    assert not set(p.kept) & {"relax.subtract", "relax.exp"} and all("x0[i, 39]" in str(m.cascade) or "[..l]" in str(m.cascade)
                                                                     for m in p.maps)
    for mine, theirs in zip(execute(imported, p, (X, Y, Z)), flat(steps(X, Y, Z)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_quotient_by_a_rows_sum_is_its_kernels() -> None:
    """Sinkhorn's steps: computed again by each reader, all steps before would be, too."""
    def balanced(x: torch.Tensor) -> torch.Tensor:
        p = torch.exp(x)
        for _ in range(3):
            p = p / p.sum(-1, keepdim=True)
            p = p / p.sum(-2, keepdim=True)
        return p

    report = pipeline.run(balanced, (torch.randn(512, 8, 8),), arch="sm_90a", build=False, verify="0").report
    assert len(report.fused) == 3 and not report.refused


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
