"""Planted errors: every constant, operation, reference and neutral element of a fused state, changed one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from redfuser.acrf.check.digits import OutOfRange
from redfuser.acrf.check.evaluate import FusedMachine, share
from redfuser.acrf.check.exact import Inexact
from redfuser.acrf.check.machine import Labelled
from redfuser.acrf.check.samples import Sample, samples
from redfuser.acrf.check.systems import domain
from redfuser.acrf.expr import FLOATS, Const, Expr, Op, Ref, children
from redfuser.acrf.state import Accumulator, Fused

_SWAPS = {"add": "sub", "sub": "add", "max": "min", "min": "max", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt",
          "eq": "ne", "ne": "eq", "and": "or", "or": "and"}


@dataclass(frozen=True)
class Mutant:
    """``place``: accumulator and part; ``before`` and ``after``: the changed sub-expression."""

    place: str
    before: str
    after: str
    whole: str
    fused: Fused

    def __str__(self) -> str:
        return f"{self.place}: {self.before} -> {self.after} in {self.whole}"


def mutants(f: Fused) -> Iterator[Mutant]:
    for i, a in enumerate(f.state.accumulators):
        for before, after, e in changed(a.contribution):
            yield Mutant(f"contribution of {a.name}", before, after, str(a.contribution),
                         _with(f, i, replace(a, contribution=e)))
        for j, r in enumerate(a.rebase):
            for before, after, e in changed(r):
                yield Mutant(f"rebase of {a.names[j]}", before, after, str(r),
                             _with(f, i, replace(a, rebase=(*a.rebase[:j], e, *a.rebase[j + 1:]))))
        for j, c in enumerate(a.neutral):
            wrong = replace(c, value=_other(c))
            yield Mutant(f"neutral of {a.names[j]}", str(c), str(wrong), str(c),
                         _with(f, i, replace(a, neutral=(*a.neutral[:j], wrong, *a.neutral[j + 1:]))))
    for i, s in enumerate(f.state.finalize):
        for before, after, e in changed(s.expr):
            lets = (*f.state.finalize[:i], replace(s, expr=e), *f.state.finalize[i + 1:])
            yield Mutant(f"finalize of {s.name}", before, after, str(s.expr),
                         replace(f, state=replace(f.state, finalize=lets)))


def _with(f: Fused, i: int, a: Accumulator) -> Fused:
    rows = f.state.accumulators
    return replace(f, state=replace(f.state, accumulators=(*rows[:i], a, *rows[i + 1:])))


def _other(c: Const) -> float | int | bool:
    if c.dtype == "bool":
        return not c.value
    if c.dtype in FLOATS:
        return 0.0 if math.isinf(c.value) or math.isnan(c.value) else float(c.value) * 1.25 + (c.value == 0)
    return 0 if c.value == 2**63 - 1 else c.value + 1


def changed(e: Expr) -> Iterator[tuple[str, str, Expr]]:
    """(what it was, what it is, the whole expression with that one change)."""
    for wrong in _wrong(e):
        yield str(e), str(wrong), wrong
    kids = children(e)
    for i, kid in enumerate(kids):
        for before, after, new in changed(kid):
            if isinstance(e, Op):
                yield before, after, replace(e, args=(*kids[:i], new, *kids[i + 1:]))
            elif hasattr(e, "arg"):
                yield before, after, replace(e, arg=new)


def _wrong(e: Expr) -> Iterator[Expr]:
    match e:
        case Const():
            yield replace(e, value=_other(e))
        case Op(name=n) if n in _SWAPS:
            yield replace(e, name=_SWAPS[n])
        case Op(name="mul" | "div", args=(x, y)):
            yield x
            yield replace(e, name="div" if e.name == "mul" else "mul")
            if e.name == "mul":
                yield y
        case Op(name="select", args=(c, x, y)):
            yield replace(e, args=(c, y, x))
        case Op(args=(x,)) if x.dtype == e.dtype:
            yield x
        case Ref(name=n, indices=()) if n.endswith("@old"):
            yield replace(e, name=n.removesuffix("@old"))


SHORT = 64
"""Elements of a row that is drawn as it is, at most."""


def distinguishes(original: Fused, mutant: Fused, seeds: tuple[int, ...] = (11, 12)) -> bool:
    """Does any fresh sample, exactly evaluated, tell the two apart by an output? If not, the mutant is
    equivalent: a guard's unused arm, a clamp that never acts, a term that multiplies a residual of rounding."""
    mutant = share(mutant)
    for s, a in _originals(original, seeds):
        try:
            with np.errstate(all="ignore"):
                b = _values(mutant, s)
        except (OutOfRange, Inexact):
            continue
        for name, x in a.items():
            y = np.broadcast_to(b[name].aligned(x.axes), x.data.shape).astype(float)
            want = x.data.astype(float)
            lost = ~np.isfinite(want) & ~np.isfinite(y) & (np.isnan(want) | np.isnan(y))  # one class (docs/algebra.md)
            if not np.allclose(np.where(lost, want, y), want, 1e-12, equal_nan=True):
                return True
    return False


@lru_cache(maxsize=4)
def _originals(f: Fused, seeds: tuple[int, ...]) -> tuple[tuple[Sample, dict[str, Labelled]], ...]:
    """The samples of which the state itself has results, with them. Short rows are drawn as long as the program's: a mean that
    divides by their number is another function of fewer."""
    found, shared, extent = [], share(f), f.cascade.extent(f.cascade.raxis)
    length = extent if isinstance(extent, int) and extent <= SHORT else 4
    for s in (s for seed in seeds for s in samples(f.cascade, length, seed)):
        with suppress(OutOfRange, Inexact), np.errstate(all="ignore"):
            found.append((s, _values(shared, s)))
    return tuple(found)


def _values(f: Fused, s: Sample) -> dict[str, Labelled]:
    m = FusedMachine.on(f, s.machine(f.cascade, domain("digits")))
    n = m.length
    state = m.merge(m.step(m.step(m.init(), 0, 1), 1, 1), m.step(m.init(), 1, n))
    done = m.finish(state)
    return {o: done.values[o] for o in f.cascade.outputs}
