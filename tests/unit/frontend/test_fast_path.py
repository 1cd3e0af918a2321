"""torch's operators for encoders, and what they are written out as: the same values for every kind of mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

from redfuser.frontend.fast_path import native_multi_head_attention, transformer_encoder_layer, written_out

B, T, D, H = 2, 5, 16, 4
LATER = torch.ones(T, T, dtype=torch.bool).triu(1)
PADDED = torch.arange(T) >= torch.tensor([[3], [5]])
MASKS: dict[str, tuple[Tensor | None, int | None]] = {
    "none": (None, None),
    "source": (LATER, 0),
    "padding": (PADDED, 1),
    "a row hidden whole": (torch.tensor([[True], [False]]).expand(B, T), 1),
    "scores": ((LATER | PADDED[:, None, None]).expand(B, H, T, T), 2),
    "minus infinity": (torch.zeros(T, T).masked_fill(LATER, -torch.inf), 0),
    "floats that are no mask": (torch.full((T, T), 0.5).triu(1), 0),
}


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / shape[-1] ** 0.5


ATTENTION = (rand(3 * D, D) * 4, rand(3 * D), rand(D, D), rand(D))


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize(("wanted", "averaged"), [(True, True), (True, False), (False, True)])
def test_attention(masked: str, wanted: bool, averaged: bool) -> None:
    mask, kind = MASKS[masked]
    x = rand(B, T, D) * 4
    given: Any = (x, x, x, D, H, *ATTENTION, mask, wanted, averaged, kind)
    got, want = native_multi_head_attention(*given), torch._native_multi_head_attention(*given)
    torch.testing.assert_close(got, want, equal_nan=True)


def test_attention_to_something_else() -> None:
    x, y, z = rand(B, T, D), rand(B, T, D).flip(1), rand(B, T, D).flip(2)
    for given in ((x, y, y), (x, y, z)):
        got = native_multi_head_attention(*given, D, H, *ATTENTION)
        torch.testing.assert_close(got, torch._native_multi_head_attention(*given, D, H, *ATTENTION))


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize(("gelu", "first"), [(True, True), (False, False)])
def test_layer(masked: str, gelu: bool, first: bool) -> None:
    norms = (rand(D), rand(D), rand(D).flip(0), rand(D))
    given: Any = (rand(B, T, D), D, H, *ATTENTION, gelu, first, 1e-5, *norms, rand(32, D), rand(32), rand(D, 32), rand(D),
                  *MASKS[masked])
    torch.testing.assert_close(transformer_encoder_layer(*given), torch._transformer_encoder_layer_fwd(*given), equal_nan=True)


def test_a_graph_is_left_as_it_was() -> None:
    graph = fx.Graph()
    x, weights = graph.placeholder("x"), [graph.placeholder(f"w{i}") for i in range(4)]
    graph.output(graph.call_function(torch._native_multi_head_attention, (x, x, x, D, H, *weights, None, False)))
    gm = fx.GraphModule({}, graph)
    given = (rand(B, T, D), *ATTENTION)
    text = str(gm.graph)
    got, want = written_out(gm)(*given), gm(*given)
    torch.testing.assert_close(got[0], want[0])
    assert got[1] is want[1] is None
    assert str(gm.graph) == text
    without = written_out(gm)
    assert written_out(without) is without
