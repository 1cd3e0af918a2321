"""Powers of a deviation keep to the range of their type: measured in what bounds it, and not where nothing can overflow."""

from __future__ import annotations

import pytest
import torch

from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from redfuser.runtime import launcher
from redfuser.strategies import cpu, realise
from redfuser.strategies.program import Strategy

UNITS = {"the range": "a[i] = max[l] x[i, l]\n b[i] = min[l] x[i, l]\n r[i] = a - b",
         "at least the range": "a[i] = max[l] x[i, l]\n b[i] = min[l] x[i, l]\n r[i] = max(a - b, 1e-06)",
         "the largest": "r[i] = max[l] abs(x[i, l])"}


@pytest.mark.parametrize("power", [2, 3])
@pytest.mark.parametrize("unit", UNITS)
def test_a_deviation_from_the_mean_is_measured_in_what_bounds_it(unit: str, power: int) -> None:
    z = " * ".join(["((x[i, l] - m) / r)"] * power)
    f = fuse(parse_cascade(f"cascade c(x: f32[I, 300]) over l\n {UNITS[unit]}\n t[i] = sum[l] x[i, l]\n m[i] = t / 300.0\n"
                           f" y[i] = sum[l] {z}\n return y"))
    assert isinstance(f, Fused)
    assert any("measured in units of" in c for c in f.certificate.choices)
    assert check(f) == []


def test_half_the_mean_is_not_the_mean() -> None:
    f = fuse(parse_cascade("cascade c(x: f32[I, 300]) over l\n a[i] = max[l] x[i, l]\n b[i] = min[l] x[i, l]\n"
                           " t[i] = sum[l] x[i, l]\n m[i] = t / 600.0\n"
                           " y[i] = sum[l] (x[i, l] - m) / (a - b) * ((x[i, l] - m) / (a - b))\n return y"))
    assert not isinstance(f, Fused) or not any("in units of a - b" in c for c in f.certificate.choices)


def test_places_are_not_measured_in_their_maximum() -> None:
    """Σ p l² of one element that is 1 is l², to the last bit."""
    f = fuse(parse_cascade("cascade c(x: f32[I, 300]) over l\n m[i] = max[l] x[i, l]\n t[i] = sum[l] exp(x[i, l] - m)\n"
                           " s[i] = sum[l] exp(x[i, l] - m) / t * f32(l) * f32(l)\n return s"))
    assert isinstance(f, Fused)
    assert [a.name for a in f.state.accumulators] == ["m", "t", "s_acc"]
    assert check(f) == []


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_places_among_values_that_a_rounding_makes_equal_are_free(dtype: str) -> None:
    """Ranked by the scores, they are in the scores' order; torch's top-k of the rounded weights is in no other."""
    f = fuse(parse_cascade(f"cascade c(x: {dtype}[I, 64]) over l\n m[i] = max[l] f32(x[i, l])\n"
                           " t[i] = sum[l] exp(f32(x[i, l]) - m)\n"
                           f" v[i, k], j[i, k] = topk(4)[l] {dtype}(exp(f32(x[i, l]) - m) / t)\n return v, j"))
    assert isinstance(f, Fused)
    assert check(f) == []


def test_a_row_of_zeros_has_squares_measured_in_their_own_maximum() -> None:
    """The root undoes the guard of the program's maximum, not that of the derivation's own, which may be 0: no 0 / 0."""
    f = fuse(parse_cascade("cascade c(x: f32[I, 300]) over l\n m[i] = max[l] -x[i, l]\n t[i] = sum[l] exp(-x[i, l] - m)\n"
                           " s[i] = sum[l] exp(-x[i, l] - m) / t * x[i, l] * x[i, l]\n return s"))
    assert isinstance(f, Fused)
    assert check(f) == []


def test_a_reference_that_is_nan_before_the_first_element_moves_no_empty_sum() -> None:
    """max(d, x d) is kept as d times the maximum of x, NaN where d is 0, as it is of no element: 0 * NaN is not 0."""
    f = fuse(parse_cascade("cascade c(x: f32[L], y: f32[L]) over l\n d = sum[l] abs(x[l]) + 1.0\n"
                           " m = max[l] max(1.0 * d, x[l] * d)\n s = sum[l] -m - x[l] * y[l]\n return s"))
    assert isinstance(f, Fused)
    assert check(f) == []


def test_of_no_element_a_reference_that_some_inputs_make_nan_does_not_move() -> None:
    """The deviation of a row standardised by given variances, of which one may be negative: rows of 10000 keep their digits, since
    the difference from the mean is taken before it is scaled, as the program takes it."""
    f = fuse(parse_cascade("cascade c(x: f32[I, 130], w: f32[I]) over l\n t[i] = sum[l] x[i, l]\n m[i] = t / 130.0\n"
                           " o[i] = sum[l] (x[i, l] - m) * rsqrt(w[i] + 0.00001)\n u[i] = o / 130.0\n"
                           " v[i] = sum[l] ((x[i, l] - m) * rsqrt(w[i] + 0.00001) - u) * ((x[i, l] - m) * rsqrt(w[i] + 0.00001) - u)\n"
                           " return v"))
    assert isinstance(f, Fused)
    assert check(f) == []


def test_a_layer_norm_of_products_is_as_stable_as_one_of_data() -> None:
    """Equal weights make equal elements, whose sum is not exact as that of equal numbers in a table is."""
    f = fuse(parse_cascade("cascade c(x: f32[I, 128], k: f32[64, 128], w: f32[N, 64]) over l\n"
                           " s[i, l] = sum[c] x[i, c] * k[l, c]\n t[i] = sum[l] s\n m[i] = t / 64.0\n"
                           " v[i] = sum[l] (s - m) * (s - m)\n"
                           " o[i, n] = sum[l] (s - m) * rsqrt(v / 64.0 + 1e-05) * w[n, l]\n return o"))
    assert isinstance(f, Fused)
    assert check(f) == []


@pytest.mark.parametrize("body", ["t / (1.0 + t) * x[i, l] / sqrt(t + 1e-08) * w[l]",
                                  "t / (t + 1.0) * x[i, l] / sqrt(t + 1e-08) * (t / (t + 1.0) * x[i, l] / sqrt(t + 1e-08))"])
def test_results_of_which_one_is_no_more_than_the_other_are_applied_as_their_quotient(body: str) -> None:
    """Capsules' squash: one after the other, ``t`` and ``1 / (t + 1)`` leave the range of what they make together."""
    f = fuse(parse_cascade(f"cascade c(x: f32[I, 16], w: f32[16]) over l\n t[i] = sum[l] x[i, l] * x[i, l]\n"
                           f" o[i] = sum[l] {body}\n return o"))
    assert isinstance(f, Fused)
    (value,) = (str(s.expr) for s in f.state.finalize if s.name == "o")
    assert "t / (t + 1.0)" in value or "t / (1.0 + t)" in value, value
    assert check(f) == []


NORM = ("cascade c(x: f32[I, {n}], w: f32[{n}]) over l\n t[i] = sum[l] x[i, l]\n m[i] = t {by}\n"
        " v[i] = sum[l] (x[i, l] - m) * (x[i, l] - m)\n y[i, l] = (x[i, l] - m) * rsqrt(v {by} + 1e-05) * w[l]\n return y")


@pytest.mark.parametrize("n, by, strategy, splits", [(40, "/ 40.0", "resident", 1), (300, "/ 300.0", "single", 1),
                                                     (768, "/ 768.0", "multi", 3), (2048, "* 0.00048828125", "resident", 1)])
def test_a_layer_norm_of_equal_elements_is_zero(n: int, by: str, strategy: Strategy, splits: int) -> None:
    """Whatever they are: n times one of them is no float32, and a quotient of the rounded sum would be a last digit beside it, over
    a root of eps."""
    f = fuse(parse_cascade(NORM.format(n=n, by=by).replace("[I, ", "[64, ")))
    assert isinstance(f, Fused) and check(f) == []
    x = torch.randn(64, 1, generator=torch.Generator().manual_seed(n)).mul(1000).expand(64, n).contiguous()
    y = launcher(cpu.build(realise(f, strategy, splits)))(x, torch.ones(n))
    assert float(y.abs().max()) == 0.0
