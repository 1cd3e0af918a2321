"""Rows that share nothing: on chip, in steps or in splits, as the model of resources finds fastest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.expr import op
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from redfuser.codegen.tilelang import print_program
from redfuser.strategies import alone, realise
from redfuser.strategies.select import on_chip, select
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ranked import ROWS_TIE
from redfuser.tensorize.walks import HELD, _others, quickest, seconds
from redfuser.untuned import untuned
from tests import fused_examples as examples

H200 = target("sm_90a")


@pytest.mark.parametrize("rows, n, strategy, splits", [
    (1, 32768, "resident", (1,)),  # one launch: 2.9 us for 3.4 in 8 blocks and a merge
    (128, 8192, "resident", (1,)),  # one kernel, and the row is asked for at once
    (128, 32768, "multi", (512,)),  # a thread's walks are as many more as there are fewer rows: 7.0 us for 8.8 in 256
    (1024, 32768, "multi", (128, 256)),
    (512, 8192, "resident", (1,))])
def test_a_row_is_walked_as_the_model_finds_fastest(rows: int, n: int, strategy: str, splits: tuple[int, ...]) -> None:
    fused = examples.variance(rows, n)
    chosen, program = untuned(fused, "sm_90a")
    assert (chosen, program.strategy) == (strategy, strategy) and program.splits in splits
    assert (seconds(program, H200) or 0.0) <= (seconds(realise(fused, "single"), H200) or 0.0) * 1.2


def test_only_rows_that_share_nothing_are_asked_about() -> None:
    assert alone(examples.variance(7, 100)) == 7 and alone(examples.softmax(9, 100)) == 9
    v = examples.variance(7, 100)
    first = v.state.accumulators[1]  # a weight for each column, which all rows share, makes them no less rows of their own
    weighted = replace(first, contribution=op("mul", first.contribution, examples.load("w", "f32", "l")))
    assert alone(replace(v, state=replace(v.state, accumulators=(weighted, *v.state.accumulators[1:])))) == 7
    assert not alone(examples.attention(1, 2, 2, 64, 128, 64)) and not alone(examples.router(64, 64, 96, 4))


def test_what_is_nearly_as_fast_does_not_replace_the_choice() -> None:
    fused: Fused = examples.variance(1024, 32768)
    program = realise(fused, "multi", 256)  # 128 threads: 3 % faster in the model
    assert quickest(fused, 1024, program, H200) is program


def test_a_thread_adds_few_elements_in_turn_to_a_float32_result() -> None:
    """32 of them lose the ties of a variance of one row, 64 of 128 rows (docs/results/h200-2026-11-23-tuning); where a block has
    not the threads for so few, as few as it can."""
    for n, few in ((4096, 16), (8192, 16), (16384, 32)):
        found = configs(realise(examples.variance(128, n), "resident"), H200)
        assert found and all(c.rows * c.segment <= few * c.threads for c in found)


def test_a_long_row_on_chip_is_as_wide_as_it_is() -> None:
    widths = {n: configs(realise(examples.softmax(264, n, "f16"), "resident"), H200)[-1].segment for n in (40960, 40000)}
    assert widths == {40960: 40960, 40000: 65536}


def test_a_row_of_768_is_a_warps() -> None:
    """Layer norms of 8192 and 16384 rows of 768 halves take 8.4 and 14.3 us by a warp a row, by two rows in 64 threads 9.7 and
    16.9 (H200, docs/decisions/0022); rows of 384 are too many blocks for that."""
    def first(rows: int, n: int) -> tuple[int, int, int]:
        c = configs(realise(examples.layer_norm(rows, n, "f16"), "resident"), H200)[0]
        return c.rows, c.segment, c.threads

    assert first(8192, 768) == first(16384, 768) == (1, 768, 32)
    assert first(50432, 384)[0] > 1
    lanes = target("gfx942").warp
    found = configs(realise(examples.layer_norm(8192, 768, "f16"), "resident"), target("gfx942"))
    assert all(c.threads >= lanes for c in found if c.segment == 768)


@pytest.mark.parametrize("weight, held", [
    ("w[l]", True), ("w[l // 1024]", True), ("w[l % 1024]", True), ("v[i, l // 1024]", True),
    ("v[i, l]", False), ("v[i, l % 1024]", False), ("v[i, l // 2]", False)])
def test_what_all_rows_have_is_no_bytes_of_one(weight: str, held: bool) -> None:
    """48 KB, and as much for each weight of a row's own: of a group's there are sixteen numbers, and what all rows have is
    read where it is needed."""
    norm = fuse(parse_cascade(f"""cascade norm(x: f16[512, 24576], w: f16[24576], v: f16[512, 24576]) over l
  t[i] = sum[l] f32(x[i, l]) * f32(x[i, l])
  y[i, l] = f16(f32(x[i, l]) * rsqrt(t) * f32({weight}))
  return y
"""))
    assert isinstance(norm, Fused) and on_chip(norm, H200) == held


def test_what_only_producers_read_is_no_bytes_of_a_row() -> None:
    """A sum of two rows that is normalised: 4 bytes an element, in which both rows are."""
    def norm(of: str) -> Fused:
        fused = fuse(parse_cascade(f"""cascade norm(x: f32[512, 12288], r: f32[512, 12288]) over l
  p[i, l] = x[i, l] + r[i, l]
  t[i] = sum[l] p * p
  y[i, l] = {of} * rsqrt(t)
  return y
"""))
        assert isinstance(fused, Fused)
        return fused

    assert on_chip(norm("p"), H200) and not on_chip(norm("(p + r[i, l])"), H200)


def test_few_rows_are_held_where_the_model_says_so_by_a_distance() -> None:
    """Most multiprocessors have none of 16 rows; of parts of them all have one."""
    few = fuse(parse_cascade("""cascade tempered(x: f16[16, 32000], z: f32[16]) over l
  p[i, l] = f32(x[i, l]) / z[i]
  m[i] = max[l] p
  t[i] = sum[l] exp(p - m)
  y[i, l] = exp(p - m) / t
  return y
"""))
    assert isinstance(few, Fused) and on_chip(few, H200, 2 * H200.registers)
    parts, held = untuned(few, "sm_90a")[1], realise(few, "resident")
    assert parts.strategy == "multi" and (seconds(held, H200) or 0.0) < (seconds(parts, H200) or 0.0) < 1.1 * (seconds(held, H200) or 0.0)


@pytest.mark.parametrize("rows, n, counts", [(12, 257, 1.0), (2000, 257, 1.0), (64, 16384, ROWS_TIE), (128, 16384, HELD)])
def test_what_a_held_row_counts_for(rows: int, n: int, counts: float) -> None:
    """Short rows nothing in particular; long ones something where nearly all of 132 multiprocessors have one."""
    fused = examples.variance(rows, n)
    ways = {way.strategy: distance for way, distance in _others(fused, rows, realise(fused, "single"), H200)}
    assert ways["resident"] == counts


def test_a_row_whose_reductions_wait_is_held_up_to_twice_as_long() -> None:
    """There is no other way: parts of it merge to nothing."""
    def of(n: int) -> str:
        final = fuse(parse_cascade(f"cascade mean(x: f32[64, {n}]) over l\n  m[i] = max[l] abs(x[i, l])\n"
                                   "  t[i] = sum[l] x[i, l] / m\n  return t\n"), "preserve", "final")
        assert isinstance(final, Fused) and final.post
        return select(final, H200)[0]

    assert [of(n) for n in (16384, 32768, 32769)] == ["resident", "resident", "multi"]


def test_a_row_on_chip_leaves_room_for_a_second_block() -> None:
    """Two blocks of 512 threads that have 32 registers of a row each: 64 registers, where the compiler would take 80. Of
    smaller blocks two have room in any case, up to 128 registers."""
    def printed(n: int, threads: int = 512) -> str:
        program = realise(examples.softmax(9, n, "f16"), "resident")
        return print_program(tensorize(program, TileConfig(1, n, threads, 0), H200))

    assert all("annotate_min_blocks_per_sm(2)" in printed(n) for n in (32768, 24576))
    assert "min_blocks" not in printed(8192, 256) and "min_blocks" not in printed(32768, 1024)


def test_weights_are_asked_for_early_where_two_blocks_have_room() -> None:
    """With weights in registers from before the sums a block of 512 threads would have a multiprocessor to itself."""
    def printed(n: int) -> str:
        norm = fuse(parse_cascade(f"""cascade norm(x: bf16[96, {n}], r: bf16[96, {n}], w: bf16[{n}], b: bf16[{n}]) over l
  p[i, l] = x[i, l] + r[i, l]
  t[i] = sum[l] f32(p) * f32(p)
  y[i, l] = bf16(f32(p) * rsqrt(t) * f32(w[l]) + f32(b[l]))
  return y
"""))
        assert isinstance(norm, Fused)
        return print_program(tensorize(realise(norm, "resident"), TileConfig(1, n, 512, 0), H200))

    assert "w_early" in printed(8192) and "w_early" not in printed(12288)


INERTIA = """cascade inertia(m: f32[{rows}, {n}], x: f32[{rows}, {n}, 3]) over l
  o[i, e] = sum[l] m[i, l] * x[i, l, e]
  t[i] = sum[l] m[i, l]
  q[i, e] = sum[l] m[i, l] * x[i, l, e] * x[i, l, e]
  v[i] = sum[e] q - o * o / t
  return v
"""


@pytest.mark.parametrize("rows, n", [(512, 8192), (1024, 8192), (128, 8192)])
def test_points_that_are_joined_are_one_row(rows: int, n: int) -> None:
    """Masses and three coordinates are 128 KB of a row, which a multiprocessor would hold alone, and they are read once in any
    way: threads walk it. What a block would hold is not a coordinate's share."""
    fused = fuse(parse_cascade(INERTIA.format(rows=rows, n=n)))
    assert isinstance(fused, Fused)
    assert not on_chip(fused, H200) and on_chip(fused, H200, 2 * H200.registers) == (n <= 8192)
    _, program = untuned(fused, "sm_90a")
    assert program.strategy == "multi" and program.splits >= 128


@pytest.mark.parametrize("splits, columns, rows, turns", [(16, 512, 1, 16), (40, 512, 1, 32), (3, 512, 1, 0), (16, 64, 4, 16)])
def test_partials_are_asked_for_at_once(splits: int, columns: int, rows: int, turns: int) -> None:
    """The loop that folds them says so, and a block has as many rows as its threads have accesses of 16 bytes."""
    fused = fuse(parse_cascade(f"cascade a(q: bf16[100, 576], x: bf16[4096, 576]) over l where e = {columns}\n"
                               "  s[i, l] = sum[c] f32(q[i, c]) * f32(x[l, c])\n  m[i] = max[l] s\n  t[i] = sum[l] exp(s - m)\n"
                               "  o[i, e] = sum[l] exp(s - m) / t * f32(x[l, e])\n  return o\n"))
    assert isinstance(fused, Fused)
    program = realise(fused, "multi", splits)
    tiles = tensorize(program, next(c for c in configs(program, H200) if not c.columns), H200)
    assert {b.shape for b in tiles.kernels[1].buffers if len(b.shape) == 2} == {(rows, columns)}
    assert (f'"pragma_unroll_factor": {turns}' in print_program(tiles)) == bool(turns)


def test_partials_are_merged_in_tiles_of_their_own_number() -> None:
    """What else the merging kernel reads (a label, the row it points into) says nothing of how many there are."""
    picked = fuse(parse_cascade("cascade ce(x: f16[32, 65536], y: i64[32]) over l\n  m[i] = max[l] f32(x[i, l])\n"
                                "  t[i] = sum[l] exp(f32(x[i, l]) - m)\n  z[i] = log(t) + m - f32(x[i, y[i]])\n  return z\n"))
    assert isinstance(picked, Fused)
    program = realise(picked, "multi", 16)
    merge = tensorize(program, configs(program, H200)[0], H200).kernels[-1]
    assert {b.shape[-1] for b in merge.buffers if len(b.shape) == 2} == {32}
