"""Copies for products: each tensor once, line by line, and the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from redfuser import outer
from redfuser.frontend import import_model, laid_out


def source(of: Any, *args: torch.Tensor) -> str:
    """The text that is run; what it gives is what eager gives."""
    graph = outer.emit(laid_out(import_model(of, args)))
    with torch.no_grad():
        want, got = of(*args), graph.function()(*args)
    for mine, theirs in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    return graph.source


def test_two_products_share_a_copy() -> None:
    def of(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.einsum("bclhp,bchls->bchsp", x, w), torch.einsum("bclhp,bchlq->bchpq", x, u)

    text = source(of, torch.randn(2, 3, 8, 4, 16), torch.randn(2, 3, 4, 8, 5), torch.randn(2, 3, 4, 8, 7))
    assert text.count("_copy = ") == 1 and text.count(".transpose(1, 2)") >= 1, text


def test_a_slice_is_copied_line_by_line() -> None:
    """Of a product whose batch was turned: the lines that lie side by side stay so, the product reads it turned."""
    def of(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.bmm(x, w).unflatten(0, (2, 3)).unflatten(-1, (4, 5)).permute(0, 2, 1, 3, 4)[:, :6]
        return torch.bmm(y, z.permute(0, 1, 4, 2, 3).reshape(12, 5, 12))

    text = source(of, torch.randn(6, 7, 8), torch.randn(6, 8, 20), torch.randn(12, 9, 5))
    assert ".reshape((12, 12, 5)).transpose(1, 2)" in text, text


@pytest.mark.parametrize("of", [
    lambda x, y: torch.bmm(x.flatten(0, 1), y), lambda x, y: torch.bmm(x.flatten(0, 1).mT.contiguous().mT, y)])
def test_what_torch_views_stays(of: Any) -> None:
    assert "_copy" not in source(of, torch.randn(2, 3, 4, 5), torch.randn(6, 5, 7))


@pytest.mark.parametrize(("of", "behind"), [
    (lambda x, w, b: torch.nn.functional.linear(x[:, :5], w, b), True),
    (lambda x, w, b: torch.nn.functional.linear(x, w, b), False)], ids=["in pieces", "whole"])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_a_bias_of_what_lies_in_pieces_is_added_to_rounded_products(of: Any, behind: bool, half: torch.dtype) -> None:
    """As torch's linear does it, bit for bit."""
    args = (torch.randn(3, 8, 16).to(half), torch.randn(7, 16).to(half), torch.randn(7).to(half))
    graph = outer.emit(laid_out(import_model(of, args)))
    assert (" + b" in graph.source) is behind
    with torch.no_grad():
        assert torch.equal(graph.function()(*args)[0], of(*args))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_order_gives_the_same(data: st.DataObject) -> None:
    extents = data.draw(st.lists(st.integers(1, 4), min_size=3, max_size=6))
    order = data.draw(st.permutations(range(len(extents))))
    first, second = sorted(data.draw(st.tuples(st.integers(0, len(extents)), st.integers(0, len(extents)))))
    axis = data.draw(st.integers(0, len(extents) - 1))
    low = data.draw(st.integers(0, extents[axis] - 1))

    def sizes(x: torch.Tensor) -> Sequence[int]:
        shape = x.permute(order).shape
        return [int(torch.tensor(shape[a:b]).prod()) for a, b in ((0, first), (first, second), (second, len(shape)))]

    x = torch.randn(extents)
    cut = x.narrow(axis, low, extents[axis] - low)
    b, m, n = sizes(cut)

    def of(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * 2).narrow(axis, low, extents[axis] - low).permute(order).reshape(b, m, n)
        return torch.bmm(y, w), torch.bmm(u, y)

    source(of, x, torch.randn(b, n, 3), torch.randn(b, 2, m))
