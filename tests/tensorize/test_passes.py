"""Every pass, over a kernel's mathematics and over its tiles: well-formed before and after, the same values, and a text that reads
back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from redfuser.acrf import fuse, mapped, parse_cascade
from redfuser.acrf.cascade import Axis
from redfuser.acrf.expr import Cast, Const, Index, Load, Op, f32, walk
from redfuser.acrf.index import at, i64
from redfuser.acrf.state import Fused
from redfuser.chain import kernels, steps
from redfuser.errors import InputError, LoweringError
from redfuser.strategies import realise
from redfuser.strategies.check import check_kernel
from redfuser.strategies.program import Kernel, Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, rewrite, tensorize
from redfuser.tensorize.axes import UNIT
from redfuser.tensorize.geometry import Geometry
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.effects import reads
from redfuser.tensorize.ir.nodes import (
    Assign,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Parallel,
    ReduceTile,
    TileKernel,
    TileProgram,
    TileStmt,
)
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.parts import Buffer, Dim, Param, Slice
from redfuser.tensorize.ir.typed import typed
from redfuser.tensorize.ir.verify import verify, verify_kernel
from redfuser.tensorize.rewrite import Arranged
from redfuser.tensorize.schedule import PASSES
from tests import fused_examples as cascades
from tests.segment_programs import parse as parse_program
from tests.tensorize import examples
from tests.tensorize.examples import Shape
from tests.tensorize.test_repeats import SPAN

H200 = target("sm_90a")
SMALL = Shape(b=2, h=2, hk=1, i=70, n=90, d=32)
ROUNDED = """cascade rounded(x: f16[6, 70], y: f16[6, 70], w: f16[70]) over l
  z[i, l] = x[i, l] + y[i, l]
  m[i] = max[l] z * f16(0.3)
  t[i] = sum[l] exp(f32(z * f16(0.3)) - f32(m))
  p[i, l] = f16(exp(f32(z * f16(0.3)) - f32(m)) / t) * w[l]
  return p, z
"""
PLACES = """cascade places(x: f32[9, 50]) over l
  v[i, k], p[i, k] = topk(3)[l] x[i, l]
  c[i] = sum[l] i64(x[i, l] > 0.5)
  return v, p, c
"""
PICKED = """cascade picked(x: f32[9, 50], g: f32[9], w: f32[50]) over l
  u[i, l] = w[l] * 1.0
  z[i, l] = x[i, l] * u * 0.5
  a[i] = argmax[l] x[i, l]
  m[i] = max[l] z
  t[i] = sum[l] exp(z - m)
  c[i] = sum[l] g[i]
  y[i] = log(t) * c + sigmoid(m)
  return a, y
"""


def written(text: str) -> Fused:
    fused = fuse(parse_cascade(text))
    assert isinstance(fused, Fused), fused
    return fused


ACROSS = """cascade across(x: f16[96, 160], y: f16[160, 96], w: f32[160]) over l
  z[i, l] = f16(f32(x[i, l]) + f32(y[l, i]) * w[l])
  return z
"""
QUOTIENT = """cascade quotient(x: bf16[100, 64], y: bf16[200, 64]) over l
  s[i, l] = sum[c] f32(x[i, c]) * f32(y[l, c])
  p[i, l] = bf16(s) / bf16(24.0)
  m[i] = max[l] f32(p)
  t[i] = sum[l] exp(f32(p) - m)
  return t
"""
COMPONENTS = """cascade components(x: f32[5, 50, 3], w: f32[5, 50]) over l
  t[i] = sum[l] w[i, l] * w[i, l]
  c[i, e] = sum[l] w[i, l] * x[i, l, e]
  r[i] = sum[e] c * c
  y[i, e] = c / sqrt(r + t)
  return y
"""
WEIGHTED = """cascade weighted(x: f16[3, 1000], w: f16[1000], b: f32[1000]) over l
  t[i] = sum[l] f32(x[i, l]) * f32(x[i, l])
  y[i, l] = f32(x[i, l]) * rsqrt(t) * f32(w[l]) + select(t > 900.0, b[l], 0.0)
  return y
"""
LABELLED = """cascade labelled(x: f32[9, 700], a: i64[9], w: f32[9], k: bool[9], c: f32[700]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp(x[i, l] - m)
  y[i] = select(k[i], (log(t) + m - x[i, min(max(a[i], i64(0)), i64(699))]) * w[i], c[a[i]])
  return y
"""
CASES: dict[str, tuple[Callable[[], Fused], tuple[tuple[str, int], ...]]] = {
    "attention": (lambda: examples.attention(SMALL, mask=examples.masks(SMALL)["causal"]), (("single", 1), ("multi", 3))),
    "biased": (lambda: examples.attention(SMALL, mask=examples.masks(SMALL)["keys"], bias="alibi", cap=30.0), (("single", 1),)),
    "variance": (lambda: cascades.variance(4, 3000), (("multi", 3), ("single", 1))),
    "rounded": (lambda: written(ROUNDED), (("resident", 1), ("multi", 2), ("single", 1))),
    "span": (lambda: written(SPAN), (("multi", 2),)),
    "places": (lambda: written(PLACES), (("resident", 1),)),
    "picked": (lambda: written(PICKED), (("resident", 1), ("single", 1))),
    "quotient": (lambda: written(QUOTIENT), (("single", 1),)),
    "components": (lambda: written(COMPONENTS), (("single", 1), ("multi", 2))),
    "weighted": (lambda: written(WEIGHTED), (("resident", 1),)),
    "labelled": (lambda: written(LABELLED), (("resident", 1), ("single", 1))),
    "across": (lambda: mapped(parse_cascade(ACROSS)), (("map", 1),)),
    "grouped": (lambda: examples.attention(Shape(b=1, h=4, hk=2, i=20, n=90, d=32)), (("single", 1),)),
}


@cache
def programs(name: str) -> tuple[tuple[TileProgram, list[tuple[str, int, TileKernel]]], ...]:
    """Tile programs of a case, each with (pass, which kernel, the kernel after it)."""
    make, ways = CASES[name]
    fused, made = make(), []
    for strategy, splits in ways:
        program = realise(fused, strategy, splits)  # type: ignore[arg-type]
        seen: list[tuple[str, int, TileKernel]] = []
        count = -1

        def watch(after: str, kernel: Kernel | TileKernel, seen: list = seen) -> None:
            nonlocal count
            count += after == "laid out"
            if isinstance(kernel, TileKernel):
                seen.append((after, count, kernel))

        made.append((tensorize(program, configs(program, H200)[0], H200, watch), seen))
    return tuple(made)


@cache
def mathematics(name: str) -> tuple[tuple[Program, Geometry, list[tuple[str, Arranged]]], ...]:
    """Kernels of a case, each with its lowering's start and (pass, the kernel after it)."""
    make, ways = CASES[name]
    fused, made = make(), []
    for strategy, splits in ways:
        program = realise(fused, strategy, splits)  # type: ignore[arg-type]
        config = configs(program, H200)[0]
        made += [(program, *steps.mathematics(program, kernel, config, H200)) for kernel in program.kernels]
    return tuple(made)


@pytest.mark.parametrize("name", CASES)
def test_each_pass_keeps_the_mathematics(name: str) -> None:
    rng = np.random.default_rng(7)
    for program, work, stages in mathematics(name):
        inputs = {t.name: rng.random(t.shape) < 0.7 if t.dtype == "bool" else
                  rng.standard_normal(t.shape).astype(interpret.NUMPY_DTYPES[t.dtype]) for t in program.fused.cascade.inputs}

        def result(arranged: Arranged, extents: dict[str, int], program=program, inputs=inputs, work=work):
            def instead(buffers):
                return kernels.evaluate(arranged.kernel, buffers, extents, arranged.stores, work.resident)

            return kernels.run(program, inputs, {arranged.kernel.name: instead})

        wanted = kernels.run(program, inputs, {})
        for after, arranged in stages:
            extents = {**arranged.extents, UNIT: 1}
            assert check_kernel(arranged.kernel, extents, tuple(arranged.stores)) == [], after
            for n, got in result(arranged, extents).items():
                np.testing.assert_allclose(got, wanted[n], 1e-9, 1e-9, err_msg=f"{after}: {n}")
            whole = replace(program, kernels=(arranged.kernel,), axes=tuple(Axis(a, n) for a, n in extents.items()))
            assert parse_program(str(whole), program.fused) == whole, after


def test_a_rewrite_that_does_not_apply_gives_what_it_got() -> None:
    for _, work, stages in mathematics("attention"):
        for p in rewrite.PASSES:
            assert str(p(stages[-1][1].kernel, work.facts.at)) == str(stages[-1][1].kernel), type(p).__name__


def test_every_rewrite_shows_what_it_does_and_does_it() -> None:
    used = {after for name in CASES for _, _, stages in mathematics(name) for after, _ in stages}
    for p in (*rewrite.AXES, *rewrite.PASSES):
        assert type(p).__name__ in used, type(p).__name__
        assert "-->" in (type(p).__doc__ or ""), type(p).__name__
        hash(p)


@pytest.mark.parametrize("name", CASES)
def test_each_pass_keeps_form_and_values(name: str) -> None:
    for program, seen in programs(name):
        rng = np.random.default_rng(5)
        inputs = {a.name: rng.standard_normal(a.shape).astype(interpret.NUMPY_DTYPES[a.dtype]) if a.dtype != "bool"
                  else rng.random(a.shape) < 0.7 for a in program.args if a.role == "in"}
        wanted = interpret.run(program, inputs)
        for after, k, kernel in seen:
            assert verify_kernel(kernel) == [], after
            changed = replace(program, kernels=(*program.kernels[:k], kernel, *program.kernels[k + 1:]))
            got = interpret.run(changed, inputs)
            for n in wanted:
                assert np.array_equal(got[n], wanted[n], equal_nan=wanted[n].dtype.kind == "f"), (after, n)


@pytest.mark.parametrize("name", CASES)
def test_text_reads_back(name: str) -> None:
    for program, seen in programs(name):
        again = parse(str(program))
        assert again == program and str(again) == str(program)
        for _, _, kernel in seen:
            whole = replace(program, kernels=(kernel,))
            assert parse(str(whole)) == whole


def test_a_pass_that_does_not_apply_gives_what_it_got() -> None:
    for p in PASSES:
        for program, _ in programs("attention"):
            for kernel in program.kernels:
                assert str(p(kernel)) == str(kernel), type(p).__name__


def test_every_pass_shows_what_it_does_and_does_it() -> None:
    used = {after for name in CASES for _, seen in programs(name) for after, _, _ in seen}
    for p in PASSES:
        assert type(p).__name__ in used
        assert "-->" in (type(p).__doc__ or ""), type(p).__name__
        hash(p)


def test_what_the_end_of_a_row_reads_is_asked_for_before_its_reductions() -> None:
    """But for what a choice may leave unread."""
    (program, _), = programs("weighted")
    (kernel,) = program.kernels
    first = next(n for n, s in enumerate(kernel.body) if isinstance(s, ReduceTile))
    early = {x.tensor for s in kernel.body[:first] if isinstance(s, Parallel) for a in s.body for x in walk(a.expr)
             if isinstance(x, Load)} & {p.name for p in kernel.params}
    late = {x.tensor for s in kernel.body[first:] if isinstance(s, Parallel) for a in s.body for x in walk(a.expr)
            if isinstance(x, Load)} & {p.name for p in kernel.params}
    assert (early, late) == ({"w"}, {"b"})


def test_what_a_row_reads_of_its_own_is_asked_for_before_it() -> None:
    """Also at a place that data tell; but for what a choice may leave unread at a place that may lie outside."""
    for program, _ in programs("labelled"):
        (kernel,) = program.kernels
        params = {p.name for p in kernel.params}

        def read(body: tuple[TileStmt, ...], own: frozenset[str] = frozenset(params)) -> set[str]:
            return {n for s in body for n in reads(s)} & own

        row = next(n for n, s in enumerate(kernel.body) if isinstance(s, For) or (isinstance(s, Parallel) and len(s.vars) > 1))
        assert read(kernel.body[:row]) == {"x", "a", "w"}
        last = max(n for n, s in enumerate(kernel.body) if isinstance(s, (ReduceTile, For)))
        assert read(kernel.body[last:][1:]) == {"k", "c", "a"}


def test_an_operation_keeps_its_precision() -> None:
    """Of two tiles of halves a product in single precision stays one; a half's is rounded; a choice has no rounding."""
    homes = {"a": "f16", "b": "f16", "w": "f32", "d": "f64", "n": "i32"}

    def read(name: str, dtype: str) -> Load:
        return Load(name, (Index("i"),), dtype)

    for e, text in (
            (Op("mul", (read("a", "f32"), read("b", "f32")), "f32"), "f32(a[i]) * f32(b[i])"),
            (Op("mul", (read("a", "f16"), read("b", "f16")), "f16"), "a[i] * b[i]"),
            (Op("mul", (read("a", "f16"), read("w", "f16")), "f16"), "f16(f32(a[i]) * w[i])"),
            (Op("add", (read("w", "f32"), read("d", "f64")), "f64"), "f64(w[i]) + d[i]"),
            (Op("max", (read("a", "f32"), Const(-2.0, "f32")), "f32"), "max(f32(a[i]), -2.0)"),
            (Op("max", (read("a", "f32"), read("b", "f32")), "f32"), "max(a[i], b[i])"),
            (Op("lt", (read("a", "f16"), Const(0.3, "f16")), "bool"), "a[i] < f16(0.3)"),
            (Op("lt", (read("w", "f16"), Const(0.3, "f16")), "bool"), "w[i] < f32(f16(0.3))"),
            (Op("ne", (read("n", "i64"), Const(-100, "i64")), "bool"), "i64(n[i]) != -100")):
        assert str(typed(e, homes)) == text


# -- what is ill-formed ------------------------------------------------------------------------------------------------

I, J = Index("i"), Index("j")
WHOLE = (Dim(i64(0), 4), Dim(i64(0), 8))


def kernel(*body: object, **changed: object) -> TileKernel:
    return replace(TileKernel("k", (Param("x", "f16", (4, 8)), Param("out_y", "f32", (4, 8), True)), (("one", 1),), 32, (),
                              (Buffer("a", "fragment", "f32", (4, 8)), Buffer("h", "fragment", "f16", (4, 8)),
                               Buffer("r", "fragment", "f32", (4,)), Buffer("s", "shared", "f16", (8, 16)),
                               Buffer("c", "fragment", "f32", (4, 16))), tuple(body)), **changed)  # type: ignore[arg-type]


READ = Copy(Slice("x", WHOLE), Slice("h"))
ILL = {
    "read before it is written": [Copy(Slice("a"), Slice("out_y", WHOLE))],
    "no buffer or parameter b": [READ, Copy(Slice("b"), Slice("out_y", WHOLE))],
    "no variable k": [Parallel(("i", "j"), (4, 8), (Assign("a", (I, Index("k")), f32(0.0)),))],
    "elements copied": [Copy(Slice("x", (Dim(i64(0), 4), Dim(i64(0), 4))), Slice("h"))],
    "2 dimensions of f16, read as": [READ, Parallel(("i", "j"), (4, 8), (Assign("a", (I, J), at("h", "f32", "i", "j")),))],
    "add of f16 and f32": [READ, Parallel(("i", "j"), (4, 8), (Assign("a", (I, J), Op("add", (
        at("h", "f16", "i", "j"), f32(1.0)), "f32")),))],
    "called f16": [Parallel(("i", "j"), (4, 8), (Assign("a", (I, J), Op("add", (f32(1.0), f32(1.0)), "f16")),))],
    "is no condition": [Parallel(("i",), (4,), (Assign("r", (I,), Op("select", (f32(1.0), f32(1.0), f32(0.0)), "f32")),))],
    "j leaves r": [Parallel(("j",), (8,), (Assign("r", (J,), f32(0.0)),))],
    "a product of 4x8 and 16x8": [READ, Fill("s", Const(0.0, "f16")), Gemm(Slice("h"), Slice("s"), "c", False, True, True)],
    "the operand x is written": [READ, Copy(Slice("h"), Slice("x", WHOLE))],
    "the result out_y is read": [Copy(Slice("out_y", WHOLE), Slice("a"))],
    "a reduction over the last dimension": [Fill("a", f32(0.0)), ReduceTile("sum", "a", "c")],
    "i is a variable already": [For("i", i64(0), i64(2), (For("i", i64(0), i64(2), ()),))],
    "a condition that is no bool": [If(I, ())],
    "a is read before": [If(Op("lt", (Index("one"), i64(1)), "bool"), (Fill("a", f32(0.0)),)),
                         Copy(Slice("a"), Slice("out_y", WHOLE))],
    "f32 filled with a i64": [Fill("a", i64(0))],
    "nothing is written to out_y": [READ],
}


@pytest.mark.parametrize("what", ILL)
def test_ill_formed(what: str) -> None:
    assert any(what in found for found in verify_kernel(kernel(*ILL[what])))


def test_well_formed() -> None:
    body = (READ, Parallel(("i", "j"), (4, 8), (Assign("a", (I, J), Cast(at("h", "f16", "i", "j"), "f32")),)),
            Copy(Slice("a"), Slice("out_y", WHOLE)))
    assert verify_kernel(kernel(*body)) == []
    assert "given twice" in verify_kernel(kernel(*body, grid=(("x", 1),)))[0]


def test_an_ill_formed_program_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that breaks a kernel is found before anything is built, whatever the interpreter would make of it."""
    from redfuser.tensorize import tiles as package

    program = realise(CASES["variance"][0](), "single", 1)
    monkeypatch.setattr(package, "scheduled", lambda k, through, watch: replace(k, body=k.body[1:]))
    with pytest.raises(LoweringError) as error:
        tensorize(program, TileConfig(4, 128, 128, 0), H200)
    assert error.value.code == "RF903" and "read before it is written" in str(error.value)


@pytest.mark.parametrize("text, line", [
    ("tiles k", 1), ("tile program k\n  put x: f32[3]", 2), ("tile program k\nkernel k() grid () threads many", 2),
    ("tile program k\nkernel k() grid (i < 1) threads 32\n  compute a", 3),
    ("tile program k\nkernel k() grid (i < 1) threads 32\n  fill a x + 1", 3)])
def test_text_that_is_no_program(text: str, line: int) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert error.value.code == "RF180" and f"line {line}" in str(error.value)


def test_arguments_and_views_agree() -> None:
    (program, _), *_ = programs("variance")
    assert verify(program) == []
    first = program.kernels[0]
    wrong = replace(first, params=(replace(first.params[0], shape=(7,)), *first.params[1:]))
    assert any("no view" in w for w in verify(replace(program, kernels=(wrong, *program.kernels[1:]))))


def test_integers_have_integer_padding() -> None:
    """The padding of a ragged row of integers is their own least value: an infinity would make floats of them."""
    fused = written("cascade largest(x: i32[5, 70]) over l\n  m[i] = max[l] x[i, l]\n  s[i] = sum[l] i64(x[i, l])\n  return m, s\n")
    program = realise(fused, "single", 1)
    tiles = tensorize(program, TileConfig(4, 64, 64, 0), H200)
    x = np.random.default_rng(0).integers(-2**31, -2**31 + 2**20, (5, 70)).astype(np.int32)
    got = interpret.run(tiles, {"x": x})
    assert np.array_equal(got["m"], x.max(1)) and np.array_equal(got["s"], x.astype(np.int64).sum(1))
    assert "-inf" not in str(tiles) and "-2147483648" in str(tiles)
