"""Divergences and moments of softmaxes against float64, kind by kind of rows: that agree, hide, are far from 0 or hold one element."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import redfuser
from redfuser import numerics


def distilled(s: Tensor, t: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(s, -1), F.softmax(t, -1), reduction="none").sum(-1)


def tempered(s: Tensor, t: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(s / 3, -1), F.softmax(t / 3, -1), reduction="none").sum(-1)


def of_logarithms(s: Tensor, t: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(s, -1), F.log_softmax(t, -1), reduction="none", log_target=True).sum(-1)


def renyi(s: Tensor, t: Tensor) -> Tensor:
    return torch.logsumexp(2.5 * F.log_softmax(t, -1), -1) / -1.5


def skewed(s: Tensor, t: Tensor) -> Tensor:
    p = F.softmax(t, -1)
    return (p * (s - (p * s).sum(-1, keepdim=True)) ** 3).sum(-1)


def rows() -> tuple[Tensor, Tensor]:
    """[kind, 16, 500]"""
    draw = torch.Generator().manual_seed(0)
    s, t = torch.randn(24, 16, 500, generator=draw), torch.randn(24, 16, 500, generator=draw)
    t[3] = s[3] + 1e-3 * t[3]
    s[1], t[2], s[18], t[18] = 1e4 * s[1], 1e4 * t[2], 30 * s[18], 30 * t[18]
    s[4, :, :250] = t[5, :, :250] = s[6, :, :250] = t[6, :, :250] = t[7] = s[8] = -inf
    t[9, :, 3] = s[10, :, 5] = nan
    t[11, :, 7] = s[12, :, 8] = inf
    t[13, :, 1:], t[14, :, 1:], t[15], s[15], t[16, :, 250:] = -inf, -1e30, 0, 0, torch.finfo(torch.float32).min
    t[17], s[17], t[17, :, 7], s[17, :, 7] = -inf, -inf, 1, 2
    t[19] += 1e4
    s[20] += 1e4
    t[21, :, ::2], t[22, :, 0], s[22, :, 0], t[23, :, 4] = -1e4, -inf, -inf, -inf
    return s, t


@pytest.mark.parametrize("loss", [distilled, tempered, of_logarithms, renyi, skewed])
def test_each_kind_is_within_the_rule(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    s, t = rows()
    compiled = redfuser.compile(loss, (s, t), target="cpu", fallback="error")
    assert len(compiled.report.fused) == 1
    got, eager, exact = compiled(s, t), loss(s, t), loss(s.double(), t.double())
    wrong = [str(c) for i in range(len(s)) for c in [numerics.compare(got[i], eager[i], exact[i], str(i))] if not c.passed]
    assert wrong == []


def test_a_result_that_is_all_that_another_takes_away() -> None:
    """``log t + m`` is ``-b * sum`` where one element has all the weight: as a multiply-add, what the product was rounded by is left."""
    def f(d: Tensor, b: Tensor) -> Tensor:
        x = -d * b[:, None]
        return torch.logsumexp(x, 1) + b * (torch.softmax(x, 1) * d).sum(1)

    draw = torch.Generator().manual_seed(0)
    d, b = torch.rand(65, 5, generator=draw) * 1e8, torch.rand(65, generator=draw) + 0.5
    found = redfuser.compile(f, (d, b), target="cpu")
    assert found.report.fused and torch.equal(found(d, b), f(d, b))
