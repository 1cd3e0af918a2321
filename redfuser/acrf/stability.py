"""The numerical obligations of a fused state: stability in the program's own dtypes, and bounds for moved roundings.

Part of :mod:`redfuser.acrf.verify`; shares no code with the deriver.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from redfuser.acrf.domains import Array, Domain, domain, smallest_normal, unit_roundoff
from redfuser.acrf.evaluate import FusedMachine, share
from redfuser.acrf.expr import FLOATS, Cascade, Cast, Expr, Op, Reduce, stmt_dtype, walk
from redfuser.acrf.machine import Machine
from redfuser.acrf.samples import Altered, Sample, sample
from redfuser.acrf.shorten import restated
from redfuser.acrf.state import Fused
from redfuser.acrf.unrounded import moved_steps, with_step

LENGTH, LONGEST, RESTATED = 200, 1 << 17, 1 << 14
"""Elements of the r-axis in a stability sample: LENGTH, or its known extent up to LONGEST, or RESTATED (a power of two, so
that a reciprocal has an exact counterpart) where it is longer and the program says so in a literal."""
FACTOR, FLOOR, SIGNED_FLOOR, BACKWARD = 64.0, 3e-5, 1e-3, 8.0
"""The fused form may err FACTOR times as much as the unfused program in the same dtypes, or BACKWARD times what one fp32
rounding of each input does to the result, or FLOOR relative; where every input has both signs SIGNED_FLOOR, since partial
sums of signed weights may vanish and the total not."""


def check_stability(fused: Fused, seed: int = 0) -> Iterator[str]:
    """Errors of the fused form in the program's dtypes, against the unfused program's, both measured in fp64."""
    fused, length = _measured(fused, LENGTH)
    for kinds, default in list(_stress(fused.cascade))[:4 if length > 4096 else None]:
        s = sample(fused.cascade, kinds, default, length, seed, inner=3)
        least = SIGNED_FLOOR if default == "normal" else FLOOR
        rounds = not fused.certificate.roundings
        exact = _unfused(fused.cascade, s, "f64", rounds)
        plain = _unfused(fused.cascade, s, "program", rounds)
        nudged = _unfused(fused.cascade, s, "f64", rounds, nudged=True)
        for lengths, how in _cuts(len(s.points[fused.cascade.raxis]), seed):
            f = FusedMachine.on(fused, s.machine(fused.cascade, domain("program", rounds)))
            done = f.finish(f.segments(lengths, how))
            for name, error, allowed in _errors(fused.cascade, exact, plain, nudged, done, least):
                if not error <= allowed:
                    yield (f"stability: {name} errs by {error:.2g} relative, the unfused program allows {allowed:.2g} "
                           f"({s.name}, {len(lengths)} segments, {how})")
                    break


def _measured(fused: Fused, short: int) -> tuple[Fused, int]:
    """What is measured, and over how many elements: the known extent up to LONGEST, else ``short`` ones. A longer row whose
    literals say its extent (a mean divides by it) is another program over fewer elements: it is restated for RESTATED."""
    extent = fused.cascade.extent(fused.cascade.raxis)
    if isinstance(extent, int) and extent <= LONGEST:
        return fused, extent
    other = restated(fused, RESTATED)
    return (fused, short) if other is None else (share(other), RESTATED)


def _stress(cascade: Cascade) -> Iterator[tuple[dict[str, str], str]]:
    yield {}, "positive"
    yield {}, "normal"
    for t in cascade.inputs:
        if t.dtype in FLOATS:
            for kind in ("wide", "shifted", "spike"):
                yield {t.name: kind}, "positive"


def _cuts(n: int, seed: int) -> Iterator[tuple[list[int], str]]:
    yield [n], "step"
    rng = random.Random(seed)
    ends = sorted(rng.randint(0, n) for _ in range(7))
    ragged = [b - a for a, b in zip([0, *ends], [*ends, n], strict=True)]
    yield ragged, "step"
    yield ragged, "tree"


def _unfused(cascade: Cascade, s: Sample, precision: str, rounds: bool, nudged: bool = False) -> Machine:
    m = s.machine(cascade, domain(precision, rounds))
    if nudged:
        m = replace(m, tensors={n: Altered(t, _nudged) for n, t in s.tensors.items()})
    for stmt in cascade.stmts:
        m.statement(stmt)
    return m


def _nudged(x: Array, places: tuple[Array, ...], numbers: Domain) -> Array:
    """Every float off by one rounding, up or down by its place."""
    mixed: Array = sum(((p.astype(np.int64) + 1) * 2654435761 * (2 * i + 1) for i, p in enumerate(places)), np.int64(0))
    return np.asarray(x * (1 + unit_roundoff("f32") * (1 - 2.0 * (mixed >> 13 & 1))), x.dtype)


def _full(m: Machine, cascade: Cascade, name: str) -> Array:
    s = cascade.stmt(name)
    data = m.values[name].aligned(s.axes)
    return np.broadcast_to(data, [len(m.ranges[a]) for a in s.axes]).astype(np.float64)


def _errors(cascade: Cascade, exact: Machine, plain: Machine, nudged: Machine, done: Machine,
            least: float) -> Iterator[tuple[str, float, float]]:
    for s in cascade.stmts:
        for name in s.names:
            if name not in done.values or stmt_dtype(s, name) not in FLOATS:
                continue
            want, base, near, got = (_full(m, cascade, name) for m in (exact, plain, nudged, done))
            fair = np.isfinite(want) & np.isfinite(base)
            if not fair.any():
                continue
            size = max(float(np.max(np.abs(want[fair]))), smallest_normal("f32"))
            with np.errstate(all="ignore"):
                error = float(np.max(np.where(np.isfinite(got[fair]), np.abs(got[fair] - want[fair]), np.inf))) / size
                own = float(np.max(np.abs(base[fair] - want[fair]))) / size
                inputs = float(np.max(np.nan_to_num(np.abs(near[fair] - want[fair]), nan=0.0, posinf=0.0))) / size
            floor = max(least, 4 * unit_roundoff(stmt_dtype(s, name)))
            yield name, error, max(FACTOR * own, BACKWARD * inputs, floor)


# -- roundings ---------------------------------------------------------------------------------------------------------


def check_roundings(fused: Fused, seed: int = 0) -> Iterator[str]:
    """Where roundings moved: every sum over the r-axis stays within ``2u`` of its terms' absolute sum, u the unit
    roundoff of the coarsest cast, plus the steps by which each moved rounding to integers may be off. Where no move is
    listed, the rounded results are compared exactly elsewhere."""
    if not fused.certificate.roundings:
        return
    fused, length = _measured(fused, 24)  # the whole row, since a result may rest on its length
    cascade = fused.cascade
    casts = {x.dtype for s in cascade.stmts for x in walk(s.expr) if isinstance(x, Cast) and x.dtype in FLOATS
             and x.arg.dtype in FLOATS}
    casts |= {s.dtype for s in cascade.stmts if isinstance(s, Reduce) and s.dtype in FLOATS}
    narrow = [d for d in casts if unit_roundoff(d) > unit_roundoff("f32")]
    steps = [e for s in cascade.stmts for e in moved_steps(fused, s.expr)]
    if not narrow and not steps:
        yield "rounding: the certificate lists moved roundings, the cascade rounds nowhere"
        return
    u = max(map(unit_roundoff, narrow), default=unit_roundoff("f32"))
    for kind in ("positive", "normal"):
        s = sample(cascade, {}, kind, length, seed, inner=4)
        plain = _unfused(cascade, s, "f64", True)
        for lengths, how in _cuts(len(s.points[cascade.raxis]), seed):
            f = FusedMachine.on(fused, s.machine(cascade, domain("f64", True)))
            done = f.finish(f.segments(lengths, how))
            for stmt in cascade.stmts:
                if isinstance(stmt, Reduce) and stmt.over == cascade.raxis and stmt.reducer.kind == "sum":
                    yield from _bounded(cascade, stmt, plain, done, u, steps, how)


def _bounded(cascade: Cascade, s: Reduce, plain: Machine, done: Machine, u: float, steps: list[Expr],
             how: str) -> Iterator[str]:
    def size(e: Expr) -> Array:
        e = Op("abs", (e if e.dtype in FLOATS else Cast(e, "f64"),), e.dtype if e.dtype in FLOATS else "f64")
        total = Reduce(s.names, s.axes, s.reducer, s.over, e, e.dtype)
        return np.broadcast_to(plain.with_values({}).statement(total)[s.name].aligned(s.axes), difference.shape)

    difference = np.abs(_full(done, cascade, s.name) - _full(plain, cascade, s.name))
    bound = 2.5 * u * size(s.expr) + 1e-12
    stepped = with_step(s.expr, steps)
    if stepped != s.expr:
        bound = bound + size(stepped)
    worst = float(np.max(np.where(np.isfinite(difference), difference - bound, np.inf), initial=0.0))
    if worst > 0:
        yield f"rounding: {s.name} moves by more than the certificate's bound ({how}): {worst:.2g} beyond"
