"""Layouts that TileLang is told: rows that a warp reduces by itself, rows that all weigh alike."""

from __future__ import annotations

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen import tilelang
from redfuser.strategies import realise, select
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ir.nodes import TileProgram
from redfuser.tensorize.model import predicted
from redfuser.tensorize.model.layout import far_reductions, layouts
from redfuser.tensorize.model.told import Dealt, told
from redfuser.untuned import untuned
from tests.tensorize.holding import hold, values
from tests.tensorize.test_columns import SHOWN

H200 = target("sm_90a")
WEIGHED = """cascade weighed(x: {dtype}[{rows}, {n}]) over l
  m[i] = max[l] f32(x[i, l])
  p[i, l] = exp(f32(x[i, l]) - m)
  t[i] = sum[l] p
  u[i] = sum[l] p * f32(x[i, l])
  y[i] = u / t
  return y
"""
ACROSS = """cascade across(x: f32[{n}, {rows}]) over l
  m[i] = max[l] x[l, i]
  y[i, l] = exp(x[l, i] - m)
  return y
"""


def state(text: str, **extents: object) -> Fused:
    fused = fuse(parse_cascade(text.format(**extents)))
    assert isinstance(fused, Fused)
    return fused


def tiles(fused: Fused, rows: int, n: int, threads: int) -> TileProgram:
    return tensorize(realise(fused, "resident"), TileConfig(rows, n, threads, 0, "registers", False), H200)


@pytest.mark.parametrize(("dtype", "n", "width", "run"), [
    ("f32", 200, 256, 4), ("f32", 512, 512, 4), ("f16", 512, 512, 8), ("f16", 384, 384, 4), ("bf16", 333, 512, 4)])
def test_a_warp_has_a_row_by_itself(dtype: str, n: int, width: int, run: int) -> None:
    """No reduction meets in shared memory; TileLang would give a row of 200 to two warps."""
    made = tiles(state(WEIGHED, rows=9, n=n, dtype=dtype), 4, width, 128)
    (kernel,) = made.kernels
    assert set(told(kernel).values()) == {Dealt(32, run)} and not any(far_reductions(kernel, H200).values())
    assert not any(at.far for at in layouts(kernel, H200).values())
    step = 32 * run
    assert f"forward_fn=lambda i, j: (i * 32 + j // {run} % 32, j // {step} * {run} + j % {run})" in tilelang.print_program(made)
    cascade = parse_cascade(WEIGHED.format(rows=9, n=n, dtype=dtype))
    hold(cascade, values(cascade), made)


@pytest.mark.parametrize(("rows", "threads"), [(1, 32), (4, 64), (8, 128)])
def test_where_a_row_is_not_one_warp_s_tilelang_deals(rows: int, threads: int) -> None:
    (kernel,) = tiles(state(WEIGHED, rows=9, n=512, dtype="f32"), rows, 512, threads).kernels
    assert not told(kernel)


def test_rows_that_lie_side_by_side_are_none_of_a_warp_s() -> None:
    """Neighbours in memory are other rows: a warp reads lines of them."""
    (kernel,) = tiles(state(ACROSS, rows=64, n=256), 8, 256, 256).kernels
    assert not told(kernel)


def test_the_model_takes_a_warp_for_a_row_and_is_told_of_it() -> None:
    fused = state(WEIGHED, rows=8192, n=200, dtype="f32")
    first = configs(realise(fused, "resident"), H200)[0]
    assert first.threads == 32 * first.rows > 32
    apart, together = (predicted(tiles(fused, 4, 256, t), H200) or 0.0 for t in (64, 128))
    assert together < apart


@pytest.mark.parametrize(("steps", "dtype", "threads"), [(256, "f16", 256), (512, "f16", 512), (1024, "f16", 1024)])
def test_longer_rows_that_all_weigh_alike_have_more_threads(steps: int, dtype: str, threads: int) -> None:
    """Read once: of 64 x 1024 x 512 halves 102.8 us on an H200, read twice 141.7 (torch.compile 107.9)."""
    fused = state(SHOWN, b=64, s=steps, e=512)
    assert select(fused, H200) == ("resident", 1) and untuned(fused, "sm_90a")[0] == "resident"
    c = configs(realise(fused, "resident"), H200)[0]
    assert (c.rows, c.segment, c.threads) == (32, steps, threads)
    (kernel,) = tensorize(realise(fused, "resident"), c, H200).kernels
    assert set(told(kernel).values()) == {Dealt(threads // 32)}


def test_what_is_alike_beyond_that_is_read_twice() -> None:
    assert select(state(SHOWN, b=64, s=1025, e=512), H200)[0] == "single"


def test_the_place_of_an_extremum_of_a_long_column_is_walked() -> None:
    """On chip its three numbers for each element were in memory: 122 us of 32 x 1024 x 512 numbers, torch's call 53."""
    place = """cascade place(x: f32[{b}, {n}, {e}]) over l
  a[b, i] = argmax[l] x[b, l, i]
  return a
"""
    short, long = (state(place, b=32, n=n, e=512) for n in (200, 1024))
    assert select(short, H200)[0] == "resident" and select(long, H200)[0] != "resident"


COUNTED = """cascade counted(x: {dtype}[300, 64], y: {whole}[300, 64]) over l
  n[i] = sum[l] y[i, l]
  m[i] = max[l] x[i, l]
  z[i] = select(n < 70, m, {dtype}(0.0))
  return z
"""


@pytest.mark.parametrize(("dtype", "whole", "same"), [("bf16", "i64", False), ("f16", "i32", False), ("f32", "i64", False),
                                                      ("f32", "i32", True)])
def test_tiles_whose_rows_meet_lie_alike(dtype: str, whole: str, same: bool) -> None:
    """Eight halves and two int64 are an access each: of a row, TileLang would give them to as many threads, and finds no layout
    for what a loop makes of both rows. What lies alike by itself is not told."""
    made = tensorize(realise(state(COUNTED, dtype=dtype, whole=whole), "single"), TileConfig(32, 64, 128, 0, "registers", False), H200)
    (kernel,) = made.kernels
    found = told(kernel)
    assert (not found) == same and len(set(found.values())) == (not same)
    assert same or {"x_tile", "y_tile"} <= set(found)
    assert len({(at.across, at.rows) for at in layouts(kernel, H200).values()}) == 1
