"""What a correctness program is: a torch function in a spelling people use, and the inputs it is held to eager torch on.

A program is built once, for fixed shapes, and run on many *draws*: ordinary data and the values that break kernels (ties,
zeros, outliers, many decades in a row, the ends of the range, NaN and the infinities in each input, hidden rows). Draws are
made on the CPU from a seed, so every machine sees the same ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn,
          "bool": torch.bool, "i64": torch.int64}
HALVES = ("f16", "bf16")
NEG_INF = float("-inf")
CALM = ("normal", "ties", "zeros", "outlier", "spread")
"""Draws whose results no range ends."""
TAME = (*CALM, "tiny")
MILD = ("normal", "ties", "zeros")


@dataclass(frozen=True)
class In:
    """One input. kind: ``data`` (normal, times ``scale`` plus ``shift``), ``positive``, ``keep`` (a mask, true where
    visible), ``hide`` (an additive mask of 0 and ``scale``), ``label`` (integers below ``high``), ``segments`` (sorted
    labels), ``weight`` (as ``data``, but never drawn at the ends of the range)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str = "data"
    scale: float = 1.0
    shift: float = 0.0
    high: int = 2


@dataclass(frozen=True)
class Program:
    """``fn(*inputs)`` as its user would write it. strategy, splits: what the kernel is forced to, or empty for the model's
    choice. roles: kernels whose warp groups have roles go first, where the model would leave them for larger grids. walk: the
    steps that a kernel makes of a row are those that are ``listed`` before, or ``needed``.
    ranked: for integer results that are places, the scores that decide them and the values that are ranked; places among
    (nearly) equal ones are free. only: the draws, where they are not the usual ones."""

    family: str
    what: str
    fn: Callable[..., Any]
    ins: tuple[In, ...]
    strategy: str = ""
    splits: int = 0
    ranked: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None = None
    only: tuple[str, ...] = ()
    roles: bool = False
    walk: str = ""

    @property
    def name(self) -> str:
        forced = f" {self.strategy}{self.splits or ''}" if self.strategy else ""
        return f"{self.family}/{self.what}{forced}"

    def __str__(self) -> str:
        return self.name


def alternate(programs: Iterable[Program], keep: int = 1) -> Iterator[Program]:
    """Of programs that differ in nothing but their dtype, ``keep``, each group beginning with the next dtype."""
    groups: dict[str, list[Program]] = {}
    for p in programs:
        groups.setdefault(f"{p.what.partition(' ')[2]} {p.strategy}{p.splits}", []).append(p)
    for n, group in enumerate(groups.values()):
        yield from (group[(n + k) % len(group)] for k in range(min(keep, len(group))))


# -- draws -------------------------------------------------------------------------------------------------------------

PLAIN = ("normal", "ties", "zeros", "outlier", "spread", "tiny", "big", "huge")
SPECIAL = {"nan": float("nan"), "inf": float("inf"), "-inf": NEG_INF}
_TINY = {"f16": 1e-6, "bf16": 1e-18, "f32": 1e-18, "e4m3": 2.0**-7}
_BIG = {"f16": 30.0, "bf16": 1e10, "f32": 1e10, "e4m3": 50.0}
_HUGE = {"f16": 3e3, "bf16": 1e15, "f32": 1e15, "e4m3": 100.0}
_DECADES = {"f16": 3, "bf16": 9, "f32": 9, "e4m3": 1}


def made(family: str, what: str, fn: Callable[..., Any], *ins: In, only: tuple[str, ...] = (),
         ranked: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None = None) -> Program:
    return Program(family, what, fn, ins, ranked=ranked, only=only)


def of(name: str, *shape: int, dtype: str = "f32", kind: str = "data", scale: float = 1.0, shift: float = 0.0,
       high: int = 2) -> In:
    """An input with its shape in a row."""
    return In(name, shape, dtype, kind, scale, shift, high)


def positive(name: str, *shape: int, dtype: str = "f32", scale: float = 1.0, shift: float = 0.0) -> In:
    return In(name, shape, dtype, "positive", scale, shift)


def weight(name: str, *shape: int, dtype: str = "f32", scale: float = 1.0, shift: float = 0.0) -> In:
    return In(name, shape, dtype, "weight", scale, shift)


def label(name: str, *shape: int, high: int = 2) -> In:
    """Integers below ``high``."""
    return In(name, shape, "i64", "label", high=high)


def mask(name: str, *shape: int) -> In:
    """True where visible."""
    return In(name, shape, "bool", "keep")


def qkv(shape: tuple[int, ...], dtype: str, keys: int = 0) -> tuple[In, In, In]:
    """[..., n, d], keys and values of another length where one is given."""
    other = (*shape[:-2], keys or shape[-2], shape[-1])
    return In("q", shape, dtype), In("k", other, dtype), In("v", other, dtype)


def draws(program: Program) -> Iterator[str]:
    """The names of a program's draws: plain ones, ``far`` (all scores hugely negative), ``hidden`` rows, one special value
    in one input."""
    if program.only:
        yield from program.only
        return
    yield from PLAIN
    names = [i.name for i in program.ins]
    if "q" in names and "k" in names:
        yield "far"
    if any(i.kind in ("keep", "hide") for i in program.ins):
        yield from ("hidden", "open")
    for i in program.ins:
        if i.kind in ("data", "positive") and i.dtype != "e4m3":
            yield from (f"{special}:{i.name}" for special in SPECIAL)


def draw(program: Program, what: str, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """The inputs of one draw, on the CPU."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{program.family}/{program.what}/{what}/{seed or ''}".encode()))
    return tuple(_tensor(i, what, generator) for i in program.ins)


def _tensor(i: In, what: str, g: torch.Generator) -> torch.Tensor:
    dtype = DTYPES[i.dtype]
    if i.kind in ("keep", "hide"):
        keep = torch.rand(i.shape, generator=g) < 0.6
        keep[..., 0] = True
        if what == "hidden":
            keep.view(-1, i.shape[-1])[::2] = False
        if what == "open":
            keep[:] = True
        return keep if i.kind == "keep" else torch.where(keep, 0.0, max(i.scale, torch.finfo(dtype).min)).to(dtype) \
            if i.scale != NEG_INF else torch.where(keep, 0.0, NEG_INF).to(dtype)
    if i.kind in ("label", "segments"):
        x = torch.randint(i.high, i.shape, generator=g)
        return x.sort(-1).values if i.kind == "segments" else x
    x = torch.randn(i.shape, generator=g)
    x = (x.abs() + 0.1 if i.kind == "positive" else x) * i.scale + i.shift
    x = _changed(x, i, what, g)
    if i.dtype == "e4m3":
        x = x.clamp(-448, 448)
    return x.to(dtype)


def _changed(x: torch.Tensor, i: In, what: str, g: torch.Generator) -> torch.Tensor:
    sign = 1.0 if i.kind != "positive" else 0.0
    match what:
        case "ties":
            x = torch.randint(-2, 3, i.shape, generator=g) * 0.5
            return x.abs() + 0.5 if not sign else x
        case "equal" if i.kind == "data":  # all but the first axes: whatever a norm is over
            x = x.flatten(max(1, x.dim() - 2))[..., :1].reshape(*i.shape[: max(1, x.dim() - 2)], *(1,) * min(2, x.dim() - 1))
            x = x.expand(i.shape)
        case "zeros" if i.kind == "data":
            x.view(-1, *i.shape[-1:])[::2] = 0.0
        case "outlier" if i.kind == "data":
            x.view(-1)[int(torch.randint(x.numel(), (), generator=g))] = 1e4 if i.dtype != "e4m3" else 448.0
        case "spread" if i.kind != "weight":
            n = _DECADES[i.dtype]
            x = x * 10.0 ** (torch.rand(i.shape, generator=g) * 2 * n - n)
        case "tiny" | "big" | "huge" if i.kind != "weight":
            x = x * {"tiny": _TINY, "big": _BIG, "huge": _HUGE}[what][i.dtype]
        case "far" if i.name in ("q", "k"):
            reach = {"f16": 3e4, "bf16": 6e35, "f32": 6e35, "e4m3": 6e6}[i.dtype] / i.shape[-1]
            x = (1 + 0.1 * x.clamp(-2, 2)) * reach**0.5 * (1 if i.name == "q" else -1)
        case _ if ":" in what and what.split(":")[1] == i.name:
            x.view(-1)[int(torch.randint(x.numel(), (), generator=g))] = SPECIAL[what.split(":")[0]]
    return x
