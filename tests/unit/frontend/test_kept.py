"""What a model's forward assigns while torch.export runs it: the model is as it was, and the report says so."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from redfuser.frontend import import_model


class Assigning(nn.Module):
    """Keeps a mask from call to call, counts calls, remembers what it computed, in attributes and in containers of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.mask: Tensor | None = None
        self.calls = 0
        self.cache: dict[int, list[Tensor]] = {}
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.arange(8) % 2
        self.calls += 1
        self.cache.setdefault(8, []).append(x.exp())
        self.seen.append(x.sum())
        return (self.inner(x) * self.mask).softmax(-1)


def test_a_model_holds_nothing_of_its_export() -> None:
    model, x = Assigning(), torch.randn(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imported = import_model(model, (x,))
    assert (model.mask, model.calls, model.cache, model.seen) == (None, 0, {}, [])
    assert type(model(x)) is Tensor
    assert [n.split(":")[0] for n in imported.notes] == ["forward assigns mask, calls, cache, seen"]


class Registering(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.arange(8) % 2, persistent=False)
        return (x * self.mask).softmax(-1)


def test_a_buffer_of_the_first_call() -> None:
    """torch.export takes it for an update of the input."""
    model = nn.Sequential(Registering())
    imported = import_model(model, (torch.randn(4, 8),))
    assert not imported.notes and type(model[0].mask) is Tensor and torch.equal(model[0].mask, torch.arange(8) % 2)


def test_what_torchs_own_modules_do_with_themselves_is_not_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not import_model(nn.LSTM(4, 4).eval(), (torch.randn(3, 2, 4),)).notes


def test_what_is_assigned_again_is_no_change() -> None:
    class Again(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.scale, self.name, self.pair = 0.5, "a" + str(x.dim()), (1, "b")
            return (x * self.scale).softmax(-1)

    model, x = Again(), torch.randn(4, 8)
    model(x)
    assert not import_model(model, (x,)).notes
    model.scale = 0.25
    assert import_model(model, (x,)).notes and model.scale == 0.25
