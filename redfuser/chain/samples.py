"""A case: inputs of a small twin of a program, with what it should give, computed once and shared by every check of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import prod

import numpy as np

from redfuser.acrf.cascade import Cascade, stmt_dtype
from redfuser.acrf.check.domains import Array
from redfuser.acrf.check.evaluate import machine
from redfuser.acrf.expr import Cast, Load, Ref, walk
from redfuser.acrf.state import Fused
from redfuser.chain import judge
from redfuser.chain.draws import Draw, Facts, draws, facts, inputs
from redfuser.chain.judge import Bands, Hidden, Want
from redfuser.chain.kinds import BANDS
from redfuser.chain.losses import UNDECIDED, losses
from redfuser.chain.truth import FEW, PROGRAM, InTurn, Wide, evaluate
from redfuser.rule import UNIT
from redfuser.unseen import unseen

LARGEST = 3.4e38
"""The accumulators' largest value: float32's."""
AGAIN, RECURS = 4, 3
"""Further draws of a kind whose first one failed, and how many of them must fail too."""
AT_ONCE = 1 << 24
"""Elements of all draws that are in memory together: some tens of bytes each."""
LOSSES = 64
"""A kernel takes other ways than the program to the same number, and each step may lose so many times as much on them: of the
square of a difference that is 0 but for rounding, the square of that."""
NOISE = 4
"""What a kernel may lose of a result that has no right digit, in what single precision may."""
FAR = 1.7e308
"""Stands for an infinity, which a mask may hide as it hides numbers."""
EXTREME = 1e18
"""Above it squares overflow float32, or nearly."""


@dataclass(frozen=True)
class Exact:
    """Results in float64. ranked: what an index chooses among; lost: what a kernel may lose of each result in a type, asked for
    where one differs."""

    results: Mapping[str, Array]
    ranked: Mapping[str, Array | None]
    unbounded: Callable[[str], Array]
    lost: Callable[[str], Mapping[str, Array]]


@dataclass(frozen=True)
class Case:
    """``wide``: fit for a comparison to many digits; ``exactly``: for nothing else (``wanted`` is empty then). exact: with the
    roundings to few values, or with none; in_turn: the program's results where it adds one term after the other."""

    name: str
    inputs: Mapping[str, Array]
    wanted: Mapping[str, Want]
    wide: bool
    again: Callable[[int], Case]
    exact: Callable[[bool], Exact]
    bands: Mapping[str, Bands]
    in_turn: Callable[[], Mapping[str, Array]]
    exactly: bool = False

    def rule(self, got: Mapping[str, Array], run: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> str:
        """What is wrong with results in the program's own types. ``run``: inputs to results. One draw may be unlucky where a
        few roundings decide: an error beyond the rule must recur on most others of its kind, and not only where a result is
        near a pole: of all draws, in units of what single precision may lose of each result."""
        if text := self._once(got, {}):
            text = self._once(got, self.exact(True).lost("f32"))
        if not text or "class: " in text:
            return text
        others = [(other, run(other.inputs)) for other in map(self.again, range(1, AGAIN + 1))]
        texts = [other._once(its, {}) for other, its in others]
        if sum(map(bool, texts)) < RECURS:
            return ""
        together = ((self, got), *others)
        return text if any("class: " in t for t in texts) else judge.first_failure(
            {n: judge.conditioned([c._in_units(its, n) for c, its in together]) and text for n in self.wanted})

    def _in_units(self, got: Mapping[str, Array], name: str) -> tuple[Array, Want, Array, Array]:
        """A result, what it should be, what the program has where it adds in turn, and what single precision may lose."""
        return got[name], self.wanted[name], self.in_turn()[name], self.exact(True).lost("f32")[name]

    def _once(self, got: Mapping[str, Array], noise: Mapping[str, Array]) -> str:
        return judge.first_failure({n: judge.rule(got[n], w, noise.get(n, 0.0)) for n, w in self.wanted.items()})

    def digits(self, got: Mapping[str, Array], steps: bool = True) -> str:
        """What is wrong with results in float64, with the roundings to few values or (not ``steps``) with none. Where some
        are wrong to all their digits, those that cancellation takes from the program itself do not count."""
        if text := self._apart(got, steps, {}):
            text = self._apart(got, steps, self.exact(steps).lost("f64"))
        return text

    def _apart(self, got: Mapping[str, Array], steps: bool, lost: Mapping[str, Array]) -> str:
        want = self.exact(steps)
        return judge.first_failure({n: judge.digits(got[n], x, self.bands.get(n), want.ranked[n], lost.get(n, 0.0))
                                    for n, x in want.results.items()})


def drawn(fused: Fused, deep: bool | None = None) -> Iterator[Case]:
    """A case per draw: of the deep ones, of the others, or (None) of all. All extents are numbers here."""
    known = facts(fused.cascade)
    return (case(fused, d, known, 0) for d in draws(fused.cascade) if deep in (None, d.deep))


def cases(fused: Fused, deep: bool | None = None) -> list[Case]:
    """All of :func:`drawn` at once."""
    return list(drawn(fused, deep))


def batches(fused: Fused, deep: bool | None = None) -> Iterator[list[Case]]:
    """:func:`drawn`, so many at once as there is memory for; together they are run faster."""
    left, together = drawn(fused, deep), max(1, AT_ONCE // max(1, elements(fused.cascade)))
    while some := list(islice(left, together)):
        yield some


def elements(cascade: Cascade) -> int:
    """Of its inputs and all that it computes."""
    shapes = (*(t.shape for t in cascade.inputs), *(tuple(map(cascade.extent, s.axes)) for s in cascade.stmts))
    return sum(prod(map(int, shape)) for shape in shapes)


def case(fused: Fused, draw: Draw, known: Facts, seed: int) -> Case:
    cascade = fused.cascade
    given = inputs(cascade, draw, known, seed)
    few = steps_taken(fused)

    @lru_cache(maxsize=2)
    def exact(steps: bool) -> Exact:
        if not steps and not few:
            return exact(True)
        truth = evaluate(cascade, given, Wide(steps))
        return Exact(truth.outputs(), {o: truth.ranked(o) for o in cascade.outputs},
                     truth.unbounded, lambda dtype: _lost(cascade, given, steps, dtype))

    axis, count = known.axis, len(next(iter(BANDS.values())))
    axes = {o: cascade.stmt(o).axes for o in cascade.outputs}
    bands = {o: Bands(axes[o].index(axis), count) for o in axes if draw.banded and axis is not None and axis in axes[o]}
    wanted = {} if draw.exactly else _wanted(fused, given, exact(True), bands, "inf" in draw.kinds.values())
    return Case(draw.name, given, wanted, draw.wide, lambda other: case(fused, draw, known, other), exact, bands,
                lru_cache(maxsize=1)(lambda: evaluate(cascade, given, InTurn()).outputs()), draw.exactly)


def _wanted(fused: Fused, given: Mapping[str, Array], exact: Exact, bands: Mapping[str, Bands],
            infinite: bool) -> dict[str, Want]:
    cascade = fused.cascade
    program = evaluate(cascade, given, PROGRAM)
    own = program.outputs()
    extent = cascade.extent(cascade.raxis)
    top = LARGEST / max(1, extent if isinstance(extent, int) else 1)

    @lru_cache(maxsize=1)
    def hidden() -> dict[str, list[Hidden]]:
        return _hidden(fused, given)

    extreme = any(bool((np.abs(x[np.isfinite(x)]) > EXTREME).any()) for x in map(_plain, given.values()))
    has_nan = any(bool(np.isnan(x.astype(np.float64)).any()) for x in given.values() if x.dtype.kind in "fV")
    wanted = {}
    for o in cascade.outputs:
        values = exact.ranked[o]
        ranked = (values, program.ranked(o)) if values is not None else None
        overflown = program.unbounded(o) & ~exact.unbounded(o) if extreme else False
        wanted[o] = Want(own[o], exact.results[o], stmt_dtype(cascade.stmt(o), o),
                         lambda o=o: hidden()[o], top,  # type: ignore[misc]
                         extreme, overflown, has_nan, ranked, bands.get(o),  # type: ignore[arg-type]
                         0.07 if steps_moved(fused) else 0.0, exact.unbounded(o) if infinite else False)
    return wanted


def _lost(cascade: Cascade, given: Mapping[str, Array], steps: bool, dtype: str) -> dict[str, Array]:
    found = losses(cascade, given, steps, UNIT[dtype] * (NOISE if dtype == "f32" else LOSSES))
    most = np.inf if dtype == "f64" else UNDECIDED ** 0.5  # noise is what has no right digit, not what has another
    return {o: np.where(np.isfinite(x) & (error < most), error, 0.0) for o, (x, error) in found.items()}


def _hidden(fused: Fused, given: Mapping[str, Array]) -> dict[str, list[Hidden]]:
    """Per output, what it is where it sees nothing of a tensor's NaN and infinities: of all, of one kind of them, or of those
    that one of several loads reads (queries, keys and values may be parts of one tensor)."""
    cascade = fused.cascade
    parts = {n: _parts(cascade, given, n) for n in given}

    def without(key: tuple[str, int, int], number: float) -> dict[str, Array]:
        name, kind, part = key
        x: Array = given[name].astype(np.float64)
        odd = _odd(x) == kind if kind else ~np.isfinite(x)
        return {**given, name: np.where(odd & parts[name][part], number, x)}

    def run(key: tuple[str, int, int], number: float) -> list[Array]:
        exact = evaluate(cascade, without(key, number), Wide()).outputs()
        return [np.nan_to_num(exact[o], nan=np.nan, posinf=FAR, neginf=-FAR) for o in cascade.outputs]

    kinds = {n: set(np.unique(_odd(_plain(x))).tolist()) - {0} for n, x in given.items()}
    keys = [(n, k, part) for n, found in kinds.items() if found for part in range(len(parts[n]))
            for k in (0, *(sorted(found) if len(found) > 1 else ()))]
    found: dict[str, list[Hidden]] = {o: [] for o in cascade.outputs}
    for key, where, exact in unseen(run, keys):
        own = evaluate(cascade, without(key, 0.0), PROGRAM).outputs()
        for o, w, e in zip(cascade.outputs, where, exact, strict=True):
            found[o].append(Hidden(w, own[o], np.where(np.abs(e) == FAR, np.copysign(np.inf, e), e)))
    return found


def _parts(cascade: Cascade, given: Mapping[str, Array], name: str) -> list[Array]:
    """All of a tensor; and where several loads read it, the elements that each of them does."""
    loads = {x for s in cascade.stmts for x in walk(s.expr) if isinstance(x, Load) and x.tensor == name}
    whole: list[Array] = [np.ones((), np.bool_)]
    if len(loads) < 2 or any(isinstance(y, Load | Ref) for x in loads for i in x.indices for y in walk(i)):
        return whole
    m, shape = machine(cascade, given, PROGRAM), given[name].shape
    for x in loads:
        places = [m.expr(i) for i in x.indices]
        axes = tuple(dict.fromkeys(a for p in places for a in p.axes))
        read: Array = np.zeros(shape, np.bool_)
        read[tuple(np.clip(p.aligned(axes), 0, n - 1) for p, n in zip(places, shape, strict=True))] = True
        whole.append(read)
    return whole


def _odd(x: Array) -> Array:
    """1, 2 and 3 for NaN, inf and -inf."""
    return np.where(np.isnan(x), 1, np.where(x == np.inf, 2, np.where(x == -np.inf, 3, 0)))


def _plain(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind in "fV" else np.zeros(1)


def steps_taken(fused: Fused) -> bool:
    """Are there roundings to few values in the program or its fused form?"""
    return any(isinstance(x, Cast) and x.dtype in FEW for e in fused.exprs() for x in walk(e))


def steps_moved(fused: Fused) -> bool:
    """Does the fusion round to few values elsewhere than its program (``casts="elide"``)?"""
    return fused.certificate.casts == "elide" and bool(fused.certificate.roundings)
