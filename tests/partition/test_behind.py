"""What is behind a row: all of its maps in one region, joined numbers that read no row again, filters written out."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
from torch import Tensor

from redfuser.acrf.cascade import Reduce
from redfuser.frontend import import_model
from redfuser.partition import Partition, maps
from redfuser.partition.search import Partitioner
from redfuser.untuned import holds, priced
from tests.partition.helpers import execute, flat
from workloads.correctness import behind

MASK = torch.arange(40)[:, None] % 7 > torch.arange(50) % 5


def found(model: Callable[..., object], *args: Tensor) -> Partition:
    return Partitioner(import_model(model, args)).run()


def planned(model: Callable[..., object], *args: Tensor) -> Partition:
    """For an H200, as its models choose."""
    return Partitioner(import_model(model, args), arch="sm_90a", holds=lambda f: holds(f, "sm_90a"),
                       priced=lambda f: priced(f, "sm_90a")).run()


def held(model: Callable[..., object], *args: Tensor) -> Partition:
    """Its partition, computed right."""
    imported = import_model(model, args)
    p = Partitioner(imported).run()
    for mine, theirs in zip(execute(imported, p, args), flat(model(*args)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)
    return p


@pytest.mark.parametrize(("model", "args", "written"), [
    (behind.coverage, (torch.randn(40, 50), torch.randn(40, 50), MASK), 3),
    (behind.clipped_step, tuple(torch.randn(4, 300)), 3),
    (behind.normed_and_gated, (torch.randn(30, 64), torch.randn(30, 64)), 3)], ids=["coverage", "step", "gated"])
def test_every_map_behind_a_row_is_in_its_region(model: Callable[..., object], args: tuple[Tensor, ...], written: int) -> None:
    """``p`` and ``c + p``; a step of Adam behind the norm of all gradients, which was written for a kernel of maps to read: 45.0
    us for 4 million parameters on an H200, so 38.7 (torch.compile 37.7)."""
    (region,) = held(model, *args).parts
    assert len(region.outputs) == written


def test_a_map_that_others_have_to_read_first_stays_behind() -> None:
    """A product lies between the row and the map where it meets it again."""
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x / x.square().mean(-1, keepdim=True).sqrt()
        return y + torch.tanh(y @ w)

    p = held(f, torch.randn(64, 96), torch.randn(96, 96))
    assert [len(r.outputs) for r in p.parts if r.name.startswith("norm")] == [1]


def test_a_map_that_only_another_map_reads_is_written_by_nobody() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x / x.square().mean(-1, keepdim=True).sqrt()
        return y, torch.tanh(y) + y @ w

    p = held(f, torch.randn(64, 96), torch.randn(96, 96))
    assert [len(r.outputs) for r in p.parts if r.name.startswith("norm")] == [1]


def points(p: Partition) -> int:
    """Results of the reduction that has most."""
    return max(prod(int(r.cascade.extent(a)) for a in s.axes) for r in p.parts for s in r.cascade.stmts if isinstance(s, Reduce))


def test_joined_numbers_read_no_row_again() -> None:
    """Mean, extrema and deviation side by side: as one row of 256 columns each reduced all, and the masked rows were written for
    it (8192 rows of 32 x 64 halves: 204 us, so 48; torch.compile 126). A few numbers are read again sooner than a kernel starts."""
    rows, mask = torch.empty(8192, 32, 64, dtype=torch.float16), torch.ones(8192, 32, dtype=torch.bool)
    assert points(planned(behind.aggregated, rows, mask)) == 8192 * 64
    held(behind.aggregated, torch.randn(300, 16, 64), torch.rand(300, 16) > 0.3)
    assert points(held(behind.of_channels, torch.randn(2, 3, 5, 4))) == 2 * 2 * 5 * 4
    assert points(planned(behind.of_channels, torch.empty(64, 256, 56, 56))) == 64 * 56 * 56


def test_a_filter_that_is_written_out_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred maps of one result: one by one they took all the work that a model may (RF308), and ran as torch: 16 x 256 x 256
    numbers 491 us on an H200, so 36 (torch.compile 20)."""
    p = held(behind.edges_kept, torch.randn(2, 1, 20, 24))
    (region,) = p.parts
    assert not p.unmapped and "min(max" not in str(region.cascade) and "select(" not in str(region.cascade), "edges are no branches"
    monkeypatch.setattr(maps, "WRITTEN_OUT", 0)
    assert len(found(behind.edges_kept, torch.randn(2, 1, 20, 24)).parts) > 1


@pytest.mark.parametrize(("shape", "ours"), [((16384, 1024), True), ((65536, 256), True), ((512, 1000), False), ((64, 4096), False)])
def test_a_long_reduction_across_memory_is_ours_by_itself(shape: tuple[int, int], ours: bool) -> None:
    """torch's takes 41.8 and 77.6 us of the first two (H200, float32), a kernel 18.8 and 18.6."""
    assert bool(planned(lambda x: x.sum(0), torch.empty(shape, device="meta")).parts) == ours
