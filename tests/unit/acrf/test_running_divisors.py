"""Roundings at running results: not where the divisor of a part of the row is infinite and the whole row's is not, and where
the numbers do not fit the type otherwise."""

from __future__ import annotations

import pytest

from redfuser.acrf import parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.derive import casts
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused

MEMORY = """cascade {name}(x: f32[5, 40], g: f32[5, 40], v: {dtype}[40, 3]) over l
  m[i] = max[l] x[i, l]
  p[i, l] = f32({dtype}(g[i, l])) * {scale}
  t[i] = sum[l] p * exp(x[i, l] - m)
  o[i, e] = sum[l] f32({dtype}(p * exp(x[i, l] - m) / (max(abs(t), exp(-m)) + 0.000001))) * f32(v[l, e])
  y[i, e] = {dtype}(o)
  return y
"""
LARGE = """cascade large(x: f32[5, 40], v: f16[40, 3]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp(x[i, l] - m)
  o[i, e] = sum[l] f32(f16(exp(x[i, l] - m) * {top} / (t + 10.0))) * f32(v[l, e])
  return o
"""


@pytest.mark.parametrize(("dtype", "scale"), [("bf16", "0.125"), ("bf16", "0.177"), ("f16", "3.0")])
def test_a_matrix_memory_is_divided_at_the_end(dtype: str, scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """xLSTM's: of the first keys of a row ``exp(-m)`` is infinite, and every result was NaN. Rounded before it is divided, the
    one weight of a row would not be 1 any more."""
    text = MEMORY.format(name="{name}", dtype=dtype, scale=scale)
    f = fuse(parse_cascade(text.format(name="divided")), "preserve")
    assert isinstance(f, Fused)
    assert ["is dropped" in r for r in f.certificate.roundings] == [True] and check(f) == []
    monkeypatch.setattr(casts, "_soars", lambda *_: False)
    running = fuse(parse_cascade(text.format(name="running")), "preserve")
    assert not isinstance(running, Fused) or any("not finite" in v for v in check(running)), "the checker sees it as well"


@pytest.mark.parametrize(("top", "where"), [("65504.0", "moves across"), ("200000.0", "taken at the running results")])
def test_a_bound_says_whether_a_number_fits(top: str, where: str) -> None:
    f = fuse(parse_cascade(LARGE.format(top=top)), "preserve")
    assert isinstance(f, Fused)
    assert [where in r for r in f.certificate.roundings] == [True] and check(f) == []
