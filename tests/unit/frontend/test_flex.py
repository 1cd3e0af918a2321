"""FlexAttention's exported operator, written out as what torch's own eager form computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from redfuser.errors import UnsupportedError
from redfuser.frontend import import_model
from redfuser.frontend.flex import written_out
from redfuser.partition import partition

B, H, S, D = 2, 4, 48, 16
SLOPES, TABLE, CAP = torch.linspace(0.05, 0.4, H), torch.randn(H, 2 * S), torch.tensor(5.0)
DOCUMENTS = torch.arange(B * 64).view(B, 64) // 17  # longer than the sequence
WINDOW = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 7), None, None, S, S, device="cpu")


def alibi(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s + SLOPES[h] * (j - i)


def capped(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.tanh(s / CAP) * CAP


def documents(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(DOCUMENTS[b, i] == DOCUMENTS[b, j], s, -float("inf"))


def relative(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s + TABLE[h, i - j + S]


def summed(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s.sum() + 1.0


def exported(score: Callable[..., Any] | None, windowed: bool, groups: int = 1, lse: bool = False) -> tuple[Any, tuple[Tensor, ...]]:
    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return flex_attention(q, k, v, score_mod=score, block_mask=WINDOW if windowed else None, return_lse=lse,
                                  enable_gqa=groups > 1)

    torch.manual_seed(0)
    args = (torch.randn(B, H, S, D, dtype=torch.bfloat16), *torch.randn(2, B, H // groups, S, D, dtype=torch.bfloat16))
    return torch.export.export(Model(), args), args


@pytest.mark.parametrize("score, windowed, groups, lse", [
    (alibi, True, 1, False), (capped, False, 2, True), (documents, True, 1, False), (relative, False, 1, False)],
    ids=lambda x: getattr(x, "__name__", str(x)))
def test_the_same_values_without_the_operator(score: Any, windowed: bool, groups: int, lse: bool) -> None:
    program, args = exported(score, windowed, groups, lse)
    plain = written_out(program)
    assert not [n for n in plain.graph.nodes if "flex" in str(n.target) or n.op == "get_attr"]
    with torch.no_grad():
        ours, theirs = plain.module()(*args), program.module()(*args)
    for a, b in zip(ours if lse else [ours], theirs if lse else [theirs], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    imported = import_model(program)
    regions = partition(imported).regions
    assert len(regions) == 1 and sum(t.dtype == "bf16" for t in regions[0].cascade.inputs) == 3, regions
    assert written_out(plain) is plain


def test_what_is_not_arithmetic_on_one_element_stays() -> None:
    program, _ = exported(summed, False)
    assert [n for n in written_out(program).graph.nodes if str(n.target) == "flex_attention"]
    with pytest.raises(UnsupportedError, match="flex_attention"):
        import_model(program)
