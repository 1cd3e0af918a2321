"""How precise the sums of a product in a row must be: by what becomes of them."""

from __future__ import annotations

import pytest

from redfuser.acrf import parse_cascade
from redfuser.dtypes import UNIT
from redfuser.tensorize.precision import SINGLE, read_in

HALF = float(UNIT["bf16"])

SCORES = """cascade loss(x: bf16[64, 32], w: bf16[128, 32], y: i64[64]) over l
  s[i, l] = sum[c] f32(x[i, c]) * f32(w[l, c])
  m[i] = max[l] f32(bf16(s))
  d[i] = sum[l] exp(f32(bf16(s)) - m)
{more}
"""


@pytest.mark.parametrize(("more", "wanted"), [
    ("  t[i] = sum[l] select(l == y[i], s, 0.0)\n  o[i] = m + log(d) - f32(bf16(t))\n  return o", HALF),
    ("  t[i] = sum[l] select(y[i] == l, s * 0.5, 0.0)\n  o[i] = m + log(d) - f32(bf16(t * 2.0))\n  return o", HALF),
    ("  t[i] = min[l] s\n  o[i] = m + log(d) - f32(bf16(t))\n  return o", HALF),
    ("  u[i, l] = s * 0.25\n  t[i] = max[l] u\n  o[i] = d - f32(bf16(t))\n  return o", HALF),
    ("  t[i] = sum[l] select(l == y[i], s, 0.0)\n  o[i] = m + log(d) - t\n  return o", SINGLE),
    ("  t[i] = sum[l] select(l == y[i], s, 0.0)\n  o[i] = m + log(d) - f32(bf16(t))\n  return o, t", SINGLE),
    ("  t[i] = sum[l] select(l <= y[i], s, 0.0)\n  o[i] = m + log(d) - f32(bf16(t))\n  return o", SINGLE),
    ("  t[i] = sum[l] select(l == l * y[i], s, 0.0)\n  o[i] = m + log(d) - f32(bf16(t))\n  return o", SINGLE),
    ("  t[i] = sum[l] select(l == y[i], s, 1.0)\n  o[i] = m + log(d) - f32(bf16(t))\n  return o", SINGLE),
    ("  t[i] = sum[l] s\n  o[i] = m + log(d) - f32(bf16(t))\n  return o", SINGLE),
    ("  t[i] = max[l] s + 1.0\n  o[i] = m + log(d) - f32(bf16(t))\n  return o", SINGLE),
], ids=["the label's", "scaled before and behind", "the smallest", "by way of a value", "not rounded", "a result itself",
        "a part of the row", "no one place", "others are not 0", "all of the row", "something added"])
def test_what_is_picked_and_then_rounded_is_read_rounded(more: str, wanted: float) -> None:
    assert read_in(parse_cascade(SCORES.format(more=more)), "s") == wanted
