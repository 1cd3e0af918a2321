"""The verifier: right forms pass, wrong and unstable ones do not; the numbers of the specification; known defects."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from redfuser.acrf.cascade import Reducer
from redfuser.acrf.check.cuts import segmentations
from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.expr import Const, f32
from redfuser.acrf.serial import certificate_from_json, fused_from_json, fused_to_json
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from redfuser.errors import ArtifactError
from tests.evaluated import run, run_fused
from tests.unit.acrf.corpus import ACCEPT
from tests.unit.acrf.handmade import attention, raw_variance, variance
from tests.unit.acrf.mutants import mutants

BY_NAME = {c.name: c for c in ACCEPT}


def derived(name: str, casts: str = "preserve") -> Fused:
    f = fuse(BY_NAME[name].cascade, casts)
    assert isinstance(f, Fused)
    return f


# -- handmade states ---------------------------------------------------------------------------------------------------


def test_a_right_state_passes():
    assert check(attention()) == []


def test_an_extremum_of_computed_halves_is_rounded_where_the_program_rounds_it():
    """A map of halves before a maximum: the state holds what the program's own maximum is."""
    f = fuse(parse_cascade("cascade absmax(x: bf16[12, 40], u: bf16[12], r: bf16[12]) over l\n"
                           "  y[i, l] = (x[i, l] - u[i]) * r[i]\n  m[i] = max[l] abs(y)\n"
                           "  z[i, l] = y / max(m, bf16(0.001))\n  return y, z\n"))
    assert isinstance(f, Fused) and check(f) == []


@pytest.mark.parametrize("wrong", [
    attention(rebase="exp(m@old - m) * 1.0001"), attention(rebase="exp(m - m@old)"), attention(final="oa"),
    attention(weight="exp(x[l])", rebase="1.0"), attention(final="oa / (t + 1e-06)"),
])
def test_a_wrong_state_does_not(wrong):
    assert check(wrong)


def test_an_unstable_state_does_not_though_its_algebra_is_right():
    found = check(raw_variance())
    assert found and all(v.startswith("stability") for v in found)
    assert not [v for v in check(variance()) if not v.startswith("stability")]


def test_a_nan_for_an_infinity_in_a_state_must_not_make_a_number_of_the_program_nan():
    """Behind a prefix of zeros the sum of logarithms is -inf and the geometric mean 0. A rebase that divides 0 by 0 there
    leaves NaN: excused in the state, which is infinite in any case, and wrong in the result."""
    f = derived("geometric_mean")
    (wrong,) = [m.fused for m in mutants(f) if m.place == "rebase of s_acc" and (m.before, m.after) == ("m@old", "m")
                and str(m.fused.state.accumulators[2].rebase[0]).endswith(" / select(m <= 0.0, 1.0, m@old), 0.0))")]
    assert [v for v in check(wrong, stability=False) if v.startswith("result: g ") and "nan instead of 0" in v]


@pytest.mark.parametrize(("change", "says"), [
    (lambda a: replace(a, neutral=(f32(-10000.0),)), "neutral"),
    (lambda a: replace(a, neutral=()), "structure"),
    (lambda a: replace(a, reducer=Reducer("min"), neutral=(Const(math.inf, "f32"),)), "result"),
    (lambda a: replace(a, contribution=a.rebase[0]), "structure"),
    (lambda a: replace(a, rebase=(a.contribution,)), "structure"),
])
def test_each_obligation_is_checked(change, says):
    f = attention()
    first, *rest = f.state.accumulators
    assert any(v.startswith(says) for v in check(replace(f, state=replace(f.state, accumulators=(change(first), *rest)))))


def test_a_missing_result_and_a_narrow_sum_are_named():
    f = attention()
    assert "structure: the output o is nowhere computed" in check(
        replace(f, state=replace(f.state, finalize=f.state.finalize[:2])))
    narrow = tuple(replace(a, dtype="f16") for a in f.state.accumulators)
    assert any("accumulates in f16" in v for v in check(replace(f, state=replace(f.state, accumulators=narrow))))


def test_segmentations_are_all_of_them():
    assert len({s for s in segmentations(3) if 0 not in s}) == 4
    assert all(sum(s) == 3 for s in segmentations(3)) and (0, 3) in set(segmentations(3))
    assert list(segmentations(0)) == [(), (0,)]


# -- the numbers of the specification ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["variance", "variance_pow"])
def test_variance_in_fp32_over_a_hundred_thousand_elements(name):
    text = BY_NAME[name].text.replace("256.0", "100000.0").replace("256", "100000")
    f = fuse(parse_cascade(text))
    x = (1e4 + np.random.default_rng(3).standard_normal((1, 100_000))).astype(np.float32)
    out = f.cascade.outputs[-1]
    want = run(f.cascade, {"x": x})[out]
    for segments, how in (([100_000], "step"), ([1000] * 100, "step"), ([1000] * 100, "tree"), ([777] * 128 + [544], "merge")):
        got = run_fused(f, {"x": x}, segments, how, "program")[out]
        assert np.max(np.abs(got - want) / want) <= 1e-5, (len(segments), how)


def test_scores_of_ten_thousand_survive_in_fp32():
    f = derived("softmax_value")
    rng = np.random.default_rng(4)
    x = rng.uniform(-1e4, 1e4, (4, 300)).astype(np.float32)
    v = rng.standard_normal((300, 8)).astype(np.float32)
    want = run(f.cascade, {"x": x, "v": v})["o"]
    for how in ("step", "tree"):
        got = run_fused(f, {"x": x, "v": v}, [50] * 6, how, "program")["o"]
        assert np.max(np.abs(got - want)) < 1e-5


def test_moved_roundings_stay_within_their_bound():
    f = derived("attention_rounded")
    assert f.certificate.roundings and "2u" in " ".join(f.certificate.roundings)
    rng = np.random.default_rng(5)
    x, v = rng.standard_normal((8, 64)).astype(np.float32), rng.standard_normal((64, 4)).astype(np.float16)
    want, got = (g["o"] for g in (run(f.cascade, {"x": x, "v": v}), run_fused(f, {"x": x, "v": v}, [16] * 4, "tree")))
    p = np.exp(x - x.max(1, keepdims=True)).astype(np.float64)
    terms = np.abs((p / p.sum(1, keepdims=True)) @ np.abs(v.astype(np.float64)))
    assert np.all(np.abs(got - want) <= 2 * 2.0**-11 * terms) and np.any(got != want)
    worse = replace(f, certificate=replace(f.certificate, roundings=()))
    assert check(worse), "a moved rounding that is not listed"


# -- defects of the public implementation ------------------------------------------------------------------------------


def test_topk_of_one_and_of_logits_below_ten_thousand():
    f = derived("route_one")
    x = np.array([[-2e4, -1.5e4, -3e4, -1.5e4]], np.float32)
    for segments in ([4], [1, 1, 1, 1], [2, 2]):
        got = run_fused(f, {"x": x}, segments, "tree", "program")
        assert got["at"].tolist() == [[1]] and got["w"].tolist() == [[0.5]]


def test_a_zero_tile_or_row_does_not_poison_quantised_gemm():
    f = derived("quant_gemm_elide", "elide")
    a, w = np.ones((2, 8), np.float32), np.ones((8, 3), np.float32)
    a[0, :4] = 0
    a[1] = 0
    got = run_fused(f, {"a": a, "w": w}, [4, 4], "step", "program")["y"]
    assert np.allclose(got[0], 4.0)
    source = run(f.cascade, {"a": a, "w": w}, "program")["y"]
    assert np.array_equal(np.isnan(got), np.isnan(source)), "an all-zero row ends as in the source program (0 / 0)"


def test_max_with_a_factor_of_results_is_multiplied_and_partials_are_wide():
    f = derived("max_of_normalised")
    x = np.random.default_rng(6).standard_normal((3, 128)).astype(np.float32)
    assert np.allclose(run_fused(f, {"x": x}, [100, 28], "tree")["y"], run(f.cascade, {"x": x})["y"])
    assert {a.dtype for a in derived("attention_causal").state.accumulators} == {"f32"}


def test_equal_extents_are_not_one_axis_and_names_are_not_symbols():
    square = parse_cascade("cascade a(x: f32[8, 8]) over l\n m = max[l] x[i, l]\n t = sum[l] exp(x[i, l] - m)")
    renamed = parse_cascade("cascade a(t: f32[8, 8]) over i\n x = max[i] t[l, i]\n m = sum[i] exp(t[l, i] - x)")
    x = np.random.default_rng(7).standard_normal((8, 8)).astype(np.float32)
    one = run_fused(fuse(square), {"x": x}, [3, 5])["t"]
    two = run_fused(fuse(renamed), {"t": x}, [3, 5])["m"]
    assert np.array_equal(one, two) and np.allclose(one, run(square, {"x": x})["t"])


def test_a_tail_that_no_split_divides_is_not_dropped():
    f = derived("softmax_denominator")
    x = np.zeros(13, np.float32)
    assert float(run_fused(f, {"x": x}, [4, 4, 4, 1], "tree")["t"]) == 13


# -- certificates as data ----------------------------------------------------------------------------------------------


def test_damaged_data_is_a_coded_error():
    data = fused_to_json(derived("softmax_value"))
    for broken in ({**data, "format": 99}, {k: v for k, v in data.items() if k != "post"}, {**data, "cascade": "cascade"}):
        with pytest.raises(ArtifactError, match="RF185"):
            fused_from_json(broken)
    with pytest.raises(ArtifactError, match="RF185"):
        certificate_from_json({"key": "x"})


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8"])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_the_least_integer_loses_to_every_other(kind: str, dtype: str) -> None:
    """Its negative is itself: turned so that the greatest comes first, it came first."""
    fused = fuse(parse_cascade(f"cascade c(x: {dtype}[l]) over l\n  at = {kind}[l] x[l]\n  return at\n"))
    assert isinstance(fused, Fused) and check(fused) == []
