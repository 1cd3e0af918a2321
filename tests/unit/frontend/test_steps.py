"""Tensors of unrolled loops lie with their steps first: no step's slice is copied, and values are the program's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from redfuser import outer
from redfuser.frontend import Imported, import_model
from redfuser.frontend.steps import steps_first
from redfuser.partition import partition
from tests.outer_graphs import rehearsal
from tests.partition.helpers import execute

ARGS = tuple(torch.randn(s, generator=torch.Generator().manual_seed(7)) for s in ((2, 12, 40), (12, 8), (2, 40, 8)))


def scan(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A selective scan, as Mamba's slow path has it: two tensors [batch, channels, steps, states] and their steps."""
    decay = torch.exp(-a[None, :, None, :].exp() * torch.sigmoid(x)[..., None])
    drive = (x[..., None] * b[:, None]) * torch.sigmoid(x)[..., None]
    h, found = drive[:, :, 0], []
    for t in range(x.shape[2]):
        h = decay[:, :, t, :] * h + drive[:, :, t, :]
        found.append(torch.matmul(h, b[:, t, :, None]))
    return torch.cat(found, -1)


def text_of(imported: Imported) -> str:
    p = partition(imported)
    return outer.emit(imported, p.parts, {r.name: r.name.replace(".", "_") for r in p.parts}).source


def copies(text: str) -> int:
    """What kernels are given a copy of, but for inputs (of which a caller may give any view) and torch's maps of them."""
    named = re.findall(r"(\w+)(?:\.contiguous\(\)|\.clone\()", "\n".join(line for line in text.splitlines() if "map_" in line))
    return sum(name not in ("x", "a", "b", "exp", "sigmoid") for name in named)


def test_no_step_is_copied() -> None:
    imported = import_model(scan, ARGS)
    before, after = text_of(imported), text_of(laid := steps_first(imported))
    assert copies(before) > 60 and copies(after) == 0
    p = partition(laid)
    rehearsal(outer.emit(laid), ARGS)
    with torch.no_grad():
        want, exact = scan(*ARGS), scan(*(t.double() for t in ARGS))
    for got in (execute(laid, p, ARGS)[0], outer.emit(laid).function()(*ARGS)[0]):
        assert got.dtype == want.dtype and (got - exact).abs().max() <= 2 * (want - exact).abs().max() + 1e-6


def normed(x: torch.Tensor) -> Any:
    """Results of several tensors read it."""
    return torch.nn.functional.batch_norm(x.exp(), torch.zeros(6), torch.ones(6))


def last(x: torch.Tensor) -> Any:
    y = torch.exp(x)
    return [y[..., t] * 2 for t in range(6)]


def few(x: torch.Tensor) -> Any:
    y = torch.exp(x)
    return [y[:, t] * 2 for t in range(3)]


def returned(x: torch.Tensor) -> Any:
    y = torch.exp(x)
    return [y, *(y[:, t] * 2 for t in range(6))]


def whole(x: torch.Tensor) -> Any:
    y = torch.exp(x)
    return [y.sum(1), *(y[:, t] * 2 for t in range(6))]


def leading(x: torch.Tensor) -> Any:
    y = torch.exp(x[:1])
    return [y[:, t] * 2 for t in range(6)]


def given(x: torch.Tensor) -> Any:
    return [x[:, t] * 2 for t in range(6)]


@pytest.mark.parametrize("f", [normed, last, few, returned, whole, leading, given])
def test_what_is_read_otherwise_lies_as_it_did(f: Callable[[torch.Tensor], Any]) -> None:
    imported = import_model(f, (torch.randn(2, 6, 6),))
    assert steps_first(imported) is imported
