"""Survival: partial likelihoods, concordance, hazards, and curves of those at risk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import CALM, Program, label, made, mask, of, positive, weight


def cox(risk: Tensor, event: Tensor) -> Tensor:
    """Breslow, sorted by falling times: the log of running sums of exponentials."""
    gamma = risk.max()
    log_cumsum = torch.log(torch.cumsum(torch.exp(risk - gamma), 0) + 1e-7) + gamma
    return -((risk - log_cumsum) * event).sum() / event.sum().clamp(min=1)


def cox_batched(risk: Tensor, event: Tensor) -> Tensor:
    return -((risk - torch.logcumsumexp(risk, dim=-1)) * event).sum(-1) / (event.sum(-1) + 1e-9)


def cox_pairs(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """The same without sorting: the risk set as a mask."""
    at_risk = time[None, :] >= time[:, None]
    lse = torch.logsumexp(torch.where(at_risk, risk[None, :], float("-inf")), dim=1)
    return torch.where(event, lse - risk, 0.0).sum() / event.sum()


def efron(risk: Tensor, tie: Tensor) -> Tensor:
    """Tied events: sums over groups by one-hot products."""
    hot = F.one_hot(tie, 20).to(risk.dtype)
    e = torch.exp(risk - risk.max())
    g = hot.t() @ e
    n = hot.sum(0)
    at = torch.flip(torch.cumsum(torch.flip(g, [0]), 0), [0])
    return torch.where(n > 0, n * torch.log(at.clamp(min=1e-30)), torch.zeros_like(n)).sum() - (risk - risk.max()).sum()


def concordance(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    usable = (time[:, None] < time[None, :]) & event[:, None]
    right = (risk[:, None] > risk[None, :]).float() + 0.5 * (risk[:, None] == risk[None, :]).float()
    return (right * usable).sum() / usable.sum()


def deephit(phi: Tensor, at: Tensor, event: Tensor) -> Tensor:
    """Mass at the event, or the survival at the censoring."""
    p = torch.softmax(F.pad(phi, (0, 1)), dim=1)
    f = torch.cumsum(p, dim=1)
    own = p.gather(1, at.view(-1, 1)).squeeze(1)
    surv = 1 - f.gather(1, at.view(-1, 1)).squeeze(1)
    return -torch.where(event, torch.log(own + 1e-7), torch.log(surv.relu() + 1e-7)).mean()


def hazards(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Nnet-survival: products of what is survived, and the likelihood by logits."""
    s = torch.cumprod(1 - torch.sigmoid(h), dim=1)
    nll = (F.binary_cross_entropy_with_logits(h, F.one_hot(y, h.shape[1]).to(h.dtype), reduction="none")
           * (torch.arange(h.shape[1], device=h.device) <= y[:, None])).sum(1)
    return s.sum(1), nll


def kaplan_meier(time: Tensor, event: Tensor, grid: Tensor) -> Tensor:
    at_risk = (time[None, :] >= grid[:, None]).sum(1)
    died = ((time[None, :] == grid[:, None]) & event).sum(1)
    return torch.cumprod(1 - died / at_risk.clamp(min=1), dim=0)


def nelson_aalen(died: Tensor, at_risk: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.cumsum(died / at_risk.clamp(min=1), -1)
    return h, torch.exp(-h)


def integrated_brier(s: Tensor, time: Tensor, event: Tensor, grid: Tensor) -> Tensor:
    """Of survival curves at the grid's times, unweighted."""
    alive = time[:, None] > grid
    died = (time[:, None] <= grid) & event[:, None]
    e = torch.where(died, s**2, torch.where(alive, (1 - s) ** 2, torch.zeros_like(s)))
    b = e.sum(0) / (died | alive).sum(0)
    return ((b[1:] + b[:-1]) / 2 * (grid[1:] - grid[:-1])).sum() / (grid[-1] - grid[0])


def programs() -> Iterator[Program]:
    ledger = partial(made, "ledgers")
    account = partial(made, "accounts")
    yield ledger("f32 257 cox", cox, of("risk", 257), mask("event", 257))
    yield ledger("f32 9x257 cox batched", cox_batched, of("risk", 9, 257), mask("event", 9, 257))
    yield ledger("f32 130 cox pairs", cox_pairs, of("risk", 130), positive("time", 130), mask("event", 130))
    yield account("f32 130 efron", efron, of("risk", 130), label("tie", 130, high=20))
    yield ledger("f32 130 concordance", concordance, of("risk", 130), positive("time", 130), mask("event", 130))
    yield ledger("f32 65x33 deephit", deephit, of("phi", 65, 33), label("at", 65, high=33), mask("event", 65))
    yield ledger("f32 65x33 hazards", hazards, of("h", 65, 33), label("y", 65, high=33))
    yield ledger("f32 130x33 kaplan meier", kaplan_meier, positive("time", 130), mask("event", 130), positive("grid", 33))
    yield account("i64 33x65 nelson aalen", nelson_aalen, label("died", 33, 65, high=4), label("at_risk", 33, 65, high=90))
    yield account("f32 130x33 integrated brier", integrated_brier, weight("s", 130, 33, scale=0.2, shift=0.5),
            positive("time", 130), mask("event", 130), positive("grid", 33), only=CALM)
