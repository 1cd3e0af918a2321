"""A case: inputs of a small twin of a program, with what it should give, computed once and shared by every check of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from redfuser.acrf.cascade import stmt_dtype
from redfuser.acrf.check.domains import Array
from redfuser.acrf.state import Fused
from redfuser.chain import judge
from redfuser.chain.draws import BANDS, Draw, Facts, draws, facts, inputs, moved
from redfuser.chain.judge import Bands, Hidden, Want
from redfuser.chain.truth import PROGRAM, Wide, evaluate
from redfuser.unseen import unseen

LARGEST = 3.4e38
"""The accumulators' largest value: float32's."""
AGAIN, RECURS = 4, 3
"""Further draws of a kind whose first one failed, and how many of them must fail too."""
EXTREME = 1e18
"""Above it squares overflow float32, or nearly."""


@dataclass(frozen=True)
class Case:
    """``wide``: fit for a comparison to many digits; ``exactly``: for nothing else."""

    name: str
    inputs: Mapping[str, Array]
    wanted: Mapping[str, Want]
    wide: bool
    again: Callable[[int], Case]
    exactly: bool = False

    def rule(self, got: Mapping[str, Array], run: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> str:
        """What is wrong with results in the program's own types. ``run``: inputs to results. One draw may be unlucky where a
        few roundings decide: an error beyond the rule must recur on most others of its kind."""
        text = self._once(got)
        if not text or "class: " in text:
            return text
        others = [other._once(run(other.inputs)) for other in map(self.again, range(1, AGAIN + 1))]
        return text if sum(map(bool, others)) >= RECURS else ""

    def _once(self, got: Mapping[str, Array]) -> str:
        return judge.first_failure({n: judge.rule(got[n], w) for n, w in self.wanted.items()})

    def digits(self, got: Mapping[str, Array]) -> str:
        """What is wrong with results in float64."""
        return judge.first_failure({n: judge.digits(got[n], w.exact, w.bands, w.ranked[0] if w.ranked else None, w.lost)
                                    for n, w in self.wanted.items()})


def cases(fused: Fused, deep: bool | None = None, seed: int = 0) -> list[Case]:
    """A case per draw: of the deep ones, of the others, or (None) of all. All extents are numbers here."""
    known = facts(fused.cascade)
    return [case(fused, d, known, seed) for d in draws(fused.cascade) if deep in (None, d.deep)]


def case(fused: Fused, draw: Draw, known: Facts, seed: int) -> Case:
    cascade = fused.cascade
    given = inputs(cascade, draw, known, seed)
    exact, program = evaluate(cascade, given, Wide()), evaluate(cascade, given, PROGRAM)
    results, own = exact.outputs(), program.outputs()
    shaken = evaluate(cascade, moved(given), Wide()).outputs() if draw.cancels else results
    axis, count = known.axis, len(next(iter(BANDS.values())))
    extent = cascade.extent(cascade.raxis)
    top = LARGEST / max(1, extent if isinstance(extent, int) else 1)

    @lru_cache(maxsize=1)
    def hidden() -> dict[str, list[Hidden]]:
        return _hidden(fused, given)

    extreme = any(bool((np.abs(x[np.isfinite(x)]) > EXTREME).any()) for x in map(_plain, given.values()))
    has_nan = any(bool(np.isnan(x.astype(np.float64)).any()) for x in given.values() if x.dtype.kind in "fV")
    wanted = {}
    for o in cascade.outputs:
        axes = cascade.stmt(o).axes
        bands = Bands(axes.index(axis), count) if draw.banded and axis is not None and axis in axes else None
        values = exact.ranked(o)
        ranked = (values, program.ranked(o)) if values is not None else None
        wanted[o] = Want(own[o], results[o], stmt_dtype(cascade.stmt(o), o), lambda o=o: hidden()[o], top,  # type: ignore[misc]
                         extreme, has_nan, ranked, bands,  # type: ignore[arg-type]
                         0.07 if steps_moved(fused) else 0.0, judge.lost(results[o], shaken[o]) if draw.cancels else 0.0)
    return Case(draw.name, given, wanted, draw.wide, lambda other: case(fused, draw, known, other), draw.exactly)


def _hidden(fused: Fused, given: Mapping[str, Array]) -> dict[str, list[Hidden]]:
    """Per output, what it is where it sees nothing of a tensor's NaN and infinities."""
    cascade = fused.cascade

    def without(name: str, number: float) -> dict[str, Array]:
        x: Array = given[name].astype(np.float64)
        return {**given, name: np.where(np.isfinite(x), x, number)}

    def run(name: str, number: float) -> list[Array]:
        exact = evaluate(cascade, without(name, number), Wide()).outputs()
        return [exact[o] for o in cascade.outputs]

    odd = [n for n, x in given.items() if not np.isfinite(_plain(x)).all()]
    found: dict[str, list[Hidden]] = {o: [] for o in cascade.outputs}
    for name, where, exact in unseen(run, odd):
        own = evaluate(cascade, without(name, 0.0), PROGRAM).outputs()
        for o, w, e in zip(cascade.outputs, where, exact, strict=True):
            found[o].append(Hidden(w, own[o], e))
    return found


def _plain(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind in "fV" else np.zeros(1)


def steps_moved(fused: Fused) -> bool:
    """Does the fusion round to few values elsewhere than its program (``casts="elide"``)?"""
    return fused.certificate.casts == "elide" and bool(fused.certificate.roundings)


__all__ = ["Case", "case", "cases", "steps_moved"]
