"""Values that depend on no input: recognised exactly, or not at all."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from redfuser.frontend import import_model
from redfuser.frontend.static import Band, band, core, counting, uniform
from tests.interpret import run

SMALL = settings(max_examples=60, deadline=None, derandomize=True)


def inside(b: Band, rows: int, columns: int) -> Tensor:
    d = torch.arange(columns)[None, :] - torch.arange(rows)[:, None]
    mask = torch.ones(rows, columns, dtype=torch.bool)
    mask &= d >= b.lower if b.lower is not None else True
    mask &= d <= b.upper if b.upper is not None else True
    return mask


@SMALL
@given(st.integers(2, 7), st.integers(2, 7), st.integers(-7, 7), st.integers(-7, 7), st.booleans())
def test_bands_are_recognised(rows: int, columns: int, low: int, high: int, flipped: bool) -> None:
    d = torch.arange(columns)[None, :] - torch.arange(rows)[:, None]
    mask = ((d >= low) & (d <= high)) ^ flipped
    found = band(mask.expand(2, 1, rows, columns))
    if bool(mask.all()) or not bool(mask.any()):
        assert found is None and uniform(mask) is not None
    else:
        assert found is not None
        assert torch.equal(torch.where(inside(found, rows, columns), found.inside, found.outside), mask)


@SMALL
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=3, max_size=3))
def test_other_masks_are_not(cells: list[list[bool]]) -> None:
    mask = torch.tensor(cells)
    found = band(mask)
    if found is not None:
        assert torch.equal(torch.where(inside(found, 3, 4), found.inside, found.outside), mask)


@SMALL
@given(st.integers(-5, 5), st.integers(-3, 3), st.integers(2, 6), st.integers(0, 2))
def test_counting(start: int, step: int, n: int, axis: int) -> None:
    shape = [1, 1, 1]
    shape[axis] = n
    value = (start + step * torch.arange(n)).reshape(shape).expand([s if s > 1 else 3 for s in shape])
    if step:
        assert counting(value) == (axis, start, step)
        assert counting(value.to(torch.float32)) == (axis, start, step)
    else:
        assert counting(value) is None and uniform(value) == start


def test_almost_counting() -> None:
    assert counting(torch.tensor([0, 1, 3])) is None
    assert counting(torch.tensor([0.0, 0.5, 1.0])) is None
    assert counting(torch.tensor([[0, 1], [1, 2]])) is None
    assert uniform(torch.tensor([float("nan")] * 3)) is None
    assert tuple(core(torch.zeros(1, 1).expand(5, 7)).shape) == (1, 1)


def test_random_values_are_not_static() -> None:
    imported = import_model(lambda x: x + torch.rand(3), (torch.zeros(3),))
    assert [c.target for c in imported.opaque.values()] == ["aten.rand.default"]
    first, second = run(imported, (torch.zeros(3),))[0], run(imported, (torch.zeros(3),))[0]
    assert not torch.equal(first, second)


def test_counting_down_and_up() -> None:
    imported = import_model(
        lambda x: (x + torch.arange(5, -5, -2), x + torch.arange(-3, 12, 3)[:, None]), (torch.zeros(5),)
    )
    assert torch.equal(run(imported, (torch.zeros(5),))[0], torch.arange(5, -5, -2).float())
    assert torch.equal(run(imported, (torch.zeros(5),))[1], torch.arange(-3, 12, 3).float()[:, None].expand(5, 5))


def test_irregular_constants_stay_constants() -> None:
    table = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0])
    imported = import_model(
        lambda x: (x * table, x + torch.tensor([1, 2, 4, 8, 16])[torch.arange(4, -1, -1)]), (torch.ones(5),)
    )
    assert torch.equal(run(imported, (torch.ones(5),))[0], table)
    assert torch.equal(run(imported, (torch.ones(5),))[1], torch.tensor([17.0, 9, 5, 3, 2]))


def test_unsigned_numbers_that_torch_hardly_computes_in_wrap_around() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        long = torch.arange(70000).to(torch.uint16)[-3:]  # 4461 and on
        return x + (long * 15).float(), (torch.arange(3, dtype=torch.uint32) - 2).long() + x.long()

    imported = import_model(program, (torch.zeros(3),))
    scaled, below = run(imported, (torch.zeros(3),))
    assert scaled.tolist() == [(4461 + i) * 15 % 2**16 for i in range(3)]
    assert below.tolist() == [2**32 - 2, 2**32 - 1, 0]
