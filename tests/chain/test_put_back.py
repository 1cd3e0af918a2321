"""What was wrong on the GPU once, put back into the tiles of today's kernels: the check that every kernel gets stops it.

The defects were found on an H200 in kernels whose certificate held. Two of their kind (a quotient that is approximate, digits
lost to it) an interpreter cannot see: those meet the trial on the device (tests/runtime/test_trial.py). A tile that stands for
several values is refused before there are tiles (tests/tensorize/test_meaning.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from redfuser.acrf.expr import Const, Op
from redfuser.tensorize.ir.nodes import Fill, Gemm
from tests.chain.lowered import fused_of, twin_of
from tests.chain.planted import everywhere

LEAST = torch.finfo(torch.float32).min
R = torch.randn


def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).float() / 11.3, -1).to(q.dtype) @ v


def hidden(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    scores = (q.float() @ k.float().mT / 8).masked_fill(~keep, LEAST)
    return torch.softmax(scores, -1).to(q.dtype) @ v


def precise(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q.float() @ k.float().mT / 8, -1) @ v.float()


def extremes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amax(-1), x.logsumexp(-1)


def lost_scale(node: Any) -> Any:
    """K1: exp2(s * log2(e) - ...) for exp2(s * log2(e) / 11.3 - ...)."""
    known = isinstance(node, Const) and isinstance(node.value, float) and math.isclose(
        node.value * 11.3, math.log2(math.e), rel_tol=1e-6)
    return Const(math.log2(math.e), node.dtype) if known else node


def low_start(node: Any) -> Any:
    """K2: a running maximum that starts at a finite number, whatever the mask."""
    return Fill(node.buffer, Const(-1e30, "f32")) if isinstance(node, Fill) and node.value.value == -math.inf else node


def one_piece() -> Callable[[Any], Any]:
    """K3: float32 weights rounded to half: of the products with pieces of the weights, the first alone."""
    seen: set[str] = set()

    def change(node: Any) -> Any:
        if not isinstance(node, Gemm) or not node.c.startswith("o"):
            return node
        again = node.c in seen
        seen.add(node.c)
        return None if again else node

    return change


def dropped_nan(node: Any) -> Any:
    """K4: a maximum of tiles drops NaN."""
    match node:
        case Op(name="select", args=(_, Const(value=v), x)) if isinstance(v, float) and math.isnan(v):
            return x
    return node


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], Callable[[], Callable[[Any], Any]]]] = {
    "K1": (scaled, tuple(R(3, 2, 2, 200, 32).half()), lambda: lost_scale),
    "K2": (hidden, (*R(3, 2, 130, 32).bfloat16(), torch.rand(130, 130) < 0.5), lambda: low_start),
    "K3": (precise, tuple(R(3, 2, 130, 32).half()), one_piece),
    "K4": (extremes, (R(64, 700),), lambda: dropped_nan),
}


@pytest.mark.parametrize("name", CASES)
def test_put_back_it_is_stopped(name: str) -> None:
    function, args, change = CASES[name]
    fused = fused_of(function, *args)
    twins = [twin_of(fused, deep) for deep in (True, False)]
    assert [t.wrong(t.tiles) for t in twins] == ["", ""]
    changed = [everywhere(t.tiles, change()) for t in twins]
    assert all(c != t.tiles for c, t in zip(changed, twins)), "nothing was put back"
    assert any(t.wrong(c) for t, c in zip(twins, changed))
