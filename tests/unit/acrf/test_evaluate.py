"""The evaluators: against plain NumPy and torch, in every number system, with the documented edge values."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from redfuser.acrf.check.domains import nearest
from redfuser.acrf.check.systems import domain
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.text import parse_cascade
from redfuser.errors import InputError
from tests.evaluated import run, run_fused
from tests.unit.acrf.corpus import ACCEPT

BY_NAME = {c.name: c for c in ACCEPT}
INF, NAN = math.inf, math.nan


def one(body: str, x, precision: str = "f64", dtype: str = "f32"):
    c = parse_cascade(f"cascade a(x: {dtype}[L]) over l\n {body}")
    return [v.tolist() for v in run(c, {"x": np.asarray(x)}, precision).values()]


def test_attention_matches_torch():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 512, 768)).astype(np.float16) for _ in range(3))
    got = run(BY_NAME["attention_causal"].cascade, {"q": q, "k": k, "v": v}, round_casts=False)["y"]
    heads = [torch.tensor(a).double().view(2, 512, 12, 64).transpose(1, 2) for a in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).numpy()
    assert np.max(np.abs(got - want)) < 1e-12


def test_program_precision_rounds_every_operation():
    x = np.array([1.0, 2.0**-11, 2.0**-11], np.float16)
    text = "cascade a(x: f16[3]) over l\n s = sum[l] x[l]\n t: f32 = sum[l] x[l]\n p[l] = x[l] + 1\n return s, t, p"
    out = run(parse_cascade(text), {"x": x}, "program")
    assert out["s"].dtype == np.float16 and out["t"].dtype == np.float32
    assert float(out["t"]) == 1 + 2.0**-10 and float(out["s"]) == 1 + 2.0**-10  # accumulated in fp32, rounded once
    assert out["p"].tolist() == [2.0, 1.0, 1.0]


def test_a_factor_of_every_term_is_rounded_with_every_term():
    """Not taken out of the sum, as a library's contraction does: 3000 and -3000 cancel, their products with .2 need not."""
    cascade = parse_cascade("cascade c(x: f32[I, 30]) over l\n  s[i] = sum[l] x[i, l] * 0.2\n  return s")
    x = np.where(np.arange(30) % 2, 3000, -3000) + np.random.default_rng(0).standard_normal((64, 30))
    x = x.astype(np.float32)
    want = np.sum(x * np.float32(0.2), -1)
    np.testing.assert_array_equal(run(cascade, {"x": x}, "program")["s"], want)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "e4m3", "e5m2", "f32"])
def test_exact_rounding_is_the_hardware_formats(dtype):
    kinds = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
             "e5m2": ml_dtypes.float8_e5m2, "f32": np.float32}
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.standard_normal(300) * 10.0 ** rng.integers(-9, 5, 300), [0, 65519.9, 65520, 448, 464, 3e38]])
    x = x.astype(np.float32).astype(np.float64) if dtype in ("bf16", "e4m3", "e5m2") else x
    with np.errstate(all="ignore"):
        want = x.astype(kinds[dtype]).astype(np.float64)
    got = np.array([float(nearest(Fraction(v), dtype)) for v in x])
    assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize("precision", ["f64", "program", "digits", "exact"])
def test_edge_values(precision):
    def values(body, x):
        return [[float(w) for w in np.ravel(v)] for v in one(body, x, precision)]

    def same(got, want):
        return np.array_equal(np.array(got), np.array(want), equal_nan=True)

    assert same(values("m = max[l] x[l]", [1.0, NAN, 3.0]), [[NAN]])
    assert same(values("m = min[l] x[l]\n n = max[l] max(x[l], 0)", [1.0, NAN, 3.0]), [[NAN], [NAN]])
    assert same(values("a = argmax[l] x[l]\n b = argmin[l] x[l]", [1.0, 3.0, 3.0, 1.0]), [[1], [0]])
    assert same(values("a = argmax[l] x[l]\n b = argmin[l] x[l]", [1.0, NAN, 3.0, NAN]), [[1], [1]])
    assert same(values("v, at = topk(3)[l] x[l]", [1.0, INF, 1.0, 0.0]), [[INF, 1, 1], [1, 0, 2]])
    assert same(values("s = sum[l] select(x[l] > 0, 1 / x[l], 0)", [0.0, -1.0, 4.0]), [[0.25]])
    assert same(values("s = sum[l] 1 / x[l]\n t = sum[l] x[l] / x[l]", [0.0]), [[INF], [NAN]])
    assert same(values("m = max[l] x[l]\n s = sum[l] exp(x[l] - m)", [-INF, -INF]), [[NAN]])
    assert same(values("s = sum[l] x[l]\n m = max[l] x[l]\n p = prod[l] x[l]", []), [[0], [-INF], [1]])
    assert same(values("s = sum[l] sqrt(x[l])", [-1.0]), [[NAN]])


@pytest.mark.parametrize("body", [
    "s = sum[l] x[l] // 0.5 + x[l] % 0.75", "s = sum[l] round(x[l]) + floor(x[l]) * ceil(x[l])", "s = sum[l] abs(-x[l])",
    "s = sum[l] pow(x[l], 3) / (x[l] * x[l] + 1)", "s = sum[l] f32(i32(x[l] * 3)) + select(x[l] < 0, 1, 2)",
    "s = sum[l] exp(x[l]) * tanh(x[l]) + sigmoid(x[l])", "s = sum[l] log(abs(x[l]) + 1) + erf(x[l]) + exp2(x[l])",
    "s = sum[l] log2(abs(x[l]) + 1) * rsqrt(x[l] * x[l] + 1) + sin(x[l]) * cos(x[l])",
    "s = sum[l] select(not (x[l] < 0 or x[l] >= 2 and l != 3), x[l], f32(l // 2))", "s = prod[l] x[l] - 0.5",
    "s = min[l] x[l] * f32(l % 3)", "s = sum[l] f32(bool(x[l] - 1.5)) * x[l]",
])
def test_number_systems_agree(body):
    x = np.array([-2.5, -0.5, 0.5, 1.5, 2.5, 3.25])
    want = one(body, x)[0]
    assert float(one(body, x, "digits")[0]) == pytest.approx(want, rel=1e-13)
    assert float(one(body, x, "program")[0]) == pytest.approx(want, rel=1e-6)
    if not any(f in body for f in ("exp", "log", "tanh", "rsqrt", "sin")):
        assert float(one(body, x, "exact")[0]) == want


def test_a_fused_state_is_the_program_under_any_segmentation():
    case = BY_NAME["route"]
    f = fuse(case.cascade)
    x = np.random.default_rng(2).integers(-3, 4, (5, 11)).astype(np.float32)
    want = run(case.cascade, {"x": x})
    for segments in ([11], [0, 11], [4, 0, 7], [1] * 11, [2, 3, 6, 0]):
        for how in ("step", "merge", "tree"):
            got = run_fused(f, {"x": x}, segments, how)
            assert np.array_equal(got["at"], want["at"]) and np.allclose(got["w"], want["w"], rtol=1e-14)
    with pytest.raises(ValueError, match="do not cover"):
        run_fused(f, {"x": x}, [4, 4])


def test_wrong_inputs_are_coded_errors():
    c = BY_NAME["softmax_value"].cascade
    with pytest.raises(InputError, match="RF183 input v is missing"):
        run(c, {"x": np.zeros((2, 3))})
    with pytest.raises(InputError, match=r"shape \[4, 2\]"):
        run(c, {"x": np.zeros((2, 3)), "v": np.zeros((4, 2))})
    with pytest.raises(ValueError, match="precision"):
        domain("f8")
