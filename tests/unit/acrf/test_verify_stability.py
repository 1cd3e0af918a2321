"""The numerics rule on states: what is unstable is found, what merely rounds in another order is not."""

from __future__ import annotations

import numpy as np
import pytest

from redfuser.acrf.cascade import Cascade
from redfuser.acrf.check.stress import strained, strains
from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from tests.unit.acrf.handmade import NEG, attention, fused


def derived(text: str) -> Fused:
    f = fuse(parse_cascade(text))
    assert isinstance(f, Fused), f
    return f


# -- states that were once derived, and wrong --------------------------------------------------------------------------

TWO_MAXIMA = """cascade two(a: f32[L], b: f32[L]) over l
  m = max[l] a[l]
  n = max[l] b[l]
  r = max(m, n)
  t = sum[l] exp(a[l] - r)
  return t"""


def two_maxima(guard: str) -> Fused:
    return fused(TWO_MAXIMA, [
        ("m", "", "max", "a[l]", {"neutral": (NEG,)}), ("n", "", "max", "b[l]", {"neutral": (NEG,)}),
        ("ta", "", "sum", "select(max(m, n) == -inf, 0, exp(a[l] - max(m, n)))",
         f"select({guard}, 0, ta@old * exp(max(m@old, n@old) - max(m, n)))")],
        {"m": "m", "n": "n", "t": "ta"}, {"r": "max(m, n)"})


def test_a_guard_on_each_maximum_drops_what_the_other_holds():
    found = check(two_maxima("m@old == -inf or n@old == -inf"))
    assert any(v.startswith(("segmentation", "merge", "result")) for v in found)
    assert check(two_maxima("max(m@old, n@old) == -inf")) == []


POWERS = """cascade powers(x: f32[L]) over l
  n = sum[l] 1.0
  m = max[l] abs(x[l])
  s = sum[l] pow(abs(x[l]) / m, 2)
  y = m * sqrt(s / n)
  return y"""


def powers(contribution: str, rebase: str, final: str) -> Fused:
    return fused(POWERS, [("n", "", "sum", "1.0"), ("m", "", "max", "abs(x[l])", {"neutral": (NEG,)}),
                          ("q", "", "sum", contribution, rebase)],
                 {"n": "n", "m": "m", "s": final}, {"y": "m * sqrt(s / n)"})


def test_a_factor_that_bounds_its_data_is_not_deferred():
    """Squares of 1e-30 vanish and of 1e20 overflow, where those of ``x / m`` do neither."""
    found = check(powers("abs(x[l]) * abs(x[l])", "q@old", "q / (m * m)"))
    assert all(v.startswith("stability") for v in found) and any("scale -0.8" in v for v in found)
    reference = "select(m <= 0, 1, m)"
    moved = f"select(m@old <= 0, 0, q@old * pow(m@old / {reference}, 2))"
    assert check(powers(f"pow(abs(x[l]) / {reference}, 2)", moved, f"q * pow({reference} / m, 2)")) == []


SQUARES = """cascade squares(x: f32[L]) over l
  m = max[l] x[l]
  t = sum[l] exp(x[l] - m)
  q = sum[l] exp(x[l] - m) / t * (x[l] - m) * (x[l] - m)
  return q"""


def squares(body: str, rebase: str) -> Fused:
    def guarded(e: str) -> str:
        return f"select(m@old == -inf, 0, {e})"

    gap, weight = "(m@old - m)", "exp(m@old - m)"
    return fused(SQUARES, [
        ("m", "", "max", "x[l]", {"neutral": (NEG,)}),
        ("t", "", "sum", "select(m == -inf, 0, exp(x[l] - m))", guarded(f"t@old * {weight}")),
        ("h", "", "sum", "select(m == -inf, 0, exp(x[l] - m) * (x[l] - m))",
         guarded(f"h@old * {weight} + t@old * {weight} * {gap}")),
        ("qa", "", "sum", f"select(m == -inf, 0, {body})", guarded(rebase.format(w=weight, g=gap)))],
        {"m": "m", "t": "t", "q": "qa / t"})


def test_a_square_is_not_formed_before_its_weight():
    """Logits hidden by a large negative number: the weight is 0 and the square infinite."""
    first = squares("exp(x[l] - m) * ((x[l] - m) * (x[l] - m))", "(qa@old + h@old * {g} * 2 + t@old * ({g} * {g})) * {w}")
    second = squares("exp(x[l] - m) * (x[l] - m) * (x[l] - m)",
                     "qa@old * {w} + h@old * {w} * {g} * 2 + t@old * {w} * {g} * {g}")
    unstable, stable = ([v for v in check(f) if v.startswith("stability")] for f in (first, second))
    assert any("x buried" in v for v in unstable) and stable == []


CENTRED = """cascade centred(x: f32[L]) over l
  n = sum[l] 1.0
  s = sum[l] x[l]
  v = sum[l] pow(x[l] - s / n, 2)
  return v"""


def centred(moved: str) -> Fused:
    mean, gap = "s / max(n, 1.0)", "(s@old / max(n@old, 1.0) - s / max(n, 1.0))"
    return fused(CENTRED, [
        ("n", "", "sum", "1.0"), ("s", "", "sum", "x[l]"),
        ("d", "", "sum", f"x[l] - {mean}", f"d@old + n@old * {gap}"),
        ("q", "", "sum", f"(x[l] - {mean}) * (x[l] - {mean})", f"q@old + d@old * {gap} * 2.0 + {moved.format(g=gap)}")],
        {"n": "n", "s": "s", "v": "q - d * d / n"})


def test_the_empty_state_stays_empty_however_far_the_reference_moves():
    """A row of 1e20: 0 elements times the square of the way from 0 to the first mean, which is infinite."""
    found = check(centred("n@old * ({g} * {g})"))
    assert found and all(v.startswith("stability: v is not finite") and "deep" in v for v in found)
    assert check(centred("n@old * {g} * {g}")) == []


def test_a_guard_may_not_drop_what_is_undefined():
    """``0 * -inf`` is NaN in the program: a segment of -inf alone may not make 0 of it."""
    assert any("instead of nan" in v and "neginf" in v for v in check(squares(
        "exp(x[l] - m) * (x[l] - m) * (x[l] - m)", "qa@old * {w} + h@old * {w} * {g} * 2 + t@old * {w} * {g} * {g}"),
        stability=False))


def test_five_roundings_of_the_result_are_too_many():
    assert check(attention(final="oa / t")) == []
    found = check(attention(final="oa / t + 64.0 - 64.0"), enough=1)
    assert found and "errs by" in found[0]


# -- right fusions that a rule of fixed size refused -------------------------------------------------------------------

NEAR = """cascade near(s: {d}[64, 64], v: {d}[64, 32]) over l where i = 64, l = 64, e = 32
  p[i, l] = select({mask}, f32(s[i, l]), -inf)
  m[i] = max[l] p
  t[i] = sum[l] exp(p - m)
  o[i, e] = sum[l] f32({d}(exp(p - m) / t)) * f32(v[l, e])
  return o"""
SINK = """cascade sink(s: bf16[64, 128], k: bf16[64], v: bf16[128, 32]) over l where i = 64, l = 128, e = 32
  m0[i] = max[l] f32(s[i, l])
  m[i] = max(m0, f32(k[i]))
  t[i] = sum[l] exp(f32(s[i, l]) - m)
  d[i] = t + exp(f32(k[i]) - m)
  o[i, e] = sum[l] f32(bf16(exp(f32(s[i, l]) - m) / d)) * f32(v[l, e])
  return o"""


@pytest.mark.parametrize("text", [NEAR.format(d="f16", mask="i - l <= 2 and l - i <= 2"),
                                  NEAR.format(d="bf16", mask="(i - l) % 16 == 0 and l <= i"), SINK],
                         ids=["window", "dilated", "sink"])
def test_few_visible_keys_in_half_precision(text):
    """One rounded weight among three is no instability: the unfused program rounds as many."""
    assert check(derived(text)) == []


SHORT_ROWS = """cascade norm(x: f32[5, {n}]) over l where i = 5, l = {n}
  s[i] = sum[l] x[i, l]
  v[i] = sum[l] (x[i, l] - s / {n}.0) * (x[i, l] - s / {n}.0)
  y[i, l] = (x[i, l] - s / {n}.0) * rsqrt(v / {n}.0 + 1e-5)
  return y"""


@pytest.mark.parametrize("n", [2, 3])
def test_rows_of_two_and_three(n):
    assert check(derived(SHORT_ROWS.format(n=n))) == []


GROUPS = """cascade groups(x: f32[L], k: bool[L]) over l
  n = sum[l] select(k[l], 1.0, 0.0)
  s = sum[l] select(k[l], x[l], 0.0)
  v = sum[l] select(k[l], (x[l] - s / n) * (x[l] - s / n), 0.0)
  r = sum[l] select(k[l], 0.0, 1.0)
  u = sum[l] select(k[l], 0.0, x[l])
  w = sum[l] select(k[l], 0.0, (x[l] - u / r) * (x[l] - u / r))
  t = (s / n - u / r) / sqrt(v / (n - 1.0) / n + w / (r - 1.0) / r)
  return t"""


def test_two_groups_that_a_row_of_three_leaves_empty():
    """Welch's t: each group needs two elements for a defined result."""
    assert check(derived(GROUPS)) == []


# -- what is drawn -----------------------------------------------------------------------------------------------------


LEAK = """cascade leak(x: f32[L]) over l
  n = sum[l] 1.0
  s = sum[l] x[l]
  d = sum[l] s / x[l]
  y = n / d
  return y"""


def test_an_infinity_does_not_end_in_a_number_where_the_program_is_nan():
    """``inf / inf`` among the elements, lost when the sum is deferred: ``n / inf`` is 0."""
    state = fused(LEAK, [("n", "", "sum", "1.0"), ("s", "", "sum", "x[l]"), ("r", "", "sum", "1.0 / x[l]")],
                  {"n": "n", "s": "s", "d": "r * s"}, {"y": "n / d"})
    assert any("0 instead of nan" in v for v in check(state, stability=False))


INVERSE = """cascade inverse(x: f32[L]) over l
  s = sum[l] x[l]
  y = 1.0 / abs(s - s)
  return s, y"""


def test_one_infinity_is_not_the_other():
    """NaN may stand for an infinity, since references cancel; what would change its sign is an error."""
    assert check(fused(INVERSE, [("s", "", "sum", "x[l]")], {"s": "s"}, {"y": "1.0 / abs(s - s)"})) == []
    found = check(fused(INVERSE, [("s", "", "sum", "x[l]")], {"s": "s"}, {"y": "-1.0 / abs(s - s)"}), enough=200)
    assert any(v.startswith("result: y") and "-inf instead of inf" in v for v in found)
    assert any(v.startswith("stability: y is the other infinity") for v in found)


def softmax() -> Cascade:
    return parse_cascade("cascade a(x: f32[L], y: f16[L]) over l\n t = sum[l] x[l] * f32(y[l])\n return t")


def test_elements_span_the_exponents_of_their_dtype():
    from redfuser.acrf.check.samples import sample
    from redfuser.acrf.check.systems import domain

    every = list(strains(softmax(), 200))
    s = sample(softmax(), {}, "positive", 97, 0)
    tensors = strained(softmax(), s, every, 0)
    places = (np.arange(97),)
    for name, low, high in (("x", 1e-29, 1e30), ("y", 2e-4, 6e3)):
        x = np.abs(tensors[name].at(places, domain("f64")))
        sizes = np.median(np.where(np.isfinite(x), x, 0), axis=1)
        assert sizes[sizes > 0].min() < low and sizes.max() > high
        assert np.isinf(x).any() and not np.isnan(x).any()
    together = [x.name for x in every].index("all hidden")
    assert all(np.isneginf(tensors[n].at(places, domain("f64"))[together]).any() for n in "xy")


def test_the_lowest_number_is_drawn_where_no_sum_adds_it_up():
    drawn = {x.name for x in strains(parse_cascade(SQUARES.replace("x: f32[L]", "x: f32[L], v: f32[L]").replace(
        "(x[l] - m) * (x[l] - m)", "v[l]")), 97)}
    assert "x bottom" in drawn and "v bottom" not in drawn and {"x deep", "v deep"} <= drawn


def test_an_element_is_the_same_in_every_segment():
    from redfuser.acrf.check.samples import sample
    from redfuser.acrf.check.systems import domain

    s = sample(softmax(), {}, "positive", 97, 0)
    x = strained(softmax(), s, list(strains(softmax(), 97)), 0)["x"]
    whole, part = (x.at((np.arange(a, 90),), domain("program")) for a in (0, 50))
    assert np.array_equal(whole[:, 50:], part)


def test_rows_of_one_tensor_that_meet_are_as_two_tensors_rows() -> None:
    """The cosines of a batch and of the same in another order: numbers of 1e-30, whose products are none, are not of both."""
    for text in ("x: f32[i, l]", "x[i, l]", "x[4 - j, l]"), ("x: f32[i, l], z: f32[j, l]", "x[i, l]", "z[j, l]"):
        inputs, a, b = text
        fused = fuse(parse_cascade(
            f"cascade c({inputs}) over l where i = 5, j = 5\n  t[i] = sum[l] {a} * {a}\n  u[j] = sum[l] {b} * {b}\n"
            f"  o[i, j] = sum[l] {a} / max(sqrt(t), 1e-12) * ({b} / max(sqrt(u), 1e-12))\n  return o\n"))
        assert isinstance(fused, Fused) and check(fused) == []
