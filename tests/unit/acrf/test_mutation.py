"""A planted error in any one factor of a fused state is caught by the verifier, or proved to be no error."""

from __future__ import annotations

import os
import random

import pytest

from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from tests.unit.acrf.corpus import ACCEPT, Case
from tests.unit.acrf.mutants import distinguishes, mutants

WHOLE = ("softmax_denominator", "max_of_unknown_sign")
"""Cases of which every mutant is tried in every run; of the others a few, chosen by a fixed seed."""


def outcome(case: Case, some: int | None) -> tuple[int, list[str], list[str]]:
    """Number of mutants tried, equivalent survivors, and misses."""
    f = fuse(case.cascade, case.casts)
    planted = list(mutants(f))
    if some is not None and len(planted) > some:
        planted = random.Random(case.name).sample(planted, some)
    alive = [m for m in planted if not check(m.fused, enough=1)]
    misses = [str(m) for m in alive if distinguishes(f, m.fused)]
    return len(planted), [str(m) for m in alive if str(m) not in misses], misses


@pytest.mark.parametrize("case", ACCEPT, ids=lambda c: c.name)
def test_planted_errors_are_caught(case, record_property):
    tried, equivalent, misses = outcome(case, None if case.name in WHOLE else 1)
    record_property("equivalent mutants", equivalent)
    assert not misses
    assert tried > len(equivalent) or tried <= 1, "nothing was caught"


def test_a_guard_of_two_minima_is_told_from_one_of_their_maximum():
    """It shows only where one tensor of a row is infinite altogether, and the other is not."""
    (case,) = (c for c in ACCEPT if c.name == "two_minima")
    f = fuse(case.cascade, case.casts)
    planted = [m for m in mutants(f) if str(m).startswith(("finalize of t: min(m, n) -> max", "finalize of v: max(u, -n) -> min"))]
    assert len(planted) == 7 and all(check(m.fused, stability=False, enough=1) for m in planted)


def test_a_lost_guard_of_a_first_infinity_is_caught_where_other_results_are_nan():
    """k is finite and so is what is made of it, though the infinity makes other results NaN; the row rests on its length."""
    (case,) = (c for c in ACCEPT if c.name == "powers_of_ratios")
    planted = [m for m in mutants(fuse(case.cascade, case.casts)) if str(m).startswith("contribution of least_acc: inf -> 0.0")]
    assert len(planted) == 2 and check(planted[0].fused, stability=False, enough=1)


def test_a_range_is_asked_of_rows_whose_least_or_largest_is_zero():
    """There the guard of one end alone is 0, and what divides by the range is another number."""
    (case,) = (c for c in ACCEPT if c.name == "min_max_variance")
    planted = [m for m in mutants(fuse(case.cascade, case.casts)) if str(m).startswith(
        "finalize of v: select(hi == -inf, 0.0, hi) -> select(hi == -inf, hi, 0.0) in v_acc")]
    assert all(check(m.fused, stability=False, enough=1) for m in (planted[0], planted[2]))


@pytest.mark.slow
@pytest.mark.skipif("REDFUSER_ALL_MUTANTS" not in os.environ, reason="minutes: set REDFUSER_ALL_MUTANTS to run it")
@pytest.mark.parametrize("case", ACCEPT, ids=lambda c: c.name)
def test_every_planted_error_is_caught(case, record_property):
    tried, equivalent, misses = outcome(case, None)
    record_property("equivalent mutants", equivalent)
    assert not misses
    assert len(equivalent) <= tried / 3, equivalent
