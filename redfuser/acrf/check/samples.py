"""Small samples of a cascade: a few points per axis, and tensor elements drawn on demand, benign and adversarial.

A cascade over ``f16[2, 512, 768]`` is checked at a handful of points: its index expressions and masks see true
positions, its tensors only the elements touched. Draws are deterministic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from redfuser.acrf.cascade import Cascade, Reduce, Tensor
from redfuser.acrf.check.domains import Array, Arrays, Domain, Objects, nearest
from redfuser.acrf.check.machine import Machine, Source
from redfuser.acrf.expr import FLOATS, Load, indices_of, walk

SYMBOLIC = 97
"""The extent taken for a symbolic dimension."""

SPECIAL = ("neginf", "allneginf", "posinf", "allposinf", "nan")
"""Distributions with infinities or NaN, given to one tensor at a time."""
FIRST: dict[str, float | Fraction] = {"firstzero": Fraction(0), "firstneginf": -math.inf, "firstposinf": math.inf,
                                      "fewneginf": -math.inf}
"""The first element of a distribution, so that a segment of one has nothing else: a guard that holds of it and no longer of
the row."""

def draw(kind: str, dtype: str, rng: random.Random) -> Any:
    """One element: a Fraction representable in ``dtype``, an infinity, NaN, an int or a bool."""
    if dtype == "bool":
        return kind != "zeros" and (kind == "equal" or rng.random() < 0.6)
    if dtype not in FLOATS:
        return 0 if kind == "zeros" else rng.randint(-1 if kind == "ties" and dtype != "u8" else 0, 3)
    value: float | Fraction
    match kind:
        case "ties":
            value = Fraction(rng.randint(-2, 2))
        case "zeros":
            value = Fraction(0)
        case "equal":
            value = Fraction(3, 2)
        case "large":
            value = Fraction(rng.randint(-160000, 160000), 16)
        case "medium":  # exponentials from 1 down to 1e-60
            value = Fraction(rng.randint(-1120, 1120), 16)
        case "gaps":  # from 1 down to 1e-30
            value = Fraction(rng.choice((-1, 1)) * rng.randint(8, 15), 1 << rng.randint(4, 100))
        case "outlier":
            value = Fraction(2) ** 12 if rng.random() < 0.3 else Fraction(rng.randint(-64, 64), 16)
        case "tiny":
            value = Fraction(rng.randint(-8, 8), 1 << 12)
        case "neginf":
            value = -math.inf if rng.random() < 0.5 else Fraction(rng.randint(-64, 64), 16)
        case "signs":  # partial sums that vanish
            value = Fraction(rng.choice((-1, 1)))
        case "firstzero":  # the other elements, as of the next two (FIRST)
            value = Fraction(rng.choice((-1, 1)) * rng.randint(12, 24), 16)
        case "above" | "below":  # of one sign, or 0: what bounds the row on that side is exactly 0
            value = Fraction(rng.randint(18, 40) * (rng.random() < 0.6) * (1 if kind == "above" else -1), 16)
        case "firstneginf" | "firstposinf":
            value = Fraction(rng.randint(-64, 64), 16)
        case "fewneginf":
            value = -math.inf if rng.random() < 0.25 else Fraction(rng.randint(-64, 64), 16)
        case "allneginf":
            value = -math.inf
        case "allposinf":
            value = math.inf
        case "posinf":
            value = math.inf if rng.random() < 0.4 else Fraction(rng.randint(-64, 64), 16)
        case "nan":
            value = math.nan if rng.random() < 0.4 else Fraction(rng.randint(-64, 64), 16)
        case _:
            value = Fraction(rng.randint(-64, 64) or 5, 16)
    if not isinstance(value, Fraction):
        return math.nan if dtype == "e4m3" else value
    rounded = nearest(value, dtype)
    return rounded if isinstance(rounded, Fraction) else Fraction(448 if value > 0 else -448)


@dataclass
class Draws(Source):
    """A tensor of drawn elements. The same place gives the same element in every number system."""

    shape: tuple[int, ...]
    dtype: str
    kind: str
    rng: random.Random
    signed: bool = True
    drawn: dict[tuple[int, ...], Any] = field(default_factory=dict)
    stored: dict[type, dict[tuple[int, ...], Any]] = field(default_factory=dict)
    read: dict[Any, Array] = field(default_factory=dict)
    """What was read before, by places: every segmentation and every machine reads the same rows again."""

    def at(self, places: tuple[Array, ...], numbers: Domain, own: bool = False) -> Array:
        shape = places[0].shape if places else ()
        key = (shape, *(p.tobytes() for p in places), type(numbers), getattr(numbers, "program", None))
        if key not in self.read:
            self.read[key] = self._read(shape, places, numbers)
            self.read[key].flags.writeable = False
        return self.read[key]

    def _read(self, shape: tuple[int, ...], places: tuple[Array, ...], numbers: Domain) -> Array:
        keys = list(zip(*(p.ravel().tolist() for p in places), strict=True)) if places else [()]
        for key in keys:
            if not self.drawn and self.kind in FIRST:
                self.drawn[key] = FIRST[self.kind]
            elif key not in self.drawn:
                value = draw(self.kind, self.dtype, self.rng)
                self.drawn[key] = value if self.signed or self.dtype not in FLOATS else abs(value)
        if self.dtype not in FLOATS:
            whole = np.bool_ if self.dtype == "bool" else np.int64
            return np.array([self.drawn[k] for k in keys], whole).reshape(shape)
        if isinstance(numbers, Arrays):
            return numbers.enter(np.array([float(self.drawn[k]) for k in keys], np.float64).reshape(shape), self.dtype)
        assert isinstance(numbers, Objects)
        known = self.stored.setdefault(type(numbers), {})
        out: Array = np.empty(len(keys), object)
        for i, key in enumerate(keys):
            if key not in known:
                known[key] = numbers.number(self.drawn[key])
            out[i] = known[key]
        return out.reshape(shape)


class Altered(Source):
    """Another tensor's elements, changed where they are read."""

    def __init__(self, source: Source, change: Callable[[Array, tuple[Array, ...], Domain], Array]) -> None:
        self.source, self.change, self.shape, self.axis = source, change, source.shape, source.axis

    def at(self, places: tuple[Array, ...], numbers: Domain, own: bool = False) -> Array:
        x = self.source.at(places, numbers, own)
        return x if x.dtype.kind in "iub" else self.change(x, places, numbers)


def filled(t: Draws) -> Altered:
    """A tensor with a number in place of every NaN."""
    return Altered(t, lambda x, places, numbers: np.where(x != x, numbers.const(0.75, t.dtype), x))


@dataclass(frozen=True)
class Sample:
    """Points of every axis and a distribution per tensor."""

    name: str
    kinds: dict[str, str]
    default: str
    seed: int
    points: dict[str, Array]
    tensors: dict[str, Draws]

    def machine(self, cascade: Cascade, numbers: Domain) -> Machine:
        return Machine(numbers, self.tensors, {t.name: t.dtype for t in cascade.inputs}, self.points,
                       {n: s.axes for s in cascade.stmts for n in s.names})

    def prefix(self, axis: str, n: int) -> Sample:
        """The same elements with only the first n points of an axis."""
        return replace(self, points={**self.points, axis: self.points[axis][:n]})


def sample(cascade: Cascade, kinds: dict[str, str], default: str, length: int, seed: int, inner: int = 2,
           style: str = "", signed: bool = True) -> Sample:
    """``length`` points of the r-axis (fewer if its extent is smaller), ``inner`` points of axes contracted inside, one
    or two of every other axis. ``style`` places the r-axis's points: head, run, spread or (default) any of them.
    signed: False draws magnitudes only."""
    rng = random.Random(f"{cascade.name}/{sorted(kinds.items())}/{default}/{length}/{seed}")
    contracted = {s.over for s in cascade.stmts if isinstance(s, Reduce)}
    ranks = {s.axes[-1] for s in cascade.stmts if isinstance(s, Reduce) and s.reducer.kind == "topk"}
    points: dict[str, Array] = {}
    room = 4
    for a in cascade.axes:
        extent = a.extent if isinstance(a.extent, int) else SYMBOLIC
        if a.name == cascade.raxis:
            points[a.name] = _points(extent, length, style or rng.choice(["head", "run", "spread"]), rng)
        elif a.name in ranks:
            points[a.name] = np.arange(extent)
        elif a.name in contracted:
            points[a.name] = _points(extent, inner, "spread", rng)
        else:
            n = 2 if room > 1 and rng.random() < 0.6 else 1
            room //= n
            points[a.name] = _points(extent, n, rng.choice(["head", "spread"]), rng)
    tensors = {}
    for t in cascade.inputs:
        tensors[t.name] = Draws(_shape(t), t.dtype, kinds.get(t.name, default), random.Random(rng.random()),
                                signed)
    label = ", ".join(f"{n} {k}" for n, k in kinds.items()) or default
    name = f"{label}, {len(points[cascade.raxis])} elements"
    return Sample(name, kinds, default, seed, points, tensors)


def _shape(t: Tensor) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else SYMBOLIC for d in t.shape)


def _points(extent: int, n: int, style: str, rng: random.Random) -> Array:
    n = min(n, extent)
    if style == "head":
        return np.arange(n)
    if style == "run":
        start = rng.randint(0, extent - n)
        return np.arange(start, start + n)
    return np.array(sorted(rng.sample(range(extent), n)), np.int64)


def samples(cascade: Cascade, length: int, seed: int = 0, signed: bool = True) -> Iterator[Sample]:
    """Finite samples first (every tensor of one kind, then one tensor odd), then infinities and NaN in a tensor that runs
    along the r-axis (elsewhere they reach every element alike). signed: False for a program of positive numbers."""
    draws = partial(sample, cascade, signed=signed)
    floats = [t.name for t in cascade.inputs if t.dtype in FLOATS]
    yield draws({}, "generic", length, seed, style="head")
    yield draws({}, "ties", length, seed)
    yield draws({}, "generic", length, seed + 1, style="spread")
    yield draws({}, "large", length, seed)
    for kind in ("medium", "gaps", "zeros"):
        yield draws({}, kind, length, seed)
    if any(isinstance(s, Reduce) and s.reducer.kind in ("max", "min") for s in cascade.stmts):
        for kind in ("above", "below"):
            yield draws({}, kind, length, seed)
    for t in cascade.inputs:
        for kind in ("zeros", "equal", "outlier", "tiny", "signs"):
            if kind == "zeros" or t.name in floats:
                yield draws({t.name: kind}, "generic", length, seed)
        if t.name in floats:  # an even number of signs, of which a longer part vanishes too
            yield draws({t.name: "signs"}, "generic", length + 1, seed + 1)
    along = {x.tensor for s in cascade.stmts for x in walk(s.expr) if isinstance(x, Load)
             and any(cascade.raxis in indices_of(i) for i in x.indices)}
    for name in (n for n in floats if n in along):
        yield draws({name: "firstzero"}, "generic", length, seed, style="spread")
        for kind in SPECIAL:
            yield draws({name: kind}, "generic", length, seed, style="spread")
        # elsewhere one positive value, so that an infinity keeps its sign through a contraction
        for kind in ("firstneginf", "firstposinf"):
            yield draws({name: kind}, "equal", length, seed, style="spread")
    if len(joint := [n for n in floats if n in along]) > 1:
        for kind in ("neginf", "fewneginf"):
            yield draws(dict.fromkeys(joint, kind), "generic", length, seed, style="spread")
