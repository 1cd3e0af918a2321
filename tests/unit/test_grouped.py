"""Grouped products: ends of any offsets cover every row once, operands lie as they may, and an import calls these."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from redfuser import grouped, numerics
from redfuser.frontend import import_model
from redfuser.outer import emit
from redfuser.runtime.guard import check_graph

INT = torch.iinfo(torch.int64)


@pytest.mark.parametrize(("offs", "ends"), [
    ([2, 2, 5, 9], [2, 2, 5, 9]), ([0, 0, 0, 3], [0, 0, 0, 9]), ([0, 12, 5, 1], [0, 9, 9, 9]), ([-4, 3, -1, 2], [0, 3, 3, 9]),
    ([INT.max, INT.min, 0, 1], [9, 9, 9, 9]), ([1 << 32, 0, 0, 0], [9, 9, 9, 9])])
def test_ends_cover_every_row_once(offs: list[int], ends: list[int]) -> None:
    for dtype in (torch.int64, torch.int32) if max(map(abs, offs)) < 1 << 31 else (torch.int64,):
        given = torch.tensor(offs, dtype=dtype)
        found = torch.ops.redfuser.group_ends(given, 9)
        assert found.dtype == torch.int32 and found.tolist() == ends and given.tolist() == offs


def expected(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    start, parts = 0, []
    for e, end in enumerate(ends.tolist()):
        parts.append(x[start:end].double() @ w[e].double())
        start = end
    return torch.cat(parts)


@pytest.mark.parametrize("dtype", grouped.DTYPES, ids=str)
def test_operands_of_any_size_and_order(dtype: torch.dtype) -> None:
    ends = torch.tensor([3, 3, 7, 9], dtype=torch.int32)
    for k, n in ((16, 8), (5, 8), (16, 3), (1, 1)):
        rows = torch.randn(9, k).to(dtype)
        wide, turned = torch.randn(4, k, n).to(dtype), torch.randn(4, n, k).to(dtype).transpose(1, 2)
        last, shifted = rows.t().contiguous().t(), torch.randn(9 * k + 1).to(dtype)[1:].view(9, k)
        for x, w in ((rows, wide), (rows, turned), (last, wide), (shifted, wide), (rows[:1].expand(9, k), wide[:1].expand(4, k, n))):
            y = torch.ops.redfuser.grouped_mm(x, w, ends)
            assert y.is_contiguous() and y.dtype == dtype
            torch.testing.assert_close(y.double(), expected(x, w, ends), rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(torch.float32).eps * k)


class Experts(nn.Module):
    """Two products of rows that are given in groups; ``fallback``: as transformers writes them where torch.compile takes no others."""

    def __init__(self, fallback: bool) -> None:
        super().__init__()
        dtype = torch.float32 if fallback else torch.bfloat16
        self.up = nn.Parameter(torch.randn(4, 16, 8).to(dtype))
        self.down = nn.Parameter(torch.randn(4, 16, 8).to(dtype))
        self.fallback = fallback

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        offs = torch.cumsum(counts, 0, dtype=torch.int32)
        product = torch.ops.transformers.grouped_mm_fallback if self.fallback else torch._grouped_mm
        y = torch.relu(product(x, self.up.transpose(1, 2), offs=offs))
        return product(y, self.down, offs=offs)


@pytest.mark.parametrize("fallback", [True, False])
def test_an_import_makes_the_ends_once_and_a_file_may_hold_them(fallback: bool) -> None:
    pytest.importorskip("transformers.integrations.moe")
    model = Experts(fallback)
    x, covered = torch.randn(10, 8).to(model.up.dtype), torch.tensor([3, 0, 5, 2])
    imported = import_model(model, (x, covered))
    assert sorted(c.target for c in imported.opaque.values()) == [grouped.GROUP_ENDS, *[grouped.GROUPED_MM] * 2]
    graph = emit(imported)
    check_graph(graph.source, {*graph.constants})
    numerics.require(numerics.check(lambda *a: graph.function()(*a)[0], model, (x, covered)))
    few = torch.tensor([3, 0, 5, 0])
    if fallback:  # rows of no group are 0 there, and nothing is known of them in torch's own
        assert torch.equal(graph.function()(x, few)[0][8:], torch.zeros(2, 8))
    numerics.require(numerics.check(lambda *a: graph.function()(*a)[0][:8], lambda *a: model(*a)[:8], (x, few)))
