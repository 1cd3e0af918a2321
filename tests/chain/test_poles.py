"""Results near a pole: luck, and the order of a contraction's sums, decide what a draw's error is of them. The program is free
in that order, and in units of what each result may lose there is no luck."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from redfuser import chain
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.expr import Const, Op
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from redfuser.cache import Cache
from redfuser.chain.judge import Want, conditioned
from redfuser.strategies import realise

TANIMOTO = """cascade tanimoto(x: f32[23, 71], y: f32[31, 71], u: f32[23, 1], w: f32[31]) over l
  s[i, l] = sum[c] x[i, c] * y[l, c]
  p[i, l] = s / (u[i, 0] + w[l] - s)
  t[i] = sum[l] p
  m[i] = max[l] p
  return m, t
"""


def fused() -> Fused:
    found = fuse(parse_cascade(TANIMOTO, "tanimoto"))
    assert isinstance(found, Fused)
    return found


def test_a_similarity_whose_denominator_may_cancel_is_built(tmp_path: Path) -> None:
    """The kernel adds 64 of 71 products in turn, a library that the program may call adds them side by side."""
    assert chain.scalar_program(realise(fused(), "single"), True, Cache(tmp_path)).violations == ()


def test_an_error_of_all_the_sums_is_found(tmp_path: Path) -> None:
    """One in 20,000 of every product."""
    right = fused()
    s, *others = right.producers
    wrong = replace(s, expr=Op("mul", (s.expr, Const(1.00005, "f32")), "f32"))
    broken = replace(right, producers=(wrong, *others))
    assert chain.scalar_program(realise(broken, "single"), True, Cache(tmp_path)).violations


@pytest.mark.parametrize("factor, right", [(1.0, True), (2.0, True), (8.0, False)])
def test_errors_count_in_units_of_what_is_lost(factor: float, right: bool) -> None:
    """Of eight results one, of 1e4 the others' loss, has by luck none of it in the program."""
    rng = np.random.default_rng(1)
    lost = np.array([1e-3, *[1e-7] * 7])
    exact = np.ones(8)
    draws = []
    for _ in range(5):
        program, ours = exact + lost * rng.uniform(-1, 1, 8), exact + factor * lost * rng.uniform(-1, 1, 8)
        program[0] = 1 + 1e-6
        draws.append((ours, Want(program, exact, "f32", lambda: [], 1e30), exact, lost))
    assert (conditioned(draws) == "") is right


def test_what_has_no_units_stays_wrong() -> None:
    exact = np.ones(3)
    assert conditioned([(exact * 1.5, Want(exact, exact, "f32", lambda: [], 1e30), exact, np.zeros(3))])
    assert conditioned([(exact.astype(int) + 1, Want(exact.astype(int), exact, "i64", lambda: [], 1e30), exact, exact)])
