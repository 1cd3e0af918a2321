"""One reduction across memory with its maps: when it is a kernel, and what is said when it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from redfuser.acrf.cascade import stmt_dtype
from redfuser.acrf.state import Fused, NotFusable
from redfuser.frontend import import_model
from redfuser.partition import Partition
from redfuser.partition.search import Partitioner
from redfuser.untuned import holds, priced
from tests.partition.helpers import execute, flat

X, Y, M = torch.randn(3, 20, 40), torch.randn(3, 20, 40), torch.rand(3, 20) < 0.5
IMAGE = torch.randn(2, 6, 5, 7)
FAST: Callable[[Fused], float] = lambda _: 0.0  # noqa: E731


def found(of: Callable[..., Any], args: tuple[torch.Tensor, ...], price: Any = FAST) -> tuple[Any, Partition]:
    imported = import_model(of, args)
    return imported, Partitioner(imported, arch="sm_90a", priced=price).run()


@pytest.mark.parametrize(("of", "args"), [
    (lambda x, y: (x * y).sum(0), (X, Y)), (lambda x: torch.relu(x).mean(1), (X,)), (lambda x, y: (x - y).abs().amax(0), (X, Y)),
    (lambda x: torch.tanh(torch.tanh(torch.min(x * 2, dim=1, keepdim=True)[0])), (IMAGE,)),
    (lambda x, m: x.masked_fill(~m[..., None], -1e4).max(1).values, (X, M)),
    (lambda x, y: ((h := x + y), h.sum(1)), (X, Y)), (lambda x, y: (x > y).any(1), (X, Y)),
    (lambda x: torch.sigmoid(x.amax(1) * 2), (X,)), (lambda x: (x * 2).amin((0, 1)), (X,)),
    (lambda x, m: (x * m[..., None].float()).sum(1) / m.float().sum(1, keepdim=True).clamp(min=1e-9), (X, M))],
    ids=["products", "mean", "farthest", "channels", "masked", "kept", "votes", "behind", "both", "pooled"])
def test_it_is_one_kernel_with_its_maps(of: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> None:
    imported, p = found(of, args)
    assert len(p.parts) == 1 and not p.unmapped and not any(op in ("relax.sum", "relax.max", "relax.min") for op in p.kept)
    for mine, theirs in zip(execute(imported, p, args), flat(of(*args)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_columns_side_by_side_are_along_one_axis() -> None:
    """Of images whose lines are shorter than a warp, threads have neighbours in memory all the same."""
    _, p = found(lambda x: (x * 2).amin(1), (IMAGE,))
    (region,) = p.maps
    assert sorted(int(a.extent) for a in region.cascade.axes) == [2, 6, 35]
    biased = found(lambda x, b: (x + b[:, None]).amin(1), (IMAGE, torch.randn(5)))[1].maps[0]
    assert sorted(int(a.extent) for a in biased.cascade.axes) == [2, 5, 6, 7], "a bias of lines tells them apart"


def test_what_torch_does_as_well_stays_its_call() -> None:
    for of in (lambda x: x.sum(0), lambda x: x.mean(1), lambda x: x.amax(1), lambda x: x.max(1)):
        assert not found(of, (X,))[1].parts and not found(of, (X.half(),))[1].parts


def test_one_that_does_not_pay_is_left_and_its_maps_are_not() -> None:
    """The note has both figures; the maps before it are the kernel that they were."""
    def of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * y + 1).sum(1)

    imported, p = found(of, (X, Y), lambda _: 1.0)
    assert [r.name for r in p.parts] == ["map.0"] and p.kept == {"relax.sum": 1}
    (left,) = p.unmapped
    assert left.reason.code == "RF305" and "modelled 1000000.0 us on H200, torch's and the maps" in left.reason.why
    torch.testing.assert_close(execute(imported, p, (X, Y))[0], of(X, Y), rtol=1e-5, atol=1e-5)
    (none,) = found(of, (X, Y), lambda _: NotFusable("RF489", "", "no tile form", "of it", ""))[1].unmapped
    assert none.reason.code == "RF489"
    (unknown,) = found(of, (X, Y), None)[1].unmapped
    assert "nothing here models" in unknown.reason.why


def test_the_model_is_asked_for_the_target() -> None:
    """Large ones pay, in few kernels; of a product torch has no tile form for, the reason is the lowering's."""
    def kernels(of: Callable[..., Any], *args: torch.Tensor) -> Partition:
        return Partitioner(import_model(of, args), arch="sm_90a", holds=lambda f: holds(f, "sm_90a"),
                           priced=lambda f: priced(f, "sm_90a")).run()

    big = torch.empty(512, 1024)
    assert [r.name for r in kernels(lambda x, y: (x * y).sum(0), torch.empty(8192, 4096), torch.empty(8192, 4096)).parts] == [
        "statistics.0"]
    (left,) = kernels(lambda x, y: (x * y).prod(0), big, big).unmapped
    assert left.reason.code == "RF489"


K, V = torch.randn(2, 3, 64, 40).half(), torch.randn(2, 3, 64, 24).half()


@pytest.mark.parametrize("price", [0.0, 1.0])
def test_what_a_product_reads_as_well_is_written_once(price: float) -> None:
    """Linear attention's keys, for a library's product and a sum: whoever has the chain writes its end, and nothing of it is
    torch's. (A sum of the last addition alone left the four before it to torch.)"""
    def of(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        k = torch.nn.functional.elu(k) + 1
        return torch.einsum("bhld,bhle->bhde", k, v), k.sum(-2)

    imported, p = found(of, (K, V), lambda _: price)
    (region,) = p.maps
    assert not {op.removeprefix("relax.") for op in p.kept} & {"where", "greater", "add"}, p.kept
    assert len(region.outputs) == (2 if price == 0.0 else 1) and ("sum[" in str(region.cascade)) is (price == 0.0)
    for mine, theirs in zip(execute(imported, p, (K, V)), of(K, V), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=2e-2)


def test_what_torch_widens_inside_its_sum_is_written_narrow() -> None:
    """A sum of halves is torch's with its conversions: the maps before it write halves."""
    _, p = found(lambda x, y: torch.tanh(x * y + 1).sum(1), (X.half(), Y.half()), lambda _: 1.0)
    (region,) = p.maps
    c = region.cascade
    assert [stmt_dtype(c.stmt(name), name) for name in c.outputs] == ["f16"]
