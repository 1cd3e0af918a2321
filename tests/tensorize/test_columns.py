"""Reductions of columns, each a thread's or four threads': texts, and values beside float64."""

from __future__ import annotations

from typing import Any

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen import tilelang
from redfuser.strategies import columns, realise, select
from redfuser.strategies.select import ABREAST, OWN
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ir.nodes import TileProgram
from redfuser.tensorize.model import predicted
from redfuser.tensorize.model.layout import alone, layouts
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
    assert set(alone(kernel)) == {"n_term"} and set(alone(kernel).values()) == {ABREAST}
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
