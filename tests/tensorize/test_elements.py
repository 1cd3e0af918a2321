"""What is computed at each element of a tile, and what is not: masks where they are settled, positions, roundings, tangents."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from redfuser import chain
from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, f32, op
from redfuser.acrf.index import i64, iadd, imul, value
from redfuser.cache import Cache
from redfuser.codegen import tilelang
from redfuser.codegen.dialects import CUDA
from redfuser.codegen.expressions import Expressions
from redfuser.codegen.halves import HALF, reciprocal
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import For, Gemm, If, Parallel
from redfuser.tensorize.ir.tangents import flat, tangent
from redfuser.tensorize.maps import masked
from redfuser.tensorize.model import operations
from redfuser.tensorize.schedule.peel import last_step, no_more
from redfuser.tensorize.schedule.positions import WHOLE, AddPositions, _parts
from tests.tensorize.examples import Shape, attention, masks
from tests.tensorize.test_roles import SMALL, UNDER, cascade, tiles


def test_a_mask_under_a_bias_is_asked_where_it_is_not_settled() -> None:
    kernel = tiles("mask under a bias", "overlap").kernels[0]
    asked = {id(s) for k in every(kernel.body) if isinstance(k, If) for s in k.body}
    chooses = [s for s in every(kernel.body) if isinstance(s, Parallel) and len(s.vars) == 2 and "select" in str(s)]
    assert chooses and all(id(s) in asked for s in chooses)
    loops = [s for s in every(kernel.body) if isinstance(s, For) and any(isinstance(k, Gemm) for k in s.body)]
    assert [sum(isinstance(k, If) for k in s.body) for s in loops] == [3, 0, 2], "up to a step, never, from a step on or at the end"


def test_what_is_left_computes_the_cascade(tmp_path: Path) -> None:
    config = TileConfig(128, 64, 256, 2, "registers", True, schedule="overlap")
    found = chain.tile_program(realise(cascade(UNDER), "single"), config, SMALL, store=Cache(tmp_path))
    assert found.violations == ()


def test_a_mask_is_drawn_out_of_a_map() -> None:
    s, b, where = Load("s", (Index("l"),), "f32"), Load("b", (), "f32"), Op("le", (Index("l"), Index("i")), "bool")
    found = masked(op("mul", op("add", Op("select", (where, s, f32(-1.0)), "f32"), b), f32(2.0)))
    assert found is not None and not found.outermost and found.position == where
    assert found.shown == op("mul", op("add", s, b), f32(2.0)) and found.hidden == op("mul", op("add", f32(-1.0), b), f32(2.0))
    assert masked(op("add", Op("select", (Op("lt", (s, b), "bool"), s, b), "f32"), b)) is None, "data decides"


def test_the_first_step_at_which_a_comparison_no_longer_holds() -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        a, b, c, d = (int(x) for x in rng.integers(-70, 70, 4))
        left, right = iadd(imul(Index("k"), a), i64(b)), iadd(imul(Index("k"), c), iadd(Index("i"), i64(d)))
        end = last_step(Op("lt", (left, right), "bool"), "k")
        assert (end is None) == (a <= c)
        if end is None:
            continue
        for i in (0, 3, 11):
            at = value(end, {"i": i})
            assert [a * k + b < c * k + i + d for k in (at - 1, at)] == [True, False]


def test_what_is_never_more() -> None:
    i = Index("i")
    low = iadd(Op("max", (iadd(i, i64(-8)), i64(0)), "i64"), i64(1))
    assert no_more(iadd(i, i64(-7)), low) and no_more(i64(1), low)
    assert not no_more(iadd(i, i64(-6)), low) and not no_more(i64(2), low)


@pytest.mark.parametrize(("position", "parted"), [
    (Op("sub", (Index("j"), Index("i")), "i64"), True), (imul(Op("sub", (Index("j"), Index("i")), "i64"), -3), True),
    (Op("add", (imul(Index("k"), WHOLE // 8), Op("sub", (Index("j"), Index("i")), "i64")), "i64"), False),
    (Op("mod", (Op("add", (Index("j"), Index("i")), "i64"), i64(7)), "i64"), False), (Index("j"), False)])
def test_positions_are_added_where_that_is_exact(position: Expr, parted: bool) -> None:
    known = {"i": (0, 127), "j": (0, 127), "k": (0, 8)}
    parts = _parts(position, "j", known)
    assert (parts is not None) == parted
    if parts is None:
        return
    for i, j in ((0, 0), (5, 77), (127, 127)):
        assert value(parts[0], {"i": i, "j": j}) + value(parts[1], {"i": i, "j": j}) == value(position, {"i": i, "j": j})


def test_the_sum_is_of_a_row_and_of_registers() -> None:
    text = str(tiles("mask under a bias", "persistent").kernels[0])
    assert "j % 8 // 2 * 2) + f32(j // 8 * 8 + j % 2)" in text and "-->" in (AddPositions.__doc__ or "")


@pytest.mark.parametrize("c", [30.0, -14.0, 3.0, 0.75])
def test_a_quotient_by_a_constant_is_that_of_every_dividend(c: float) -> None:
    for dtype, half in HALF.items():
        parts = reciprocal(dtype, c)
        assert parts is not None and all(p * c >= 0 for p in parts)
        for bits in range(0, 1 << 15, 97):
            x = float(np.uint16(bits).view(half))
            if not np.isfinite(x):
                continue
            exact = Fraction(x) * Fraction(parts[0]) + Fraction(float(np.float32(x * np.float32(parts[1]))))
            with np.errstate(over="ignore"):
                assert half.type(np.float32(float(exact))) == half.type(np.float32(x) / np.float32(c)), (dtype, x)
    assert reciprocal("f16", 0.125) is None, "an infinity times nothing"
    assert reciprocal("f16", 0.1) is None and reciprocal("f16", float("inf")) is None


def test_the_hardware_s_tangent_is_of_rounded_numbers_alone() -> None:
    def form(x: Expr) -> Expr:
        return op("sub", f32(1.0), op("div", f32(2.0), op("add", f32(1.0), op("exp2", op("mul", x, f32(2.8853900817779268))))))

    s = Load("s", (Index("j"),), "f32")
    rounded = Cast(Cast(s, "f16"), "f32")
    x, k = tangent(form(rounded)) or (s, 0.0)
    assert x == rounded and k == pytest.approx(1.0)
    assert tangent(form(s)) is None and tangent(form(Cast(Load("x", (Index("j"),), "f16"), "f32"))) is None
    assert tangent(op("sub", f32(1.0), f32(2.0))) is None and tangent(Const(1.0, "f32")) is None


def test_texts_of_bfloat16() -> None:
    text = tilelang.print_program(tiles("mask under a bias", "overlap"))
    assert '"tanh_approx"' in text and '"reciprocal_approx"' not in text
    assert 'T.call_extern("float32", "rounded_bf16", scores[i, j])' in text and "T.cast(T.cast(scores" not in text
    wide = tilelang.print_program(tensorize(realise(cascade(UNDER.replace("f32(bf16(s))", "s")), "single"),
                                            TileConfig(128, 64, 256, 2, "registers", True, schedule="overlap"), SMALL))
    total = tilelang.print_program(tensorize(realise(cascade(UNDER.replace("  return y", "  z[h, i] = log(t) + m\n  return y, z")),
                                                     "single"), TileConfig(128, 64, 256, 2, "registers", True), SMALL))
    assert '"tanh_approx"' not in total, "a result in single precision"
    assert '"tanh_approx"' not in wide and '"reciprocal_approx"' in wide


@pytest.mark.parametrize("half, cap, hardware", [("f16", 50.0, True), ("f16", 70.0, False), ("bf16", 70.0, True)])
def test_a_tangent_of_any_number_is_the_hardware_s_where_weights_are_no_steeper(half: str, cap: float, hardware: bool) -> None:
    shape = Shape(i=256, n=336, d=64, dtype=half)
    roles = TileConfig(128, 64, 256, 2, "registers", True, schedule="overlap")
    for mask in (None, masks(shape)["causal"]):
        program = tensorize(realise(attention(shape, mask=mask, cap=cap), "single"), roles, SMALL)
        text = tilelang.print_program(program)
        assert ('"tanh_approx"' in text, '"reciprocal_approx"' in text) == (hardware, not hardware)
        assert flat(program.kernels[0]) is hardware
    for other in (replace(roles, schedule="auto"), roles):
        with_bias = attention(shape, cap=cap, bias="" if other is not roles else "alibi")
        assert not flat(tensorize(realise(with_bias, "single"), other, SMALL).kernels[0]), "no roles, or more than a tangent"


def test_three_groups_under_a_mask_of_positions() -> None:
    """Where tiles are many, and nothing but the mask lies between the products."""
    shape = Shape(b=4, h=16, hk=16, i=4096, n=4096, d=64)
    rows = {cap: configs(realise(attention(shape, mask=masks(shape)["causal"], cap=cap), "single"), target("sm_90a"))[0].rows
            for cap in (0.0, 30.0)}
    assert rows == {0.0: 192, 30.0: 128}


HALVES = UNDER.replace("bf16", "f16")


class Spelled:
    """What the text of an element means, to evaluate it."""

    max = staticmethod(np.maximum)
    float16 = np.float16

    @staticmethod
    def cast(x: np.ndarray, dtype: str) -> np.ndarray:
        return np.asarray(x).astype(dtype)

    @staticmethod
    def if_then_else(c: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(c, x, y)

    @staticmethod
    def call_extern(_: str, name: str, *x: np.ndarray) -> np.ndarray:
        a = np.asarray(x[0], np.float32)
        return np.tanh(a) if name == "tanh_approx" else (a.astype(np.float64) * x[1] + np.float64(a * np.float32(x[2]))).astype("f4")


@pytest.mark.parametrize("p, parts", [
    ("tanh(f32(f16(s)) * 0.125 / 30.0) * 30.0", 2),
    ("f32(f16(tanh(f32(f16(s) * f16(0.125) / f16(30.0)))) * f16(30.0))", 5),
    ("f32(abs(f16(tanh(f32(f16(s))))) * f16(3.0)) + 1.0", 4),
    ("f32(f16(s)) * 0.125", 1),
])
def test_roundings_to_float16_are_statements_of_their_own(p: str, parts: int) -> None:
    """The parts, one after another, are what the one statement was; no part but a rounding's has a rounding."""
    body = HALVES.replace("select(l <= i + 72 and i + 72 - l < 210, tanh(f32(f16(s)) * 0.125 / 30.0) * 30.0, -inf) + a[h] * f32(l - i)", p)
    program = tensorize(realise(cascade(body), "single"), TileConfig(128, 64, 256, 2, "registers", True, schedule="overlap"), SMALL)
    kernel = program.kernels[0]
    loop = next(s for s in every(kernel.body) if isinstance(s, Parallel) and s.body[0].target == "scores" and "f16" in str(s))
    (found,) = Expressions(kernel, CUDA).values(loop)
    assert len(found) == parts
    assert not any('"float16"' in text and ("call_extern" in text or "if_then_else" in text) for text in found)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32) * 300
    i, j = np.indices(x.shape)

    def evaluated(text: str, scores: np.ndarray) -> np.ndarray:
        return np.asarray(eval(text, {"T": Spelled, "scores": scores, "i": i, "j": j, "h": 0}), np.float32)

    done = x
    for text in found:
        done = evaluated(text, done)
    whole = Expressions(kernel, CUDA).element("scores", loop.body[0].expr)
    assert np.array_equal(done, evaluated(whole, x)) and not np.array_equal(done, x)


def test_a_mask_s_bytes_are_read_by_two() -> None:
    shape = Shape(i=264, n=336, d=64)
    f = attention(shape, mask=masks(shape)["data"])
    config = TileConfig(128, 64, 256, 2, "registers", True, schedule="overlap")
    text = tilelang.print_program(tensorize(realise(f, "single"), config, SMALL))
    assert 'T.call_extern("int32", "byte_of_two", T.address_of(mask_shared[' in text and "j // 2 * 2]), j % 2) != 0" in text
    alone = tilelang.print_program(tensorize(realise(f, "single"), replace(config, schedule="auto"), SMALL))
    assert "byte_of_two" not in alone


def test_a_tangent_that_the_hardware_has_is_one_result() -> None:
    x = Cast(Cast(Load("s", (Index("j"),), "f32"), "f16"), "f32")
    power = op("exp2", op("mul", x, f32(2.8853900817779268)))
    text = op("sub", f32(1.0), op("div", f32(2.0), op("add", f32(1.0), power)))
    for e in (text, op("tanh", x)):
        assert operations(e, False, True) == (2.0, 1.0) and operations(e, False)[1] == 2.0
    assert operations(op("tanh", Load("s", (), "f32")), False, True)[1] == 2.0
