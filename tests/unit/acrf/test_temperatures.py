"""Differences divided by literals, one after the other: coefficients that no float32 is equal to."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.facts.normal import ONE, number, to_poly
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from tests.evaluated import run

POINT_7, POINT_3, POINT_9 = 0.699999988079071, 0.30000001192092896, 0.8999999761581421
"""The float32 of .7, .3 and .9. The first and the last are odd numbers over 2^24."""

ROWS = {
    "over": f"(x[i, l] - m) / {POINT_7}",
    "over both": f"(x[i, l] - m) / {POINT_7} / {POINT_9}",
    "times both": f"(x[i, l] - m) * {POINT_7} * {POINT_3}",
    "over and times": f"(x[i, l] - m) / {POINT_7} * 1.2999999523162842",
    "over three": "(x[i, l] - m) / 1.7000000476837158 / 1.2999999523162842 / 1.100000023841858",
}


@pytest.mark.parametrize("name", ROWS)
def test_a_difference_over_a_temperature_stays_a_difference(name):
    cascade = parse_cascade(f"""cascade temper(x: f32[4, N], v: f32[N, 5]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp({ROWS[name]})
  o[i, e] = sum[l] exp({ROWS[name]}) / t * v[l, e]
  return o
""", "temper")
    fused = fuse(cascade)
    assert isinstance(fused, Fused), fused
    assert not check(fused)


@pytest.mark.parametrize("c", [
    1 / Fraction(POINT_7), 1 / Fraction(POINT_7) / Fraction(POINT_9), Fraction(POINT_7) * Fraction(POINT_3), Fraction(1, 3),
    Fraction(2**24), Fraction(2**24 + 1), Fraction(-(2**60) - 7), Fraction(5, 2**40), -Fraction(3**40, 7**30), Fraction(2)])
def test_a_rational_reads_back(c):
    assert to_poly(number(c, "f32")) == {ONE: c}


@pytest.mark.parametrize("c", [Fraction(POINT_7) ** 6, Fraction(POINT_7) ** -6, Fraction(3**40, 7**30), Fraction(-(5**60), 7**55)])
def test_nothing_on_the_way_to_a_rational_overflows(c):
    (value,) = run(parse_cascade(f"cascade c(x: f32[4, 3]) over l\n  m[i] = sum[l] x[i, l]\n  y[i] = m * {number(c, 'f32')}\n"
                                 "  return y\n", "c"), {"x": np.ones((4, 3), np.float32) / np.float32(3)}, "program").values()
    assert np.allclose(value, float(c), rtol=1e-6)


@pytest.mark.parametrize("name", ROWS)
def test_powers_of_a_difference_over_a_temperature(name):
    """Their coefficients stand in the certificate, which reads them back."""
    z = ROWS[name].replace("- m", "- u")
    fused = fuse(parse_cascade(f"""cascade skewness(x: f32[4, 129]) over l
  s[i] = sum[l] x[i, l]
  u[i] = s / 129.0
  t[i] = sum[l] pow({z}, 3.0)
  return t
""", "skewness"))
    assert isinstance(fused, Fused), fused
    assert not check(fused)


@pytest.mark.parametrize("scale", ["/ 255.0", "* 0.0010000000474974513", "/ 5.199999941396527e-05", "/ 17.0"])
def test_squares_of_a_difference_are_taken_where_the_program_takes_them(scale):
    """Those of 1e20 / 255 are numbers, those of 1e20 are not, and of 1e-20 they are 0."""
    z = f"(x[i, l] - u / 129.0) {scale}"
    fused = fuse(parse_cascade(f"""cascade norm(x: f32[4, 129]) over l
  u[i] = sum[l] x[i, l]
  t[i] = sum[l] ({z}) * ({z})
  y[i, l] = ({z}) * rsqrt(t / 9.0 + 0.0010000000474974513)
  return y
""", "norm"))
    assert isinstance(fused, Fused), fused
    assert not check(fused)
