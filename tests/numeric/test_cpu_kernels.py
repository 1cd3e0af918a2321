"""Segment programs through LLVM against float64 from the same low-precision inputs.

The rule (docs, numerics): our error is at most twice that of the unfused program in its own precision, plus a few units in
the last place of the output's scale. Inputs are scaled so that the rule can fail, and a planted wrong factor does fail it.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest
import torch

import redfuser
from redfuser.acrf.state import Fused
from redfuser.runtime import launcher
from redfuser.strategies import cpu, realise
from tests import fused_examples as examples
from tests.evaluated import run

UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i64": np.int64}


def inputs_of(fused: Fused, seed: int = 0, scale: float = 2.0, shift: float = 0.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: (rng.standard_normal(t.shape) * scale + shift).astype(NUMPY[t.dtype]) for t in fused.cascade.inputs}


def call(fused: Fused, inputs: Mapping[str, np.ndarray], strategy: str, splits: int = 1,
         segment: int | None = None) -> dict[str, np.ndarray]:
    spec = cpu.build(realise(fused, strategy, splits, segment))
    tensors = [_torch(inputs[t.name]) for t in fused.cascade.inputs]
    out = launcher(spec)(*tensors)
    out = out if isinstance(out, (tuple, list)) else (out,)
    return {n: x.to(torch.float64 if x.is_floating_point() else x.dtype).numpy()
            for n, x in zip(fused.cascade.outputs, out, strict=True)}


def _torch(x: np.ndarray) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def breaches(fused: Fused, inputs: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], dtype: str) -> list[str]:
    """Where the rule does not hold: per output the maximal and the root mean square error."""
    exact, unfused = run(fused.cascade, inputs), run(fused.cascade, inputs, "program")
    found = []
    for name in fused.cascade.outputs:
        want, other, ours = (np.asarray(d[name], np.float64) for d in (exact, unfused, got))
        special = ~np.isfinite(want)
        if not np.array_equal(np.where(special, want, 0), np.where(np.isfinite(ours), 0, ours), equal_nan=True):
            found.append(f"{name}: not finite in other places")
            continue
        want, other, ours = (np.where(special, 0, a) for a in (want, np.where(np.isfinite(other), other, 0), ours))
        tiny = 4 * UNIT[dtype] * max(1e-30, np.abs(want).max())
        for what, measure in (("max", np.max), ("rms", lambda e: np.sqrt(np.mean(e * e)))):
            error, allowed = measure(np.abs(ours - want)), 2 * measure(np.abs(other - want)) + tiny
            if not error <= allowed:
                found.append(f"{name}: {what} error {error:.3g}, allowed {allowed:.3g}")
    return found


def hold(fused: Fused, strategy: str, splits: int = 1, segment: int | None = None, dtype: str = "f32", **kwargs) -> None:
    inputs = inputs_of(fused, **kwargs)
    assert breaches(fused, inputs, call(fused, inputs, strategy, splits, segment), dtype) == []


def ragged_attention(dtype: str = "f32", rows: int = 5, columns: int = 70) -> Fused:
    """Causal, grouped heads, a head dimension and a row that no tile divides."""
    return examples.attention(1, 4, 2, rows, columns, 20, dtype)


@pytest.mark.parametrize(("strategy", "splits", "segment"), [
    ("single", 1, None), ("single", 1, 16), ("resident", 1, None), ("multi", 1, 16), ("multi", 2, 16), ("multi", 3, 16),
    ("multi", 7, 8), ("multi", 100, 1)])
def test_attention(strategy: str, splits: int, segment: int | None) -> None:
    hold(ragged_attention(), strategy, splits, segment)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("strategy", "splits"), [("single", 1), ("multi", 3)])
def test_attention_half(strategy: str, splits: int, dtype: str) -> None:
    hold(ragged_attention(dtype), strategy, splits, 32, dtype)


CASES = {
    "softmax": (lambda dtype: examples.softmax(3, 90, dtype), {"scale": 4.0}),
    "layer_norm": (lambda dtype: examples.layer_norm(3, 90, dtype), {"shift": 3.0}),
    "rms_norm": (lambda dtype: examples.rms_norm(3, 90, dtype), {}),
    "logsumexp": (lambda dtype: examples.logsumexp(3, 90), {"scale": 30.0}),
    "variance": (lambda dtype: examples.variance(3, 90), {"scale": 1.0, "shift": 3.0}),
    "router": (lambda dtype: examples.router(6, 33, 20, 4), {"scale": 0.5}),
}
FORMS = {"single": (1, 16), "resident": (1, None), "multi": (3, 8)}


@pytest.mark.parametrize(("name", "dtype", "strategy"), [
    *(("softmax", d, s) for d in ("f32", "f16", "bf16") for s in FORMS),
    *(("layer_norm", d, s) for d in ("f16", "bf16") for s in FORMS),
    *(("rms_norm", "f16", s) for s in ("resident", "multi")), *(("router", "f32", s) for s in FORMS),
    ("logsumexp", "f32", "multi"), ("variance", "f32", "single"), ("variance", "f32", "multi")])
def test_rows(name: str, dtype: str, strategy: str) -> None:
    make, data = CASES[name]
    hold(make(dtype), strategy, *FORMS[strategy], dtype, **data)


@pytest.mark.parametrize(("strategy", "splits", "segment"), [("single", 1, 8), ("multi", 4, 8)])
def test_edges(strategy: str, splits: int, segment: int) -> None:
    """Rows with -inf at the start, all -inf, +inf, NaN, and huge scores: the result class of the source program."""
    f = examples.softmax(6, 40)
    x = inputs_of(f)["x"]
    x[0, :20], x[1, :], x[2, 7], x[3, 30] = -np.inf, -np.inf, np.inf, np.nan
    x[4] *= 1e4
    assert breaches(f, {"x": x}, call(f, {"x": x}, strategy, splits, segment), "f32") == []


@pytest.mark.parametrize(("strategy", "splits", "segment"), [("single", 1, 8), ("multi", 5, 4)])
def test_ties_and_nan_go_to_the_lowest_index(strategy: str, splits: int, segment: int) -> None:
    f = examples.argmax(5, 24)
    x = np.zeros((5, 24), np.float32)
    x[1, [5, 17]], x[2, [9, 20]], x[3], x[4, 23] = 3, np.nan, -np.inf, 1
    got = call(f, {"x": x}, strategy, splits, segment)["at"]
    assert got.tolist() == torch.from_numpy(x).argmax(-1).tolist() == [0, 5, 9, 0, 23]


@pytest.mark.parametrize(("strategy", "splits"), [("single", 1), ("multi", 3)])
def test_planted_wrong_factor_is_seen(strategy: str, splits: int) -> None:
    for make in (ragged_attention, lambda: examples.variance(3, 90)):
        broken = examples.planted(make())
        inputs = inputs_of(broken)
        assert breaches(broken, inputs, call(broken, inputs, strategy, splits, 16), "f32") != []


def test_partials_are_in_the_accumulators_precision() -> None:
    program = realise(ragged_attention("f16"), "multi", 3)
    assert {t.dtype for t in program.workspaces} == {"f32"}


def test_a_statistic_is_taken_of_the_rounded_product() -> None:
    """The second kernel's ``x * c - logsumexp(x * c)`` as a multiply-add has what the product was rounded by for an error: 7e-3
    of these probabilities."""
    def rebased(x: torch.Tensor) -> torch.Tensor:
        m = x * 0.158
        return torch.softmax(m - torch.logsumexp(m, -2, keepdim=True), -1)

    x = torch.randn(65, 129, generator=torch.Generator().manual_seed(0)) * 1e6
    model = redfuser.compile(rebased, (x,), target="cpu")
    assert sum(c.fused for c in model.report.cascades) == 2
    assert torch.allclose(model(x).double(), rebased(x.double()), atol=1e-6)
