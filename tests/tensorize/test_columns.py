"""Reductions of columns, each a thread's or four threads': texts, and values beside float64."""

from __future__ import annotations

from typing import Any

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen import tilelang
from redfuser.strategies import columns, realise, select
from redfuser.strategies.program import Strategy
from redfuser.strategies.select import ABREAST, OWN
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ir.nodes import TileProgram
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.model import predicted
from redfuser.tensorize.model.layout import layouts
from redfuser.tensorize.model.told import Dealt, told
from redfuser.untuned import priced, untuned
from tests.tensorize.holding import hold, values

H200 = target("sm_90a")
POOLED = """cascade pooled(h: bf16[{b}, {s}, {e}], m: f32[{b}, {s}]) over l
  o[i, e] = sum[l] f32(h[i, l, e] * bf16(m[i, l]))
  t[i] = sum[l] f32(bf16(m[i, l]))
  y[i, e] = bf16(o) / max(bf16(t), bf16(0.001))
  return y
"""
LEAST = """cascade least(x: f32[{s}, {e}], y: f32[{s}, {e}]) over l
  n[i] = min[l] abs(x[l, i] - y[l, i])
  z[i] = tanh(n)
  return z
"""


def state(text: str, **sizes: int) -> Fused:
    found = fuse(parse_cascade(text.format(**sizes)))
    assert isinstance(found, Fused)
    return found


def planned(fused: Fused) -> tuple[TileProgram, TileConfig]:
    program = untuned(fused, "sm_90a")[1]
    return tensorize(program, config := configs(program, H200)[0], H200), config


def test_golden(golden: Any) -> None:
    """Few columns: four threads have one, and exchange what they have of it once a step. A mask of rows is read by each."""
    tiles, config = planned(state(POOLED, b=64, s=512, e=768))
    assert (config.rows, config.threads, len(tiles.kernels)) == (OWN, ABREAST * OWN, 1)
    golden("kernels/pooled_columns.py.txt", tilelang.print_program(tiles))
    tiles, config = planned(state(LEAST, s=4096, e=4096))
    assert config.rows == OWN and len(tiles.kernels) == 2, "fewer columns than fill the machine: in splits besides"
    golden("kernels/least_columns.py.txt", tilelang.print_program(tiles))


@pytest.mark.parametrize("config", [TileConfig(OWN, 8, OWN, 0, "registers", False),
                                    TileConfig(OWN, 32, ABREAST * OWN, 0, "registers", False)], ids=["alone", "abreast"])
@pytest.mark.parametrize(("text", "sizes"), [(POOLED, dict(b=3, s=45, e=70)), (LEAST, dict(s=77, e=130))], ids=["pooled", "least"])
@pytest.mark.parametrize("splits", [1, 2])
def test_values(text: str, sizes: dict[str, int], config: TileConfig, splits: int) -> None:
    """Ragged both ways, in one walk and in splits."""
    cascade = parse_cascade(text.format(**sizes))
    fused = fuse(cascade)
    assert isinstance(fused, Fused)
    program = tensorize(realise(fused, "multi" if splits > 1 else "single", splits), config, H200)
    hold(cascade, values(cascade), program)


def test_a_mask_of_rows_does_not_hide_columns() -> None:
    """Nor does its sum, which no column has; what a product shares among columns is another matter."""
    assert columns(state(POOLED, b=64, s=512, e=768)) and select(state(POOLED, b=640, s=512, e=768), H200) == ("single", 1)
    way, splits = select(state(POOLED, b=1, s=51200, e=768), H200)
    assert way == "multi" and splits >= 66, "few columns, long: enough blocks for memory"
    product = state("""cascade p(a: f32[32, 99], x: f32[99, 64]) over l
      o[i, e] = sum[l] a[i, l] * x[l, e]
      t[i] = sum[l] a[i, l]
      y[i, e] = o / t
      return y
    """)
    rebased = state("""cascade s(x: f32[99, 640]) over l
      m[i] = max[l] x[l, i]
      t[i] = sum[l] exp(x[l, i] - m)
      return m, t
    """)
    assert not columns(product) and not columns(rebased)


def test_the_model_knows_who_has_a_column() -> None:
    """Threads with columns of their own exchange nothing, and ask for a mask's element together: 2048 x 4096 of a map of two
    tensors was modelled at 35 us, where one read takes 7."""
    fused = state("""cascade p(x: f16[2048, 4096], y: f16[2048, 4096]) over l
      t[i] = sum[l] f32(x[l, i] * y[l, i])
      return t
    """)
    seconds = priced(fused, "sm_90a")
    assert isinstance(seconds, float) and 9e-6 < seconds < 17e-6
    one, four = (tensorize(realise(fused, "single"), TileConfig(OWN, 32 * k, OWN * k, 0, "registers", False), H200)
                 for k in (1, ABREAST))
    mine, ours = (next(at for n, at in layouts(p.kernels[0], H200).items() if n.endswith("_term")) for p in (one, four))
    assert (mine.across, mine.far, ours.across, ours.far) == (1, False, ABREAST, True)
    assert (predicted(four, H200) or 1.0) < (predicted(one, H200) or 0.0), "64 blocks of 64 threads are too few"


def test_a_tile_that_is_read_the_other_way_round_is_none_of_theirs() -> None:
    """As many rows as elements: what is told of the terms is not so of the tile that they are made of, its columns and theirs."""
    square = tensorize(realise(state(LEAST, s=256, e=256), "single"), TileConfig(OWN, OWN, ABREAST * OWN, 0, "registers", False), H200)
    (kernel,) = square.kernels
    assert told(kernel) == {"n_term": Dealt(ABREAST)}
    assert "annotate_layout({n_term: T.Fragment((64, 64), forward_fn=lambda i, j: (i + 64 * (j // 16), j % 16))})" in (
        tilelang.print_program(square))


def test_few_columns_have_most_threads_of_a_block() -> None:
    """49 pixels of an image: 64 threads, of which 15 have none; of 32 a line is read by fewer."""
    assert columns(state(POOLED, b=64, s=512, e=49)) and not columns(state(POOLED, b=64, s=512, e=32))
    assert planned(state(POOLED, b=64, s=512, e=49))[1].rows == OWN


def test_only_states_of_data_are_shared_by_threads() -> None:
    """What a rebase moves is a thread's own, as it was measured."""
    moments = state("""cascade v(x: f32[300, 640]) over l
      s[i] = sum[l] x[l, i]
      v[i] = sum[l] (x[l, i] - s / 300.0) * (x[l, i] - s / 300.0)
      return v
    """)
    assert {c.threads for c in configs(realise(moments, "single"), H200)} == {OWN}
    assert {c.threads for c in configs(realise(state(POOLED, b=2, s=512, e=768), "single"), H200)} == {OWN, ABREAST * OWN}


STEP = """cascade step(s: f32[{b}, {k}, {v}], q: f32[{b}, {k}], w: f32[{b}, {k}], u: f32[{b}, {v}]) over l
  p[i, l, e] = s[i, l, e] * 0.75
  o[i, e] = sum[l] p * w[i, l]
  y[i, l, e] = p + w[i, l] * (u[i, e] - o)
  z[i, e] = sum[l] y * q[i, l]
  return y, z
"""
SHOWN = """cascade shown(x: f16[{b}, {s}, {e}], m: bool[{b}, {s}]) over l
  o[i, e] = sum[l] f32(x[i, l, e]) * f32(m[i, l])
  t[i] = sum[l] f32(m[i, l])
  u[i, e] = o / max(t, 1.0)
  d[i, e] = sum[l] (f32(x[i, l, e]) - u) * (f32(x[i, l, e]) - u) * f32(m[i, l])
  y[i, l, e] = (f32(x[i, l, e]) - u) * rsqrt(d / max(t, 1.0) + 0.001)
  return y
"""


def test_a_state_has_its_columns_abreast() -> None:
    """Weights along the row have TileLang deal out its elements by fours, and lines of columns to nobody: 34.3 us, so 13.0."""
    tiles, config = planned(state(STEP, b=1024, k=64, v=64))
    assert (config.rows, config.segment, config.threads) == (OWN, 64, ABREAST * OWN)
    (kernel,) = tiles.kernels
    found = told(kernel)
    assert "o_term" in found and set(found.values()) == {Dealt(ABREAST)}
    assert "s_tile" in kernel.homes and not {"s_tile", "y_tile"} & set(found), "these lie across"


@pytest.mark.parametrize("config", [TileConfig(OWN, 64, ABREAST * OWN, 0, "registers", False),
                                    TileConfig(32, 64, 128, 0, "registers", False)], ids=["abreast", "dealt"])
def test_a_state_that_is_written_and_read(config: TileConfig) -> None:
    cascade = parse_cascade(STEP.format(b=5, k=64, v=70))
    fused = fuse(cascade)
    assert isinstance(fused, Fused)
    hold(cascade, values(cascade), tensorize(realise(fused, "resident"), config, H200))


@pytest.mark.parametrize(("strategy", "splits"), [("resident", 1), ("single", 1), ("multi", 3)])
def test_a_mask_of_time_and_many_channels(strategy: Strategy, splits: int) -> None:
    """The map behind the splits has the channels for points, as the kernel in front has: it named an axis that no grid had."""
    cascade = parse_cascade(SHOWN.format(b=6, s=90, e=40))
    fused = fuse(cascade)
    assert isinstance(fused, Fused)
    program = realise(fused, strategy, splits)
    tiles = tensorize(program, configs(program, H200)[0], H200)
    assert verify(tiles) == []
    hold(cascade, values(cascade), tiles)
    assert select(state(SHOWN, b=64, s=1024, e=512), H200) == ("resident", 1)


def test_weights_of_a_short_row_are_made_for_each_column() -> None:
    """4096 rows of 50 halves by 32: as a matrix with one row of 16 72.5 us, so 21.1 with their scores; longer ones stay one."""
    def made(n: int, e: int, score: str = "f32(s[i, l])") -> str:
        inputs = "s: f16[4096, {n}], v: f16[4096, {n}, {e}], q: f16[4096, 64], k: f16[4096, {n}, 64]"
        return str(planned(state("cascade a(" + inputs + ") over l\n" + score + """
  m[i] = max[l] p
  t[i] = sum[l] exp(p - m)
  o[i, e] = sum[l] exp(p - m) * f32(v[i, l, e])
  y[i, e] = f16(o / t)
  return y
""", n=n, e=e))[0])

    scores, product = "  p[i, l] = f32(s[i, l])", "  p[i, l] = sum[c] f32(q[i, c]) * f32(k[i, l, c])"
    assert "gemm" not in made(50, 32, scores) and "gemm" in made(500, 32, scores) and "gemm" in made(50, 32, product)
