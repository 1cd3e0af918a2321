"""Nothing is computed twice where that shows: neither in other digits, which a comparison would tell, nor by torch beside a kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from redfuser.frontend import import_model
from redfuser.partition import Partition, partition, search
from redfuser.partition.graph import Graph, Node
from workloads import models

VIEWS = {"reshape", "expand_dims", "permute_dims", "strided_slice", "squeeze", "broadcast_to", "split", "arange", "full_like", "eye"}


def found(model: Callable[..., object], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Partition:
    return partition(import_model(model, tuple(torch.zeros(s, dtype=dtype) for s in shapes)))


def torches(p: Partition) -> set[str]:
    """Operations that torch is left with, but for views."""
    return {op.removeprefix("relax.") for op in p.kept} - VIEWS


def computing(p: Partition, what: str) -> int:
    """Kernels that compute it, and torch."""
    return sum(f"{what}(" in str(r.cascade) for r in p.parts) + p.kept.get(f"relax.{what}", 0)


def brightest(x: torch.Tensor) -> torch.Tensor:
    r, g, b = x.sigmoid().unbind(1)
    every = torch.stack([r, g, b], 1)
    most = every.amax(1)
    d = (most - every.amin(1)).clamp(min=1e-6)
    return torch.where(most == r, (g - b) / d, torch.where(most == g, (b - r) / d + 2, (r - g) / d + 4))


def kept_of_the_best(x: torch.Tensor) -> torch.Tensor:
    """A threshold that is one of the elements."""
    s = (x * 1.7 + 0.3).tanh()
    return s.masked_fill(s < s.topk(3, -1).values[..., -1:], 0.0)


@pytest.mark.parametrize(("model", "what", "shape"), [(brightest, "sigmoid", (2, 3, 64, 64)), (kept_of_the_best, "tanh", (64, 96))])
def test_what_a_comparison_finds_again_is_one_number(model: Callable[..., object], what: str, shape: tuple[int, ...]) -> None:
    """Torch's sigmoid for the maximum and ours in the comparison: 5 % of 12 million colours were another (H200)."""
    assert computing(found(model, shape), what) == 1


def test_and_is_not_without_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(graph: Graph) -> frozenset[Node]:
        return frozenset()

    monkeypatch.setattr(search, "decided", none)
    assert computing(found(brightest, (2, 3, 64, 64)), "sigmoid") > 1


def test_of_an_input_or_one_rounding_nothing_is_written() -> None:
    """These are the same number whoever computes them."""
    def scaled(x: torch.Tensor) -> torch.Tensor:
        s = x / 0.7
        return s.masked_fill(s < s.topk(3, -1).values[..., -1:], 0.0)

    (graph,) = [search.build_graph(import_model(scaled, (torch.zeros(64, 96),)).mod, {}, frozenset(), True)]
    assert not search.decided(graph)


def pairs(x: torch.Tensor) -> torch.Tensor:
    """A mask that one kernel computes anew of what another had: torch computed the distances for it, beside the kernel."""
    d = (x[:, :, None] - x[:, None]).pow(2).sum(-1)
    near = ~torch.eye(512, dtype=torch.bool) & (d < 6.25)
    i6 = (1 / torch.where(near, d.clamp(min=0.3), 1.0)) ** 3
    return torch.where(near, 4 * (i6 * i6 - i6), 0.0).sum((1, 2)) * 0.5


def farthest(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A row that is reduced, and its columns: what the first wrote was made anew of what it had kept to itself."""
    d = torch.cdist(a, b)
    return d.amin(1), d.amin(0)


@pytest.mark.parametrize(("model", "shapes", "left"), [
    (pairs, [(16, 512, 3)], set()), (farthest, [(2048, 64), (2048, 64)], {"matmul", "multiply", "concat", "min"})])
def test_torch_computes_nothing_that_a_kernel_computes(model: Callable[..., object], shapes: list[tuple[int, ...]],
                                                       left: set[str]) -> None:
    assert torches(found(model, *shapes)) <= left


@pytest.mark.parametrize(("rows", "kernels"), [((512, 512, 4), 1), ((512, 64, 32), 1), ((512, 32, 64), 0), ((512, 32, 4), 0)])
def test_many_short_rows_are_a_kernel_of_one_reduction(rows: tuple[int, ...], kernels: int) -> None:
    """Torch's takes ten times what it reads where rows are of 4."""
    assert len(found(lambda x: x.amax(-1), rows, dtype=torch.float16).parts) == kernels


def mixed(a: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bnm,bnd->bmd", a, h)


@pytest.mark.parametrize(("a", "h", "kernels"), [
    ((1024, 4, 4), (1024, 4, 256), 1), ((1024, 16, 4), (1024, 16, 256), 0), ((4, 4, 256), (4, 4, 4096), 0)])
def test_products_of_many_small_matrices_are_maps(a: tuple[int, ...], h: tuple[int, ...], kernels: int) -> None:
    """A library starts a tile for each: 312 us for 4096 of 4 x 4 by 4 x 1024 of bfloat16, the map 20."""
    assert len(found(mixed, a, h, dtype=torch.bfloat16).parts) == kernels


def test_a_group_writes_what_kernels_load_and_not_what_they_looked_at() -> None:
    """Depthwise convolutions behind norms and clamps: a draft evaluates the norm on the way to what it reads, the clamp."""
    case = next(c for c in models.cases() if c.name == "mobilenet2")
    parts = partition(import_model(case.build(), case.inputs("cpu", 0))).parts
    assert len(parts) > 40 and all(len(r.outputs) == 1 for r in parts if r.name.startswith("map"))
