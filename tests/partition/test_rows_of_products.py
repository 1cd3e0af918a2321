"""Numbers of a product's rows, where no matrix is made of them: a weighed sum of all heads' scores, the largest score of a head."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
from torch import Tensor

from redfuser import outer
from redfuser.acrf.cascade import Cascade
from redfuser.frontend import import_model
from redfuser.partition import partition
from tests.partition.helpers import execute, flat

HALF = torch.float16


def drawn(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def index(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return (torch.einsum("thd,sd->ths", q, k).float().relu() * w[..., None]).sum(1)


def greatest(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    return (q @ k.mT).float().masked_fill(~seen, -1e30).amax((-1, -2))


PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "weighed sum of heads": (index, (drawn(64, 64, 32), drawn(256, 32), drawn(64, 64, dtype=torch.float32))),
    "largest of a head": (greatest, (drawn(4, 192, 32), drawn(4, 192, 32), torch.ones(192, 192).tril().bool())),
    "of all": (lambda q, k: (q @ k.mT).float().square().sum(), (drawn(4, 192, 32), drawn(4, 192, 32))),
    "mean of two axes": (lambda q, k: (q @ k.mT).float().abs().mean((1, 2), keepdim=True), (drawn(4, 192, 32), drawn(4, 192, 32))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_scores_are_not_written(name: str) -> None:
    f, args = PROGRAMS[name]
    imported = import_model(f, args)
    p = partition(imported)
    scores = prod(args[0].shape[:-1]) * args[1].shape[-2]
    assert p.regions and "matmul" not in " ".join(p.kept)
    assert all(sizes[o] * 32 <= scores for r in p.parts for sizes in [_sizes(r.cascade)] for o in r.cascade.outputs)
    for got, want in zip(execute(imported, p, args), flat(f(*args)), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-2)


def _sizes(c: Cascade) -> dict[str, int]:
    extents = {a.name: int(a.extent) for a in c.axes}
    return {n: prod(extents.get(a, 1) for a in s.axes) for s in c.stmts for n in getattr(s, "names", (getattr(s, "name", ""),))}


def test_what_others_read_of_a_product_is_reduced_whole() -> None:
    """A library makes it then, and its mean is the variance's."""
    def scaled(x: Tensor, w: Tensor) -> Tensor:
        a = x @ w
        return (a - a.mean()) / (a.std() + 1e-8)

    def largest(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).abs().amax()

    args = (torch.randn(5, 37), torch.randn(37, 37))
    assert "rows" not in outer.emit(import_model(scaled, args), [], {}).source
    assert "rows" in outer.emit(import_model(largest, args), [], {}).source


def test_pictures_that_a_convolution_makes_are_reduced_whole() -> None:
    def pooled(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, w).relu().mean((2, 3))

    args = (torch.randn(2, 3, 9, 8), torch.randn(4, 3, 3, 3))
    assert "(2, 3))" in outer.emit(import_model(pooled, args), [], {}).source
