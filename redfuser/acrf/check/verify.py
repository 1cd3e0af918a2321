"""Re-check a fusion without trusting whoever derived it.

    check(fused)        # [] when the certificate holds, else one line per violated obligation

The obligations, over samples of every axis with benign and adversarial elements (exact rationals where the operations
allow, else 50 digits):

* *structure*: the state reads only what exists when it is read; every result of the cascade is produced;
* *neutral*: ``init`` is neutral, an empty segment changes nothing;
* *segmentation*: every segmentation of a short row, empty segments included, absorbed step by step or merged, gives the
  state that one step over the whole row gives; *merge* is associative, commutative and has ``init`` as identity;
* *result*: ``finalize`` and ``post`` give what the unfused program gives, including where that is inf or NaN;
* *stability*: in the program's own dtypes the error keeps to the rule (:mod:`redfuser.rule`), over rows of every magnitude;
* *rounding*: with rounding casts the result is the unfused program's, or within the bound of the listed moves;
* *certificate*: its decompositions, identities and side conditions hold where they are evaluated.

This module shares no code with the deriver: it imports the expression IR, the state and the evaluators only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from redfuser.acrf.check.claims import Claims
from redfuser.acrf.check.domains import NUMPY, Array, Domain, Inexact, OutOfRange, domain, more_digits
from redfuser.acrf.check.evaluate import FusedMachine, share
from redfuser.acrf.check.labelled import Labelled
from redfuser.acrf.check.machine import Machine, State
from redfuser.acrf.check.samples import Sample, filled, sample, samples, segmentations
from redfuser.acrf.check.shorten import SHORT, restated
from redfuser.acrf.check.stability import check_roundings, check_stability
from redfuser.acrf.check.structure import check_structure
from redfuser.acrf.check.unrounded import unrounded
from redfuser.acrf.expr import FLOATS, Op, Reduce, Stmt, stmt_dtype, walk
from redfuser.acrf.state import Accumulator, Fused

RELATIVE = 1e-30
"""Two 50-digit values agree when they differ by at most this, relative to the larger and to the inputs' scale."""
WHOLE = 4096
"""The longest r-axis of known extent that is evaluated whole in exact numbers; longer ones are in NumPy (stability)."""
CLAIMED = 64.0
"""The third power of the inputs' scale, where claims are evaluated."""
_IRRATIONAL = frozenset({"exp", "exp2", "log", "log2", "tanh", "sigmoid", "erf", "sin", "cos", "sqrt", "rsqrt"})
INF = float("inf")
INFINITE = frozenset({"posinf", "neginf", "firstneginf", "fewneginf", "allneginf"})
"""Kinds of elements with infinities (samples.py)."""
ENOUGH = 8
"""Violations after which checking stops."""
_PLACES = " (places)"
LONGER = (9, 24)
"""Lengths of rows where too few short ones give a defined result."""
LONGEST_AS_WRITTEN = 64
"""The longest row of known extent whose roundings are compared in one segment."""
LEAST, LEAST_SHARE = 3, 0.1
"""Samples, and the share of all samples, on which some output must be defined for them to prove anything."""


def check(fused: Fused, seed: int = 0, stability: bool = True, enough: int = ENOUGH) -> list[str]:
    """Violated obligations, one line each; empty when the fusion holds. Deterministic for a given ``seed``.

    stability: also compare errors in the program's own dtypes. Without it the exact obligations alone are checked, which
    is what can be asked of a program that is itself meaningless in fp32. enough: violations to stop after."""
    found = check_structure(fused)
    if found:
        return found
    fused = share(fused)
    try:
        with np.errstate(all="ignore"):
            for violation in _checks(fused, seed, stability):
                if violation not in found:
                    found.append(violation)
                if len(found) >= enough:
                    break
    except Exception as e:  # an expression no evaluator accepts is a violation, whatever it raises
        found.append(f"evaluation: {type(e).__name__}: {e}")
    return found


def _checks(listed: Fused, seed: int, stability: bool) -> Iterator[str]:
    fused = unrounded(listed)
    cascade = fused.cascade
    run = _Run(fused)
    ks = [s.reducer.k for s in cascade.stmts if isinstance(s, Reduce) and s.reducer.kind == "topk"]
    length = max([3, *(k + 1 for k in ks)])
    for n, signed in ((length, True), (length, False), *((n, True) for n in LONGER)):
        run.tried, run.compared = 0, set()
        for i, s in enumerate(samples(cascade, n, seed, signed)):
            yield from check_sample(fused, s, thorough=i < 2, run=run)
        if not list(run.enough()):  # a logarithm wants positive rows; a short row may leave a group of its elements empty
            break
    yield from check_sample(fused, sample(cascade, {}, "generic", 0, seed), run=run)
    yield from check_sample(fused, sample(cascade, {}, "ties", max(ks, default=1), seed), run=run)
    yield from check_sample(fused, sample(cascade, {}, "generic", length + 4, seed), run=run)
    if run.relied_on and run.extent <= WHOLE:
        yield from run.on(fused, _whole(fused, sample(cascade, {}, "generic", length, seed)), _no_cuts)
    yield from run.enough()
    yield from check_claims(fused, run, seed)
    yield from check_roundings(listed, seed)
    yield from _in_one_segment(listed, length, seed)
    if stability:
        yield from check_stability(fused, seed, run.rests)


def _in_one_segment(listed: Fused, length: int, seed: int) -> Iterator[str]:
    """Roundings taken at running results are the program's own where one segment is the whole row."""
    lines = listed.certificate.roundings
    if not lines or not all("at the running results" in line for line in lines):
        return
    extent = listed.cascade.extent(listed.cascade.raxis)
    if isinstance(extent, int):  # an estimate of the whole row is its own only there
        length = extent
    if length > LONGEST_AS_WRITTEN:
        return
    as_written = replace(listed, certificate=replace(listed.certificate, roundings=()))
    run = _Run(as_written)
    for kind in ("generic", "large"):
        for violation in run.on(as_written, sample(listed.cascade, {}, kind, length, seed), lambda n: [(n,)]):
            if _is_result(violation):
                yield violation.replace("result:", "rounding: in one segment,")


def check_claims(fused: Fused, run: _Run | None = None, seed: int = 0) -> Iterator[str]:
    """What the certificate says, on rows of which it is said: whole ones where the program rests on their length."""
    run = run or _Run(fused)
    if run.rests and run.extent > WHOLE:
        return
    numbers = domain("digits", not fused.certificate.roundings)
    for kind in ("generic",) if run.rests else ("generic", "ties", "zeros"):
        s = sample(fused.cascade, {}, kind, 4, seed)
        try:
            yield from Claims.on(fused, _whole(fused, s) if run.rests else s, numbers, _all_near).violations()
        except OutOfRange:
            continue


def _all_near(a: Array, b: Array) -> Array:
    return np.asarray(np.frompyfunc(partial(_near, scale=CLAIMED), 2, 1)(a, b), np.bool_)


Cuts = Callable[[int], list[tuple[int, ...]]]
"""For a number of elements, the segmentations to try."""

# -- one sample --------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """One check: the fusion restated for rows shorter than its extent, and how many samples said anything."""

    fused: Fused
    known: dict[int, Fused | None] = field(default_factory=dict)
    relied_on: bool = False
    rests: bool = False
    """Was some row shorter than the known extent no row of this program?"""
    tried: int = 0
    compared: set[str] = field(default_factory=set)

    @property
    def extent(self) -> int:
        extent = self.fused.cascade.extent(self.fused.cascade.raxis)
        return extent if isinstance(extent, int) else 0

    def on(self, fused: Fused, s: Sample, cuts: Cuts) -> list[str]:
        """The obligations on one sample, in rationals or else in 50 digits."""
        rounding = not fused.certificate.roundings
        irrational = any(isinstance(x, Op) and x.name in _IRRATIONAL
                         for stmt in fused.cascade.stmts for x in walk(stmt.expr))
        for precision in ("digits",) if irrational else ("exact", "digits"):
            try:
                trial = _Trial(fused, s, domain(precision, rounding))
                found = list(trial.violations(cuts))
                if irrational and any(map(_of_places, found)):
                    with more_digits():  # places are decided by differences that 50 digits may not show
                        trial = _Trial(fused, s, domain(precision, rounding))
                        found = list(trial.violations(cuts))
            except Inexact:
                continue
            except OutOfRange:
                return []
            self.compared |= {s.name} if trial.compared else set()
            return found
        return []

    def enough(self) -> Iterator[str]:
        """A program whose results are almost never defined on the samples is not proved by them."""
        if len(self.compared) < max(LEAST, LEAST_SHARE * self.tried):
            yield (f"samples: too few samples could be compared: {len(self.compared)} of {self.tried} give a defined "
                   "result that the evaluators can represent")

    def holds(self, s: Sample, cuts: Cuts) -> bool:
        """Do all obligations hold on a row of (at least) the sample's length that is as long as its literals say?"""
        n = min((x for x in SHORT if x >= len(s.points[self.fused.cascade.raxis])), default=max(SHORT))
        if n not in self.known:
            other = restated(self.fused, n)
            self.known[n] = other and share(other)
        other = self.known[n]
        if other is None or self.on(other, sample(self.fused.cascade, s.kinds, s.default, n, s.seed), cuts):
            return False
        self.relied_on = True
        return True


def check_sample(fused: Fused, s: Sample, thorough: bool = False, run: _Run | None = None) -> list[str]:
    """Every obligation that is about exact values, on one sample: in rationals, or in 50 digits where those end.

    A result may rest on the r-axis's known extent (``t / 768.0`` is a mean of 768 elements). Where a result over a
    shorter sample differs, the same distribution decides over a short row with those literals restated
    (:mod:`redfuser.acrf.check.shorten`), and where that is no valid statement, over the whole extent. Whoever relies on a
    restatement also checks one whole row exactly, and whole rows of every distribution in the program's dtypes.
    """
    cuts, run = _all_cuts if thorough else _some_cuts, run or _Run(fused)
    n = len(s.points[fused.cascade.raxis])
    run.tried += n > 0
    if 0 < n < run.extent and run.relied_on and run.holds(s, cuts):
        return []
    found = run.on(fused, s, cuts)
    if 0 < n < run.extent and any(map(_is_result, found)):
        run.rests = True
        found = [v for v in found if not _is_result(v)]
        if not run.holds(s, cuts) and run.extent <= WHOLE:
            found += run.on(fused, _whole(fused, s), _no_cuts)
    return found


def _whole(fused: Fused, s: Sample) -> Sample:
    """The sample's distributions over the whole of a known extent."""
    extent = fused.cascade.extent(fused.cascade.raxis)
    assert isinstance(extent, int)
    return sample(fused.cascade, s.kinds, s.default, extent, s.seed, inner=1)


def _of_places(violation: str) -> bool:
    return violation.endswith(_PLACES)


def _ranked(reference: Machine, s: Stmt) -> bool:
    """Are the values that argmax or topk ranks all finite?"""
    if not isinstance(s, Reduce) or s.expr.dtype not in FLOATS:
        return True
    return bool(np.all(np.asarray(np.abs(reference.expr(s.expr).data) < INF, np.bool_)))


def _is_result(violation: str) -> bool:
    return violation.startswith("result")


@dataclass
class _Trial:
    """One sample in one number system."""

    fused: Fused
    sample: Sample
    numbers: Any
    spans: dict[tuple[int, int], State] = field(default_factory=dict)
    scale: float = 1.0
    masked: bool = False
    """Is the row masked altogether? Then the program's NaN is promised."""
    reached: bool = False
    """Does an infinite element reach a result? Then a NaN may come out, but no other number."""
    compared: bool = False
    """Was some element of an output defined, so that the comparison said something?"""

    def violations(self, cuts: Cuts) -> Iterator[str]:
        f = self.machine = FusedMachine.on(self.fused, self.sample.machine(self.fused.cascade, self.numbers))
        n, init = f.length, f.init()
        reference = self.sample.machine(self.fused.cascade, self.numbers)
        for stmt in self.fused.cascade.stmts:
            reference.statement(stmt)
        kinds = set(self.sample.kinds.values())
        self.masked = "allneginf" in kinds and not self._infinite(reference)
        self.reached = not self.masked and bool(kinds & INFINITE) and not self._defined(reference)
        self.scale = self._scale(reference)
        whole = self.span(0, n)
        if cuts is _all_cuts:  # about no element of the sample
            yield from self._neutrals()
        if self.reached:  # states may differ by NaN; what is made of them must be the program's, or NaN
            for state in self._states(cuts(n)):
                yield from self._results(reference, f.finish(state))
            return
        yield from self._same("neutral: an empty segment changes the state", f.step(whole, n, n), whole)
        yield from self._same("neutral: an empty segment is not init", self.span(0, 0), init)
        for what, got in self._segments(whole, init, _without_empty(cuts(n)) if cuts is _some_cuts else cuts(n)):
            yield from self._same(what, got, whole)
            if n and self._excuses(got, whole):  # a NaN for an infinity in a state is a NaN in a result, or none
                yield from self._results(reference, f.finish(got))
        if n:  # the certificate's condition: the whole row has an element
            yield from self._results(reference, f.finish(whole))

    def span(self, start: int, stop: int) -> State:
        if (start, stop) not in self.spans:
            self.spans[start, stop] = self.machine.step(self.machine.init(), start, stop)
        return self.spans[start, stop]

    def _states(self, cuts: list[tuple[int, ...]]) -> Iterator[State]:
        """The whole row's state, by every segmentation: absorbed, and merged from the left."""
        steps: dict[tuple[int, ...], State] = {(): self.machine.init()}
        for cut in cuts:
            spans = list(pairwise(np.cumsum([0, *cut]).tolist()))
            yield self._absorbed(steps, cut)
            if len(cut) in (2, 3):
                yield reduce(self.machine.merge, [self.span(*span) for span in spans])

    def _segments(self, whole: State, init: State, cuts: list[tuple[int, ...]]) -> Iterator[tuple[str, State]]:
        """The whole row's state by every way that must give it, and what each asks."""
        steps: dict[tuple[int, ...], State] = {(): init}
        for cut in cuts:
            yield f"segmentation: steps over {list(cut)}", self._absorbed(steps, cut)
        for what, got in self._merges(whole, init, cuts):
            yield f"merge: {what}", got

    def _absorbed(self, steps: dict[tuple[int, ...], State], cut: tuple[int, ...]) -> State:
        """The state after segments of these lengths, from the longest prefix that is known."""
        for i, (start, stop) in enumerate(pairwise(np.cumsum([0, *cut]).tolist())):
            if cut[:i + 1] not in steps:
                steps[cut[:i + 1]] = self.machine.step(steps[cut[:i]], start, stop) if i else self.span(start, stop)
        return steps[cut]

    def _merges(self, whole: State, init: State, cuts: list[tuple[int, ...]]) -> Iterator[tuple[str, State]]:
        """Every way to merge the states of two and of three segments, which must all give the state of the whole."""
        parts = {cut: [self.span(*ends) for ends in pairwise(np.cumsum([0, *cut]).tolist())] for cut in cuts
                 if len(cut) in (2, 3)}
        two = [("init is no identity", whole, init), ("init is no identity", init, whole)]
        two += [(f"of segments {list(c)}", p[0], p[1]) for c, p in parts.items() if len(c) == 2]
        two += [(f"not commutative on {list(c)}", p[1], p[0]) for c, p in parts.items() if len(c) == 2]
        three = [(c, p[0], p[1], p[2]) for c, p in parts.items() if len(c) == 3]
        inner: list[tuple[State, State]] = [pair for _, a, b, c in three for pair in ((a, b), (b, c), (c, a))]
        merged = self.machine.merges([*[(a, b) for _, a, b in two], *inner])
        yield from zip([what for what, *_ in two], merged, strict=False)
        outer: list[tuple[State, State]] = []
        names = []
        for i, (cut, a, b, c) in enumerate(three):
            ab, bc, ca = merged[len(two) + 3 * i:len(two) + 3 * i + 3]
            outer += [(ab, c), (a, bc), (ca, b)]
            names += [f"not associative on {list(cut)}", f"not associative on {list(cut)}", f"out of order on {list(cut)}"]
        yield from zip(names, self.machine.merges(outer), strict=True)

    def _neutrals(self) -> Iterator[str]:
        m = self.machine.whole
        for a in self.fused.state.accumulators:
            neutral = tuple(m.expr(c) for c in a.neutral)
            for probe in _probes(a, self.numbers):
                values = dict(zip(a.names, probe, strict=True))
                for left, right in ((neutral, probe), (probe, neutral)):
                    mixed = dict(zip(a.names, m.combine(a, left, right), strict=True))
                    yield from self._same(f"neutral: {', '.join(map(str, a.neutral))} is not neutral for {a.reducer} "
                                          f"of {a.name}", mixed, values)

    def _results(self, reference: Machine, fused: Machine) -> Iterator[str]:
        cascade = self.fused.cascade
        for s in cascade.stmts:
            for name in s.names:
                if name not in fused.values or name not in reference.values:
                    continue
                shape = [len(reference.ranges[a]) for a in s.axes]
                want, got = (np.broadcast_to(m.values[name].aligned(s.axes), shape) for m in (reference, fused))
                if want.dtype == object:
                    got = np.where(self._excused(name in cascade.outputs, got, want), want, got)
                    if "nan" in self.sample.kinds.values() and not self._close(got, want):
                        got = self._of_other_origin(name, shape, got, want)
                elif stmt_dtype(s, name) == "i64" and not (self._defined(reference) and _ranked(reference, s)):
                    continue  # which of several NaN or infinite elements is best
                self.compared |= name in cascade.outputs and (want.dtype != object or bool(np.any(np.abs(want) < INF)))
                if not self._close(got, want):
                    yield f"result: {name} differs from the unfused program ({self.sample.name}): " \
                          f"{_show(got)} instead of {_show(want)}" + (_PLACES if stmt_dtype(s, name) == "i64" else "")

    def _excused(self, output: bool, got: Array, want: Array) -> Array:
        """Where the table of decisions (docs/algebra.md) lets the fused form differ: NaN and an infinity for one another, but
        never one infinity for the other; NaN where an infinite element reaches a result; and what stays inside the kernel
        counts where the program defines it. What is not finite never becomes a number."""
        undefined = want != want
        excused = (undefined & (np.abs(got) == INF)) | ((np.abs(want) == INF) & (got != got)) | (undefined & (got != got))
        if self.reached:
            excused |= got != got
        if output and (self.masked or "nan" in self.sample.kinds.values()):  # promised: NaN where the program is NaN
            excused &= ~undefined
        return np.asarray(excused if output else excused | undefined, np.bool_)

    def _of_other_origin(self, name: str, shape: list[int], got: Array, want: Array) -> Array:
        """``got`` with what is undefined in it excused where the program is undefined without any NaN in its inputs."""
        plain = self.sample.machine(self.fused.cascade, self.numbers)
        plain = replace(plain, tensors={n: filled(t) for n, t in self.sample.tensors.items()})
        for stmt in self.fused.cascade.stmts:
            plain.statement(stmt)
        clean = np.broadcast_to(plain.values[name].aligned(self.fused.cascade.stmt(name).axes), shape)
        defined = np.asarray(np.abs(clean) < INF, np.bool_) | np.asarray(np.abs(got) < INF, np.bool_)
        return np.where(defined, got, want)

    def _infinite(self, reference: Machine) -> bool:
        """Is a result infinite that is not the maximum of nothing? A row that is masked altogether is NaN otherwise."""
        extrema = {s.name for s in self.fused.cascade.stmts if isinstance(s, Reduce) and s.reducer.kind in ("max", "topk")}
        return any(bool(np.any(r == INF)) or (n not in extrema and bool(np.any(r == -INF)))
                   for n, r in self._float_results(reference).items())

    def _defined(self, reference: Machine) -> bool:
        """Is every result of the r-axis finite?"""
        return all(bool(np.all(np.abs(r) < INF)) for r in self._float_results(reference).values())

    def _float_results(self, reference: Machine) -> dict[str, Array]:
        cascade = self.fused.cascade
        return {s.name: reference.values[s.name].data for s in cascade.stmts if isinstance(s, Reduce)
                and s.over == cascade.raxis and stmt_dtype(s, s.name) in FLOATS}

    def _same(self, what: str, got: Mapping[str, Labelled], want: Mapping[str, Labelled]) -> Iterator[str]:
        for name, value in want.items():
            if got[name].axes == value.axes and _identical(got[name].data, value.data):
                continue
            axes = tuple(dict.fromkeys((*value.axes, *got[name].axes)))
            x, y = np.broadcast_arrays(got[name].aligned(axes), value.aligned(axes))
            if y.dtype == object:
                x = np.where(self._excused(True, x, y), y, x)
            if not self._close(x, y):
                yield f"{what} ({self.sample.name}): {name} is {_show(x)} instead of {_show(y)}"

    def _excuses(self, got: Mapping[str, Labelled], want: Mapping[str, Labelled]) -> bool:
        """Is one of the two NaN where the other is infinite?"""
        pairs = [(got[n].data, w.data) for n, w in want.items() if got[n].axes == w.axes]
        return any(x.shape == y.shape and bool(np.any((x != x) ^ (y != y))) for x, y in pairs)

    def _close(self, got: Array, want: Array) -> bool:
        if got.dtype != object or want.dtype != object:
            return bool(np.array_equal(got, want))
        return all(_near(a, b, self.scale) for a, b in zip(got.ravel(), want.ravel(), strict=True))

    def _scale(self, m: Machine) -> float:
        """The third power of the largest finite input: what cancellation may leave behind, in units of RELATIVE."""
        sizes = [abs(float(v)) for t in self.sample.tensors.values() if t.dtype in FLOATS for v in t.drawn.values()]
        return max([1.0, *(v for v in sizes if v < INF)]) ** 3


def _probes(a: Accumulator, numbers: Domain) -> Iterator[tuple[Labelled, ...]]:
    """Values that a neutral element must leave as they are, infinities included; for payloads best first."""
    if a.reducer.kind in ("argmax", "argmin", "topk"):
        sign, k = (-1 if a.reducer.kind == "argmin" else 1), a.reducer.k
        axes = a.axes[-1:] if a.reducer.kind == "topk" else ()
        for row in ([2.0, -1.0], []):
            best = [sign * v for v in [*row, *[-INF] * k][:k]] if a.dtype in FLOATS else [sign * (9 - i) for i in range(k)]
            values, places = _stored(best, a.dtype, numbers), np.arange(5, 5 + k)
            yield tuple(Labelled(axes, x if axes else x.reshape(())) for x in (values, places))
    elif a.dtype == "bool":
        yield from ((Labelled((), np.asarray(v)),) for v in (False, True))
    else:
        infinities = [-INF, INF] if a.dtype in FLOATS and a.reducer.kind != "prod" else []
        yield from ((Labelled((), _stored([v], a.dtype, numbers).reshape(())),) for v in [-3, 0, 2, *infinities])


def _stored(values: list[Any], dtype: str, numbers: Domain) -> Array:
    return numbers.enter(np.array(values, np.float64), dtype) if dtype in FLOATS else np.array(values, NUMPY[dtype])


def _identical(got: Array, want: Array) -> bool:
    """Equal element by element: then no rule about what may differ needs to be asked. A NaN is equal to nothing."""
    if got.shape != want.shape or got.dtype != object:
        return False
    return all(map(operator.eq, got.ravel().tolist(), want.ravel().tolist()))


def _near(a: Any, b: Any, scale: float) -> bool:
    if a != a or b != b:
        return a != a and b != b
    if a == b:
        return True
    if isinstance(a, float) or isinstance(b, float) or abs(a) == INF or abs(b) == INF:
        return False
    return bool(abs(a - b) <= RELATIVE * (max(abs(a), abs(b)) + scale)) and not (_rational(a) and _rational(b))


def _rational(a: Any) -> bool:
    return hasattr(a, "numerator")


def _show(x: Array) -> str:
    flat = [f"{float(v):.6g}" for v in x.ravel()[:4]]
    return ", ".join(flat) + (", ..." if x.size > 4 else "")


def _without_empty(cuts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those of segments that have an element: that an empty one changes no state, and is init by itself, is asked apart."""
    return [c for c in cuts if all(c)] or cuts


def _no_cuts(n: int) -> list[tuple[int, ...]]:
    return []


def _all_cuts(n: int) -> list[tuple[int, ...]]:
    return list(segmentations(n)) if n <= 4 else _some_cuts(n)


def _some_cuts(n: int) -> list[tuple[int, ...]]:
    half = n // 2
    cuts = {(n,), (0, n), (n, 0), (half, n - half), (1, n - 1), (half, 0, n - half), (1,) * n}
    if n >= 3:
        cuts |= {(1, n - 2, 1), (n - 2, 1, 1)}
    return sorted(c for c in cuts if sum(c) == n and min(c, default=0) >= 0)

