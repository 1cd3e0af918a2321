"""Derived states in float32 over the whole range of their data: magnitudes, offsets, finite masks, empty segments.

The checker's exact numbers have no range, so what a state forms on the way may overflow without being wrong. Here the fused
form may err a small multiple of what the unfused program errs in the same dtypes, both measured in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from redfuser.acrf.check.evaluate import share
from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from tests.evaluated import run, run_fused
from tests.unit.acrf.corpus import ACCEPT

ROWS, LENGTH = 3, 48
CUTS = (([48], "step"), ([5, 0, 1, 30, 12], "step"), ([1, 0, 5, 0, 42], "tree"))
Array = np.ndarray


def scaled(by: float) -> Callable[[Array], Array]:
    return lambda x: x * by


def offset(by: float) -> Callable[[Array], Array]:
    return lambda x: x + by


def hidden(value: float, first: int = 0) -> Callable[[Array], Array]:
    """Every other element, or the first few, at a mask's value."""
    def change(x: Array) -> Array:
        x = x.copy()
        x[..., slice(first) if first else slice(None, None, 2)] = value
        return x

    return change


SIZES = [scaled(s) for s in (1.0, 1e-18, 1e-15, 1e-11, 1e5, 1e10, 1e15)]
WIDE = [scaled(1e-30), scaled(1e20), scaled(1e30), hidden(0.0), hidden(0.0, 5)]
MASKS = [hidden(-1e20), hidden(-1e20, 5), hidden(-3.4028234663852886e38), hidden(float("-inf"), 5)]
OFFSETS = [offset(1e2), offset(1e3), offset(1e4)]

CASES = {"kurtosis": [*SIZES, *OFFSETS], "min_max_variance": [*SIZES, *OFFSETS, scaled(1e20), scaled(1e-30)],
         "powers_of_ratios": [*SIZES, *WIDE], "finite_masks": [scaled(1.0), *OFFSETS, *MASKS],
         "two_maxima": [*SIZES[:1], *MASKS], "two_minima": [*SIZES[:1], hidden(float("inf"), 5)]}


@pytest.mark.parametrize("name", CASES)
def test_in_range_where_the_program_is(name):
    cascade = next(c for c in ACCEPT if c.name == name).cascade
    fused = fuse(cascade)
    assert isinstance(fused, Fused)
    fused, rng = share(fused), np.random.default_rng(3)
    for change in CASES[name]:
        inputs = {t.name: change(rng.standard_normal([ROWS, LENGTH][:len(t.shape)])).astype(np.float32)
                  for t in cascade.inputs}
        with np.errstate(all="ignore"):
            want, plain = run(cascade, inputs, round_casts=True), run(cascade, inputs, "program")
            for lengths, how in CUTS:
                got = run_fused(fused, inputs, lengths, how, "program")
                for n in cascade.outputs:
                    size = np.max(np.abs(want[n])) + 1e-34
                    own, error = (np.abs(x[n].astype(np.float64) - want[n]) / size for x in (plain, got))
                    fair = np.isfinite(want[n]) & np.isfinite(own)
                    assert (error[fair] <= 8 * np.max(own[fair], initial=0.0) + 2e-5).all(), (n, change, inputs, lengths)


QUOTIENT = """cascade quotient(x: f32[I, 48], y: f32[I, 48]) over l
  t[i] = sum[l] x[i, l]
  d[i] = sum[l] y[i, l] * y[i, l]
  u[i] = t / max(d, 1e-30)
  o[i] = sum[l] {body}
  return o
"""


@pytest.mark.parametrize("body", ["u * y[i, l] * (u * y[i, l])", "u * u * abs(y[i, l])"])
def test_powers_of_a_quotient_of_results(body):
    """The square of t, or of d, is out of range where that of t / d is not."""
    cascade = parse_cascade(QUOTIENT.format(body=body))
    fused = fuse(cascade)
    assert isinstance(fused, Fused) and check(fused) == []
    fused, rng = share(fused), np.random.default_rng(0)
    for size in (1e10, 1e-11):
        y = rng.standard_normal((ROWS, LENGTH)) * size
        inputs = {"x": (y * y).astype(np.float32), "y": y.astype(np.float32)}
        want = run(cascade, inputs)["o"]
        for lengths, how in CUTS:
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(run_fused(fused, inputs, lengths, how, "program")["o"], want, rtol=1e-5)


BOUNDED = """cascade bounded(x: f32[I, 48], w: f32[I, 48]) over l
  m[i] = {bound}
  o[i] = sum[l] x[i, l] * (w[i, l] / {divisor})
  return o
"""


@pytest.mark.parametrize(("bound", "divisor", "whole"), [
    ("max[l] abs(w[i, l])", "(m + 0.25)", True), ("max[l] abs(w[i, l])", "max(m, 1e-12)", True),
    ("sum[l] w[i, l] * w[i, l]", "sqrt(m)", False)])
def test_a_product_stays_over_what_bounds_one_of_it(bound, divisor, whole):
    """``x * w`` of 1e30 and 1e15 has no float32. A root of squares is deferred: the squares have none before that."""
    cascade = parse_cascade(BOUNDED.format(bound=bound, divisor=divisor))
    fused = fuse(cascade)
    assert isinstance(fused, Fused) and check(fused) == []
    assert any("deferred" in c for c in fused.certificate.choices) != whole
    fused, rng = share(fused), np.random.default_rng(2)
    for size in (1.0, 1e15) if whole else (1.0, 1e7):
        inputs = {"x": rng.standard_normal((ROWS, LENGTH)) * size**2, "w": rng.standard_normal((ROWS, LENGTH)) * size}
        inputs = {n: v.astype(np.float32) for n, v in inputs.items()}
        want = run(cascade, inputs)["o"]
        for lengths, how in CUTS:
            np.testing.assert_allclose(run_fused(fused, inputs, lengths, how, "program")["o"], want, rtol=1e-4, atol=1e-6 * size**2)


@pytest.mark.parametrize(("of", "size"), [("abs(w[i, l])", "f32(w[i, l] / (m + bf16(0.25)))"),
                                          ("abs(f32(w[i, l]))", "(f32(w[i, l]) / (m + 0.25))"),
                                          ("f32(abs(w[i, l]))", "f32(bf16(f32(w[i, l]) / max(m, 1e-12)))"),
                                          ("abs(v[i, l])", "f32(bf16(v[i, l] / (m + 0.25)))")])
def test_a_datum_is_bounded_before_it_is_widened_and_behind_it(of, size):
    """A wider float holds every number of a narrow one: the quotient stays whole, and what it multiplies meets no sum alone."""
    fused = fuse(parse_cascade(f"""cascade widened(x: bf16[I, 48], w: bf16[I, 48], v: f32[I, 48]) over l
  m[i] = max[l] {of}
  o[i] = sum[l] f32(x[i, l]) * {size}
  return o
"""))
    assert isinstance(fused, Fused) and check(fused) == []
    assert not any("deferred" in c for c in fused.certificate.choices), fused.certificate.choices


CORRECTED = """cascade corrected(k: f32[I, 48], q: f32[I, 48], s: f32[I, 48], v: f32[I]) over l
  a[i] = sum[l] k[i, l] * k[i, l]
  b[i] = sum[l] q[i, l] * q[i, l]
  p[i] = sum[l] s[i, l] * k[i, l]
  o[i] = sum[l] k[i, l] / max(sqrt(a), 1e-12) * (v[i] - p / max(sqrt(a), 1e-12)) * (q[i, l] / max(sqrt(b), 1e-12))
  return o
"""


def test_two_factors_over_two_divisors():
    """A delta rule with keys of 1e-18: ``sum (k q) * (v - p)`` is 1e-54 before it is divided by 1e-24."""
    cascade = parse_cascade(CORRECTED)
    fused = fuse(cascade)
    assert isinstance(fused, Fused) and check(fused) == []
    fused, rng = share(fused), np.random.default_rng(1)
    for size in (1.0, 1e-18):
        inputs = {t.name: (size * rng.standard_normal([ROWS, LENGTH][:len(t.shape)])).astype(np.float32) for t in cascade.inputs}
        want = run(cascade, inputs)["o"]
        assert (np.abs(want) > 0).all()
        for lengths, how in CUTS:
            np.testing.assert_allclose(run_fused(fused, inputs, lengths, how, "program")["o"], want, rtol=1e-4)


PROJECTED = """cascade projected(x: f32[I, 48], g: f32[48], b: f32[48], w: f32[E, 48]) over l
  t[i] = sum[l] x[i, l]
  u[i] = t / 48
  v[i] = sum[l] (x[i, l] - u) * (x[i, l] - u)
  o[i, e] = sum[l] ((x[i, l] - u) * rsqrt(v / 48 + 1e-05) * g[l] + b[l]) * w[e, l]
  return o
"""


def test_a_deferred_scale_is_asked_for_no_more_than_the_product_behind_it():
    """``g * w * (x - u)``, summed before its scale, of g at the square of x and w is beyond float32, which docs/algebra.md says."""
    fused = fuse(parse_cascade(PROJECTED))
    assert isinstance(fused, Fused) and check(fused) == []


PAIRED = """cascade paired(w: f32[I, 48], x: f32[I, 48], y: f32[I, 48]) over l
  t[i] = sum[l] w[i, l]
  u[i] = max({u}, 1e-9)
  c[i] = sum[l] w[i, l] / u * x[i, l]
  d[i] = sum[l] w[i, l] / u * y[i, l]
  o[i] = sum[l] (x[i, l] - c) * (w[i, l] / u) * (y[i, l] - d)
  return o
"""


@pytest.mark.parametrize("u", ("t", "abs(t)", "t + 1e-6"))
def test_a_sum_of_weights_kept_from_zero_has_either_sign_all_the_same(u):
    """Where the weights so far sum to less than 1e-9, their mean is no reference: 9e18 of the covariance where it was one."""
    fused = fuse(parse_cascade(PAIRED.format(u=u)))
    assert isinstance(fused, Fused) and check(fused) == []


RATIOS = ("x[i, l] / m", "x[i, l] / n", "(x[i, l] - n) / (m - n)", "x[i, l] / (abs(m) + abs(n))", "m / x[i, l]",
          "(x[i, l] - mean) / sd", "exp(x[i, l] - m)", "(x[i, l] - mean) / (m - n)")
POWERS = ("{}", "({}) * ({})", "pow({}, 3.0)", "({}) * ({}) * ({}) * ({})", "pow({}, -2.0)")


def random_program(seed: int) -> str:
    """A power of a ratio of data to results, perhaps beside another and under a mask."""
    rng = np.random.default_rng(seed)
    ratio = RATIOS[rng.integers(len(RATIOS))]
    body = POWERS[rng.integers(len(POWERS))].replace("{}", ratio)
    if rng.random() < 0.3:
        body = f"({body}) * exp(x[i, l] - m)"
    if rng.random() < 0.3:
        body = f"select(l % 3 == 1, 0.0, {body})"
    lines = ["m[i] = max[l] x[i, l]", "n[i] = min[l] x[i, l]", "s[i] = sum[l] x[i, l]", f"mean[i] = s / {LENGTH}.0",
             "v[i] = sum[l] (x[i, l] - mean) * (x[i, l] - mean)", f"sd[i] = sqrt(v / {LENGTH}.0)", f"t[i] = sum[l] {body}"]
    return f"cascade random(x: f32[I, {LENGTH}]) over l\n  " + "\n  ".join([*lines, "return t"]) + "\n"


@pytest.mark.parametrize("seed", range(24))
def test_random_ratios_stay_in_range(seed):
    cascade = parse_cascade(random_program(seed))
    fused = fuse(cascade)
    if not isinstance(fused, Fused):
        assert fused.code != "RF902"
        return
    fused, rng = share(fused), np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, LENGTH)) if seed % 2 else rng.uniform(0.5, 1.5, (ROWS, LENGTH))
    for change in (*SIZES[::2], *OFFSETS[::2]):
        inputs = {"x": change(x).astype(np.float32)}
        with np.errstate(all="ignore"):
            want, plain = run(cascade, inputs)["t"], run(cascade, inputs, "program")["t"]
            for lengths, how in CUTS[1:]:
                got = run_fused(fused, inputs, lengths, how, "program")["t"]
                own, error = (np.abs(y.astype(np.float64) - want) / (np.abs(want) + 1e-34) for y in (plain, got))
                fair = np.isfinite(want) & np.isfinite(own) & (np.abs(want) < 1e38) & (np.abs(want) > 1e-3)
                assert (error[fair] <= 8 * np.max(own[fair], initial=0.0) + 2e-5).all(), (random_program(seed), error, own)


@pytest.mark.parametrize("size", [1e3, 1e7, 1e10, 1e15])
def test_equal_elements_have_no_deviation_that_a_product_could_add_up(size):
    """Whatever their sums round to: a layer norm makes of them numbers of the size of 1 at most, and so it is of their product."""
    fused = fuse(parse_cascade(f"cascade c(x: f32[I, {LENGTH}], w: f32[{LENGTH}, N]) over l\n  s[i] = sum[l] x[i, l]\n"
                               f"  m[i] = s / {LENGTH}.0\n  v[i] = sum[l] (x[i, l] - m) * (x[i, l] - m)\n"
                               f"  o[i, n] = sum[l] (x[i, l] - m) * rsqrt(v / {LENGTH}.0 + 1e-05) * w[l, n]\n  return o\n"))
    assert isinstance(fused, Fused)
    rng = np.random.default_rng(0)
    w = rng.uniform(0.5, 1.5, (LENGTH, 4)).astype(np.float32)
    x = np.repeat(size * rng.uniform(1, 2, (64, 1)), LENGTH, 1).astype(np.float32)
    for lengths, how in CUTS:
        got = run_fused(share(fused), {"x": x, "w": w}, lengths, how, "program")["o"]
        assert np.abs(got).max() <= 2 * w.sum(0).max(), (size, lengths, how)


MOMENT = """cascade moment(w: f32[I, 48], x: f32[I, 48]) over l
  t[i] = sum[l] {w}
  c[i] = sum[l] {w} / t * x[i, l]
  v[i] = sum[l] {w} / t * ((x[i, l] - c) * (x[i, l] - c))
  o[i] = sum[l] {w} / t * ({f} * {f} * {f})
  return o
"""


@pytest.mark.parametrize("f", ["(x[i, l] - c)", "((x[i, l] - c) / sqrt(v + 1e-6))"])
@pytest.mark.parametrize("w", ["w[i, l]", "abs(w[i, l])", "(w[i, l] * w[i, l])"])
def test_weights_over_their_sum_say_nothing_of_deviations(w, f):
    """A third moment of equal elements is 0, not 0 times infinity; where weights are of either sign their mean may lie outside of
    the data, and so be farther from them than they from one another."""
    fused = fuse(parse_cascade(MOMENT.format(w=w, f=f)))
    assert isinstance(fused, Fused) and [v for v in check(fused) if "squared" not in v] == []
