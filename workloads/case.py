"""What a workload is: a plain PyTorch program with everything that is needed to check it and to judge its speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Attention:
    """The facts about an attention case that library baselines need; inputs are q [b, h, i, d], k and v [b, g, l, d]."""

    heads: int
    kv_heads: int
    scale: float
    causal: bool = False
    window: int = 0
    softcap: float = 0.0
    alibi: bool = False
    prefix: int = 0
    documents: bool = False
    """``prefix``: with ``causal``, every query sees so many first keys too. ``documents``: a fourth input [b, l] of sorted
    numbers says which document a place belongs to, and a query sees the keys of its own."""

    @property
    def plain(self) -> bool:
        """Nothing but the scale, grouping and perhaps causality: what scaled_dot_product_attention can say."""
        return not (self.window or self.softcap or self.alibi or self.prefix or self.documents)


@dataclass(frozen=True)
class Case:
    """One configuration of a workload.

    build: the plain PyTorch module, on the CPU, with weights fixed by a seed. inputs: fresh random inputs, never zeros,
    for a device and a seed. flops: multiplications and additions of its contractions, each counted once per visible
    element. bytes: inputs read once plus outputs written once, weights included. sets: the shape sets it belongs to.
    sample / pick: a part of the problem small enough for float64 (the arguments of the part, and the matching part of a
    result); ``sample_note`` says which part. casts: whether roundings between reductions may move, where the program cannot be
    fused otherwise. source: the file that it is the problem of, where it is none of these workloads.
    """

    workload: str
    name: str
    dtype: str
    params: Mapping[str, Any]
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[str, int], Inputs]
    flops: int
    bytes: int
    sets: tuple[str, ...] = ("paper",)
    note: str = ""
    attention: Attention | None = None
    sample: Callable[[Inputs], Inputs] = lambda args: args
    pick: Callable[[Any], Any] = lambda out: out
    sample_note: str = ""
    sample_build: Callable[[], torch.nn.Module] | None = None  # the program for the sample, where it is another one
    casts: str = "preserve"
    source: Path | None = None

    def __str__(self) -> str:
        return f"{self.workload}/{self.name}"


DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def normal(shape: tuple[int, ...], dtype: str, device: str, seed: int, scale: float = 1.0) -> torch.Tensor:
    """Normal data of standard deviation ``scale``; each seed is fresh data. The values depend on the device's kind."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=DTYPES[dtype]) * scale


def size(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a tensor."""
    n = 1
    for extent in shape:
        n *= extent
    return n * DTYPES[dtype].itemsize


def parameter_bytes(module: torch.nn.Module) -> int:
    """Bytes of a module's parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
