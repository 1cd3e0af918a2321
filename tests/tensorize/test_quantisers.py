"""Rows scaled by their largest element and rounded to 8 bits: a maximum of halves that keeps NaN, roundings by pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.cascade import Cascade
from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, Ref, op
from redfuser.codegen.tilelang import print_program
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import (
    Assign,
    Buffer,
    Copy,
    For,
    If,
    Parallel,
    Param,
    ReduceTile,
    TileKernel,
    TileProgram,
)
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.parts import Dim, Slice
from redfuser.tensorize.ir.verify import verify_kernel
from redfuser.tensorize.model.registers import rounded, together
from redfuser.tensorize.nan import halves
from redfuser.tensorize.schedule import DropUnused

H200, MI300X = target("sm_90a"), target("gfx942")
TEXT = """
cascade rescale(x: {half}[{rows}, {n}]) over l
  m[i] = max[l] abs(f32(x[i, l]))
  y[i, l] = e4m3(448.0 * f32(x[i, l]) / m)
  s[i] = m / 448.0
  return y, s
"""


def rescale(rows: int, n: int, half: str = "bf16") -> Cascade:
    return parse_cascade(TEXT.format(rows=rows, n=n, half=half))


def lowered(cascade: Cascade, config: TileConfig, strategy: str = "resident", on: str = "sm_90a") -> TileProgram:
    return tensorize(realise(fuse(cascade), strategy), config, target(on))  # type: ignore[arg-type]


def reductions(program: TileProgram) -> list[ReduceTile]:
    return [s for k in program.kernels for s in every(k.body) if isinstance(s, ReduceTile)]


def row(threads: int, n: int) -> TileConfig:
    return TileConfig(1, n, threads, 0, "registers", False)


@pytest.mark.parametrize("half", ["bf16", "f16"])
@pytest.mark.parametrize("strategy, config", [("resident", row(64, 128)), ("single", TileConfig(4, 64, 128, 0, "registers", False))])
def test_nan_is_kept_by_one_reduction_of_halves(half: str, strategy: str, config: TileConfig) -> None:
    """And the masked end of a row that is no power of two counts for nothing. The same rows on gfx942, which has no such
    maximum, look for NaN in a second one: to the bit the same results."""
    cascade, kind = rescale(6, 100, half), {"bf16": ml_dtypes.bfloat16, "f16": np.float16}[half]
    program, other = lowered(cascade, config, strategy), lowered(cascade, config, strategy, "gfx942")
    assert [(s.op, s.nan) for s in reductions(program)] == [("max", True)]
    assert [(s.op, s.nan) for s in reductions(other)] == [("max", False)] * 2
    assert parse(str(program)) == program and "clear keeping nan" in str(program)
    assert "nan_propagate=True" in print_program(program)
    x = np.random.default_rng(0).standard_normal((6, 100)).astype(kind)
    x[1, 7], x[2, 99], x[3], x[4, :50] = np.nan, -np.nan, 0.0, -np.inf
    got, want = (interpret.run(p, {"x": x}) for p in (program, other))
    largest = np.abs(x.astype(np.float32)).max(-1)  # numpy's keeps NaN
    np.testing.assert_array_equal(got["s"], largest / np.float32(448.0))
    for name in ("s", "y"):
        np.testing.assert_array_equal(got[name].astype(np.float32), want[name].astype(np.float32))
    assert np.isnan(got["s"][1:3]).all() and np.isfinite(got["s"][0])


def test_what_is_half_a_number() -> None:
    x = Load("x", (Index("l"),), "bf16")
    wide: Expr = Cast(x, "f32")
    low = Const(-math.inf, "f32")
    assert halves(Op("abs", (wide,), "f32"), {}) == Op("abs", (x,), "bf16") and halves(x, {}) == x
    assert halves(Ref("t", "f32"), {"t": wide}) == x and halves(Ref("t", "f32"), {}) is None
    hidden = Op("select", (Const(True, "bool"), wide, low), "f32")
    assert halves(hidden, {}) == Op("select", (Const(True, "bool"), x, Const(-math.inf, "bf16")), "bf16")
    assert halves(Op("select", (Const(True, "bool"), wide, Const(-1e30, "f32")), "f32"), {}) is None, "no number of bfloat16"
    assert halves(Op("mul", (wide, wide), "f32"), {}) is None and halves(Cast(Load("y", (), "f32"), "f32"), {}) is None


def test_float32_has_no_such_maximum() -> None:
    found = reductions(lowered(rescale(6, 64, "f32"), row(32, 64)))
    assert [s.nan for s in found] == [False, False]
    kernel = TileKernel("k", (Param("x", "f32", (4, 8)), Param("out_y", "f32", (4,), True)), (("one", 1),), 32, (),
                        (Buffer("a", "fragment", "f32", (4, 8)), Buffer("r", "fragment", "f32", (4,))),
                        (Copy(Slice("x", (Dim(Const(0, "i64"), 4), Dim(Const(0, "i64"), 8))), Slice("a")),
                         ReduceTile("max", "a", "r", nan=True), Copy(Slice("r"), Slice("out_y", (Dim(Const(0, "i64"), 4),)))))
    assert any("keeps NaN" in said for said in verify_kernel(kernel))
    assert not verify_kernel(replace(kernel, body=tuple(replace(s, nan=False) if isinstance(s, ReduceTile) else s for s in kernel.body)))


def test_numbers_are_rounded_by_pairs() -> None:
    """TileLang converts two at once where a loop does nothing else; what is beside a call is converted one by one."""
    text = print_program(lowered(rescale(4096, 768), row(64, 768)))
    assert 'y_tile[i, j] = T.cast(y_tile_wide[i, j], "float8_e4m3fn")' in text
    assert 'y_tile_wide[i, j] = T.call_extern("float32", "within_e4m3"' in text


def test_registers_know_of_numbers_that_wait() -> None:
    """Eight blocks of 128 threads have 64 registers, of which a row of 8192 and its numbers keep 156 bytes in memory."""
    (kernel,) = lowered(rescale(4096, 8192), row(128, 8192)).kernels
    assert rounded(kernel) == {"y_tile"} and together(kernel) == 4
    plain = replace(kernel, body=tuple(s for s in kernel.body if "y_tile" not in str(s)))
    assert together(plain) == 8


def test_one_row_a_block() -> None:
    """Within what the model tells apart, a row that a block has alone: 768 bfloat16 of 4096 rows 5.8 us by one, 6.4 by two, 1024
    halves of 2048 rows (a softmax) 4.9 and 5.3 (one H100)."""
    assert configs(realise(fuse(rescale(4096, 768)), "resident"), H200)[0].rows == 1


def test_a_tile_that_nobody_reads_is_left_out() -> None:
    at = (Index("i"), Index("j"))
    made = Parallel(("i", "j"), (4, 8), (Assign("a", at, Const(1.0, "f32")),))
    kept = Parallel(("i", "j"), (4, 8), (Assign("b", at, Const(1.0, "f32")),))
    kernel = TileKernel("k", (Param("out_y", "f32", (4, 8), True),), (("one", 1),), 32, (),
                        (Buffer("a", "fragment", "f32", (4, 8)), Buffer("b", "fragment", "f32", (4, 8))),
                        (made, kept, Copy(Slice("b"), Slice("out_y", (Dim(Const(0, "i64"), 4), Dim(Const(0, "i64"), 8))))))
    done = DropUnused()(kernel)
    assert done.body == kernel.body[1:] and [b.name for b in done.buffers] == ["b"]


def test_a_tile_that_only_its_own_updates_read_is_left_out() -> None:
    """The widened copy of a maximum of halves, whose last columns are hidden where a row is no multiple of its steps."""
    at, first = (Index("i"), Index("j")), op("lt", Index("step"), Const(1, "i64"))

    def filled(tile: str, e: Expr) -> Parallel:
        return Parallel(("i", "j"), (4, 8), (Assign(tile, at, e),))

    def updated(tile: str) -> For:
        return For("step", Const(0, "i64"), Const(2, "i64"), (If(first, (filled(tile, op("neg", Load(tile, at, "f32"))),)),))

    stored = Copy(Slice("b"), Slice("out_y", (Dim(Const(0, "i64"), 4), Dim(Const(0, "i64"), 8))))
    body = (filled("a", Const(1.0, "f32")), filled("b", Const(1.0, "f32")), updated("a"), updated("b"), stored)
    kernel = TileKernel("k", (Param("out_y", "f32", (4, 8), True),), (("one", 1),), 32, (),
                        (Buffer("a", "fragment", "f32", (4, 8)), Buffer("b", "fragment", "f32", (4, 8))), body)
    done = DropUnused()(kernel)
    assert done.body == (body[1], body[3], stored) and [b.name for b in done.buffers] == ["b"]
    into = replace(kernel, body=(*body[:4], filled("b", Load("a", at, "f32")), stored))
    assert DropUnused()(into) == into, "read by what is read"
    asked = replace(kernel, body=(*body[:4], If(op("lt", Load("a", (Const(0, "i64"),) * 2, "f32"), Const(0.0, "f32")), (updated("b"),)), stored))
    assert DropUnused()(asked) == asked, "asked of steps"


@pytest.mark.parametrize("half", ["bf16", "f16"])
def test_a_ragged_row_has_no_copy_of_its_maximum(half: str) -> None:
    program = lowered(rescale(6, 100, half), TileConfig(4, 64, 128, 0, "registers", False), "single")
    assert [s.nan for s in reductions(program)] == [True]
    tiles = {b.name: b.dtype for b in program.kernels[0].buffers}
    assert {n for n, dtype in tiles.items() if dtype == "f32"} == {"row_max"}
