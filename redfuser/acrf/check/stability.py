"""The numerical obligation of a fused state: stability in the program's own dtypes.

Part of :mod:`redfuser.acrf.check.verify`; shares no code with the deriver.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np

from redfuser.acrf.cascade import Cascade, Reduce, stmt_dtype
from redfuser.acrf.check.digits import OutOfRange
from redfuser.acrf.check.domains import Array, Arrays, Domain
from redfuser.acrf.check.evaluate import FusedMachine, share
from redfuser.acrf.check.machine import Machine
from redfuser.acrf.check.samples import Sample, sample
from redfuser.acrf.check.shorten import restated
from redfuser.acrf.check.stress import TRIAL, Strain, Strained, largest, machine, strained, strains
from redfuser.acrf.check.systems import domain
from redfuser.acrf.expr import FLOATS
from redfuser.acrf.state import Fused
from redfuser.rule import limit

INF = float("inf")
LENGTH, LONGEST, RESTATED = 200, 1 << 17, 1 << 10
"""Elements of the r-axis in a stability sample: LENGTH, or its known extent up to LONGEST where the fusion rests on it, or
RESTATED (a power of two, so that a reciprocal has an exact counterpart) where the program says so in a literal."""
ROWS = 8
"""Rows per strain, at least: an error of rounding is random, and so is the unfused program's."""
AGAIN = 3
"""How often a small excess must be found again, in other rows: one row may dominate a strain, and luck that row."""
LARGE = 16.0
"""An excess this many times the allowance must be found again once: few half weights may happen to add up to exactly 1."""
LANES, SEGMENTS = 8, 8
"""The unfused program is free in the order of its sums: pairwise, in as many running sums as a vector has lanes, or over
the segments that the fused form has."""
DECISIVE = 2048
"""The longest row whose truth is computed in 50 digits where fp64 says that a fusion is unstable."""


class Ordered(Arrays):
    """The program's own dtypes, where a sum over a whole row is taken in running sums, or segment after segment."""

    def __init__(self, ends: Sequence[int] = ()) -> None:
        super().__init__(program=True)
        self.ends = ends

    def total(self, kind: str, x: Array, dtype: str) -> Array:
        n = x.shape[-1]
        if kind not in ("sum", "prod") or n < 2 * LANES or (self.ends and n != self.ends[-1]):
            return super().total(kind, x, dtype)
        add = np.add if kind == "sum" else np.multiply
        with np.errstate(all="ignore"):
            if self.ends:
                parts = [add.reduce(x[..., start:stop], axis=-1) for start, stop in pairwise((0, *self.ends))]
                return self._fit(reduce(add, parts), dtype)
            whole = n // LANES * LANES
            running = np.moveaxis(x[..., :whole].reshape(*x.shape[:-1], -1, LANES), -2, 0)
            lanes = add.reduce(np.ascontiguousarray(running), axis=0)
            return self._fit(add(add.reduce(lanes, axis=-1), add.reduce(x[..., whole:], axis=-1)), dtype)


def check_stability(fused: Fused, seed: int = 0, rests: bool = True) -> Iterator[str]:
    """The rule (:mod:`redfuser.rule`) for every output, in the program's dtypes, the truth being fp64.

    rests: the fusion may rest on the row's length; False where rows of other lengths were seen to be right."""
    fused, length = measured(fused, LENGTH, rests)
    every = list(strains(fused.cascade, length))
    trial = _Trials.of(fused, every, length, seed, ROWS)
    for strain, found in trial.findings().items():
        if found.excess < INF and not (any if found.excess > LARGE else all)(
                strain in _Trials.of(fused, [strain], length, seed + 1 + i, 4 * ROWS).findings() for i in range(AGAIN)):
            continue
        if length <= DECISIVE and not trial.decided(strain):
            continue
        yield f"stability: {found.text} ({strain.name}, {trial.length} elements, {found.how})"


@dataclass(frozen=True)
class _Finding:
    """How many times the allowance an error is, and the words for it."""

    excess: float
    text: str
    how: str


@dataclass(frozen=True)
class _Trials:
    """Rows of some strains, ``rows`` of each, at the points of one sample; and the outputs in question."""

    fused: Fused
    sample: Sample
    strains: tuple[Strain, ...]
    rows: int
    seed: int
    tensors: dict[str, Strained]

    @classmethod
    def of(cls, fused: Fused, every: Sequence[Strain], length: int, seed: int, rows: int) -> _Trials:
        s = sample(fused.cascade, {}, "positive", length, seed, inner=3)
        across = math.prod(len(p) for a, p in s.points.items() if a != fused.cascade.raxis)
        rows = max(2, -(-rows // across))
        trials = [x for x in every for _ in range(rows)]
        return cls(fused, s, tuple(every), rows, seed, strained(fused.cascade, s, trials, seed))

    @property
    def length(self) -> int:
        return len(self.sample.points[self.fused.cascade.raxis])

    def of_strain(self, strain: Strain) -> _Trials:
        i = self.strains.index(strain)
        tensors = {n: t.only(slice(i * self.rows, (i + 1) * self.rows)) for n, t in self.tensors.items()}
        return replace(self, strains=(strain,), tensors=tensors)

    def on(self, numbers: Domain) -> Machine:
        return machine(self.fused.cascade, self.sample, self.tensors, self.rows * len(self.strains), numbers)

    def findings(self, precision: str = "f64") -> dict[Strain, _Finding]:
        """The first thing wrong with each strain; ``precision``: of the truth."""
        cascade, trials = self.fused.cascade, self.rows * len(self.strains)
        rounds = not self.fused.certificate.roundings
        exact = evaluated(cascade, self.on(domain(precision, rounds)))
        cuts = list(cuts_of(self.length, self.seed))
        orders = (domain("program"), Ordered(), Ordered(np.cumsum(cuts[1][0]).tolist()))
        plain = [evaluated(cascade, self.on(numbers)) for numbers in orders]
        lost = _lost(cascade, exact, plain, trials, self.length)
        judges = [_Judge(name, stmt_dtype(cascade.stmt(name), name), full(exact, cascade, name, trials),
                         tuple(full(m, cascade, name, trials) for m in plain), lost) for name in cascade.outputs
                  if stmt_dtype(cascade.stmt(name), name) in FLOATS]
        out: dict[Strain, _Finding] = {}
        for lengths, how in cuts:
            f = FusedMachine.on(self.fused, self.on(domain("program", rounds)))
            done = f.finish(f.segments(lengths, how))
            for judge in judges:
                got = full(done, cascade, judge.name, trials)
                for i, strain in enumerate(self.strains):
                    if strain not in out and (found := judge.says(got, slice(i * self.rows, (i + 1) * self.rows))):
                        out[strain] = _Finding(*found, f"{len(lengths)} segments, {how}")
        return out

    def decided(self, strain: Strain) -> bool:
        """Is it wrong by 50 digits too? fp64 is no truth where 1e30 + 1 matters."""
        try:
            return strain in self.of_strain(strain).findings("digits")
        except OutOfRange:
            return True


def _lost(cascade: Cascade, exact: Machine, plain: Sequence[Machine], trials: int, length: int) -> Array:
    """Trials in which the unfused program itself overflows in a sum, or comes as close as another order of adding may take
    it: there the fused form may end in NaN or infinity, but not in a wrong number."""
    lost: Array = np.zeros(trials, np.bool_)
    for s in cascade.stmts:
        if isinstance(s, Reduce) and s.reducer.kind in ("sum", "prod") and stmt_dtype(s, s.name) in FLOATS:
            want = full(exact, cascade, s.name, trials).reshape(trials, -1)
            close = np.isinf(want) | (np.isfinite(want) & (np.abs(want) * length > largest("f32")))
            for m in plain:
                close |= np.isfinite(want) & ~np.isfinite(full(m, cascade, s.name, trials).reshape(trials, -1))
            lost |= close.any(-1)
    return lost


@dataclass(frozen=True)
class _Judge:
    """One output: the truth, and what the unfused program makes of it in several orders; trials first."""

    name: str
    dtype: str
    want: Array
    plain: tuple[Array, ...]
    lost: Array

    def says(self, got: Array, these: slice) -> tuple[float, str] | None:
        """What is wrong with the rows of one strain, and how far beyond what is allowed; or None."""
        want, ours, plain = self.want[these], got[these], [x[these] for x in self.plain]
        undefined = ~np.isfinite(want) & np.logical_and.reduce([~np.isfinite(x) for x in plain])
        if np.isfinite(ours[undefined]).any():
            return INF, f"{self.name} is finite where the unfused program is not"
        if (np.isinf(ours) & np.logical_and.reduce([x == -ours for x in (want, *plain)])).any():
            return INF, f"{self.name} is the other infinity"
        fair = np.isfinite(want) & np.logical_and.reduce([np.isfinite(x) for x in plain])
        fair &= np.isfinite(ours) | ~self._lost(these)
        if not fair.any():
            return None
        want, ours = want[fair], ours[fair]
        if not np.isfinite(ours).all():
            return INF, f"{self.name} is not finite where the unfused program is"
        worst, rms = (max(f(x[fair] - want) for x in plain) for f in (_worst, _rms))
        allowed = limit(worst, rms, _worst(want), _rms(want), self.dtype)
        for what, mine, most in zip(("at most", "rms"), (_worst(ours - want), _rms(ours - want)), allowed, strict=True):
            if mine > most:
                size = _worst(want) or 1.0
                return mine / most if most else INF, (f"{self.name} errs by {mine / size:.2g} of the largest ({what}), "
                                                      f"the unfused program allows {most / size:.2g}")
        return None

    def _lost(self, these: slice) -> Array:
        """Where the unfused program has lost everything itself: overflowed on the way, or no digit is right."""
        want = self.want[these]
        gap = np.max([np.abs(x[these] - want) for x in self.plain], axis=0)
        return self.lost[these].reshape(-1, *[1] * (want.ndim - 1)) | ((gap > 0) & (2 * gap >= np.abs(want)))


def _worst(x: Array) -> float:
    return float(np.max(np.abs(x)))


def _rms(x: Array) -> float:
    most = _worst(x)  # squares of 1e200 overflow
    return most * float(np.sqrt(np.mean(np.square(x / most)))) if most and np.isfinite(most) else most


def measured(fused: Fused, short: int, rests: bool = True) -> tuple[Fused, int]:
    """What is measured, and over how many elements: ``short`` ones, or the known extent where that is shorter or the fusion
    may rest on it. A longer row whose literals say its extent (a mean divides by it) is another program over fewer elements:
    it is restated for RESTATED."""
    extent = fused.cascade.extent(fused.cascade.raxis)
    if not isinstance(extent, int):
        return fused, short
    if extent <= RESTATED:
        return fused, extent if rests else min(extent, short)
    other = restated(fused, RESTATED)
    if other is not None:
        return share(other), RESTATED
    return fused, min(extent, LONGEST) if rests else short


def cuts_of(n: int, seed: int) -> Iterator[tuple[list[int], str]]:
    """Segments with an element each: that an empty one changes nothing is decided in exact numbers."""
    yield [n], "step"
    rng = random.Random(seed)
    ends = sorted(rng.sample(range(1, n), min(SEGMENTS, n) - 1)) if n > 1 else []
    ragged = [b - a for a, b in zip([0, *ends], [*ends, n], strict=True)]
    yield ragged, "step"
    yield ragged, "tree"


def evaluated(cascade: Cascade, m: Machine) -> Machine:
    for stmt in cascade.stmts:
        m.statement(stmt)
    return m


def full(m: Machine, cascade: Cascade, name: str, trials: int) -> Array:
    """A result as fp64 numbers, trials first."""
    s = cascade.stmt(name)
    data = m.values[name].aligned((TRIAL, *s.axes))
    return np.broadcast_to(data, [trials, *(len(m.ranges[a]) for a in s.axes)]).astype(np.float64)
