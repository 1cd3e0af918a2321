"""Roundings to float16 of weights below what it has in full: none moves out where a divisor below 1 makes them large again."""

from __future__ import annotations

import pytest

from redfuser.acrf import parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.derive import casts
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused

MASKED = """cascade {name}(x: f32[5, 40], k: bool[40], v: f16[40, 3]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp(x[i, l] - m)
  t1[i] = sum[l] select(k[l], exp(x[i, l] - m) / t, 0.0)
  o[i, e] = sum[l] f32(f16(select(k[l], exp(x[i, l] - m) / t, 0.0) / max(t1, 0.000001))) * f32(v[l, e])
  y[i, e] = f16(o)
  return y
"""
GATES = """cascade {name}(x: f16[5, 40], v: f16[40, 3]) over l
  t[i] = sum[l] sigmoid(f32(x[i, l]))
  o[i, e] = sum[l] f32(f16(sigmoid(f32(x[i, l])) / t)) * f32(v[l, e])
  y[i, e] = f16(o)
  return y
"""
SOFTMAX = """cascade plain(x: f16[5, 40], b: f32[5], v: f16[40, 3]) over l
  p[i, l] = f32(x[i, l]) * 0.125
  m[i] = max[l] p{clause}
  t[i] = sum[l] exp(p - {top})
  o[i, e] = sum[l] f32(f16(exp(p - {top}) / {total})) * f32(v[l, e])
  return o
"""


@pytest.mark.parametrize("text", [MASKED, GATES], ids=["masked", "gates"])
@pytest.mark.parametrize("how", ["preserve", "elide"])
def test_they_are_not_rounded_before_they_are_divided(text: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = fuse(parse_cascade(text.format(name="stays")), how)
    assert not isinstance(refused, Fused) and refused.code == "RF205"
    monkeypatch.setattr(casts, "_may_vanish", lambda *_: False)
    moved = fuse(parse_cascade(text.format(name="moved")), how)
    assert isinstance(moved, Fused) and ["moves across" in r for r in moved.certificate.roundings] == [True]
    assert any("rounding: o moves by more" in v for v in check(moved)), "the checker sees it as well"


@pytest.mark.parametrize(("clause", "top", "total"), [
    ("", "m", "t"), ("", "m", "(t + exp(b[i] - m))"), ("\n  u[i] = max(m, b[i])", "u", "(t + exp(b[i] - u))"),
    ("\n  u[i] = max(m, 0.0)", "u", "(t + exp(-u))"), ("", "m", "max(t, 0.000001)"),
], ids=["softmax", "sink", "sink in the maximum", "softmax off by one", "at least something"])
def test_weights_that_sum_to_one_or_more_before_are_rounded_as_they_are(clause: str, top: str, total: str) -> None:
    f = fuse(parse_cascade(SOFTMAX.format(clause=clause, top=top, total=total)), "preserve")
    assert isinstance(f, Fused)
    assert ["moves across" in r for r in f.certificate.roundings] == [True] and check(f) == []
