"""Cascades that reduce nothing: a trivial certificate that is checked all the same, one kernel without a walk, and its tiles."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from redfuser import chain
from redfuser.acrf import fuse, mapped, parse_cascade
from redfuser.acrf.cascade import Let
from redfuser.acrf.check import verify
from redfuser.acrf.expr import Const, op
from redfuser.acrf.state import Fused, NotFusable
from redfuser.cache import Cache
from redfuser.codegen import tilelang
from redfuser.errors import InputError
from redfuser.kernels import produce
from redfuser.strategies import realise, select
from redfuser.strategies.check import check
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import For
from redfuser.tensorize.ir.parse import parse as parse_tiles
from tests.segment_programs import parse

H200 = target("sm_90a")
TEXTS = {
    "gate": """cascade gate(x: bf16[40, 688], y: bf16[40, 688]) over l
  z[i, l] = bf16(f32(x[i, l]) * sigmoid(f32(x[i, l]))) * y[i, l]
  return z""",
    "flat": """cascade flat(x: f32[3001]) over l
  z[l] = tanh(x[l]) + 1.0
  return z""",
    "results": """cascade results(x: f32[70, 37], b: f32[37], s: f32[70]) over l
  z[i, l] = x[i, l] + b[l]
  w[i, l] = bf16(z * s[i])
  return z, w""",
    "rotary": """cascade rotary(x: bf16[2, 70, 4, 64], c: bf16[70, 64], s: bf16[70, 64]) over l
  z[b, h, i, l] = x[b, i, h, l] * c[i, l] + select(l < 32, -x[b, i, h, l + 32], x[b, i, h, l - 32]) * s[i, l]
  return z""",
    "across": """cascade across(x: f16[96, 160], y: f16[160, 96]) over l
  z[i, l] = x[i, l] + y[l, i]
  return z""",
    "windows": """cascade windows(x: f16[160, 96], w: f16[96]) over l
  z[i, l] = select(1 <= l, x[l - 1, i], f16(0.0)) * w[i] + x[l, i]
  return z""",
    "mask": """cascade mask(x: f32[50, 70], k: bool[50, 70]) over l
  z[i, l] = select(k[i, l] and l <= i, x[i, l] * 0.5, -inf)
  return z""",
}


def fused(name: str) -> Fused:
    found = mapped(parse_cascade(TEXTS[name]))
    assert isinstance(found, Fused)
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_maps_are_kernels_that_pass_every_check(name, tmp_path):
    f = fused(name)
    assert not f.state.accumulators and "no state" in f.certificate.choices[0] and verify.check(f) == []
    assert select(f, "sm_90a") == ("map", 1)
    program = realise(f, "map")
    assert check(program) == [] and str(parse(str(program), f)) == str(program)
    (kernel,) = program.kernels
    assert kernel.kind == "map" and kernel.spread and not kernel.init and not kernel.body
    config = configs(program, H200)[0]
    assert chain.scalar_program(program, on_cpu=False, store=Cache(tmp_path)).violations == ()
    assert chain.tile_program(program, config, H200, store=Cache(tmp_path)).violations == ()
    tiles = tensorize(program, config, H200)
    assert str(parse_tiles(str(tiles))) == str(tiles)
    assert not any(isinstance(s, For) for s in tiles.kernels[0].body)  # every tile is a point of the grid


def test_windows_that_lie_across_are_computed_as_they_lie():
    """And turned through shared memory: neither is read, nor written, element by element."""
    program = realise(fused("windows"), "map")
    text = str(tensorize(program, configs(program, H200)[0], H200))
    assert "parallel j < 64, i < 64:\n    z_tile_turned[i, j] = select(" in text and "z_tile[i, j] = z_tile_turned[i, j]" in text


@pytest.mark.parametrize("name", ["gate", "rotary"])
def test_another_map_than_the_programs_is_found(name, tmp_path):
    f = fused(name)
    last = f.post[-1]
    assert isinstance(last, Let)
    wrong = replace(f, post=(*f.post[:-1], replace(last, expr=op("mul", last.expr, Const(1.02, last.expr.dtype)))))
    assert any(v.startswith("result") for v in verify.check(wrong))
    assert chain.scalar_program(realise(wrong, "map"), on_cpu=False, store=Cache(tmp_path)).violations


@pytest.mark.parametrize("config", [TileConfig(1, 32, 32, 0, "registers", False), TileConfig(8, 64, 64, 0, "registers", False),
                                    TileConfig(64, 512, 128, 0, "registers", False)], ids=str)
def test_any_tile_gives_the_same_numbers(config):
    rng = np.random.default_rng(0)
    x, b, s = (rng.standard_normal(n).astype(np.float32) for n in ((70, 37), (37,), (70,)))
    x[3, 5], x[69, 36], b[1], s[2] = np.nan, np.inf, -np.inf, 0.0
    got = interpret.run(tensorize(realise(fused("results"), "map"), config, H200), {"x": x, "b": b, "s": s})
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got["z"], x + b)
        np.testing.assert_allclose(got["w"].astype(np.float32), (x + b) * s[:, None], rtol=2.0**-8)


def test_the_text_of_a_rotary_embedding(golden):
    """No walk; a piece that begins before its tensor is loaded where it is taken."""
    program = realise(fused("rotary"), "map")
    tiles = tensorize(program, configs(program, H200)[0], H200)
    golden("kernels/rotary_map.tiles.txt", str(tiles) + "\n")
    golden("kernels/rotary_map.py.txt", tilelang.print_program(tiles))


def test_the_model_orders_tiles_of_maps(monkeypatch):
    """What a map may be is listed; which comes first is the model's, and what it says nothing of stays as listed."""
    program, listed = realise(fused("gate"), "map"), sys.modules["redfuser.tensorize.ranked"]
    usual = configs(program, H200)
    assert len(usual) > 1
    monkeypatch.setattr(listed, "predicted", lambda tiles, at: 1.0 if tiles.kernels[0].threads == usual[-1].threads else 2.0)
    assert configs(program, H200)[0].threads == usual[-1].threads != usual[0].threads


def test_tiles_are_whole_vectors_and_fill_the_device():
    def first(text: str) -> TileConfig:
        return configs(realise(mapped(parse_cascade(text)), "map"), H200)[0]

    body = "over l\n  z[i, l] = x[i, l] + y[i, l]\n  return z"
    large = first(f"cascade c(x: bf16[8192, 11008], y: bf16[8192, 11008]) {body}")
    assert 11008 % large.segment == 0 and large.rows * large.segment == 8 * large.threads
    few = first(f"cascade c(x: bf16[1, 4096], y: bf16[1, 4096]) {body}")
    assert few.rows * few.segment <= 1024 and few.rows == 1
    odd = first(f"cascade c(x: bf16[512, 37], y: bf16[512, 37]) {body}")
    assert odd.segment >= 37


def test_rows_of_small_groups_share_a_tile_and_warps_are_whole():
    """By groups of two rows a repeated picture and a sum are modelled at 22 us for 12; a pool by 63 threads took 20.7 for 12.6
    (H200)."""
    def tiles(text: str) -> list[TileConfig]:
        return configs(realise(mapped(parse_cascade(text)), "map"), H200)

    wide = "cascade wide(x: f16[512, {m}, 64], y: f16[512, {n}, 128]) over l\n  z[h, i, l] = x[h, i // {k}, l // 2] + y[h, i, l]\n  return z"
    assert tiles(wide.format(m=64, n=128, k=2))[0].rows == 16
    assert tiles(wide.format(m=8, n=128, k=16))[0].rows == 16, "a group of them is a tile"
    pool = " + ".join(f"max(x[h, 2 * i + {a}, 2 * l + {b}], f16(0.0))" for a in (0, 1) for b in (0, 1))
    found = tiles(f"cascade pool(x: f16[512, 112, 112]) over l where i = 56, l = 56\n  z[h, i, l] = {pool}\n  return z")
    assert found and all(c.segment == 56 and c.threads % 32 == 0 for c in found)


def test_of_many_taps_a_thread_has_one_element():
    """53.7 us of sixteen, 35.8 of one (H200, 25 taps of 16 x 256 x 256 float32 numbers)."""
    def each(taps):
        text = " + ".join(f"exp(x[i, l + {k}])" for k in range(taps))
        found = mapped(parse_cascade(f"cascade taps(x: f32[4096, 4128]) over l where l = 4096\n  z[i, l] = {text}\n  return z"))
        c = configs(realise(found, "map"), H200)[0]
        return c.rows * c.segment // c.threads

    assert each(20) == 1 < each(3)


def test_of_joined_tables_an_element_is_one() -> None:
    """As many bytes as the taps of a filter, of which an element reads those of one table."""
    many = 24
    tables = ", ".join(f"t{k}: f32[1000, 64]" for k in range(many))
    value = f"t{many - 1}[i, l]"
    for k in reversed(range(many - 1)):
        value = f"select(j[i] == {k}, t{k}[i, l], {value})"
    joined = mapped(parse_cascade(f"cascade joined(j: i64[1000], {tables}) over l\n  y[i, l] = {value}\n  return y"))
    config = configs(realise(joined, "map"), H200)[0]
    assert config.rows * config.segment >= 4 * config.threads


@pytest.mark.parametrize("name, most", [("lgamma", 4), ("erfc", 4), ("tanh", 16)])
def test_functions_that_branch_have_few_elements_a_thread(name: str, most: int) -> None:
    """Their text is written out for each of them: of a map, of a row on chip and of one that is walked."""
    def elements(text: str, strategy: str) -> int:
        cascade = parse_cascade(f"cascade c(x: f32[4096, 2000]) over l\n  {text}\n  return y")
        found = mapped(cascade) if strategy == "map" else fuse(cascade)
        assert isinstance(found, Fused)
        first = configs(realise(found, strategy), H200)[0]
        return first.rows * first.segment // first.threads

    row = f"t[i] = sum[l] {name}(x[i, l])\n  y[i, l] = x[i, l] / t"
    assert elements(f"y[i, l] = {name}(x[i, l])", "map") <= most
    for strategy in ("resident", "single"):
        assert (elements(row, strategy) <= 4) == (most == 4)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_what_rows_share_is_computed_once_for_several(dtype):
    """A batch norm with channels last: a thread has the same channels of several rows. Results of half precision take the
    hardware's root."""
    x, done = ("f32(x[i, l])", "f16") if dtype == "f16" else ("x[i, l]", "")
    cascade = parse_cascade(f"""cascade normed(x: {dtype}[100352, 64], m: f32[64], v: f32[64]) over l
      z[i, l] = {done}(({x} - m[l]) * rsqrt(v[l] + 1e-05))
      return z""")
    found = mapped(cascade)
    assert isinstance(found, Fused)
    program = realise(found, "map")
    config = configs(program, H200)[0]
    assert config.rows * config.segment // config.threads == 4 * (16 // (2 if dtype == "f16" else 4)) and config.segment == 64
    text = tilelang.print_program(tensorize(program, config, H200))
    assert ("rsqrt_approx" in text) == (dtype == "f16") and ("ieee_frsqrt" in text) == (dtype == "f32")


def test_maps_and_states_take_their_own_strategy():
    state = fuse(parse_cascade("cascade c(x: f32[8, 8]) over l\n  t[i] = sum[l] x[i, l]\n  return t"))
    with pytest.raises(InputError, match="RF350"):
        realise(state, "map")
    with pytest.raises(InputError, match="RF350"):
        realise(fused("flat"), "single")
    refused = mapped(state.cascade)
    assert isinstance(refused, NotFusable) and refused.code == "RF211"
    assert isinstance(empty := mapped(parse_cascade("cascade c(x: f32[0, 8]) over l\n  z[i, l] = x[i, l]\n  return z")),
                      NotFusable) and empty.code == "RF213"


def test_a_map_is_produced_like_any_kernel():
    made = produce("k", fused("gate"), "sm_90a", build=False)
    assert made.reason is None and made.strategy == "map" and len(made.checks) == 2 and "T.Kernel" in made.stages["source"]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_wide_integers_become_halves_by_way_of_float32(dtype):
    """As torch's do; CUTLASS's half types are made of no int64_t (nvcc: more than one constructor)."""
    cascade = parse_cascade(f"cascade c(n: i64[64, 128]) over l\n  z[i, l] = {dtype}(n[i, l]) * {dtype}(n[i, l] - 8)\n  return z")
    text = produce("k", mapped(cascade), "sm_90a", build=False).stages["source"]
    assert text.count('"float32"') >= 2 and 'T.cast(n' not in text.replace('T.cast(n_tile[i, j], "float32")', "").replace(
        'T.cast(n_tile[i, j] - 8, "float32")', "")
