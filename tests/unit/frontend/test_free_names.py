"""Tensors of a model may have any name, also one that torch's own graph modules use for themselves."""

from __future__ import annotations

import copy

import torch

from redfuser.frontend.program import decompose


class Named(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.graph = torch.nn.Parameter(torch.randn(4))
        for name in ("code", "code_0", "meta"):
            self.register_buffer(name, torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.meta.add_(1.0)  # type: ignore[operator]
        return torch.einsum("bf,f->bf", x, self.code) * self.code_0 + self.graph + self.meta  # type: ignore[operator]


def test_names_that_torch_uses_itself() -> None:
    model, x = Named(), torch.randn(2, 4)
    exported = torch.export.export(model, (x,))
    program = decompose(exported)
    state = {s.target for s in program.graph_signature.input_specs if s.target}
    assert len(state) == 4 and "code_0" in state and not state & {"code", "graph", "meta"}
    assert set(exported.state_dict) == {"graph", "code", "code_0", "meta"}, "the user's own is as it was"
    want = copy.deepcopy(model)(x)
    torch.testing.assert_close(program.module()(x), want)


def test_others_stay_as_they_are() -> None:
    program = torch.export.export(torch.nn.Linear(4, 4), (torch.randn(2, 4),))
    assert {s.target for s in decompose(program).graph_signature.input_specs if s.target} == {"weight", "bias"}
