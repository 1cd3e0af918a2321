"""The functions that CPU kernels write out: edge values, and their errors on random bit patterns in units of the last place."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import redfuser
from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.runtime import launcher
from redfuser.strategies import cpu, realise
from tests.seconds import within

EXACT = {"exp": np.exp, "exp2": np.exp2, "tanh": np.tanh, "erf": lambda x: torch.erf(torch.from_numpy(x)).numpy(),
         "sigmoid": lambda x: 1 / (1 + np.exp(-x))}
ULP = {"exp": 1.0, "exp2": 1.5, "tanh": 2.0, "erf": 1.5, "sigmoid": 2.5}
EDGES = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1754944e-38, -1.1754942e-38, 3.4028235e38,
         -3.4028235e38, 88.72283, 88.72284, -87.33654, -103.27893, -103.97208, -104.5, 127.99999, 128.0, -126.0, -149.0, -149.5,
         -150.5, 0.625, 0.62499994, 475 / 512, 0.9277345, 3.9, 4.0, 9.02, 2.0**23, -(2.0**23), 0.34657359, 0.3465736, 1e30]
N = 1 << 16


@cache
def made(name: str) -> object:
    """f(x) of every element, as a CPU kernel that also has a reduction."""
    fused = fuse(parse_cascade(f"cascade each(x: f32[64, {N // 64}]) over l\n  p[i, l] = {name}(x[i, l])\n"
                               "  m[i] = max[l] x[i, l]\n  y[i, l] = select(m > 0.0, p, p)\n  return y"))
    assert isinstance(fused, Fused), fused
    text = cpu.source(program := realise(fused, "single"))
    assert f"T.{name}(" not in text and "call_pure_extern" not in text
    return launcher(cpu.build(program))


def errors(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What came out, what is exact, and the error in units of the last place of what is exact."""
    padded = np.zeros(N, np.float32)
    padded[:x.size] = x
    got = made(name)(torch.from_numpy(padded.reshape(64, -1))).numpy().reshape(-1)[:x.size]  # type: ignore[operator]
    with np.errstate(all="ignore"):
        want = EXACT[name](x.astype(np.float64))
        rounded = want.astype(np.float32)
        unit = np.maximum(2.0**-149, np.exp2(np.floor(np.log2(np.maximum(np.abs(want), 2.0**-149))) - 23))
        unit = np.maximum(unit, 2.0**-126) if name == "sigmoid" else unit  # 1 / (1 + exp(-x)) ends with the normal numbers
        off = np.where(np.isfinite(rounded), np.abs(got.astype(np.float64) - want) / unit, 0.0)
    assert np.array_equal(np.isnan(got), np.isnan(rounded))
    assert np.array_equal(np.where(np.isfinite(got), 0, got), np.where(np.isfinite(rounded), 0, rounded), equal_nan=True)
    return got, want, off


def test_functions_of_functions_are_built_in_a_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))
    fused = fuse(parse_cascade("""cascade mish(x: f32[64, 96]) over l
  p[i, l] = x[i, l] * tanh(log(exp(x[i, l]) + 1.0))
  m[i] = max[l] p
  y[i, l] = p - m
  return y"""))
    assert isinstance(fused, Fused), fused
    with within(10):  # a quarter of a second; TVM's simplifier took half a minute
        built = launcher(cpu.build(realise(fused, "resident")))
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    p = torch.nn.functional.mish(x.double())
    torch.testing.assert_close(built(x).double(), p - p.amax(-1, True), rtol=0, atol=2e-6)  # type: ignore[operator]


@pytest.mark.parametrize("name", EXACT)
def test_edges(name: str) -> None:
    x = np.array(EDGES, np.float32)
    got, want, off = errors(name, x)
    assert off.max() <= ULP[name], (x[off.argmax()], got[off.argmax()], want[off.argmax()])
    if name in ("tanh", "erf"):
        assert np.array_equal(np.signbit(got), np.signbit(x) & ~np.isnan(x) | np.isnan(x) & np.signbit(got))
    else:
        assert got[0] == got[1] == (0.5 if name == "sigmoid" else 1.0)


@pytest.mark.parametrize("name", EXACT)
def test_random(name: str) -> None:
    """Any bits, and those of the magnitudes where the function is not constant."""
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 2**32, N // 2, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([bits, (rng.standard_normal(N // 4) * 3).astype(np.float32),
                        (rng.uniform(-110, 95, N // 4)).astype(np.float32)])
    got, want, off = errors(name, x)
    assert off.max() <= ULP[name], (off.max(), x[off.argmax()], got[off.argmax()], want[off.argmax()])


@pytest.mark.parametrize("test", ["x[i, l] != w[i, l]", "not (x[i, l] != w[i, l])", "bool(x[i, l])", "x[i, l] != 1.0"])
def test_numbers_beside_nan_are_unequal(test: str) -> None:
    fused = fuse(parse_cascade("cascade unequal(x: f32[4, 16], w: f32[4, 16]) over l\n  m[i] = max[l] w[i, l]\n"
                               f"  y[i, l] = select({test}, 1.0, select(m > 0.0, 0.0, 0.0))\n  return y"))
    assert isinstance(fused, Fused), fused
    x, w = torch.ones(4, 16), torch.ones(4, 16)
    x[0], x[1, ::2], x[2], w[2] = math.nan, 0.0, math.nan, math.nan
    want = {"x": x != w, "n": ~(x != w), "b": x.bool()}[test[0]] if "1.0" not in test else x != 1.0
    assert torch.equal(launcher(cpu.build(realise(fused, "single")))(x, w), want.float())


def test_a_nan_of_every_bit_stays_one_in_bfloat16() -> None:
    """Vectors of torch's make such ones; rounded like a number it would be 0."""
    x = torch.randn(3, 40)
    x[1, 7], x[2, 3] = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    assert int(x[1, 7].view(torch.int32)) == 0x7FFFFFFF and int(x[2, 3].view(torch.int32)) == -1

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, -1).bfloat16(), (x - x.amax(-1, keepdim=True)).bfloat16()

    for ours, theirs in zip(redfuser.compile(model, (x,), target="cpu")(x), model(x), strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())


def test_what_cancels_in_the_program_cancels() -> None:
    """One weight is 1: both sides round the same product. LLVM would join it with the difference and round once."""
    def variance(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        w = torch.softmax(x, -1)
        m = w @ z
        return w @ (z * z) - m * m

    x, z = torch.zeros(9, 300), torch.randn(300) * 1e3
    x[torch.arange(9), torch.arange(9) * 7] = 1e4
    compiled = redfuser.compile(variance, (x, z), target="cpu")
    assert compiled.report.fused
    assert torch.equal(compiled(x, z), torch.zeros(9))


@pytest.mark.parametrize("step", [lambda d: d.exp(), lambda d: torch.where(d >= 0, 1.0, 0.0), lambda d: d.floor().clamp(-1, 1)])
def test_a_product_is_rounded_before_a_step(step: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What is left of the maximum's own product would be its rounding, 2^10 here; its exponential is infinite or 0."""
    def weights(x: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
        p = step(x * 0.1767766952966369 - most)
        return p / (p.sum(-1, keepdim=True) + 1e-6)

    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(3)) * 1e10
    most = (x * 0.1767766952966369).amax(-1, keepdim=True)
    compiled = redfuser.compile(weights, (x, most), target="cpu")
    assert compiled.report.fused
    torch.testing.assert_close(compiled(x, most), weights(x, most), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_nan_in_eight_bits_is_none(dtype: torch.dtype) -> None:
    def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(-1, keepdim=True) / 100
        return (x.abs() / scale).round().to(dtype), scale

    x = torch.randn(6, 300)
    x[0, 3], x[1], x[2, 5] = math.nan, 0.0, math.inf
    compiled = redfuser.compile(quantised, (x,), target="cpu")
    assert compiled.report.fused and not any(n.code == "RF905" for n in compiled.report.notes)
    assert torch.equal(compiled(x)[0], quantised(x)[0])
