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


def test_a_matrix_memory_in_bfloat16_divides_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """xLSTM's: of the first keys of a row ``exp(-m)`` is infinite, and every result was NaN."""
    text = MEMORY.format(name="{name}", dtype="bf16", scale="0.125")
    f = fuse(parse_cascade(text.format(name="moved")), "preserve")
    assert isinstance(f, Fused)
    assert ["moves across" in r for r in f.certificate.roundings] == [True] and check(f) == []
    monkeypatch.setattr(casts, "_soars", lambda *_: False)
    running = fuse(parse_cascade(text.format(name="running")), "preserve")
    assert isinstance(running, Fused) and any("not finite" in v for v in check(running)), "the checker sees it as well"


def test_in_float16_numbers_beyond_it_are_divided_before_they_are_rounded() -> None:
    f = fuse(parse_cascade(MEMORY.format(name="half", dtype="f16", scale="3.0")), "preserve")
    assert not isinstance(f, Fused) and f.code == "RF205" and "may be infinite" in f.why


@pytest.mark.parametrize(("top", "where"), [("65504.0", "moves across"), ("200000.0", "taken at the running results")])
def test_a_bound_says_whether_a_number_fits(top: str, where: str) -> None:
    f = fuse(parse_cascade(LARGE.format(top=top)), "preserve")
    assert isinstance(f, Fused)
    assert [where in r for r in f.certificate.roundings] == [True] and check(f) == []
