"""Rows that are taken: of a map, whoever reads them computes it; in the order that undoes a sort, they are what was sorted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from redfuser import tvm_compat as tc
from redfuser.frontend import Imported, import_model
from tests.interpret import run

X, W, KEYS = torch.randn(12, 6), torch.rand(12), torch.randint(0, 4, (12,))


def operators(imported: Imported) -> list[str]:
    return [tc.op_name(b.value) for b in tc.bindings(imported.mod["main"])]


def held(of: Callable[..., Tensor], *args: Tensor) -> list[str]:
    imported = import_model(of, args)
    torch.testing.assert_close(run(imported, args)[0], of(*args))
    return operators(imported)


def back(order: Tensor, step: int = 1, length: int = 12) -> Tensor:
    found = torch.zeros(length, dtype=torch.int64)
    places = torch.arange(order.shape[0])
    found[order] = places if step > 0 else places.flip(0)
    return found


def test_rows_of_a_map_are_the_map_of_rows() -> None:
    index = torch.tensor([3, 0, -1, 5])
    assert held(lambda x, w, i: (x.half() * w[:, None])[i], X, W, index).index("take") < held(
        lambda x, w, i: (x.half() * w[:, None])[i], X, W, index).index("multiply")
    for of in (lambda x, y, i: (x * y)[i],  # twice the rows to move
               lambda x, y, i: ((h := x * y[0])[i] + h[:4]),  # the map is read by another
               lambda x, y, i: (x * y[0])[i.repeat(4)]):  # more rows than there are
        found = held(of, X, torch.rand(12, 6), index)
        assert found.index("multiply") < found.index("take")


@pytest.mark.parametrize("of", [
    lambda x, y, k: x[torch.arange(12), y], lambda x, y, k: x[torch.arange(12)[:, None], k],
    lambda x, y, k: x.view(3, 4, 6)[torch.arange(3)[:, None], torch.arange(4), y.view(3, 4)],
    lambda x, y, k: torch.log_softmax(x, -1)[range(12), y], lambda x, y, k: x[:1][torch.arange(1), y[:1].int()],
    lambda x, y, k: x.view(1, 12, 6)[torch.zeros(1, 1, dtype=torch.int64), torch.arange(12), y.view(1, 12)]],
    ids=["one", "some", "two axes", "of a softmax", "the only row", "the only batch"])
def test_of_every_row_its_own_is_a_gather(of: Callable[..., Tensor]) -> None:
    found = held(of, X, torch.randint(-6, 6, (12,)), torch.randint(-6, 6, (12, 3)))
    assert "gather_elements" in found and "index_tensor" not in found


@pytest.mark.parametrize("of", [
    lambda x, y, k: x[torch.arange(11), y[:11]], lambda x, y, k: x[torch.arange(12).flip(0), y],
    lambda x, y, k: x[torch.arange(12), y.view(12, 1)], lambda x, y, k: x.view(12, 3, 2)[torch.arange(12), y.clamp(-3, 2)]],
    ids=["not all", "backwards", "all pairs", "rows"])
def test_of_other_rows_it_is_none(of: Callable[..., Tensor]) -> None:
    assert "gather_elements" not in held(of, X, torch.randint(-6, 6, (12,)), X)


def test_an_order_and_what_undoes_it() -> None:
    def experts(x: Tensor, w: Tensor, keys: Tensor) -> Tensor:
        order = torch.sort(keys)[1]
        return (torch.tanh(x[order // 1]) * w[order][:, None])[back(order)]

    found = held(experts, X, W, KEYS)
    assert found.count("take") == 2 and "where" not in found  # the rows before and behind; no weights, no place below 0


@pytest.mark.parametrize("of", [
    lambda x, k: x[o := torch.sort(k)[1]][back(o, -1)], lambda x, k: x[h := torch.sort(k)[1] // 2][back(h)], lambda x, k: x[o := torch.sort(k)[1]][o],
    lambda x, k: x[o := torch.sort(k[:8])[1]][back(o)],
    lambda x, k: x[torch.sort(k)[1]][back(torch.sort(k, descending=True)[1])]],
    ids=["backwards", "no order", "the order", "part", "another order"])
def test_what_undoes_no_order_is_taken(of: Callable[..., Tensor]) -> None:
    assert held(of, X, KEYS).count("take") == 2


I, J = torch.tensor([0, -1, 1]), torch.tensor([5, 2, -6])


@pytest.mark.parametrize("of", [
    lambda x, i, j: x.view(4, 3, 6)[:, i, j], lambda x, i, j: x.view(2, 2, 3, 6)[:, :, i[:, None], j],
    lambda x, i, j: x.view(4, 3, 6, 1)[:, i, j], lambda x, i, j: x.view(2, 2, 3, 6)[:, i - 1, i, j.int()],
    lambda x, i, j: x.view(4, 3, 6)[:, torch.tril_indices(3, 3)[0], torch.tril_indices(3, 3)[1]]],
    ids=["last", "pairs", "middle", "three", "triangle"])
def test_known_indices_behind_whole_axes_are_a_take_of_one(of: Callable[..., Tensor]) -> None:
    i, j = I.clamp(min=0), J.clamp(min=-6)  # of the model, not of the call
    found = held(lambda x: of(x, torch.tensor(i.tolist()), torch.tensor(j.tolist())), X)
    assert "take" in found and "call_dps_packed" not in found


def test_others_are_torchs_which_refuses_what_is_out_of_bounds() -> None:
    """Of one axis, row 0 and column 7 of 3 x 6 would be row 1 and column 1."""
    found = held(lambda x, i, j: x.view(4, 3, 6)[:, i, j], X, I, J)
    assert "take" not in found and "call_dps_packed" in found
