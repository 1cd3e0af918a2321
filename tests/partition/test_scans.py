"""Scans along rows and down columns: regions with the maps around them; what stays torch's call says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from redfuser.frontend import import_model
from redfuser.partition.search import Partitioner
from tests.partition.helpers import execute, flat, partitioned

X, M = torch.randn(12, 40), torch.rand(12, 40) > 0.5


@pytest.mark.parametrize("of", [
    lambda x, m: x.cumsum(-1), lambda x, m: (x * m).cumsum(-1), lambda x, m: torch.exp(-torch.cumsum(x.abs(), 1)),
    lambda x, m: m.cumsum(-1) - 1, lambda x, m: m.long().cumsum(-1), lambda x, m: x.half().cumsum(-1),
    lambda x, m: x.bfloat16().cumsum(-1) * 2, lambda x, m: (1 - torch.sigmoid(x) * 0.1).cumprod(-1), lambda x, m: x.reshape(3, 4, 40).cumsum(2),
    lambda x, m: x.reshape(-1).cumsum(0), lambda x, m: x.cumsum(0), lambda x, m: torch.exp(x.reshape(2, 6, 5, 8).half().cumsum(1)),
    lambda x, m: x.t().cumsum(0) * 2, lambda x, m: x.flip(-1).cumsum(-1), lambda x, m: ((c := x.cumsum(-1)), c * 2)],
    ids=["sum", "masked", "decay", "positions", "integers", "half", "scaled", "product", "batch", "one row", "columns", "columns of several axes", "columns turned", "reversed", "kept"])
def test_a_scan_and_its_maps_are_one_kernel(of: Callable[..., Any]) -> None:
    imported, p = partitioned(of, (X, M))
    scan, *turned = sorted(p.maps, key=lambda m: "[..l]" not in str(m.cascade))
    assert "[..l]" in str(scan.cascade) and all("x0[l, i]" in str(m.cascade) for m in turned), "what lies across is a map's"
    assert not p.regions and not p.unmapped and not set(p.kept) & {"relax.cumsum", "relax.cumprod"}
    for mine, theirs in zip(execute(imported, p, (X, M)), flat(of(X, M)), strict=True):
        close = 1e-5 if mine.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(mine, theirs, rtol=close, atol=close)


def test_a_cascade_before_it_keeps_its_own_kernel() -> None:
    imported, p = partitioned(lambda x, m: ((s := torch.softmax(x, -1)).cumsum(-1) - s), (X, M))
    assert [r.name for r in p.parts] == ["softmax.0", "scan.0"] and not p.kept
    torch.testing.assert_close(execute(imported, p, (X, M))[0], (s := torch.softmax(X, -1)).cumsum(-1) - s, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("of, why", [
    (lambda x, m: x.double().cumsum(-1), "a scan in f64"),
    (lambda x, m: x.logcumsumexp(-1), "kernels have running sums and products"),
    (lambda x, m: x.cumprod(-1), "parts of a row would overflow"), (lambda x, m: x[:, :1].cumsum(-1), "a scan of one element")], ids=["f64", "logcumsumexp", "product", "one"])
def test_what_stays_torchs_says_why(of: Callable[..., Any], why: str) -> None:
    _, p = partitioned(of, (X, M))
    assert not any("[..l]" in str(r.cascade) for r in p.parts)
    told = [*(n.text for n in p.notes), *(r.reason.why for r in p.refusals)]
    assert any(why in t for t in told), told


@pytest.mark.parametrize("shape, axis", [((2048, 8), 0), ((2, 777, 4), 1), ((3, 70, 2, 3), 1)])
def test_few_columns_are_scanned_as_rows(shape: tuple[int, ...], axis: int) -> None:
    """torch's scan down columns has a thread for each: 4096 tokens by 8 experts took .6 ms on an H200."""
    x = torch.randn(shape)
    imported, p = partitioned(lambda x: x.cumsum(axis) * x, (x,))
    assert any("[..l]" in str(r.cascade) for r in p.maps) and not set(p.kept) & {"relax.cumsum"}
    torch.testing.assert_close(execute(imported, p, (x,))[0], x.cumsum(axis) * x, rtol=1e-4, atol=1e-4)


def test_few_long_rows_and_other_targets_keep_torchs_call() -> None:
    long, short = torch.randn(2, 1 << 15), torch.randn(2, 1 << 12)
    assert not partitioned(lambda x: x.cumsum(-1), (long,))[1].parts and partitioned(lambda x: x.cumsum(-1), (short,))[1].parts
    assert "few rows" in str(partitioned(lambda x: x.cumsum(-1), (long,))[1].notes)
    for arch, maps in (("cpu", False), ("gfx942", True)):
        p = Partitioner(import_model(lambda x: x.cumsum(-1), (short,)), arch=arch, maps=maps).run()
        assert not p.parts and "CUDA's devices" in str(p.notes)
