"""Rows of which a mask behind an exponential leaves nothing but what is subnormal: they are drawn where something divides by what
is left, and what rounds it there, or divides by it on the way, is found out by them."""

from __future__ import annotations

import numpy as np
import pytest

from redfuser.acrf import NotFusable, fuse, parse_cascade
from redfuser.acrf.cascade import Cascade
from redfuser.acrf.check.domains import NUMPY
from redfuser.acrf.check.faint import Rows, sort
from redfuser.acrf.check.moved import check_roundings
from redfuser.acrf.derive import casts, total
from redfuser.acrf.state import Fused
from redfuser.chain import draws as chain_draws
from redfuser.chain import tiles, twin
from redfuser.chain.draws import draws, facts, inputs
from redfuser.chain.samples import cases
from redfuser.chain.truth import PROGRAM, Wide, evaluate
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, geometry, tensorize
from redfuser.tensorize.ir import interpret

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


DIVISORS = ["t + exp(-m)", "max(t, exp(-m))", "t * 2.0 + exp(-m)", "t + 1e-38", "t + 1e-30", "t + 0.000001", "max(t, 0.000001)", "sqrt(t)"]


def masked(dtype: str, divisor: str, name: str = "masked") -> str:
    """Weights that a mask multiplies behind their exponential, over what may be more than their sum, as float32."""
    return f"""cascade {name}(s: {dtype}[2, 65, 200], v: {dtype}[2, 200, 64], k: bool[2, 200]) over l
  m[b, i] = max[l] f32(s[b, i, l])
  w[b, i, l] = exp(f32(s[b, i, l]) - m) * f32(k[b, l])
  t[b, i] = sum[l] w
  z[b, i] = {divisor}
  o[b, i, e] = sum[l] w / z * f32(v[b, l, e])
  return o
"""


def raises(source: str) -> bool:
    f = fused(source)
    assert any("raised by 2^16" in c for c in f.certificate.choices) == ("65536.0" in " ".join(map(str, f.exprs())))
    return any("raised by 2^16" in c for c in f.certificate.choices)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_what_divides_may_be_more_than_the_sum(dtype: str, divisor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A softmax off by one whose mask is behind the exponential was 0 for .25, one with a least divisor 0 for 4e-29."""
    assert violations(fused(masked(dtype, divisor, "raised"))) == []
    monkeypatch.setattr(total, "raised", lambda d, t: (t, None))
    assert any("error" in v for v in violations(fused(masked(dtype, divisor, "low"))))


def test_a_divisor_of_at_least_one_leaves_weights_as_they_are() -> None:
    assert raises(text("bf16", CAUSAL, False, "bare")) and raises(text("bf16", CAUSAL, False, "least", "max(t, 0.000001)"))
    for divisor in ("max(t, 1.0)", "(t + 1.0)"):
        assert not raises(text("bf16", CAUSAL, False, "one", divisor)), divisor
    assert not raises(text("bf16", "exp(p - m)", False, "whole", "(t + 0.000001)"))


@pytest.mark.parametrize("divisor", ["t + exp(-m)", "max(t, exp(-m))"])
def test_a_large_divisor_is_not_raised_beyond_float32(divisor: str) -> None:
    """Of scores near -80 it is 1e35, and the results 1e-33: normal numbers."""
    f = fused(masked("bf16", divisor))
    program = realise(f, "single")
    tiled = tensorize(program, CONFIG, H200)
    rng = np.random.default_rng(0)
    for at in (-85.0, -80.0, -70.0, 0.0, 85.0):
        given = {"s": (rng.standard_normal((2, 65, 200)) * 0.5 + at).astype(NUMPY["bf16"]),
                 "v": rng.standard_normal((2, 200, 64)).astype(NUMPY["bf16"]), "k": rng.random((2, 200)) > 0.3}
        got = interpret.run(tiled, tiles.arguments(program, tiled, given))["o"]
        exact, own = (evaluate(f.cascade, given, how).outputs()["o"] for how in (Wide(), PROGRAM))
        assert np.abs(got - exact).max() <= 2 * np.abs(own - exact).max() + 2.0**-126, at


@pytest.mark.parametrize("divisor", ["t", "t + 0.000001"])
def test_exponentials_that_float32_results_may_be_made_of_keep_their_base(divisor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change of base cost 60 * 2^-24 of weights 60 below a largest that is hidden, and nothing else was left."""
    monkeypatch.setattr(chain_draws, "GAPS", {"f32": (60.0, 80.0, 86.0), "f16": (12.0, 15.0)})
    f = fused(masked("f16", divisor))
    assert violations(f) == []
    monkeypatch.setattr(geometry, "stores_single", lambda cascade: False)
    assert any("error" in v for v in violations(f))


def test_no_rounding_is_taken_at_the_running_results_where_two_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN where no exponential was left of either: it is dropped, or refused where nothing else says that a divisor may be
    infinite."""
    f = fused(text("bf16", SIZED, True, "both", "(t + exp(-m))"))
    assert "is dropped" in f.certificate.roundings[0] and violations(f) == []
    monkeypatch.setattr(casts, "_soars", lambda *_: False)
    refused = fuse(parse_cascade(text("bf16", SIZED, True, "alike", "(t + exp(-m))")), "preserve")
    assert isinstance(refused, NotFusable) and refused.code == "RF205" and "running results" in refused.why


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
