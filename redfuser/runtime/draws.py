"""What a trial gives a kernel and the torch code that it stands for: drawn inputs, of several kinds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch

from redfuser.artifact import KernelSpec
from redfuser.runtime.check import TORCH_DTYPE, inputs_of

SPECIAL = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
DRAWS = ("normal", "positive", "ties", "small", "large", "spread", "masked", *SPECIAL)
Fixed = Mapping[int, torch.Tensor]
"""Inputs that are not drawn, by position: the model's own constants of integers, which index what they are made for."""
NOTHING: Fixed = {}
WIDE = ("large", "spread")
LESS = (1.0, 0.1, 0.03, 0.01, 0.003)
"""What wide draws are scaled by, until the unfused region's results are in range: beyond it (exponentials of 300) they say
whose sums leave it first, which docs/algebra.md leaves open, and nothing else."""


def inputs(spec: KernelSpec, device: torch.device, what: str, seed: int, counts: Sequence[int],
            fixed: Fixed, by: float = 1.0) -> tuple[torch.Tensor, ...]:
    text = f"{spec.name} {what}" + (f" {seed}" if seed else "")
    g = torch.Generator(device).manual_seed(int(hashlib.sha256(text.encode()).hexdigest()[:8], 16))
    drawn = [_draw(TORCH_DTYPE[a.dtype], tuple(a.shape), what, g, device, n, by)
             for a, n in zip(inputs_of(spec), counts, strict=True)]
    return tuple(_taken(fixed.get(i), t) for i, t in enumerate(drawn))


def _taken(known: torch.Tensor | None, drawn: torch.Tensor) -> torch.Tensor:
    fits = known is not None and known.dtype == drawn.dtype and known.numel() == drawn.numel()
    return known.to(drawn.device).reshape(drawn.shape) if known is not None and fits else drawn


def _draw(dtype: torch.dtype, shape: tuple[int, ...], what: str, g: torch.Generator, device: torch.device,
          count: int, by: float = 1.0) -> torch.Tensor:
    """count: of an integer, what it is drawn below (:mod:`redfuser.runtime.extents`); by: what wide draws are scaled by."""
    if dtype == torch.bool:
        keep = torch.rand(shape, generator=g, device=device) < 0.7
        if what == "masked" and keep.dim() > 1:
            keep[..., ::7, :] = False
        return keep
    if not dtype.is_floating_point:
        top = min(count, torch.iinfo(dtype).max)
        return torch.randint(top, shape, generator=g, device=device).to(dtype)
    x = torch.randn(shape, generator=g, device=device)
    narrow = dtype in (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
    match what:
        case "positive":
            x = x.abs() + 0.3
        case "ties":
            x = x.round()
        case "small":
            x = x * 3.7e-3
        case "large":
            x = x * ((8.0 if narrow else 300.0) * by)
        case "spread":
            x = x * (by * 10.0 ** (torch.rand(shape, generator=g, device=device) * 3 - (2 if narrow else 1)))
    if what in SPECIAL and dtype.itemsize > 1 and x.numel():  # in one place: what it decides is there and nowhere else
        x.view(-1)[torch.randint(x.numel(), (), generator=g, device=device)] = SPECIAL[what]
    return (x.clamp(-448, 448) if dtype.itemsize == 1 else x).to(dtype)
