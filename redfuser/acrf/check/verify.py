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

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from redfuser.acrf import functions
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.check.claims import Claims
from redfuser.acrf.check.cuts import Cuts, all_cuts, first_cut, no_cuts, some_cuts
from redfuser.acrf.check.digits import MANY, MOST, OutOfRange, more_digits
from redfuser.acrf.check.domains import Array
from redfuser.acrf.check.evaluate import share
from redfuser.acrf.check.exact import Inexact
from redfuser.acrf.check.moved import check_roundings
from redfuser.acrf.check.samples import FIRST, Sample, sample, samples
from redfuser.acrf.check.shorten import SHORT, may_rest_on_length, restated
from redfuser.acrf.check.stability import check_stability
from redfuser.acrf.check.structure import check_structure
from redfuser.acrf.check.systems import domain
from redfuser.acrf.check.trial import Trial, near, of_places
from redfuser.acrf.check.unrounded import unrounded
from redfuser.acrf.expr import Op, walk
from redfuser.acrf.state import Fused

WHOLE = 4096
"""The longest r-axis of known extent that is evaluated whole in exact numbers; longer ones are in NumPy (stability)."""
CLAIMED = 64.0
"""The third power of the inputs' scale, where claims are evaluated."""
ENOUGH = 8
"""Violations after which checking stops."""
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
        yield from run.on(fused, _whole(fused, sample(cascade, {}, "generic", length, seed)), no_cuts)
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
        s = _whole(fused, s) if run.rests else s
        with suppress(OutOfRange):
            found = list(Claims.on(fused, s, numbers, _all_near).violations())
            if found:
                with more_digits(MANY):
                    found = list(Claims.on(fused, s, numbers, _all_near).violations())
            yield from found


def _all_near(a: Array, b: Array) -> Array:
    return np.asarray(np.frompyfunc(partial(near, scale=CLAIMED), 2, 1)(a, b), np.bool_)


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
        irrational = any(isinstance(x, Op) and x.name in functions.TABLE
                         for stmt in fused.cascade.stmts for x in walk(stmt.expr))
        for precision in ("digits",) if irrational else ("exact", "digits"):
            try:
                trial = Trial(fused, s, domain(precision, rounding))
                found = list(trial.violations(cuts))
                for digits in (MANY, MOST) if irrational else ():
                    if found and (digits < MOST or any(map(of_places, found))):
                        with more_digits(digits):
                            trial = Trial(fused, s, domain(precision, rounding))
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
        n = _shortest(len(s.points[self.fused.cascade.raxis]))
        other = self.at(n)
        if other is None or self.on(other, sample(self.fused.cascade, s.kinds, s.default, n, s.seed), cuts):
            return False
        self.relied_on = True
        return True

    def decides(self, n: int) -> bool:
        """Is a sample of n elements that does not hold a row of this program, whose whole rows are too long to evaluate?"""
        return self.at(_shortest(n)) is not None or not may_rest_on_length(self.fused)

    def at(self, n: int) -> Fused | None:
        """The fusion restated for rows of n."""
        if n not in self.known:
            other = restated(self.fused, n)
            self.known[n] = other and share(other)
        return self.known[n]


def _shortest(n: int) -> int:
    """The length of a restated row for a sample of n elements."""
    return min((x for x in SHORT if x >= n), default=max(SHORT))


def check_sample(fused: Fused, s: Sample, thorough: bool = False, run: _Run | None = None) -> list[str]:
    """Every obligation that is about exact values, on one sample: in rationals, or in 50 digits where those end.

    A result may rest on the r-axis's known extent (``t / 768.0`` is a mean of 768 elements). Where a result over a
    shorter sample differs, the same distribution decides over a short row with those literals restated
    (:mod:`redfuser.acrf.check.shorten`), and where that is no valid statement, over the whole extent; of rows too long for
    that, the restated one or, where no literal may be a length, the sample itself. Whoever relies on a
    restatement also checks one whole row exactly, and whole rows of every distribution in the program's dtypes.
    """
    cuts, run = all_cuts if thorough else some_cuts, run or _Run(fused)
    n = len(s.points[fused.cascade.raxis])
    run.tried += n > 0
    if 0 < n < run.extent and run.relied_on and run.holds(s, cuts):
        return []
    found = run.on(fused, s, cuts)
    if 0 < n < run.extent and any(map(_is_result, found)):
        run.rests = True
        short, found = [v for v in found if _is_result(v)], [v for v in found if not _is_result(v)]
        if not run.holds(s, cuts):
            if run.extent <= WHOLE:
                found += run.on(fused, _whole(fused, s), first_cut if FIRST.keys() & s.kinds.values() else no_cuts)
            elif run.decides(n):
                found += short
    return found


def _whole(fused: Fused, s: Sample) -> Sample:
    """The sample's distributions over the whole of a known extent."""
    extent = fused.cascade.extent(fused.cascade.raxis)
    assert isinstance(extent, int)
    return sample(fused.cascade, s.kinds, s.default, extent, s.seed, inner=1)


def _is_result(violation: str) -> bool:
    return violation.startswith("result")
