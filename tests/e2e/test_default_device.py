"""A program that has set torch's default device: what the compiler makes for itself lies where it says, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import redfuser
from redfuser import testing

MAKES = frozenset({"arange", "asarray", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint",
                   "randn", "randperm", "scalar_tensor", "tensor", "zeros"})
"""What takes the default device where none is named."""
ELSEWHERE = ("bench", "runtime", "demo.py")
"""Programs that are run as they are; and what a saved model runs, which has tests of its own."""


def filled(x: Tensor) -> Tensor:
    return torch.softmax(x * 2.5 + x.new_full((64,), 0.1), 0)


def counted(x: Tensor) -> Tensor:
    return torch.softmax(x * 2.5 + torch.arange(64, device="cpu").cumsum(0), 0)


def banded(x: Tensor) -> Tensor:
    hidden = torch.ones(64, 64, device="cpu", dtype=torch.bool).triu(1)
    return torch.softmax((x @ x.mT).masked_fill(hidden, float("-inf")), -1)


@pytest.mark.parametrize("model", [filled, counted, banded])
def test_compiles_and_checks(nowhere: None, model: Callable[[Tensor], Tensor]) -> None:
    (x,) = testing.inputs((64, 64), dtype=torch.float32)
    assert x.device.type == "cpu"
    compiled = redfuser.compile(model, (x,), target="cpu", check=True)
    assert compiled.report.coverage == 1.0
    testing.assert_within_rule(compiled, model, (x,))


def test_whatever_is_made_names_its_device() -> None:
    root, found = Path(redfuser.__file__).parent, []
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] in ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(f := node.func, ast.Attribute) and f.attr in MAKES \
                    and isinstance(f.value, ast.Name) and f.value.id == "torch" \
                    and not any(k.arg in ("device", None) for k in node.keywords):
                found.append(f"{path.relative_to(root)}:{node.lineno} torch.{f.attr}")
    assert not found
