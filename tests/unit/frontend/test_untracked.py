"""A tensor's ``data``: of a weight, an input, a result, read and written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from redfuser.dynamo.capture import capture
from redfuser.dynamo.recipe import GivenBack
from redfuser.errors import InputError
from redfuser.frontend import import_model


class Scaled(nn.Module):
    """By the largest of its weights, as models of quantised layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 9.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.weight.data.abs().max()
        y.data.add_(x.data.amax())
        return y.softmax(-1), self.weight.data


def test_it_is_the_tensor_to_an_export() -> None:
    imported = import_model(Scaled(), (torch.ones(2, 8),))
    assert [s.kind for s in imported.inputs] == ["user", "weight"] and "max" in str(imported.mod)


def test_a_tensor_that_is_given_other_data_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.data = x + 1
        return y.softmax(-1)

    with pytest.raises(InputError, match=r"RF114.*\n.*other data"):
        import_model(f, (torch.ones(2, 8),))


def graph_of(function: Any) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    read = graph.call_function(function, (x,))
    graph.output((graph.call_function(torch.softmax, (x, -1)), graph.call_function(torch.amax, (read,))))
    return fx.GraphModule(nn.Module(), graph)


def test_it_is_the_tensor_in_a_graph_of_torch_compile() -> None:
    """A constant without elements, before: its maximum was 0."""
    with torch.no_grad():
        captured = capture(graph_of(torch._C._autograd._get_data_attr), [torch.ones(2, 8)])  # type: ignore[attr-defined]
    assert captured.recipe.inputs == (0,) and not captured.program.constants


def test_a_tensor_that_is_lost_on_the_way_is_no_constant() -> None:
    with torch.no_grad(), pytest.raises(GivenBack, match="in a way that cannot be captured"):
        capture(graph_of(lambda x: x.as_subclass(Tensor)), [torch.ones(2, 8)])
