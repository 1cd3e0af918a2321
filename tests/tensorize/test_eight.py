"""Products of 8 bits: what Hopper's matrix units cut off is in the interpreter, and what may not lose it goes to them in bfloat16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from redfuser import chain
from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.cache import Cache
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, contraction, tensorize
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.eight import added
from redfuser.tensorize.ir.nodes import Gemm

HOPPER = target("sm_90a")
CONFIG = TileConfig(64, 64, 128, 1, "registers", False)
SCORES = {"as they are": "s", "scaled": "s * 0.125", "rounded": "f32(bf16(s))", "scaled and rounded": "f32(bf16(s * 0.125))",
          "rounded in one place": "f32(bf16(s)) + s * 0.5"}


def attention(scores: str, a: str = "e4m3", b: str = "e4m3") -> Program:
    found = fuse(parse_cascade(f"""cascade attention(q: {a}[150, 64], k: {b}[200, 64], v: e4m3[200, 64]) over l
  s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
  p[i, l] = {SCORES[scores]}
  m[i] = max[l] p
  t[i] = sum[l] exp(p - m)
  o[i, e] = sum[l] exp(p - m) / t * f32(v[l, e])
  y[i, e] = bf16(o)
  return y
"""))
    assert isinstance(found, Fused), found
    return realise(found, "single")


def operands(program: Program) -> list[str]:
    (kernel,) = tensorize(program, CONFIG, HOPPER).kernels
    types = {b.name: b.dtype for b in kernel.buffers}
    return [types[next(s for s in every(kernel.body) if isinstance(s, Gemm)).a.buffer]]


@pytest.mark.parametrize(("scores", "dtype"), [("as they are", "bf16"), ("scaled", "bf16"), ("rounded", "e4m3"),
                                               ("scaled and rounded", "e4m3"), ("rounded in one place", "bf16")])
def test_scores_are_products_of_8_bits_where_the_program_rounds_them(scores: str, dtype: str) -> None:
    program = attention(scores)
    assert operands(program) == [dtype]
    said = tensorize(program, CONFIG, HOPPER).roundings
    assert any(r.startswith("s: 8-bit products") for r in said) == (dtype == "e4m3")


@pytest.mark.parametrize(("a", "b"), [("e5m2", "e5m2"), ("e4m3", "e5m2"), ("e4m3", "bf16")])
def test_whatever_the_two_types_are(a: str, b: str) -> None:
    assert operands(attention("as they are", a, b)) == ["bf16"]


@pytest.mark.parametrize("scores", ["scaled", "scaled and rounded"])
def test_the_chain_holds_and_finds_scores_that_lose_digits(scores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = attention(scores)
    assert chain.tile_program(program, CONFIG, HOPPER, Cache(tmp_path / "as it is")).violations == ()
    if scores == "scaled":
        monkeypatch.setattr(contraction, "read_in", lambda cascade, name: 1.0)
        assert operands(program) == ["e4m3"]
        assert chain.tile_program(program, CONFIG, HOPPER, Cache(tmp_path / "8 bits")).violations


def test_what_is_cut_off() -> None:
    """Towards zero, below 13 bits of the larger, once for 32 terms (measured: decision 0010)."""
    ones = np.ones((1, 64), np.float32)
    start = np.full((1, 1), 2.0**14, np.float32)
    assert added(start, ones * 2.0**-6, ones.T)[0, 0] == 2.0**14, "halves, twice"
    assert added(start, ones * 2.0**-4, ones.T)[0, 0] == 2.0**14 + 4
    assert added(-start, ones * 2.0**-6, ones.T)[0, 0] == -2.0**14 + 3, "2 at first, then 1, as the larger is below 2**14"
    assert added(np.zeros((1, 1), np.float32), ones, ones.T)[0, 0] == 64
    assert np.isnan(added(start, ones * np.nan, ones.T)) and added(start, ones * np.inf, ones.T)[0, 0] == np.inf
    tiny = np.full((1, 1), 2.0**-149, np.float32)
    assert np.isfinite(added(tiny, ones * 0, ones.T)).all()
