"""Rows of which a mask behind an exponential leaves nothing but what is subnormal: they are drawn where something divides by what
is left, and what rounds it there, or divides by it on the way, is found out by them."""

from __future__ import annotations

import numpy as np
import pytest

from redfuser.acrf import NotFusable, fuse, parse_cascade
from redfuser.acrf.cascade import Cascade
from redfuser.acrf.check.faint import Rows, sort
from redfuser.acrf.check.moved import check_roundings
from redfuser.acrf.derive import casts, total
from redfuser.acrf.state import Fused
from redfuser.chain import tiles, twin
from redfuser.chain.draws import draws, facts, inputs
from redfuser.chain.samples import cases
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize

H200 = target("sm_90a")
CONFIG = TileConfig(64, 64, 128, 1)
CAUSAL, GIVEN = "select(l <= i, exp(p - m), 0.0)", "select(k[l], exp(p - m), 0.0)"
SIGNED, SIZED = "exp(p - m) * g[l]", "exp(p - m) * abs(g[l])"


def text(dtype: str, weights: str, rounded: bool, name: str = "attention", divisor: str = "t") -> str:
    """Attention whose weights are hidden or scaled behind their exponential and made to sum to 1 again."""
    share = f"{weights} / {divisor}"
    share = f"f32({dtype}({share}))" if rounded else share
    return f"""cascade {name}(q: {dtype}[2, 200, 32], u: {dtype}[2, 200, 32], k: bool[200], g: f32[200], v: {dtype}[2, 200, 32]) over l
  s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(u[b, l, c])
  p[b, i, l] = s * 0.125
  m[b, i] = max[l] p
  t[b, i] = sum[l] {weights}
  o[b, i, e] = sum[l] {share} * f32(v[b, l, e])
  y[b, i, e] = {dtype}(o)
  return y
"""


def fused(source: str) -> Fused:
    found = fuse(parse_cascade(source), "preserve")
    assert isinstance(found, Fused), found
    return found


def violations(f: Fused) -> list[str]:
    small = twin.of_tiles(realise(f, "single"), CONFIG, deep=False)
    drawn = [c for c in cases(small.fused) if c.name.startswith("faint")]
    assert len(drawn) >= 2
    return list(tiles.violations(small, tensorize(small, CONFIG, H200), drawn))


def largest(cascade: Cascade, given: dict[str, np.ndarray]) -> np.ndarray:
    """The largest exponent that a row sees."""
    s = np.einsum("bic,blc->bil", given["q"].astype(np.float64), given["u"].astype(np.float64)) * 0.125
    n, m = s.shape[1:]
    seen = np.arange(m) <= np.arange(n)[:, None] if "l <= i" in str(cascade) else given["k"][:m]
    seen = seen if "g[l]" not in str(cascade) else given["g"][:m].astype(np.float64) != 0
    return np.where(seen, s - s.max(-1, keepdims=True), -np.inf).max(-1)


@pytest.mark.parametrize("weights", [CAUSAL, GIVEN, SIGNED])
def test_most_rows_see_nothing_but_subnormal_weights(weights: str) -> None:
    cascade = twin.of_tiles(realise(fused(text("bf16", weights, False)), "single"), CONFIG, deep=False).fused.cascade
    found = [d for d in draws(cascade) if d.faint]
    assert len(found) == 2
    for d in found:
        top = largest(cascade, inputs(cascade, d, facts(cascade)))
        assert np.mean((top > -104) & (top < -87)) > 0.75, d.name


@pytest.mark.parametrize("divisor", ["1.0", "max(t, 0.000001)"])
def test_plain_attention_and_weights_that_nothing_divides_have_no_such_rows(divisor: str) -> None:
    plain = text("bf16", "exp(p - m)", False, divisor=divisor if divisor == "1.0" else "t")
    assert sort(parse_cascade(plain)) is None


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_quotients_at_the_running_results_are_refused_and_would_be_found(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first form of the rule of float16 had -inf for -8.06 on a GPU, and no check had seen it."""
    refused = fuse(parse_cascade(text(dtype, SIZED, True, "refused")), "preserve")
    assert isinstance(refused, NotFusable) and refused.code == "RF205" and "running results" in refused.why
    monkeypatch.setattr(casts, "may_vanish", lambda *_: False)
    found = fused(text(dtype, SIZED, True, "running"))
    assert "running results" in found.certificate.roundings[0]
    assert any("inf for" in v or "nan for" in v for v in violations(found))


@pytest.mark.parametrize("dtype, weights, rounded", [("bf16", CAUSAL, True), ("bf16", SIGNED, False), ("f16", SIGNED, False)])
def test_weights_that_may_be_subnormal_are_raised(dtype: str, weights: str, rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded, or taken apart for the matrix units, they had no digit left: 0 for .94."""
    assert violations(fused(text(dtype, weights, rounded, "raised"))) == []
    monkeypatch.setattr(total, "raised", lambda d, t: (t, None))
    assert any("error" in v for v in violations(fused(text(dtype, weights, rounded, "low"))))


@pytest.mark.parametrize("weights", [CAUSAL, GIVEN])
def test_the_checker_sees_a_rounding_that_moved_there(weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(check_roundings(fused(text("bf16", weights, True, "raised")))) == []
    monkeypatch.setattr(total, "raised", lambda d, t: (t, None))
    low = fused(text("bf16", weights, True, "low"))
    assert any("moves by more" in v for v in check_roundings(low))
    monkeypatch.setattr(Rows, "left", lambda rows, given, gap, first: dict(given))
    assert list(check_roundings(low)) == []


def test_a_divisor_with_a_least_value_leaves_weights_as_they_are() -> None:
    for divisor, times in (("t", 65536.0), ("max(t, 0.000001)", None)):
        f = fused(text("bf16", CAUSAL, False, "least", divisor))
        assert ("65536.0" in " ".join(map(str, f.exprs()))) == (times is not None)


def test_a_maximum_that_is_guarded_by_hand_is_one_of_what_is_seen() -> None:
    """Then the divisor is 1 or more, or 0 of a row that sees nothing; not where the mask is behind the exponential."""
    guard = "select(m == -inf, 0.0, m)"
    seen = text("bf16", f"exp(p - {guard})", False, "seen").replace("= s * 0.125", "= select(k[l], s * 0.125, -inf)")
    hidden = text("bf16", f"select(k[l], exp(p - {guard}), 0.0)", False, "hidden")
    for source, raised in ((seen, False), (hidden, True)):
        f = fused(source)
        assert ("65536.0" in " ".join(map(str, f.exprs()))) == raised
        assert any("raised by 2^16" in c for c in f.certificate.choices) == raised


def test_rounded_weights_over_their_rounded_sum_are_refused_where_both_may_be_subnormal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole multiples of the smallest number in the program: one weight over itself is 1. Ours was off by a tenth."""
    source = """cascade {name}(q: bf16[2, 200, 32], u: bf16[2, 200, 32], v: bf16[2, 200, 32]) over l
  s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(u[b, l, c])
  p[b, i, l] = s * 0.125
  m[b, i] = max[l] p
  t[b, i] = sum[l] exp(p - m)
  w[b, i, l] = select(l < i, bf16(exp(p - m) / t), bf16(0.0))
  z[b, i] = sum[l] f32(w)
  o[b, i, e] = sum[l] f32(w / bf16(z)) * f32(v[b, l, e])
  y[b, i, e] = bf16(o)
  return y
"""
    refused = fuse(parse_cascade(source.format(name="refused")), "preserve")
    assert isinstance(refused, NotFusable) and refused.code == "RF205" and "sum of rounded weights" in refused.why
    monkeypatch.setattr(total, "refuse_rounded", lambda *_: None)
    rounded = fused(source.format(name="rounded"))
    assert any("o moves by more" in v for seed in range(6) for v in check_roundings(rounded, seed))
