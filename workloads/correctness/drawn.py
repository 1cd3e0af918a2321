"""Programs drawn from seeds: chains of maps, reductions, norms, products and moved tensors that nobody chose.

A seed gives the inputs and the steps; every step reads values that are there, later ones more often, and what nobody reads is a
result. Functions with jumps read inputs alone: on computed values a rounding decides them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from workloads.correctness.program import In, Program

Shape = tuple[int, ...]
SEEDS = range(36)
JUMPS = frozenset({"sign", "floor", "any", "count", "where", "fill"})
WEIGHTS = {"map": 18, "pair": 22, "fold": 20, "norm": 18, "dot": 9, "move": 9, "scan": 2, "cast": 3}
"""How often each kind of step is tried."""

MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "abs": torch.abs, "neg": torch.neg,
    "square": torch.square, "scale": lambda x: x * 0.37, "shift": lambda x: x + 0.75, "clamp": lambda x: x.clamp(-1.5, 2.0),
    "gelu": F.gelu, "silu": F.silu, "root": lambda x: (x.abs() + 1e-3).sqrt(), "recip": lambda x: 1 / (1 + x.abs()),
    "sin": torch.sin, "log1p": lambda x: torch.log1p(x.abs()), "exp": lambda x: torch.exp(x.clamp(max=4.0)),
    "softplus": F.softplus, "sign": torch.sign, "rsqrt": lambda x: torch.rsqrt(x * x + 1e-5), "floor": torch.floor,
    "hard": F.hardtanh, "leaky": F.leaky_relu, "expm1": lambda x: torch.expm1(x.clamp(max=3.0)), "finite": torch.nan_to_num}

PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum,
    "div": lambda a, b: a / (b.abs() + 0.5), "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "gate": lambda a, b: a * torch.sigmoid(b), "length": lambda a, b: (a * a + b * b + 1e-4).sqrt(),
    "fill": lambda a, b: a.masked_fill(b < 0, 0.25), "lerp": lambda a, b: torch.lerp(a, b, 0.3), "less": lambda a, b: 2 - a * b}

FOLDS: dict[str, Callable[[Tensor, int, bool], Tensor]] = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k), "mean": lambda x, d, k: x.mean(d, keepdim=k),
    "amax": lambda x, d, k: x.amax(d, keepdim=k), "amin": lambda x, d, k: x.amin(d, keepdim=k),
    "var": lambda x, d, k: x.var(d, keepdim=k), "std": lambda x, d, k: x.std(d, correction=0, keepdim=k),
    "lse": lambda x, d, k: torch.logsumexp(x, d, keepdim=k), "meansq": lambda x, d, k: (x * x).mean(d, keepdim=k),
    "norm2": lambda x, d, k: torch.linalg.vector_norm(x, dim=d, keepdim=k),
    "norm1": lambda x, d, k: torch.linalg.vector_norm(x, 1, dim=d, keepdim=k),
    "norminf": lambda x, d, k: torch.linalg.vector_norm(x, float("inf"), dim=d, keepdim=k),
    "any": lambda x, d, k: (x > 1).any(d, keepdim=k).to(x.dtype),
    "count": lambda x, d, k: (x > 0.5).to(x.dtype).sum(d, keepdim=k)}

NORMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": lambda x, d: torch.softmax(x, d), "logsoftmax": lambda x, d: torch.log_softmax(x, d),
    "unit": lambda x, d: F.normalize(x, dim=d), "sharp": lambda x, d: torch.softmax(x * 3.0, d),
    "center": lambda x, d: x - x.mean(d, keepdim=True), "softmin": lambda x, d: F.softmin(x, d),
    "standard": lambda x, d: (x - x.mean(d, keepdim=True)) * torch.rsqrt(x.var(d, keepdim=True, correction=0) + 1e-5),
    "rms": lambda x, d: x * torch.rsqrt((x * x).mean(d, keepdim=True) + 1e-6),
    "range": lambda x, d: (x - x.amin(d, keepdim=True)) / (x.amax(d, keepdim=True) - x.amin(d, keepdim=True) + 1e-3),
    "share": lambda x, d: x.abs() / (x.abs().sum(d, keepdim=True) + 1e-3),
    "peak": lambda x, d: x / x.abs().amax(d, keepdim=True).clamp_min(1e-3),
    "odds": lambda x, d: torch.sigmoid(x) / torch.sigmoid(x).sum(d, keepdim=True)}

MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "turn": lambda x: x.transpose(-1, -2), "flip": lambda x: x.flip(-1), "roll": lambda x: torch.roll(x, 3, -1),
    "rotate": lambda x: torch.cat([-x[..., x.shape[-1] // 2:], x[..., : x.shape[-1] // 2]], -1),
    "first": lambda x: x[..., : x.shape[-1] // 2], "even": lambda x: x[..., ::2], "pad": lambda x: F.pad(x, (1, 2)),
    "rows": lambda x: x[..., 1:, :], "twice": lambda x: torch.cat([x, x * 0.5], -1), "tril": torch.tril,
    "merge": lambda x: x.flatten(0, x.dim() - 2), "pairs": lambda x: x.unflatten(-1, (x.shape[-1] // 2, 2))}

SCANS: dict[str, Callable[[Tensor], Tensor]] = {"cumsum": lambda x: x.cumsum(-1), "lcse": lambda x: torch.logcumsumexp(x, -1)}

NAMES: dict[str, list[str]] = {"map": list(MAPS), "pair": list(PAIRS), "fold": list(FOLDS), "norm": list(NORMS),
                               "move": list(MOVES), "scan": list(SCANS), "dot": ["plain", "turned"], "cast": ["to"]}


@dataclass(frozen=True)
class Step:
    """``kind`` of the tables above, ``what`` in it, the values it reads, and the axis (and whether it stays)."""

    kind: str
    what: str
    reads: tuple[int, ...]
    axis: int = -1
    keep: bool = True

    def of(self, values: list[Tensor], low: torch.dtype) -> Tensor:
        x, *rest = (values[i] for i in self.reads)
        match self.kind:
            case "map" | "move" | "scan":
                return {**MAPS, **MOVES, **SCANS}[self.what](x)
            case "pair":
                (y,) = rest
                return PAIRS[self.what](x, y) if x.dtype == y.dtype else PAIRS[self.what](x.float(), y.float())
            case "fold":
                return FOLDS[self.what](x, self.axis, self.keep)
            case "norm":
                return NORMS[self.what](x, self.axis)
            case "dot":
                y = rest[0].mT if self.what == "turned" else rest[0]
                return x @ y if x.dtype == y.dtype else x.to(low) @ y.to(low)
        return x.float() if x.dtype == low else x.to(low)


@dataclass
class Drawing:
    """A program under construction: the shapes of its values, and which are inputs or moved ones."""

    r: random.Random
    ins: list[In]
    shapes: list[Shape] = field(default_factory=list)
    given: set[int] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shapes = [i.shape for i in self.ins]
        self.given = set(range(len(self.ins)))

    def pick(self, fits: Callable[[Shape], bool]) -> int | None:
        found = [i for i, s in enumerate(self.shapes) if fits(s)]
        weights = [1 + 3 * (i >= len(self.ins)) + 4 * (i == len(self.shapes) - 1) for i in found]
        return self.r.choices(found, weights)[0] if found else None

    def axis(self, s: Shape) -> int:
        """The last one mostly, at times the one before."""
        return self.r.choices(range(-len(s), 0), [1 + 5 * (i == len(s) - 1) + (i == len(s) - 2) for i in range(len(s))])[0]

    def draw(self) -> None:
        """One step, or none where what is drawn does not fit."""
        kind = self.r.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        what = self.r.choice(NAMES[kind])
        least = {"fold": 2, "dot": 2, "move": 2}.get(kind, 1)
        a = self.pick(lambda s: len(s) >= least and s[-1] > 3 and (what != "pairs" or s[-1] % 2 == 0) and (
            least == 1 or s[-2] > 2))
        if a is None or (what in JUMPS and a not in self.given):
            return
        step = Step(kind, what, (a,), self.axis(self.shapes[a]), self.r.random() < 0.7)
        if kind in ("pair", "dot"):
            b = self.pick(lambda s: (self.joined if kind == "pair" else self.product)(self.shapes[a], s, what) is not None)
            if b is None or (what in JUMPS and b not in self.given):
                return
            step = Step(kind, what, (a, b))
            made = (self.joined if kind == "pair" else self.product)(self.shapes[a], self.shapes[b], what)
        else:
            made = tuple(step.of([torch.empty(s, device="meta") for s in self.shapes], torch.float16).shape)
        if made is None or (kind in ("fold", "norm") and self.shapes[a][step.axis] < 3) or len(made) > 4:
            return
        if kind == "move" and a in self.given:
            self.given.add(len(self.shapes))
        self.steps.append(step)
        self.shapes.append(made)

    def joined(self, a: Shape, b: Shape, what: str) -> Shape | None:
        try:
            out = tuple(torch.broadcast_shapes(a, b))
        except RuntimeError:
            return None
        return out if prod(out) <= max(prod(a), prod(b)) else None

    def product(self, a: Shape, b: Shape, what: str) -> Shape | None:
        if len(b) < 2 or len(b) not in (2, len(a)) or min(*b[-2:], *a[-2:]) < 2 or (len(b) > 2 and b[:-2] != a[:-2]):
            return None
        inner, columns = (b[-1], b[-2]) if what == "turned" else (b[-2], b[-1])
        return (*a[:-1], columns) if inner == a[-1] >= 8 else None


def program(seed: int) -> Program:
    """The same on every machine: nothing but the seed is drawn from."""
    r = random.Random(seed)
    dtype = r.choice(("f16", "bf16", "f32"))
    b, n, c, k = r.choice((1, 2, 3)), r.choice((17, 48, 64, 100)), r.choice((40, 64, 130, 192)), r.choice((16, 24, 32, 64))
    ins = [In("x", (b, n, c), dtype)]
    for name, shape in (("y", r.choice(((b, n, c), (n, c), (b, 1, c)))), ("g", (c,)), ("m", (c, k)), ("v", (b, n, k))):
        if r.random() < 0.6:
            ins.append(In(name, shape, dtype, "weight" if name in "gm" else "data", c**-0.5 if name == "m" else 1.0))
    wide, half, count, d = r.random() < 0.75, r.random() < 0.6, r.randint(5, 11), Drawing(r, ins)
    for _ in range(200):
        if len(d.steps) < count:
            d.draw()
    read = {i for s in d.steps for i in s.reads}
    results = [i for i in range(len(ins), len(d.shapes)) if i not in read][-4:]

    def fn(*args: Tensor) -> tuple[Tensor, ...]:
        low, values = args[0].dtype, [a.float() if wide else a for a in args]
        for s in d.steps:
            values.append(s.of(values, low))
        return tuple(values[i].to(low) if half else values[i] for i in results)

    what = " ".join(s.what for s in d.steps)
    return Program("drawn", f"{dtype} {b}x{n}x{c} {seed}: {what}", fn, tuple(ins))


def programs() -> Iterator[Program]:
    for seed in SEEDS:
        yield program(seed)
