"""Maps beside a reduction that read what it reads: one kernel reads it for both, where that is much of what the maps move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from redfuser.acrf.cascade import Reduce
from redfuser.frontend import import_model
from redfuser.partition import Partition
from redfuser.partition.region import Region
from redfuser.partition.search import Partitioner
from redfuser.untuned import holds, priced
from tests.partition.helpers import execute, flat
from workloads.small import alongside


def planned(model: Callable[..., object], *args: Tensor) -> Partition:
    """For an H200, as its models choose; computed right."""
    imported = import_model(model, args)
    p = Partitioner(imported, arch="sm_90a", holds=lambda f: holds(f, "sm_90a"), priced=lambda f: priced(f, "sm_90a")).run()
    for mine, theirs in zip(execute(imported, p, args), flat(model(*args)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)
    return p


def reduced(r: Region) -> list[str]:
    return [s.reducer.kind for s in r.cascade.stmts if isinstance(s, Reduce)]


def lion(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    u = (m * 0.9 + g * 0.1).sign()
    return p * (1 - 1e-3) - 1e-4 * u, m * 0.99 + g * 0.01, (u * g).sum()


def descent(w: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """The other way round: what the maps share with the sum comes last."""
    return (g * g).sum(-1), 0.9 * m + g


def test_what_is_behind_the_row_and_beside_it_is_written_as_it_is_read() -> None:
    """Three kernels otherwise, which read the gradient three times."""
    (region,) = planned(lion, *torch.randn(3, 64, 300)).parts
    assert len(region.outputs) == 3


def test_a_map_of_the_row_and_one_more_tensor() -> None:
    (region,) = planned(descent, *torch.randn(3, 64, 300)).parts
    assert len(region.outputs) == 2


def test_a_map_that_shares_little_stays_by_itself() -> None:
    """It would read and write for every element of the row ten times what it shares."""
    def f(near: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return (near.float() * 2.0).sum(-1), torch.where(near, a.exp(), b.exp())

    p = planned(f, torch.rand(64, 300) > 0.5, *torch.randn(2, 64, 300))
    assert [len(r.outputs) for r in p.parts] == [1, 1]


def test_a_map_that_waits_for_another_reduction_is_left_to_it() -> None:
    """``x / max|x|`` reads the row whose product with ``y`` is summed, and belongs to the maximum."""
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * y.exp()).sum(0), x / x.abs().amax(-1, keepdim=True)

    p = planned(f, torch.randn(2048, 300), torch.randn(2048, 300))
    assert [(sorted(reduced(r)), len(r.outputs)) for r in p.parts] == [(["max"], 1), (["sum"], 1)]


def test_a_map_that_nobody_takes_whole_is_written_by_nobody() -> None:
    """Its only reader is a product: what the map makes is read there, and the maps between are one kernel."""
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return (x * x).sum(-1), torch.tanh(x * 0.5) @ w

    p = planned(f, torch.randn(64, 300), torch.randn(300, 128))
    assert sum(len(r.outputs) for r in p.parts) == 2


def test_maps_that_torch_computes_for_one_kernel_and_another_computes_anew_are_a_kernel() -> None:
    """Distances that a product is part of: they were torch's, two sums one by one, since a region that computes them anew for
    the means of its rows had claimed them."""
    p = planned(alongside.independence, torch.randn(1024, 64), torch.randn(1024, 32))
    assert not p.kept.keys() & {"relax.add", "relax.multiply"}, p.kept


@pytest.mark.parametrize("long", [False, True], ids=["held", "shared out"])
def test_rows_of_two_tensors_with_statistics_for_the_same_places(long: bool) -> None:
    """A gradient that is centred and clipped by the norm of what it belongs to: one kernel reads both."""
    def f(w: Tensor, g: Tensor) -> Tensor:
        g = g - g.mean(-1, keepdim=True)
        least, n = w.norm(dim=-1, keepdim=True).clamp(min=1e-3), g.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        return torch.where(n > 0.01 * least, g * (0.01 * least / n), g)

    shape = (3, 30000) if long else (64, 300)
    (region,) = planned(f, *torch.randn(2, *shape)).parts
    assert len(region.inputs) == 2


def test_a_row_and_a_column_are_read_apart() -> None:
    """Their statistics are for the same places, but their elements do not lie alike."""
    def f(s: Tensor) -> Tensor:
        return s.logsumexp(-1) + s.logsumexp(-2)

    p = planned(f, torch.randn(96, 96))
    assert [sorted(reduced(r)) for r in p.parts] == [["max", "sum"]] * 2


def test_boxes_and_the_mean_of_what_they_make() -> None:
    """Sums of two coordinates were kernels, of 512 x 2 numbers: 6.7 us on an H200 (torch.compile 2.6)."""
    def f(a: Tensor, b: Tensor) -> Tensor:
        low, high = torch.maximum(a, b), torch.minimum(a + 1, b + 1)
        return ((high - low).clamp(min=0).prod(-1) - (a - b).square().sum(-1)).mean()

    (region,) = planned(f, torch.rand(512, 2), torch.rand(512, 2)).parts
    assert [s.reducer.kind for s in region.cascade.stmts if isinstance(s, Reduce)] == ["sum"]


def test_coordinates_about_a_mean_are_the_means_cascade() -> None:
    def f(m: Tensor, x: Tensor) -> Tensor:
        c = (m[..., None] * x).sum(1, keepdim=True) / m.sum(1)[:, None, None]
        return (m * (x - c).square().sum(-1)).sum(-1)

    p = planned(f, torch.rand(3, 500) + 0.1, torch.randn(3, 500, 3))
    assert len(p.parts) == 1


def test_what_a_number_is_still_reduced_for_is_not_made_anew_for_each_element() -> None:
    """The scale is of a history of 16, whose kernel makes it: one kernel for all took 54 us on an H200, two 39."""
    def f(x: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        s = 448 / history.abs().amax().clamp(min=1e-3)
        return (x.float() * s).clamp(-448, 448).half(), x.float().abs().amax()

    p = planned(f, torch.randn(1024, 512).bfloat16(), torch.randn(16))
    assert [len(r.outputs) for r in p.parts] == [1, 1, 1]


def test_rows_and_columns_that_meet_in_a_map_are_summed_apart() -> None:
    """A centred kernel was one block that walked all of it for each of its elements: 4859 us on an H200 for torch's 62."""
    def f(x: Tensor) -> Tensor:
        k = torch.exp(-x)
        return k - k.mean(0) - k.mean(1)[:, None] + k.mean()

    p = planned(f, torch.rand(96, 96))
    for r in p.parts:
        axes = [set(s.axes) for s in r.cascade.stmts if isinstance(s, Reduce)]
        assert all(a <= b or b <= a for a in axes for b in axes)


def test_a_region_that_is_modelled_far_slower_than_its_reductions_is_cut() -> None:
    def f(x: Tensor) -> Tensor:
        return x.softmax(-1)

    imported = import_model(f, (torch.randn(64, 30000),))
    p = Partitioner(imported, arch="sm_90a", holds=lambda f: True, priced=lambda f: 1e-3).run()
    assert not p.regions and {r.reason.code for r in p.refusals} == {"RF305"}
    assert "1000 us" in p.refusals[0].reason.why
