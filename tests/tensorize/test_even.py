"""Splits of whole steps, rows side by side, short rows, counts: what every element of a tile would be asked or would carry, and
need not."""

from __future__ import annotations

import pytest

from redfuser.acrf import fuse, mapped, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.gate import checked_tiles
from redfuser.strategies import realise
from redfuser.strategies.program import Program, Strategy
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.axes import choose
from redfuser.tensorize.ir.nodes import For
from redfuser.tensorize.splits import NEAR, whole_steps
from redfuser.untuned import untuned

H200 = target("sm_90a")


def of(text: str) -> Fused:
    cascade = parse_cascade(text)
    found = fuse(cascade)
    found = found if isinstance(found, Fused) else mapped(cascade)
    assert isinstance(found, Fused), found
    return found


def sums(n: int, rows: int = 2) -> Fused:
    return of(f"cascade sums(x: f32[{rows}, {n}], w: f32[{n}]) over l\n  t[i] = sum[l] abs(x[i, l] - w[l])\n"
              "  m[i] = max[l] x[i, l]\n  y[i] = t / m\n  return y\n")


@pytest.mark.parametrize(("n", "splits", "now"), [(1760 * 4096, 264, 320), (1000 * 2048, 128, 125), (784896, 128, 219),
                                                  (1 << 20, 128, 128), (2048 * 1009, 128, 128), ((1 << 20) + 1, 128, 128)])
def test_splits_are_whole_steps_where_there_are_such(n: int, splits: int, now: int) -> None:
    """Each access of a step that may reach beyond the row is behind a test of its own: 104 us for 51."""
    program = realise(sums(n), "multi", splits)
    found = whole_steps(program, H200)
    assert found.splits == now and found.splits <= NEAR * splits
    if found is not program:
        config = configs(found, H200)[0]
        assert n % config.segment == 0 and n // config.segment % found.splits == 0


def test_the_untuned_choice_has_them() -> None:
    strategy, program = untuned(sums(1760 * 4096, 1), "sm_90a")
    (loop, *_) = [s for s in tensorize(program, configs(program, H200)[0], H200).kernels[0].body if isinstance(s, For)]
    assert strategy == "multi" and 1760 % program.splits == 0, (program.splits, loop)


def rows_of(text: str) -> str:
    program: Program = realise(of(text), "resident")
    return choose(program.kernels[0], {a.name: int(a.extent) for a in program.axes}).rows


@pytest.mark.parametrize(("x", "at", "rows"), [
    ("8, 64, 96, 32", "b, i, l, h", "h"), ("8, 64, 96, 8", "b, i, l, h", "i"), ("8, 32, 64, 96", "b, h, i, l", "i"),
    ("8, 96, 64, 32", "b, l, i, h", "h")])
def test_rows_are_along_the_axis_that_is_side_by_side(x: str, at: str, rows: str) -> None:
    """Along any other, each thread reads single numbers from lines of its own: 63.7 us for 19.8."""
    h, i = (int(n) for n in (x.split(", ")[at.split(", ").index(a)] for a in "hi"))
    assert rows_of(f"cascade softmax(x: f32[{x}]) over l where h = {h}, i = {i}\n  m[b, h, i] = max[l] x[{at}]\n"
                   f"  t[b, h, i] = sum[l] exp(x[{at}] - m)\n  y[b, h, i, l] = exp(x[{at}] - m) / t\n  return y\n") == rows


def test_a_second_tensor_that_lies_the_other_way_leaves_them() -> None:
    text = ("cascade softmax(x: f32[8, 64, 96, 32], z: f32[8, 32, 64, 96]) over l\n  s[b, h, i, l] = x[b, i, l, h] + z[b, h, i, l]\n"
            "  m[b, h, i] = max[l] s\n  t[b, h, i] = sum[l] exp(s - m)\n  y[b, h, i, l] = exp(s - m) / t\n  return y\n")
    assert rows_of(text) == "i"


@pytest.mark.parametrize("n", [4, 8, 16])
def test_short_rows_fill_a_block(n: int) -> None:
    """Rows of four came to 64 of 64 threads, which was taken for rows that are walked side by side, and not ranked."""
    first = configs(realise(of(f"cascade most(x: f16[1000000, {n}]) over l\n  m[i] = max[l] x[i, l]\n  return m\n"), "single"), H200)[0]
    assert first.rows * first.segment >= 1024


COUNTED = """cascade counted(x: f32[3, 300], m: bool[3, 300], k: u8[3, 300]) over l
  t[i] = sum[l] i64(x[i, l] < 0.5 and m[i, l])
  u[i] = sum[l] i64(k[i, l])
  v[i] = sum[l] x[i, l]
  y[i] = v / f32(t)
  return y, u
"""


@pytest.mark.parametrize(("strategy", "splits"), [("single", 1), ("resident", 1), ("multi", 3)])
def test_bytes_are_added_up_in_32_bits_and_kept_in_64(strategy: Strategy, splits: int) -> None:
    program = realise(of(COUNTED), strategy, splits)
    config = TileConfig(1, 512 if strategy == "resident" else 128, 128, 0, "registers", False)
    assert checked_tiles(program, config, H200, "1")
    buffers = tensorize(program, config, H200).kernels[0].buffers
    assert all(b.shape == (1,) for b in buffers if b.dtype == "i64") and any(b.dtype == "i64" for b in buffers)
    assert sum(b.dtype == "i32" and b.shape != (1,) for b in buffers) >= 1


def test_a_sum_of_few_in_an_element_leaves_partials_a_tile() -> None:
    """264 partials were added one by one."""
    text = ("cascade lengths(x: f32[2, 100000]) over l\n  s[l] = sum[c] x[c, l] * x[c, l]\n  t = sum[l] sqrt(s)\n"
            "  m = max[l] s\n  y = t / m\n  return y\n")
    for many, kind in ((2, "merge"), (64, "combine")):
        program = realise(of(text.replace("f32[2, ", f"f32[{many}, ")), "multi", 25)
        assert program.kernels[1].kind == kind
