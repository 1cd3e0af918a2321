"""Softmax by hand whose maximum is guarded, in the spellings of those who have met a row that sees nothing: the guard, what the
sum of weights is guarded with, and what stands in the sum beside the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from workloads.correctness.program import HALVES, NEG_INF, In, Program, alternate

Map = Callable[[torch.Tensor], torch.Tensor]
GUARDS: dict[str, Map] = {
    "where -inf": lambda m: torch.where(m == NEG_INF, 0.0, m),
    "isinf": lambda m: m.masked_fill(torch.isinf(m), 0.0),
    "isfinite": lambda m: torch.where(torch.isfinite(m), m, torch.zeros_like(m)),
    "clamp -1e30": lambda m: m.clamp(min=-1e30),
}
DIVISORS: dict[str, Map] = {
    "sum": lambda t: t,
    "least": lambda t: t.clamp(min=1e-9),
    "where 0": lambda t: torch.where(t == 0, 1.0, t),
}


def programs() -> Iterator[Program]:
    yield from alternate(_programs())


def _programs() -> Iterator[Program]:
    for dtype in HALVES:
        for n, (guard, of) in enumerate(GUARDS.items()):
            divisor = list(DIVISORS)[n % len(DIVISORS)]
            yield Program("guarded", f"{dtype} {guard} {divisor}", _attention(of, DIVISORS[divisor]), _inputs(dtype))
        for what, least in (("and nothing", 0.0), ("and a constant", 2.0)):
            yield Program("guarded", f"{dtype} {what}", _beside(least), _inputs(dtype))


def _inputs(dtype: str) -> tuple[In, ...]:
    return (In("q", (2, 130, 64), dtype), In("k", (2, 333, 64), dtype), In("v", (2, 333, 64), dtype),
            In("keep", (130, 333), "bool", "keep"))


def _scores(q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT).float() * 0.125).masked_fill(~keep, NEG_INF)


def _attention(guard: Map, divisor: Map) -> Callable[..., torch.Tensor]:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        s = _scores(q, k, keep)
        e = torch.exp(s - guard(s.amax(-1, keepdim=True)))
        return (e / divisor(e.sum(-1, keepdim=True))).to(v.dtype) @ v

    return attention


def _beside(least: float) -> Callable[..., torch.Tensor]:
    """One more key, whose score is a constant and whose value is 0 (off by one)."""
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        s = _scores(q, k, keep)
        m = s.amax(-1, keepdim=True).clamp(min=least)
        e = torch.exp(s - m)
        return (e / (e.sum(-1, keepdim=True) + torch.exp(least - m))).to(v.dtype) @ v

    return attention
