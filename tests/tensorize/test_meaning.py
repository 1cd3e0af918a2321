"""Tile programs mean what the cascade means: drawn attention programs, in the order people write scale, cast, mask, bias
and soft-cap, through the interpreter against float64 and the unfused low-precision program."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.cascade import Cascade
from redfuser.codegen import tilelang
from redfuser.errors import LoweringError
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.ir import interpret
from tests.evaluated import run
from tests.tensorize.holding import PRODUCT, ROWS, hold, tiles, values

LOWEST = "-3.4028234663852886e+38"

STEPS = {
    "scale": "{p} * 0.1767767", "scale up": "{p} * 3.0", "divide": "{p} / 11.3", "power of two": "{p} * 0.125",
    "negate": "{p} * -0.5", "nothing": "{p} * 0.0", "round": "f32({half}({p}))", "cap": "tanh({p} / 5.0) * 5.0",
    "bias": "{p} + f32(bias[i, l])", "row scale": "{p} * slope[i]", "causal": "select(l <= i, {p}, -inf)",
    "hide": "select(keep[i, l], {p}, -inf)", "hide by lowest": f"select(keep[i, l], {{p}}, {LOWEST})",
    "hide by 1e9": "select(keep[i, l], {p}, -1000000000.0)",
    "add lowest": f"{{p}} + select(keep[i, l], 0.0, {LOWEST})", "clamp": "max({p}, -2.0)",
}


def attention(steps: list[str], half: str = "f16", weights: str = "", result: str = "f32", more: str = "",
              i: int = 21, l: int = 37, d: int = 16) -> Cascade:
    """softmax(steps(q k)) v, with weights rounded to ``weights`` and the result stored as ``result``."""
    p = "s"
    lines = ["s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])"]
    for n, step in enumerate(steps):
        lines.append(f"p{n}[i, l] = " + STEPS[step].format(p=p, half=half))
        p = f"p{n}"
    w = f"exp({p} - m) / t"
    w = f"f32({weights}({w}))" if weights else w
    lines += [f"m[i] = max[l] {p}", f"t[i] = sum[l] exp({p} - m)", f"o[i, e] = sum[l] {w} * f32(v[l, e])",
              f"y[i, e] = {result}(o)" if result != "f32" else "y[i, e] = o * 1.5"]
    if more:
        lines.append(f"z[i] = {more}")
    text = "\n".join(lines)
    sizes = {"q": f"{half}[{i}, {d}]", "k": f"{half}[{l}, {d}]", "v": f"{half}[{l}, {d}]", "bias": f"{half}[{i}, {l}]",
             "slope": f"f32[{i}]", "keep": f"bool[{i}, {l}]"}
    used = ", ".join(f"{n}: {s}" for n, s in sizes.items() if f"{n}[" in text)
    body = "\n".join("  " + line for line in lines)
    return parse_cascade(f"cascade drawn({used}) over l\n{body}\n  return y{', z' if more else ''}\n")


@pytest.mark.parametrize("seed", range(28))
def test_drawn_attention(seed):
    rng = random.Random(seed)
    half = rng.choice(["f16", "bf16"])
    steps = rng.sample(sorted(STEPS), rng.randint(1, 4))
    result = rng.choice(["f32", "f16", "bf16"])
    more = rng.choice(["", "", "m + log(t)", "m * 2.0", "t * 0.5"])
    cascade = attention(steps, half, rng.choice(["", half]), result, more)
    strategy, splits = rng.choice([("single", 1), ("multi", 3)])
    hold(cascade, values(cascade, rng.choice([1.0, 1.0, 9.0]), seed), tiles(cascade, strategy, splits))


@pytest.mark.parametrize("steps, half, size", [
    (["round", "divide"], "f16", 1.0), (["round", "divide"], "bf16", 1.0),
    (["scale", "hide by lowest"], "f16", 1.0), (["hide by lowest", "scale"], "bf16", 1.0), (["add lowest"], "f16", 1.0),
    (["scale"], "bf16", 1e17), (["round", "divide"], "f16", 40.0),
], ids=str)
def test_findings(steps, half, size):
    """A cast in front of a scale; rows hidden by the lowest finite number; scores of 1e35; padding under scores of -1e4."""
    cascade = attention(steps, half, half, half)
    given = values(cascade, size)
    if size != 1.0:
        given["q"], given["k"] = np.abs(given["q"]), -np.abs(given["k"])
    hold(cascade, given, tiles(cascade))


@pytest.mark.parametrize("half, result, count", [("f16", "f16", 1), ("bf16", "bf16", 1), ("f16", "bf16", 1),
                                                 ("bf16", "f16", 2), ("f16", "f32", 2), ("bf16", "f32", 3)])
def test_pieces(half, result, count):
    """As many products as the result has precision; the rounding is listed, with its bound."""
    cascade = attention(["scale"], half, "", result)
    program = tiles(cascade)
    hold(cascade, values(cascade), program)
    (note,) = program.roundings
    assert (f"{count} {half} pieces" if count > 1 else f"rounded to {half} for") in note
    assert sum(line.strip().startswith("gemm weights") for line in str(program).splitlines()) == count
    assert not tiles(attention(["scale"], half, half, result)).roundings, "the program's own rounding"


@pytest.mark.parametrize("strategy", ["resident", "single"])
@pytest.mark.parametrize("by", ["/ 3.0", "* 0.7"])
def test_a_scaled_value_has_one_rounding(strategy, by):
    """Read by an exponential and beside it: far from zero, what its product with the scale rounds to must be one number in both
    (it cancels in ``p - m - log t``)."""
    cascade = parse_cascade(f"""cascade divergence(x: f32[20, 200], y: f32[20, 200]) over l
  p[i, l] = x[i, l] {by}
  m[i] = max[l] p
  t[i] = sum[l] exp(p - m)
  d[i] = sum[l] exp(p - m - log(t)) * (p - m - log(t) - y[i, l])
  return d
""")
    rows = TileConfig(1, 256, 64, 0, warp_specialized=False) if strategy == "resident" else ROWS
    for seed in range(3):
        given = values(cascade, seed=seed)
        hold(cascade, {**given, "x": (given["x"] + 300).astype(np.float32)}, tiles(cascade, strategy, config=rows))


def test_one_meaning_per_name():
    """Nothing can silently overwrite what a name stands for."""
    from redfuser.acrf.expr import Ref, f32, op
    from redfuser.errors import InternalError
    from redfuser.tensorize.rewrite.facts import Meanings

    stands = Meanings(realise(fuse(attention(["scale"])), "single", 1).kernels[0])  # type: ignore[arg-type]
    stands.stand("p", op("mul", Ref("p", "f32"), f32(2.0)))
    stands.stand("p", op("mul", Ref("p", "f32"), f32(2.0)))
    with pytest.raises(InternalError):
        stands.stand("p", Ref("s", "f32"))


@pytest.mark.parametrize("strategy, splits", [("single", 1), ("resident", 1), ("multi", 2)])
def test_weights_of_a_ragged_row(strategy, splits):
    """What is masked for the maximum has a name in the walk; the second visit of the row reads its own scores."""
    cascade = parse_cascade("""cascade weights(q: f16[20, 32], k: f16[100, 32]) over l
  s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
  m[i] = max[l] s
  t[i] = sum[l] exp(s - m)
  p[i, l] = exp(s - m) / t
  return p
""")
    program = realise(fuse(cascade), strategy, splits)  # type: ignore[arg-type]
    given = values(cascade)
    got = interpret.run(tensorize(program, TileConfig(64, 64, 128, 2), target("sm_90a")), given)["p"]
    np.testing.assert_allclose(got, run(cascade, given)["p"], atol=1e-5)


def test_slices_are_no_padding():
    """A row that ends inside its tensor, and a contraction that does: what follows is not 0, and may be NaN."""
    cascade = attention([], result="f16", i=20, l=37, d=24)
    short = values(cascade)
    cascade = replace(cascade, inputs=tuple(replace(t, shape=tuple(n + 13 for n in t.shape)) for t in cascade.inputs))
    given = {t.name: np.full(t.shape, np.nan, np.float16) for t in cascade.inputs}
    for n, x in short.items():
        given[n][:x.shape[0], :x.shape[1]] = x
    want = run(attention([], result="f16", i=20, l=37, d=24), short)["y"]
    got = interpret.run(tiles(cascade), given)["y"]
    np.testing.assert_allclose(got.astype(np.float64), want, atol=2e-3)


NANS = """
cascade nans(x: f32[9, 50]) over l
  m[i] = max[l] x[i, l]
  n[i] = min[l] x[i, l]
  t[i] = sum[l] exp(x[i, l] - m)
  y[i] = m + log(t)
  return y, m, n
"""


@pytest.mark.parametrize("strategy, splits", [("single", 1), ("resident", 1), ("multi", 3)])
def test_nan_reaches_extrema(strategy, splits):
    cascade = parse_cascade(NANS)
    given = values(cascade)
    x = given["x"]
    x[1, 40], x[2], x[3, :30] = np.nan, np.nan, -np.inf
    x[3, 2], x[4, 5], x[5, :] = np.nan, np.inf, -np.inf
    config = replace(ROWS, segment=64) if strategy == "resident" else ROWS
    hold(cascade, given, tiles(cascade, strategy, splits, config))


def test_nan_costs_nothing_where_the_sum_has_it():
    assert "isnan" not in str(tiles(attention(["scale"], more="m + log(t)")))
    assert "isnan" in str(tiles(attention(["scale"], more="m * 2.0")))
    text = tilelang.print_program(tiles(attention(["clamp"])))
    assert "T.max(scores" not in text and '"max_nan", scores[i, j], -2.0)' in text


@pytest.mark.parametrize("strategy, splits", [("resident", 1), ("single", 1), ("multi", 3)])
@pytest.mark.parametrize("result", ["x[i, l] - m", "select(x[i, l] < m, x[i, l], m * 0.5)", "x[i, l] / (m - lo)"])
def test_nan_of_one_element_is_in_every_result_of_its_row(result, strategy, splits):
    """The element itself is a number there: what makes the row's results NaN is the maximum."""
    low = "  lo[i] = min[l] x[i, l]\n" if "lo" in result else ""
    cascade = parse_cascade(f"cascade shifted(x: f32[9, 300]) over l\n  m[i] = max[l] x[i, l]\n{low}"
                            f"  y[i, l] = {result}\n  return y\n")
    inputs = values(cascade)
    inputs["x"][2, 7] = np.nan
    hold(cascade, inputs, tiles(cascade, strategy, splits, ROWS))


PICK = """
cascade pick(x: f32[9, 50]) over l
  v, j = topk(4)[l] x[i, l]
  return v, j
"""


def test_selection_of_nan_and_the_lowest():
    """NaN counts as the best; -inf and the lowest finite number are two values."""
    cascade = parse_cascade(PICK)
    given = values(cascade)
    x = given["x"]
    x[2, 7], x[3], x[4, :48], x[5, :] = np.nan, np.nan, -np.inf, np.finfo(np.float32).min
    x[5, 9], x[6, 3] = -np.inf, np.inf
    got = interpret.run(tiles(cascade, "resident", 1, replace(ROWS, segment=64)), given)
    want, _ = torch.topk(torch.from_numpy(x), 4, dim=-1)
    np.testing.assert_array_equal(got["v"], want.numpy())
    finite = np.isfinite(want.numpy())
    np.testing.assert_array_equal(np.take_along_axis(x, got["j"].astype(np.int64), 1)[finite], want.numpy()[finite])


@pytest.mark.parametrize("strategy, splits, segment", [("resident", 1, 64), ("single", 1, 16), ("multi", 3, 16), ("multi", 7, 4)])
@pytest.mark.parametrize("more", ["", "  s[i, e] = sum[l] f32(w[i, l]) * f32(z[l, e])\n"], ids=["alone", "folded"])
def test_the_place_of_the_least_is_torchs(strategy, splits, segment, more):
    """The lowest of equal ones, and NaN before all; of a ragged row and of differences, as it is held, walked or shared out,
    the parts merged at once or, beside a vector, one after another."""
    extra, back = (", w: f16[9, 50], z: f16[50, 16]", ", s") if more else ("", "")
    cascade = parse_cascade(f"cascade near(x: f32[9, 50], y: f32[50]{extra}) over l\n  a[i] = argmin[l] abs(x[i, l] - y[l])\n"
                            f"  c[i] = argmax[l] abs(x[i, l] - y[l])\n{more}  return a, c{back}")
    given = values(cascade)
    x, y = given["x"], given["y"]
    x[2, 7], x[3], x[4, 10:], x[5], x[6, [8, 20]] = np.nan, np.nan, np.inf, y, y[[8, 20]]
    x[7], x[8, [3, 33]] = np.inf, y[[3, 33]] + 9
    got = interpret.run(tiles(cascade, strategy, splits, replace(ROWS, segment=segment)), given)
    far = torch.from_numpy(np.abs(x - y))
    np.testing.assert_array_equal(got["a"], far.argmin(-1).numpy())
    np.testing.assert_array_equal(got["c"], far.argmax(-1).numpy())


QUANTISED = """
cascade quantised(x: f32[9, 64]) over l
  m[i] = max[l] abs(x[i, l])
  s[i] = m / 448.0
  y[i, l] = {how}
  return y, s
"""


@pytest.mark.parametrize("how", ["e4m3(x[i, l] / s)", "round(x[i, l] / s)"])
def test_quotients_before_few_values_keep_edges(how):
    """No reciprocal of one rounding: an element at an edge must not become its neighbour (``divided``: tests/codegen/test_exchange)."""
    cascade = parse_cascade(QUANTISED.format(how=how))
    program = tiles(cascade, "resident", 1, replace(ROWS, segment=64))
    text = tilelang.print_program(program)
    assert "inverse" not in text and "row_max[i] / 448.0" in text and '"divided", x_tile[i, j], s[i])' in text
    assert text.count('"divided", ') == 1, "what is rounded to 8 bits is spelled once"
    given = values(cascade)
    got, want = interpret.run(program, given), run(cascade, given, "program")
    np.testing.assert_array_equal(got["y"].astype(np.float32), want["y"].astype(np.float32))
    assert "exp2_approx" in tilelang.print_program(tiles(attention(["scale"])))


def test_a_short_sum_over_another_contraction():
    """The terms of an unrolled sum are tiles of their own."""
    text = """
    cascade mixed(x: f16[4, 16], w: f16[4, 40, 16], g: f32[8, 4]) over l
      s[i, g0, l] = sum[c] f32(x[g0, c]) * f32(w[g0, l, c])
      h[i, l] = sum[g0] s * g[i, g0]
      t[i] = sum[l] h * h
      return t
    """
    cascade = parse_cascade(text)
    program = tiles(cascade, config=PRODUCT)
    hold(cascade, values(cascade), program)
    assert str(program).count("gemm") == 4


def test_a_single_number():
    """A result without axes is stored in a tensor of one element."""
    cascade = parse_cascade("cascade total(x: f32[50]) over l\n  m = max[l] x[l]\n  t = sum[l] exp(x[l] - m)\n"
                            "  y = m + log(t)\n  return y\n")
    for strategy, splits in (("single", 1), ("multi", 3)):
        program = tiles(cascade, strategy, splits, ROWS)
        hold(cascade, values(cascade), program)
        text = tilelang.print_program(program)
        assert "out_y[] =" not in text and "out_y[0] = " in text


def test_a_tile_in_flight_is_not_written():
    """A pipelined loop copies the next tile in while this one is computed with: maps do not reuse its storage."""
    from redfuser.tensorize.ir.parse import parse
    from redfuser.tensorize.schedule import ReuseInPlace

    def text(how: str) -> str:
        return str(ReuseInPlace()(parse(f"""tile program p
kernel k(x: f32[12, 8]) grid (one < 1) threads 32
  x_tile: fragment f32[4, 8]
  y: fragment f32[4, 8]
  m: fragment f32[4]
  for k in 0 .. 3{how}:
    copy x[k * 4 +: 4, 0 +: 8] -> x_tile
    parallel i < 4, j < 8:
      y[i, j] = x_tile[i, j] * 2.0
    reduce max y -> m
""").kernels[0]))

    assert "x_tile[i, j] = x_tile[i, j] * 2.0" in text("")
    assert "y[i, j] = x_tile[i, j] * 2.0" in text(" pipelined 2")


def test_each_statement_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of maps becomes one buffer, and what a map touches is asked again only where its buffers got other names."""
    from redfuser.tensorize.ir.parse import parse
    from redfuser.tensorize.schedule import ReuseInPlace, in_place

    def asked(n: int) -> int:
        met: list[object] = []
        monkeypatch.setattr(in_place, "reads", lambda s: (met.append(s), reads(s))[1])
        tiles = "\n".join(f"  t{i}: fragment f32[4, 8]" for i in range(n + 1))
        maps = "\n".join(f"  parallel i < 4, j < 8:\n    t{i + 1}[i, j] = t{i}[i, j] * 2.0" for i in range(n))
        done = ReuseInPlace()(parse(f"tile program p\nkernel k() grid (one < 1) threads 32\n{tiles}\n  fill t0 0.0\n{maps}").kernels[0])
        assert len({s.body[0].target for s in done.body[1:]}) == 1
        return len(met)

    reads = in_place.reads
    assert asked(60) < 2.5 * asked(30)


def test_a_result_is_not_left_in_a_tile():
    """A map whose target is the kernel's result writes it; its operand's storage is the kernel's own."""
    from redfuser.tensorize.ir.parse import parse
    from redfuser.tensorize.schedule import ReuseInPlace

    kernel = parse("""tile program p
kernel k(x: f32[4, 8], out_y: f32[4, 8] out) grid (one < 1) threads 32
  x_tile: fragment f32[4, 8]
  copy x[0 +: 4, 0 +: 8] -> x_tile
  parallel i < 4, j < 8:
    out_y[i, j] = x_tile[i, j] * 2.0
""").kernels[0]
    assert ReuseInPlace()(kernel) == kernel


@pytest.mark.parametrize("n, d", [(48, 16), (30, 8)])
def test_rows_that_are_columns(n, d):
    """Statistics along the first axis of a small tensor, applied where it lies."""
    cascade = parse_cascade(f"cascade rms(x: f32[{n}, {d}]) over l\n  t[i] = sum[l] x[l, i] * x[l, i]\n"
                            f"  y[l, i] = x[l, i] * rsqrt(t / {n}.0 + 0.001)\n  return y\n")
    hold(cascade, values(cascade), tiles(cascade, "resident", 1, replace(ROWS, segment=64)))


def test_kernels_that_cannot_fit_are_no_candidates():
    """Accumulators and operands that certainly exceed a block's registers or shared memory are refused before a build."""
    wide = attention(["scale"], i=256, l=256, d=512)
    with pytest.raises(LoweringError) as error:
        tiles(wide, config=TileConfig(128, 128, 128, 2))
    assert error.value.code == "RF410"


@pytest.mark.parametrize("strategy, splits", [("single", 1), ("multi", 3)])
def test_the_start_of_a_maximum_is_no_number(strategy, splits):
    """An empty row is -inf: a finite start that stands for it would be a number where the maximum is a divisor or a factor."""
    cascade = parse_cascade("cascade norm(x: f16[21, 37]) over l\n  m[i] = max[l] abs(f32(x[i, l]))\n"
                            "  t[i] = sum[l] f32(x[i, l]) / m * (f32(x[i, l]) / m)\n  y[i] = m * sqrt(t)\n  return y\n")
    hold(cascade, values(cascade), tiles(cascade, strategy, splits, ROWS))
    assert "fill row_max -inf" in str(tiles(attention(["scale", "causal"])))


HIDDEN = """
cascade hidden(x: f32[9, 64], k: bool[9, 64]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] {what}
  y[i, l] = {what} / t
  return y
"""


def test_a_sum_without_its_largest_exponential_may_be_below_what_an_approximation_keeps():
    """Hidden after the maximum was taken: 1e-40 over 1e-40 is 1, and 0 over 0 is NaN."""
    shown, hidden = "exp(x[i, l] - m)", "select(k[i, l], exp(x[i, l] - m), 0.0)"
    halves = HIDDEN.replace("= {what} / t", "= f16({what} / t)")

    def approximates(text: str) -> bool:
        cascade = parse_cascade(text)
        return "exp2_approx" in tilelang.print_program(tiles(cascade, "resident", 1, replace(ROWS, segment=64)))

    assert [approximates(halves.format(what=w)) for w in (shown, hidden)] == [True, False]
    assert not approximates(HIDDEN.format(what=shown)), "a result in float32, which the program may go on to divide by"
    cascade = parse_cascade(HIDDEN.format(what=hidden))
    x, k = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32), np.ones((9, 64), np.bool_)
    x[:, 3], k[:, 3] = 95.0, False
    got = interpret.run(tiles(cascade, "resident", 1, replace(ROWS, segment=64)), {"x": x, "k": k})
    np.testing.assert_allclose(got["y"].sum(1), 1.0, rtol=1e-4)
