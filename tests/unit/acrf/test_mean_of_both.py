"""Whether a mean takes what its own rounding left in the deviations: only where an element, or an extremum, is held against it."""

from __future__ import annotations

import pytest

from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade

TEXT = """cascade c(x: f32[I, 256], z: f32[I]) over l
  s[i] = sum[l] x[i, l]
  top[i] = max[l] x[i, l]
  mean[i] = s / 256
  v[i] = sum[l] (x[i, l] - mean) * (x[i, l] - mean)
  y[i] = {y}
  return y
"""


@pytest.mark.parametrize(("y", "taken"), [
    ("(z[i] - mean) / sqrt(v / 256 + 1e-5)", True), ("(top - mean) / sqrt(v / 256 + 1e-5)", True),
    ("mean * mean / (v / 256 + 1e-5)", False), ("(mean * 2 + 1e-4) / ((mean * mean + 1e-4) * (v / 256 + 1e-3))", False)])
def test_a_mean_that_is_held_against_no_element_is_its_sum(y, taken):
    """Of 2145 normal numbers ``sum (x - mean)`` was 8 times what the sum had lost, and so was SSIM's error."""
    fused = fuse(parse_cascade(TEXT.format(y=y)))
    assert isinstance(fused, Fused)
    assert any("takes too" in c for c in fused.certificate.choices) == taken
