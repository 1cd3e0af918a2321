"""How a small program says what it takes: a decorator with the inputs' shapes, kinds and sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from workloads.case import DTYPES, Case, Inputs, normal


@dataclass(frozen=True)
class In:
    """One input. high: labels below it; likely: a mask that is true so often; else normal numbers, times ``scale``."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    scale: float = 1.0
    high: int = 0
    likely: float = 0.0

    def drawn(self, device: str, seed: int) -> torch.Tensor:
        if not self.high and not self.likely:
            return normal(self.shape, self.dtype, device, seed, self.scale)
        generator = torch.Generator(device).manual_seed(seed)
        if self.high:
            return torch.randint(self.high, self.shape, generator=generator, device=device)
        return torch.rand(self.shape, generator=generator, device=device) < self.likely

    def meta(self) -> torch.Tensor:
        dtype = torch.int64 if self.high else torch.bool if self.likely else DTYPES[self.dtype]
        return torch.empty(self.shape, dtype=dtype, device="meta")


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: torch.Tensor) -> Any:
        return self.fn(*args)


@dataclass(frozen=True)
class Program:
    fn: Callable[..., Any]
    ins: tuple[In, ...]

    def case(self) -> Case:
        given = [i.meta() for i in self.ins]
        moved = sum(t.numel() * t.element_size() for t in (*given, *tree_leaves(self.fn(*given))))
        kinds = dict.fromkeys(i.dtype for i in self.ins if not i.high and not i.likely)

        def inputs(device: str, seed: int) -> Inputs:
            return tuple(i.drawn(device, seed * len(self.ins) + n) for n, i in enumerate(self.ins))

        return Case("small", self.fn.__name__.strip("_").replace("_", "-"), next(iter(kinds), "i64"),
                    {"inputs": [list(i.shape) for i in self.ins]}, build=partial(Of, self.fn), inputs=inputs, flops=0,
                    bytes=moved, sets=("small",))


@dataclass
class Programs:
    """Those of one module, in the order that they are written in."""

    found: list[Program] = field(default_factory=list)

    def __call__(self, *ins: In) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.found.append(Program(fn, ins))
            return fn

        return register
