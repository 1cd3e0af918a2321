"""The chain bites: an error planted in the tiles of a kernel is found, whatever it is, by the check that every kernel gets.

What is not found changes nothing (:data:`HARMLESS`): each is named here, with the reason."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.chain.lowered import Twin, fused_of
from tests.chain.planted import mutants

HARMLESS = (
    "another start",  # of a sum that the first segment rescales by exp(-inf) = 0
    "== -inf, 0.0,",  # the guard of a row with nothing but -inf, which is NaN in the program as well
    "max(768.0, 1.0)", "constant 1.0 *", "constant 768.0 *",  # where a mean is taken about: any point will do
    "operands swapped: x0_tile[i, j] - t1_1_term[i]",  # what is squared
    "== -1e+30, -inf,",  # a split with nothing seen: its weight in the merge is 0 either way
    "scores[r, j], -inf)",  # padding in a maximum alone: any bound of the row is as good a reference
    "select(r < 1,",  # rows of a tile that no result has
    "268435456.0",  # the factor of a row of scores so large that a multiply-add overflows: the interpreter has none
    "size - 1: 0 +: 16", "size - 1: 0 +: 4096",  # a tile wider than what it copies
)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).float() / 11.3, -1).to(q.dtype) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (768,), w)


def split(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


R = torch.randn
KERNELS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "attention": (attention, tuple(R(3, 2, 2, 200, 32).half())),
    "causal": (causal, (R(1, 4, 200, 32).bfloat16(), *R(2, 1, 2, 200, 32).bfloat16())),
    "norm": (norm, (R(64, 768), R(768))),
    "split": (split, (R(1, 2, 1, 32).half(), *R(2, 1, 2, 4096, 32).half())),
}
TRIED = 10**6 if os.environ.get("REDFUSER_ALL_MUTANTS") else 8


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_planted_is_found(name: str) -> None:
    fused = fused_of(KERNELS[name][0], *KERNELS[name][1])
    twins = [Twin(fused, deep) for deep in (True, False)]
    assert [t.wrong(t.tiles) for t in twins] == ["", ""]
    planted = list(itertools.zip_longest(*(mutants(t.tiles) for t in twins)))
    random.Random(5).shuffle(planted)
    found = 0
    for what in planted:
        if found == TRIED:
            break
        if not any(h in what[0][0] for h in HARMLESS):
            assert any(_wrong(t, w) for t, w in zip(twins, what) if w is not None), what[0][0]
            found += 1
    assert found >= min(TRIED, 8)


def _wrong(twin: Twin, planted: tuple[str, Any]) -> bool:
    try:
        return bool(twin.wrong(planted[1]))
    except Exception:  # it does not even run: a violation too
        return True
