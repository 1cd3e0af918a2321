"""Kernels of other shapes than rows x segment x columns of an attention come out of the same lowering."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.codegen.tilelang import print_program
from redfuser.errors import LoweringError
from redfuser.gate import checked_tiles
from redfuser.strategies import realise, select
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import For, Gemm, If, TileProgram
from redfuser.tensorize.ir.verify import verify_kernel
from redfuser.tensorize.model import uneven
from redfuser.tensorize.model.layout import layouts, led
from redfuser.tensorize.rewrite import arrange
from tests.tensorize.examples import Shape, attention, inputs
from tests.tensorize.holding import H200, PRODUCT, ROWS, hold, tiles, values

NARROW = TileConfig(32, 16, 64, 2, columns=16)
PIECES = TileConfig(32, 16, 64, 1, pieces=True)


def grids(program: TileProgram) -> list[dict[str, int]]:
    return [dict(k.grid) for k in program.kernels]


@pytest.mark.parametrize("kind", ["f16", "bf16", "e4m3"])
@pytest.mark.parametrize("result", ["bf16", "f32"])
def test_a_product_alone(kind, result):
    """Rows and columns are tiles of the grid, the contraction is the loop, what follows it is the epilogue."""
    done = "y[i, j] = bf16(o * s[i] * b[j])" if result == "bf16" else "y[i, j] = o * s[i] + b[j]"
    cascade = parse_cascade(f"""cascade gemm(a: {kind}[45, 70], w: {kind}[40, 70], s: f32[45], b: f32[40]) over l
      o[i, j] = sum[l] f32(a[i, l]) * f32(w[j, l])
      {done}
      return y
    """)
    program = tiles(cascade, config=NARROW)
    hold(cascade, values(cascade), program)
    assert grids(program) == [{"i_block": 2, "j_block": 3}]
    (kernel,) = program.kernels
    operands = {b.dtype for b in kernel.buffers if b.scope == "shared" and b.name[0] in "aw" and "piece" in b.name}
    assert operands == ({"bf16"} if (kind, result) == ("e4m3", "f32") else set()), "8-bit sums are not fine enough for float32"
    apart = "o_segment" in str(kernel)
    assert apart == (result == "f32" or kind == "e4m3")


def test_a_product_that_sums_one_element_is_none():
    """Its operands have no axis in common: the verifier takes no such product, and no lowering makes one."""
    cascade = parse_cascade("""cascade outer(x: f16[64, 1], w: f16[1, 64]) over l
      t[i] = sum[l] f32(x[i, l]) * f32(x[i, l])
      o[i, d] = sum[l] f32(x[i, l]) * f32(w[l, d])
      y[i, d] = f16(o[i, d] * rsqrt(t[i] + 1.0))
      return y
    """)
    program = realise(fuse(cascade), "single", 1)
    for config in configs(program, H200)[:2]:
        with pytest.raises(LoweringError, match=r"(?s)RF491.*one element along l"):
            tensorize(program, config, H200)
    kernel = tiles(parse_cascade(str(cascade).replace("1]", "70]").replace("[1,", "[70,")), config=NARROW).kernels[0]
    flat = replace(kernel, buffers=tuple(replace(b, shape=b.shape[:1]) if b.scope == "fragment" else b for b in kernel.buffers))
    assert any("no matrix" in w for w in verify_kernel(flat))


def test_an_exact_product_is_not_added_up_in_the_matrix_unit():
    """The matrix unit cuts off what it adds to a long sum; the tiles' interpreter cannot show that, the text can."""
    cascade = parse_cascade("""cascade long(a: f16[32, 300], w: f16[32, 300]) over l
      o[i, j] = sum[l] f32(a[i, l]) * f32(w[j, l])
      return o
    """)
    text = str(tiles(cascade))
    assert re.search(r"gemm .* -> o_acc_segment clear", text) and "o_acc[i, d] = o_acc[i, d] + o_acc_segment[i, d]" in text


@pytest.mark.parametrize("result", ["bf16", "f32"])
def test_weights_that_are_rounded_to_8_bits_in_the_kernel(result):
    """Sums of 8-bit products are fine enough for a bfloat16 result, and for no finer one."""
    done = "y[i, j] = bf16(o * t)" if result == "bf16" else "y[i, j] = o * t"
    cascade = parse_cascade(f"""cascade quant(a: f16[45, 70], w: e4m3[40, 70]) over l
      t[i] = sum[l] abs(f32(a[i, l]))
      o[i, j] = sum[l] f32(e4m3(f32(a[i, l]) * 2.0)) * f32(w[j, l])
      {done}
      return y
    """)
    program = tiles(cascade, config=NARROW)
    hold(cascade, values(cascade), program)
    (kernel,) = program.kernels
    read = {kernel.dtypes[s.a.buffer] for s in every(kernel.body) if isinstance(s, Gemm)}
    assert read == ({"e4m3"} if result == "bf16" else {"bf16"})


def test_a_long_sum_of_a_row_held_on_chip_is_left_to_a_walk():
    cascade = parse_cascade("""cascade weighted(p: f32[40, 300], v: f32[300, 32]) over l
      t[i] = sum[l] p[i, l]
      o[i, e] = sum[l] p[i, l] * v[l, e]
      y[i, e] = o / t
      w[i, l] = p[i, l] / t
      return y, w
    """)
    with pytest.raises(LoweringError) as error:
        tiles(cascade, "resident", config=PIECES)
    assert error.value.code == "RF490"


def test_short_axes_are_taken_apart_up_to_a_number_of_names():
    cascade = parse_cascade("""cascade outer(x: f32[60, 12], y: f32[60, 12]) over l
      n = sum[l] 1.0
      c[d, e] = sum[l] x[l, d] * y[l, e]
      r[d, e] = c / n
      return r
    """)
    kernel = realise(fuse(cascade), "single").kernels[0]  # type: ignore[arg-type]
    arranged = arrange(kernel, {"l": 60, "d": 12, "e": 12}).kernel
    assert len({n for b in arranged.body for n in b.names}) <= 1 + 64


def test_columns_in_tiles_beside_a_statistic_of_the_rows():
    """Each block of columns knows its rows' statistic; one of them writes it."""
    cascade = parse_cascade("""cascade normed(x: f16[45, 70], w: f16[70, 40]) over l
      t[i] = sum[l] f32(x[i, l]) * f32(x[i, l])
      o[i, j] = sum[l] f32(x[i, l]) * f32(w[l, j])
      y[i, j] = f16(o * rsqrt(t + 0.001))
      return y, t
    """)
    for strategy, splits in (("single", 1), ("multi", 3)):
        program = tiles(cascade, strategy, splits, NARROW)
        hold(cascade, values(cascade), program)
        for kernel in program.kernels:
            guards = [str(s.cond) for s in kernel.body if isinstance(s, If)]
            wrote = [p for p in kernel.params if p.out and len(p.shape) == (2 if "part" in p.name and kernel is program.kernels[0] else 1)]
            assert kernel.name.endswith("combine") or (wrote and guards)


def test_two_results_of_one_weight():
    cascade = parse_cascade("""cascade two(q: f16[21, 16], k: f16[37, 16], v: f16[37, 16], w: f16[37, 40]) over l
      s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
      m[i] = max[l] s
      t[i] = sum[l] exp(s - m)
      o[i, e] = sum[l] f32(f16(exp(s - m) / t)) * f32(v[l, e])
      r[i, g] = sum[l] f32(f16(exp(s - m) / t)) * f32(w[l, g])
      y[i, e] = f16(o)
      z[i, g] = f16(r)
      return y, z
    """)
    for strategy, splits in (("single", 1), ("multi", 3)):
        program = tiles(cascade, strategy, splits)
        hold(cascade, values(cascade), program)
        if strategy == "single":
            assert len(re.findall(r"gemm weights\w*,", str(program))) == 2 and str(program).count("-> weights") == 1


def test_a_product_of_a_product_without_statistics():
    cascade = parse_cascade("""cascade mlp(x: f16[45, 32], u: f16[70, 32], v: f16[70, 24]) over l
      h[i, l] = sum[c] f32(x[i, c]) * f32(u[l, c])
      o[i, e] = sum[l] f32(f16(max(h, 0.0))) * f32(v[l, e])
      y[i, e] = f16(o)
      return y
    """)
    program = tiles(cascade)
    hold(cascade, values(cascade), program)
    assert grids(program) == [{"i_block": 2}]


def test_short_axes_are_taken_apart():
    """The three components of positions, with a statistic of each and one of all."""
    cascade = parse_cascade("""cascade inertia(w: f32[5, 60], x: f32[5, 60, 3]) over l
      t[i] = sum[l] abs(w[i, l])
      c[i, e] = sum[l] abs(w[i, l]) * x[i, l, e]
      q[i, e] = sum[l] abs(w[i, l]) * (x[i, l, e] - c / t) * (x[i, l, e] - c / t)
      all[i] = sum[e] q
      centre[i, e] = c / t
      return all, centre
    """)
    for strategy, splits in (("single", 1), ("multi", 3)):
        program = tiles(cascade, strategy, splits, ROWS)
        hold(cascade, values(cascade), program)
        assert "gemm" not in str(program) and "out_centre" in str(program)


def test_an_axis_that_only_a_count_lacks_is_of_the_grid():
    cascade = parse_cascade("""cascade covariance(x: f32[40, 60], y: f32[40, 60]) over l
      n = sum[l] 1.0
      sx[i] = sum[l] x[i, l]
      sy[i] = sum[l] y[i, l]
      c[i] = sum[l] (x[i, l] - sx / n) * (y[i, l] - sy / n)
      return c
    """)
    for strategy, splits in (("single", 1), ("multi", 3)):
        program = tiles(cascade, strategy, splits, ROWS)
        hold(cascade, values(cascade), program)
        assert "i_block" in grids(program)[0]


def test_batches_that_a_count_lacks_are_no_columns():
    """A mask without the batch axis is counted once per row of the cascade, and at every batch by the kernel."""
    cascade = parse_cascade("""cascade hidden(q: f16[2, 20, 16], k: f16[2, 37, 16], v: f16[2, 37, 16], keep: bool[20, 37]) over l
      s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(k[b, l, c])
      n[i] = sum[l] select(keep[i, l], 1.0, 0.0)
      o[b, i, e] = sum[l] f32(f16(max(s, 0.0))) * f32(v[b, l, e])
      y[b, i, e] = o * n
      return y
    """)
    program = tiles(cascade)
    hold(cascade, values(cascade), program)
    assert "b" in grids(program)[0]


def test_float32_products_are_summed_by_segments():
    cascade = parse_cascade("""cascade pool(p: f32[20, 90], v: f32[90, 16]) over l
      t[i] = sum[l] p[i, l]
      o[i, e] = sum[l] p[i, l] * v[l, e]
      y[i, e] = o / t
      return y
    """)
    program = tiles(cascade, config=PIECES)
    given = values(cascade)
    given["p"] = np.abs(given["p"])
    hold(cascade, given, program)
    text = str(program)
    assert text.count("-> o_segment clear") == 1 and text.count("-> o_segment") == 6, "six products of a segment, then one addition"


def test_configurations_of_a_product_fill_the_machine():
    """Wide results are shared by blocks of columns; the left operand is the rows'."""
    cascade = parse_cascade("""cascade big(a: e4m3[4096, 2560], w: e4m3[1536, 2560]) over l
      o[i, j] = sum[l] f32(a[i, l]) * f32(w[j, l])
      y[i, j] = bf16(o)
      return y
    """)
    found = configs(realise(fuse(cascade), "single"), H200)  # type: ignore[arg-type]
    assert found[0].columns in (128, 256) and found[0].segment in (128, 256)
    assert all(c.rows * c.columns * 2 / c.threads <= 160 for c in found), "two accumulators in registers"


def test_neighbouring_rows_are_read_by_lines():
    cascade = parse_cascade("""cascade down(x: f32[64, 300, 256]) over l
      m[b, i] = max[l] x[b, l, i]
      t[b, i] = sum[l] exp(x[b, l, i] - m)
      y[b, i] = m + log(t)
      return y
    """)
    program = realise(fuse(cascade), "single")  # type: ignore[arg-type]
    first = configs(program, H200)[0]
    assert first.rows == first.threads == 64, "a column each, of whose elements threads exchange nothing"
    small = parse_cascade(str(cascade).replace("300", "30").replace("64", "2").replace("256", "40"))
    made = tiles(small, config=TileConfig(32, 8, 128, 0, "registers", False))
    hold(small, values(small), made)


@pytest.mark.parametrize(("rows", "together"), [(64, 64), (37, 32), (7, 8)])
def test_columns_of_a_matrix_are_reduced_and_visited_again_by_lines(rows, together):
    """Too long to hold with its neighbours, a column is shared out and read again, with its neighbours each time; one that is
    as short as a block can hold is held."""
    cascade = parse_cascade(f"""cascade down(x: bf16[9000, {rows}]) over l
      m[i] = max[l] f32(x[l, i])
      t[i] = sum[l] exp(f32(x[l, i]) - m)
      y[l, i] = bf16(exp(f32(x[l, i]) - m) / t)
      return y
    """)
    way, splits = select(fuse(cascade), H200)  # type: ignore[arg-type]
    assert way == "multi" and splits * -(-rows // 32) >= 30, "enough blocks for memory, not one or two"
    config = configs(realise(fuse(cascade), way, splits), H200)[0]  # type: ignore[arg-type]
    assert config.rows == together
    small = parse_cascade(str(cascade).replace("9000", "150"))
    program = tiles(small, "multi", 2, replace(config, segment=16))
    hold(small, values(small), program)
    first, _, last = program.kernels
    for kernel, tile in ((first, together), (last, min(together, 32))):
        assert f"fragment bf16[{tile}, 16]" in str(kernel) or f"fragment bf16[16, {tile}]" in str(kernel)
    assert select(fuse(parse_cascade(str(cascade).replace("9000", "1000"))), H200) == ("resident", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_columns_beside_a_statistic_that_no_block_holds(kind):
    """Blocks share 640 columns of values, and each computes the scores of its rows."""
    cascade = parse_cascade(f"""cascade wide(q: {kind}[2, 128, 64], k: {kind}[2, 256, 64], v: {kind}[2, 256, 640]) over l
      s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(k[b, l, c])
      m[b, i] = max[l] s
      t[b, i] = sum[l] exp(s - m)
      o[b, i, e] = sum[l] exp(s - m) / t * f32(v[b, l, e])
      y[b, i, e] = {kind}(o)
      return y, t
    """)
    program = realise(fuse(cascade), "single")  # type: ignore[arg-type]
    for config in configs(program, H200)[:2]:
        assert 64 <= config.columns <= 512 and dict(tensorize(program, config, H200).kernels[0].grid)["e_block"] > 1
        checked_tiles(program, config, H200, "1")
    small = parse_cascade(str(cascade).replace("640", "40").replace("128", "21").replace("256", "37").replace("64]", "16]"))
    made = tiles(small, config=replace(PIECES if kind == "f32" else NARROW, columns=16))
    hold(small, values(small), made)
    assert dict(made.kernels[0].grid)["e_block"] == 3


def test_a_reversed_operand_is_read_by_element():
    cascade = parse_cascade("""cascade back(x: f16[6, 40]) over l where l = 40
      m[i] = max[l] f32(x[i, 39 - l])
      t[i] = sum[l] exp(f32(x[i, 39 - l]) - m)
      y[i, l] = f16(exp(f32(x[i, 39 - l]) - m) / t)
      return y
    """)
    hold(cascade, values(cascade), tiles(cascade, "resident", 1, ROWS))


@pytest.mark.parametrize("d, wide", [(40, 64), (72, 96), (80, 80)])
def test_heads_side_by_side_are_tiles_that_the_copy_engine_brings(d: int, wide: int) -> None:
    """``q[b, i, h * 72 + c]`` is a tensor of heads of 72, which a tile leaves at 72: nobody has to write the zeros behind. Rows
    that begin within a sector are padded to panels of two."""
    f = attention(Shape(h=2, hk=2, i=136, n=160, d=d), flat=True)
    config = TileConfig(128, 64, 256, 2, "registers", True, schedule="overlap")
    program = tensorize(realise(f, "single"), config, H200)
    tiled = {b.shape[-1] for b in program.kernels[0].buffers if b.scope == "shared"}
    assert tiled == {wide} and "_operand" not in str(program)
    without = tensorize(realise(f, "single"), replace(config, schedule="auto"), H200)
    assert {b.shape[-1] for b in without.kernels[0].buffers if b.scope == "shared"} == {-(-d // 16) * 16}
    if d == 40:
        hold(f.cascade, inputs(f), program)
        hold(f.cascade, inputs(f), without)


def test_squares_beside_a_product_lie_as_its_sum() -> None:
    """A norm read by a product: nothing but the rows' values ties what is summed for it to the product, and TileLang is told."""
    cascade = parse_cascade("""cascade joined(x: f16[70, 200], w: f16[200], p: f16[200, 96]) over l
      t[i] = sum[l] f32(x[i, l]) * f32(x[i, l])
      o[i, e] = sum[l] f32(f16(f32(x[i, l]) * rsqrt(t / 200.0 + 0.000001) * f32(w[l]))) * f32(p[l, e])
      y[i, e] = f16(o)
      return y
    """)
    plain = tiles(cascade, config=TileConfig(64, 80, 128, 2, "registers", False))
    (kernel,) = plain.kernels
    assert led(kernel) == {"t_term"} and layouts(kernel, H200)["t_term"].across == 4
    assert "T.annotate_layout({t_term: T.Fragment((64, 80), " in print_program(plain)
    apart = tiles(cascade, config=TileConfig(64, 80, 128, 2, "registers", True)).kernels[0]
    assert not led(apart) and uneven(apart, H200) and not uneven(kernel, H200)
    attends = tensorize(realise(attention(Shape()), "single"), PRODUCT, H200).kernels[0]
    assert not led(attends) and not uneven(attends, H200)


@pytest.mark.parametrize("d", [40, 48])
def test_one_row_is_the_first_of_a_tile_whose_others_lie_outside(d: int) -> None:
    """A single query's result, of a tile as wide as the row or wider."""
    cascade = parse_cascade(f"""cascade one(q: f16[{d}], k: f16[33, {d}], v: f16[33, {d}]) over l
      s[l] = sum[c] f32(q[c]) * f32(k[l, c])
      m = max[l] s
      t = sum[l] exp(s - m)
      o[e] = sum[l] exp(s - m) / t * f32(v[l, e])
      y[e] = f16(o)
      return y
    """)
    program = tiles(cascade, config=TileConfig(16, 64, 64, 2, "shared", False))
    hold(cascade, values(cascade), program)
    assert f"out_y[d + i * {d}] = " in str(program) and "y_shared" not in str(program), str(program)


@pytest.mark.parametrize("spelled", ["select(l <= i, f16(s) * f16(0.25), f16(-inf))", "f16(s) + f16(select(l <= i, 0.0, -inf))",
                                     "bf16(select(l <= i, s, -inf))"])
def test_scores_that_are_masked_and_converted_then_shorten_the_loop(spelled: str) -> None:
    """-inf is -inf in every type of floats that has one: a causal mask of half-precision scores hides half of the steps."""
    cascade = parse_cascade(f"""cascade attention(q: f16[80, 16], k: f16[80, 16], v: f16[80, 16]) over l
      s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
      p[i, l] = {spelled}
      m[i] = max[l] f32(p)
      t[i] = sum[l] exp(f32(p) - m)
      o[i, e] = sum[l] f32(f16(exp(f32(p) - m) / t)) * f32(v[l, e])
      y[i, e] = f16(o)
      return y
    """)
    program = tiles(cascade, config=TileConfig(16, 16, 32, 1, "shared", False))
    hold(cascade, values(cascade), program)
    (loop,) = (s for s in every(program.kernels[0].body) if isinstance(s, For))
    assert str(loop.stop) == "i_block + 1"
