"""Composite operators are named once per program, and those that came since the last one are among them."""

from __future__ import annotations

import pytest
import torch
from torch._export import utils

from redfuser.frontend.named_once import named_once
from redfuser.frontend.program import decompose


def targets(f: torch.nn.Module) -> list[str]:
    program = decompose(torch.export.export(f, (torch.randn(2, 4),)))
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


def test_once_for_a_program_whatever_it_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [], utils._materialize_cpp_cia_ops

    def counted() -> None:
        calls.append(1)
        real()

    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", counted)
    assert targets(torch.nn.LayerNorm(4)) == ["aten.layer_norm.default"]
    assert len(calls) == 1 and utils._materialize_cpp_cia_ops is counted
    with pytest.raises(ZeroDivisionError), named_once(), named_once():
        raise ZeroDivisionError
    assert utils._materialize_cpp_cia_ops is counted
    monkeypatch.delattr(utils, "_materialize_cpp_cia_ops")
    with named_once():
        assert not hasattr(utils, "_materialize_cpp_cia_ops"), "a torch that has none"


def test_a_composite_operator_of_somebody_elses_is_taken_apart_whenever_it_came() -> None:
    class Calls(torch.nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(torch.ops.named_once_test, self.name)(x)

    with torch.library._scoped_library("named_once_test", "DEF") as library:
        for name in ("first", "second"):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x: torch.relu(x) + 1, "CompositeImplicitAutograd")
            assert targets(Calls(name)) == ["aten.relu.default", "aten.add.Tensor"]
