"""What the resource model promises, TileLang's lowering confirms: it lowers, and fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.cascade import Let
from redfuser.acrf.expr import Expr, Op, walk
from redfuser.acrf.state import Fused
from redfuser.codegen import tilelang
from redfuser.errors import LoweringError
from redfuser.gate import checked_tiles
from redfuser.strategies import realise
from redfuser.strategies.program import Strategy
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.axes import choose
from redfuser.tensorize.builder import LONG
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Parallel
from redfuser.tensorize.map_configs import _tile
from redfuser.tensorize.model.registers import block_threads
from redfuser.tensorize.spaces import row_space
from tests import fused_examples as cascades
from tests.tensorize import examples
from tests.tensorize.examples import Shape

SCRIPT = Path(__file__).with_name("lower.py")
CAUSAL = Shape(b=1, h=8, hk=2, i=1000, n=1000, d=96)


def one_row(scores: str) -> Fused:
    """Single-query attention of f16 heads: of a product, or of scores that are there (attention pooling)."""
    inputs, producer = ("q: f16[4, 64], k: f16[4, 777, 64]", "  s[i, l] = sum[c] f32(q[i, c]) * f32(k[i, l, c])\n") \
        if scores == "product" else ("x: f16[4, 777]", "  s[i, l] = f32(x[i, l])\n")
    found = fuse(parse_cascade(f"cascade one({inputs}, v: f16[4, 777, 64]) over l\n{producer}  m[i] = max[l] s\n"
                               "  t[i] = sum[l] exp(s - m)\n  o[i, e] = sum[l] exp(s - m) / t * f32(v[i, l, e])\n"
                               "  y[i, e] = f16(o)\n  z[i] = m + log(t)\n  return y, z\n"))
    assert isinstance(found, Fused), found
    return found


def derived(text: str) -> Fused:
    found = fuse(parse_cascade(text))
    assert isinstance(found, Fused), found
    return found


def turned() -> Fused:
    """Rows that are read backwards, one element at a time, into shared memory, where a pipelined loop has nothing done in place."""
    return derived("cascade turned(x: f32[40, 16]) over l where l = 16\n  m[i] = max[l] x[i, -l + 15]\n  t[i] = sum[l] exp(x[i, -l + 15] - m)\n"
                   "  o[e, i] = sum[l] x[e, -l + 15] * (x[i, -l + 15] - m - log(t))\n  return o")


def of_each_other() -> Fused:
    """Long functions of each other: of a vector that all rows read, and of results that are written."""
    a = "log(exp(min(max({0}, -4.0), 4.0) * 0.5) + 1.0) / (abs({0}) + exp({0} * -0.5)) + select({0} < 0.5, tanh({0}), {0} * {0})"
    b, c = a.format("g[l]"), a.format("v")
    return derived(f"cascade functions(x: f16[3, 17], g: f32[17]) over l\n  v[l] = {b}\n  w[l] = {c}\n  z[i, l] = f32(x[i, l]) * w + v\n"
                   f"  y[i, l] = {a.format('z')}\n  s[i, l] = {a.format('y')}\n  m[i] = max[l] s\n  t[i] = sum[l] exp(s - m)\n"
                   "  o[i] = log(t) + m\n  return y, s, o")


CASES = {
    "sm_90a": [lambda: (examples.attention(CAUSAL, mask=examples.masks(CAUSAL)["causal"]), "single", 1),
               lambda: (cascades.layer_norm(4096, 320, "f16"), "resident", 1),
              lambda: (one_row("product"), "single", 1), lambda: (one_row("given"), "single", 1),
              lambda: (turned(), "single", 1), lambda: (of_each_other(), "single", 1)],
    "sm_80": [lambda: (examples.attention(Shape(b=4, h=16, hk=4, i=1, n=3000, d=64)), "multi", 3)],
}


@pytest.mark.parametrize("n", range(32, 4097, 32))
def test_a_row_on_chip_is_shared_evenly(n):
    """What TileLang 0.1.15 has a layout for without giving every thread whole rows, tried with every width of twenty: a power of
    two, whole accesses of four elements for each thread, or one row in whole turns of the threads."""
    for c in row_space(True, 4096, n, False, 4096):
        even = c.segment % (4 * c.threads) == 0 or (c.rows == 1 and c.segment % c.threads == 0)
        assert c.segment >= n and (c.segment & (c.segment - 1) == 0 or even), c


@pytest.mark.parametrize("rows", [16, 17, 31, 32, 100])
def test_rows_on_chip_that_are_read_together_are_shared_evenly(rows: int) -> None:
    """As many elements for each thread, of the tile as high as it will be: TileLang has no layout for 16 rows of 100 by 128."""
    for n in range(2, 1200):
        for c in row_space(True, rows, n, True, rows):
            high = min(c.rows, 1 << (rows - 1).bit_length())
            assert high * c.segment % c.threads == 0 or (high == 1 and c.threads <= c.segment), (n, c)


def test_a_contraction_of_three_axes_is_no_tile() -> None:
    """A small network that scores each element (two products, what lies between them read per weight): the first has rows,
    elements and its own units, of which a tile has no third."""
    fused = fuse(parse_cascade("cascade scored(x: f16[4, 9, 32], k: f16[16, 32], a: f16[1], w: f16[1, 16], v: f16[4, 9, 32]) over l\n"
                               "  s[i, l, e] = sum[c] f32(x[i, l, c]) * f32(k[e, c])\n"
                               "  p[i, l] = sum[e] select(0.0 < s, s, f32(a[0]) * s) * f32(w[0, e])\n  m[i] = max[l] p\n"
                               "  t[i] = sum[l] exp(p - m)\n  o[i, n] = sum[l] exp(p - m) / t * f32(v[i, l, n])\n  return o\n"))
    assert isinstance(fused, Fused), fused
    with pytest.raises(LoweringError, match="RF493"):
        tensorize(realise(fused, "single"), TileConfig(64, 32, 128, 1, "registers", False), target("sm_90a"))


@pytest.mark.parametrize("strategy", ["single", "resident"])
def test_what_is_long_is_evaluated_once(strategy: Strategy) -> None:
    """A statement is as long as what it was written as, and what it reads of others: TileLang's simplifier takes minutes for
    15 KB of functions of each other."""
    fused = of_each_other()
    program, machine = realise(fused, strategy), target("sm_90a")
    written = max(operations(s.expr) for s in (*fused.producers, *fused.post) if isinstance(s, Let))
    for config in configs(program, machine):
        tiles = tensorize(program, config, machine)
        found = [operations(a.expr) for k in tiles.kernels for s in every(k.body) if isinstance(s, Parallel) for a in s.body]
        assert max(found) <= 2 * written + LONG, (config, max(found), written)
        assert checked_tiles(program, config, machine, "1")


def operations(e: Expr) -> int:
    return sum(isinstance(x, Op) for x in walk(e))


@pytest.mark.slow
@pytest.mark.parametrize("arch", CASES)
def test_first_choice_lowers_and_fits(arch, tmp_path):
    machine, paths, threads = target(arch), [], []
    for index, case in enumerate(CASES[arch]):
        f, strategy, splits = case()
        program = realise(f, strategy, splits)
        tiles = tensorize(program, configs(program, machine)[0], machine)
        paths.append(tmp_path / f"kernel_{index}.py")
        paths[-1].write_text(tilelang.print_program(tiles))
        threads += [block_threads(k, machine) for k in tiles.kernels]
    done = subprocess.run([sys.executable, str(SCRIPT), arch, *map(str, paths)], capture_output=True, text=True,
                          timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lowered = [line.split() for line in done.stdout.splitlines() if line.startswith("LOWERED")]
    assert [int(line[2]) for line in lowered] == threads
    assert all(int(line[3]) <= machine.shared_bytes for line in lowered)


def test_many_short_rows_share_blocks():
    """A multiprocessor has 32 blocks: with a row of 64 each, a million of them took 4 times what memory does (one H200)."""
    assert [c.rows for c in row_space(True, 64, 128, False, 1 << 10)] == [4, 1]
    assert min(c.rows for c in row_space(True, 64, 64, False, 1 << 10)) == 8, "a lane of a warp to each would have two elements"
    assert row_space(True, 64, 64, False, 1 << 20)[0].rows == 32 and row_space(True, 64, 64, False, 1 << 20, written=False)[0].rows == 64
    assert {c.rows * c.segment // c.threads for c in row_space(False, 1 << 20, 200, False, 1 << 20)} == {8, 16, 32}
    assert all(c.rows <= 8 for c in row_space(True, 8, 17, False, 1 << 20))


@pytest.mark.parametrize("n", [40, 72, 100, 144, 240, 1000, 3000])
@pytest.mark.parametrize("rows", [58, 1000, 100352])
def test_a_map_of_rows_that_are_no_power_of_two_long_ends_where_they_end(n: int, rows: int) -> None:
    """Padded, each element was asked whether it is there: 166 us for rows of 144 that take 18 (one H200)."""
    tile = _tile(rows, n, 2, 32, 256, 32)
    assert n % tile.segment == 0 and tile.rows * tile.segment % tile.threads == 0 and tile.threads <= 512
    assert -(-rows // tile.rows) * tile.rows * -(-tile.threads // 32) * 32 <= 1.25 * rows * tile.threads
    assert _tile(rows, 75, 2, 32, 256, 32).segment == 128  # no accesses to several of its elements


@pytest.mark.parametrize("n", range(1, 17))
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 8, 100, 1 << 20])
def test_a_row_of_half_a_warp_or_less_is_not_padded_to_one(rows: int, resident: bool, n: int) -> None:
    """Three of four lanes had nothing: rows of 8 by 524288 took 21 us where they take 8 (one H200), sums of 16 by a million 80 and
    18."""
    space = row_space(resident, rows, n, False, 1 << 20)
    assert all(c.segment >= 32 for c in row_space(resident, rows, n, False, 1000))
    assert all(n <= c.segment < max(2 * n, 5) and c.rows < 2 * rows for c in space)
    assert all(4 <= c.rows * c.segment / c.threads <= 16 for c in space if rows >= 100)


def test_small_matrices_are_walked_side_by_side() -> None:
    """Down the columns of many: a block for each had a lane in eight, and the grid as many blocks as there are matrices."""
    text = "cascade down(x: f32[5000, 4, {n}]) over l\n  t[b, i] = sum[l] x[b, l, i]\n  y[b, l, i] = x[b, l, i] / t\n  return y\n"
    for n, rows in ((4, "b"), (64, "i")):
        program = realise(fuse(parse_cascade(text.format(n=n))), "resident")
        assert choose(program.kernels[0], {"b": 5000, "l": 4, "i": n}).rows == rows


@pytest.mark.parametrize(("n", "threads", "place"), [
    (64, 128, "(i % 4 * 32 + j, i // 4)"), (512, 256, "(i % 32 * 8 + j // 4, i // 32 * 4 + j % 4)")])
def test_rows_that_are_neighbours_in_memory_leave_as_they_came(n: int, threads: int, place: str) -> None:
    """Through the tile that lies as memory does; and one of as many elements of a row as a block has threads is no tile of rows,
    one a thread (32 exchanges among 512 threads, .77 ms for .26 on one H200)."""
    fused = fuse(parse_cascade(f"cascade norm(x: f32[{n}, 4096]) over l\n  t[i] = sum[l] x[l, i] * x[l, i]\n"
                               "  y[l, i] = x[l, i] / sqrt(t)\n  return y\n"))
    assert isinstance(fused, Fused)
    program = realise(fused, "resident")
    tiles = tensorize(program, configs(program, target("sm_90a"))[0], target("sm_90a"))
    text = tilelang.print_program(tiles)
    assert tiles.kernels[0].threads == threads and "T.copy(x_tile, out_y[" in text and "out_y[j" not in text
    assert f"x_tile: T.Fragment(({n}, 32), forward_fn=lambda i, j: {place})" in text
