"""Walks of listed steps: the same values as a walk of all, steps that are left out, and every planted error found by the chain."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.autotune.lookup import Decision
from redfuser.autotune.space import candidates
from redfuser.chain import steps as chain_steps
from redfuser.chain import tiles as chain_tiles
from redfuser.chain import twin
from redfuser.chain.samples import Case, cases
from redfuser.codegen.tilelang import print_program
from redfuser.errors import InternalError, LoweringError
from redfuser.kernels import produce
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, TileProgram, configs, tensorize, tiles
from redfuser.tensorize.hidden import walked_first
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import For, Roles
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.schedule.listed import ListSteps
from tests.autotune.planted import record
from tests.chain.survivors import Kernel, table
from tests.chain.twins import Twin

H200 = target("sm_90a")
CONFIG = TileConfig(64, 32, 128, walk="listed")
LOWER = Path(__file__).with_name("lower.py")

MASKS = {
    "documents": ("x[b, i] == x[b, l]", "x: i64[2, 200]"),
    "documents, rounded": ("x[b, i] == x[b, l]", "x: i64[2, 200]"),
    "two segments": ("x[b, i] == i64(z[b, l])", "x: i64[2, 200], z: i32[2, 200]"),
    "causal documents": ("l <= i and x[b, i] == x[b, l]", "x: i64[2, 200]"),
    "window of documents": ("l <= i and i - l < 40 and x[b, i] == x[b, l]", "x: i64[2, 200]"),
    "padding": ("x[b, l]", "x: bool[2, 200]"),
    "padding of both": ("x[b, l] and z[b, i]", "x: bool[2, 200], z: bool[2, 200]"),
    "lengths": ("l < x[b]", "x: i64[2]"),
    "heads": ("x[h, l] or l < z[b]", "x: bool[3, 200], z: i64[2]"),
    "own windows": ("i - l < x[b, i] and l - i < x[b, i]", "x: i64[2, 200]"),
    "floats": ("x[b, i] <= f32(z[b, l])", "x: f32[2, 200], z: f16[2, 200]"),
}


def attention(mask: str, inputs: str, rounded: bool = False, i: int = 200) -> Fused:
    """Two batches of three heads, 200 keys."""
    shown = f"select({mask}, f16(s) * f16(0.25), f16(-inf))" if rounded else f"select({mask}, s * 0.25, -inf)"
    p = "f32(p)" if rounded else "p"
    found = fuse(parse_cascade(f"""cascade attention(q: f16[2, 3, {i}, 32], u: f16[2, 3, 200, 32], v: f16[2, 3, 200, 32], {inputs}) over l
  s[b, h, i, l] = sum[c] f32(q[b, h, i, c]) * f32(u[b, h, l, c])
  p[b, h, i, l] = {shown}
  m[b, h, i] = max[l] {p}
  t[b, h, i] = sum[l] exp({p} - m)
  o[b, h, i, e] = sum[l] exp({p} - m) / t * f32(v[b, h, l, e])
  y[b, h, i, e] = f16(o)
  return y
"""))
    assert isinstance(found, Fused), found
    return found


@cache
def of(name: str) -> Program:
    return realise(attention(*MASKS[name], rounded="rounded" in name), "single")


def given(program: TileProgram, data: dict[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    kinds = {"f16": np.float16, "f32": np.float32, "i64": np.int64, "i32": np.int32, "bool": np.bool_}
    out = {a.name: rng.standard_normal(a.shape).astype(kinds[a.dtype]) for a in program.args if a.role == "in"}
    return out | {n: np.asarray(x).astype(kinds[next(a.dtype for a in program.args if a.name == n)]) for n, x in data.items()}


@cache
def tiled(name: str, config: TileConfig) -> TileProgram:
    return tensorize(of(name), config, H200)


def visited(program: TileProgram, *inputs: Mapping[str, np.ndarray]) -> list[list[list[int]]]:
    """Of every set of inputs, the steps of each tile of rows: those that the kernels before the last one list."""
    listing = replace(program, kernels=program.kernels[:-1], outputs=(("steps", "steps"), ("count", "count")))
    return [[x["steps"][at][:x["count"][at]].tolist() for at in itertools.product(*map(range, x["count"].shape))]
            for x in interpret.run_all(listing, inputs)]


def sorted_documents(*lengths: int) -> np.ndarray:
    return np.repeat(np.arange(len(lengths)), lengths)


DRAWN: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "one document": ("documents", {"x": np.zeros((2, 200))}),
    "ends inside of tiles": ("documents", {"x": np.stack([sorted_documents(50, 90, 60), sorted_documents(1, 198, 1)])}),
    "ends of tiles": ("documents", {"x": np.stack([sorted_documents(64, 64, 72), sorted_documents(32, 32, 64, 72)])}),
    "in no order": ("documents", {"x": np.random.default_rng(0).integers(0, 9, (2, 200))}),
    "descending": ("documents", {"x": -np.stack([sorted_documents(50, 90, 60), sorted_documents(20, 20, 160)])}),
    "numbers of 64 bits": ("documents", {"x": (np.stack([sorted_documents(64, 136), sorted_documents(128, 72)])
                                               + 7) * (1 << 40)}),
    "every row hidden": ("two segments", {"x": np.zeros((2, 200)), "z": np.ones((2, 200))}),
    "some rows hidden": ("two segments", {"x": np.stack([sorted_documents(64, 136), np.full(200, 9)]),
                                          "z": np.stack([sorted_documents(40, 160), np.zeros(200)])}),
    "rounded": ("documents, rounded", {"x": np.stack([sorted_documents(50, 90, 60), sorted_documents(1, 198, 1)])}),
    "causal": ("causal documents", {"x": np.stack([sorted_documents(100, 100), sorted_documents(200)])}),
    "window": ("window of documents", {"x": np.stack([sorted_documents(100, 100), sorted_documents(200)])}),
    "padding": ("padding", {"x": np.arange(200) < [[70], [0]]}),
    "padding before": ("padding", {"x": np.arange(200) >= [[131], [32]]}),
    "holes": ("padding of both", {"x": np.arange(200) // 64 % 2 == [[0], [1]], "z": np.arange(200) >= [[70], [0]]}),
    "lengths": ("lengths", {"x": np.array([64, 1])}),
    "no length": ("lengths", {"x": np.array([0, 200])}),
    "heads": ("heads", {"x": np.arange(200) >= [[150], [200], [64]], "z": np.array([0, 33])}),
    "own windows": ("own windows", {"x": np.random.default_rng(1).integers(0, 40, (2, 200))}),
    "floats": ("floats", {"x": np.sort(np.random.default_rng(2).standard_normal((2, 200))),
                          "z": np.sort(np.random.default_rng(3).standard_normal((2, 200)))}),
    "no numbers": ("floats", {"x": np.where(np.arange(200) % 16 == 3, np.nan, 9.0) * np.ones((2, 1)),
                              "z": np.where(np.arange(200) < 64, np.inf, 1.0) * np.ones((2, 1))}),
}
FULL = {"one document", "in no order", "numbers of 64 bits", "no numbers"}
"""Draws of which no step can be left out."""


@pytest.mark.parametrize("draw", DRAWN)
def test_the_same_to_the_bit(draw: str) -> None:
    """With whatever schedule: what is left out adds nothing, and the rest comes in the same order."""
    name, data = DRAWN[draw]
    for config in (CONFIG, replace(CONFIG, rows=128, segment=64, threads=256, schedule="overlap"),
                   replace(CONFIG, segment=64, schedule="overlap-lanes"), replace(CONFIG, rows=16, threads=32, weights="shared")):
        listed, whole = tiled(name, config), tiled(name, replace(config, walk="all"))
        inputs = given(listed, data)
        (left,) = visited(listed, inputs)
        assert all(s and s == sorted(set(s)) for s in left), "one step or more, in order, each once"
        want, got = interpret.run(whole, inputs), interpret.run(listed, inputs, seed=3)
        assert np.array_equal(want["y"], got["y"], equal_nan=True)
        total = -(-200 // config.segment)
        assert (sum(map(len, left)) < total * len(left)) == (draw not in FULL), left


def test_the_steps_that_are_left_are_those_of_the_documents() -> None:
    program = tiled("documents", CONFIG)
    (left,) = visited(program, given(program, {"x": np.stack([sorted_documents(64, 64, 72), sorted_documents(65, 135)])}))
    assert left[:4] == [[0, 1], [2, 3], [4, 5, 6], [4, 5, 6]]
    assert left[4:] == [[0, 1, 2], [0, 1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6], [2, 3, 4, 5, 6]]


def test_what_is_hidden_and_left_out_is_not_read() -> None:
    """NaN behind a mask (docs/algebra.md: as if it were not there) stays there."""
    program = tiled("padding", CONFIG)
    inputs = given(program, {"x": np.arange(200) < [[64], [64]]})
    inputs["v"][:, :, 64:] = np.nan
    assert np.isfinite(interpret.run(program, inputs)["y"]).all()


# -- the chain ---------------------------------------------------------------------------------------------------------


@cache
def small(name: str, config: TileConfig, deep: bool) -> tuple[Program, TileProgram]:
    program = of(name)
    made = twin.of_tiles(program, config, deep)
    return made, tensorize(made, config, twin.machine(made, program, config, H200), to_run=False)


@cache
def drawn(name: str, deep: bool) -> list[Case]:
    """Under ``CONFIG``."""
    return cases(small(name, CONFIG, deep)[0].fused, deep)


@pytest.mark.parametrize("name", MASKS)
def test_the_chain_holds_and_its_draws_leave_steps_out(name: str) -> None:
    """In single precision and where digits are compared."""
    for config, deep in itertools.product((CONFIG, replace(CONFIG, segment=64, schedule="overlap")), (True, False)):
        made, tiles = small(name, config, deep)
        some = drawn(name, deep) if config == CONFIG else cases(made.fused, deep)
        assert not list(chain_tiles.violations(made, tiles, some))
        total = tiles.kernels[-1].homes["steps"].shape[-1]
        left = visited(tiles, *(chain_tiles.arguments(made, tiles, c.inputs) for c in some))
        fewer = [c for c, steps in zip(some, left, strict=True) if min(map(len, steps)) < total]
        assert fewer, "every draw visits every step"
        assert not deep or any(c.wide for c in fewer), "no draw whose digits are compared leaves a step out"
    assert tiled(name, CONFIG)


def _first(text: str) -> str:
    """The kernel of bounds, and what stands before it."""
    return text[:text.index("kernel attention_steps")]


def _rest(text: str) -> str:
    return text[text.index("kernel attention_steps"):]


PLANTED: dict[str, tuple[str, Callable[[str], str]]] = {
    "least and greatest change places": ("documents", lambda t: re.sub(
        r"(least|most)(\d)\[", lambda m: f"{'most' if m[1] == 'least' else 'least'}{m[2]}[", _first(t)) + _rest(t)),
    "<= for <": ("documents", lambda t: t.replace("i64(high0_row[i]) < i64(low1", "i64(high0_row[i]) <= i64(low1")),
    "<= for <, turned": ("documents", lambda t: t.replace("< i64(low0_row[i])", "<= i64(low0_row[i])")),
    "not as it is written": ("documents", lambda t: t.replace("i64(low1[b, k]) or i64(high1", "i64(low1[b, k]) or i64(low1")),
    "one step too few": ("documents", lambda t: t.replace("max(min(i64(found[i]), ", "max(min(i64(found[i]) - 1, ")),
    "the step before": ("documents", lambda t: t.replace("i64(found[i])] = k", "i64(found[i])] = max(k - 1, 0)")),
    "the first step alone": ("documents", lambda t: t.replace("i64(steps[", "0 * i64(steps[")),
    "the other batch": ("documents", lambda t: t.replace("i64(steps[b, ", "i64(steps[0, ")),
    "the other batch's number": ("documents", lambda t: t.replace("i64(count[b, ", "i64(count[0, ")),
    "bounds of the tile before": ("documents", lambda t: t.replace("min(tile * 32 + j", "min(max(tile - 1, 0) * 32 + j")),
    "half of a tile": ("lengths", lambda t: t.replace("tile * 32 + j", "tile * 32 + 16 + j % 16")),
    "all for one": ("padding", lambda t: t.replace("i64(most0[i])", "i64(least0[i])")),
    "any for none": ("padding", lambda t: t.replace("reduce max term0", "reduce min term0")),
    "a step beyond the length": ("lengths", lambda t: t.replace("i64(high0[b, k]) < 1", "i64(low0[b, k]) < 1")),
    "tiles without bounds": ("padding", lambda t: t.replace("grid (tile < 3", "grid (tile < 2")),
    "windows that are too short": ("own windows", lambda t: re.sub(r" >= i64\((high\d_row)", r" + 9 >= i64(\1", t)),
}


@pytest.mark.parametrize("what", PLANTED)
def test_planted_errors_are_found(what: str) -> None:
    """By the verifier, or by the chain's own draws on its own twins."""
    name, plant = PLANTED[what]
    found: list[str] = []
    planted = ""
    for deep in (True, False):
        made, tiles = small(name, CONFIG, deep)
        planted, text = plant(str(tiles)), str(tiles)
        if planted != text:
            program = parse(planted)
            found += verify(program)
            try:
                found += () if found else chain_tiles.violations(made, program, drawn(name, deep))
            except InternalError as error:
                found.append(str(error))
    assert found, planted


@pytest.mark.parametrize("name", ["padding", "lengths", "documents"])
def test_whatever_is_planted_where_steps_are_listed_is_found(name: str) -> None:
    """Or it is no error: more steps than need be, threads that list nothing, numbers as large as no draw has."""
    made = [small(name, CONFIG, deep) for deep in (True, False)]
    kernel = Kernel(name, (Twin("listed", True, *made[0]), Twin("listed", False, *made[1])))
    errors = [e for e in kernel.planted if e[0][1].path[0] in (0, 1) and not any(f"{1 << 29}" in str(m) for _, m in e)]
    found = table(kernel, errors)
    assert not found.refused and not found.missed, found
    assert found.caught >= 7


@pytest.mark.parametrize("old, new, said", [
    ("= max(min(i64(found[i]), 7), 1)", "= i64(found[i])", "is not shown to be in 1 .. 7"),
    ("i64(found[i])] = k", "i64(found[i])] = k + 1", "is not shown to be in 0 .. 6"),
    ("steps: i32[2, 4, 7] in 0 .. 6", "steps: i32[2, 4, 7]", "steers it and has no span"),
    ("steps: i32[2, 4, 7] in 0 .. 6", "steps: i32[2, 4, 7] in 0 .. 5", "nothing written before keeps"),
    ("copy u[b, h, i64(steps[b, i_block, n]) * 32", "copy u[b, h, i64(steps[b, i_block, n]) * 64", "is not shown to begin in u"),
    ("copy v[b, h, i64(steps[b, i_block, n]) * 32", "copy v[b, h, i64(steps[b, i_block, n]) * 32 - 1", "is not shown to begin in v"),
], ids=str)
def test_numbers_that_steer_are_shown_to_be_in_range(old: str, new: str, said: str) -> None:
    text = str(tiled("documents", CONFIG))
    assert old in text, text
    assert any(said in what for what in verify(parse(text.replace(old, new))))


def test_a_number_out_of_its_span_stops_the_interpreter() -> None:
    program = tiled("documents", CONFIG)
    broken = parse(str(program).replace("fill found i32(0)", "fill found i32(9)"))
    with pytest.raises(InternalError, match=r"which is not in 0 \.\. 6"):  # the first is never written: what lay there is read
        interpret.run(broken, given(program, {"x": np.zeros((2, 200))}))


def test_text_reads_back() -> None:
    for schedule in ("auto", "overlap"):
        program = tensorize(of("causal documents"), replace(CONFIG, segment=64, schedule=schedule), H200)  # type: ignore[arg-type]
        assert parse(str(program)) == program and not verify(program)


def test_single_passes_hold() -> None:
    made, _ = small("documents", CONFIG, False)
    assert not list(chain_steps.violations(made, CONFIG, H200, drawn("documents", False)))


# -- what composes -----------------------------------------------------------------------------------------------------


def test_products_are_skewed_over_listed_steps() -> None:
    """One step is listed at least, so that the next step's first product may be started behind this one's last."""
    main = tensorize(of("documents"), replace(CONFIG, segment=64, schedule="overlap"), H200).kernels[-1]
    (roles,) = (s for s in main.body if isinstance(s, Roles))
    loops = [s for r in roles.roles for s in r.body if isinstance(s, For)]
    assert [str(loop.start) for loop in loops] == ["i64(1)", "i64(0)"] and all("count[" in str(loop.stop) for loop in loops)
    assert "drain 1 for scores" in str(main)


LATENT = """cascade latent(q: bf16[2, 100, 576], x: bf16[2, 200, 576], z: i64[2, 100], w: i64[2, 200]) over l where e = 512
  s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(x[b, l, c])
  p[b, i, l] = select(z[b, i] == w[b, l], s * 0.0417, -inf)
  m[b, i] = max[l] p
  t[b, i] = sum[l] exp(p - m)
  o[b, i, e] = sum[l] exp(p - m) / t * f32(x[b, l, e])
  y[b, i, e] = bf16(o)
  return y
"""


def test_one_group_weighs_the_listed_steps_and_others_accumulate_them() -> None:
    fused = fuse(parse_cascade(LATENT))
    assert isinstance(fused, Fused)
    program, config = realise(fused, "single"), TileConfig(64, 64, 256, 2, "shared", True, schedule="relay", walk="listed")
    listed, whole = (tensorize(program, replace(config, walk=w), H200) for w in ("listed", "all"))  # type: ignore[arg-type]
    assert "role weigh" in str(listed)
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(s).astype(interpret.NUMPY_DTYPES["bf16"]) for n, s in (("q", (2, 100, 576)), ("x", (2, 200, 576)))}
    for z, w in (((64, 36), (70, 130)), ((100,), (100, 100)), ((50, 50), (0, 0, 200))):
        given |= {"z": np.tile(sorted_documents(*z), (2, 1)), "w": np.tile(sorted_documents(*w), (2, 1))}
        assert sum(map(len, visited(listed, given)[0])) < 16
        want, got = interpret.run(whole, given), interpret.run(listed, given, seed=1)
        assert np.array_equal(want["y"], got["y"], equal_nan=True)


FEW = {
    "heads that share keys": ("q: f16[2, 12, 32], u: f16[2, 200, 32], v: f16[2, 200, 32], x: bool[2, 200]", "b, h", "b, h, c", "b, l, c",
                              "b, l, e", "x[b, l]"),
    "one row": ("q: f16[2, 3, 32], u: f16[2, 3, 200, 32], v: f16[2, 3, 200, 32], x: i64[2, 200], low0: i64[2]", "b, h", "b, h, c",
                "b, h, l, c", "b, h, l, e", "x[b, l] == low0[b]"),
    "four axes of a grid": ("q: f16[2, 2, 2, 3, 70, 16], u: f16[2, 2, 2, 3, 200, 16], v: f16[2, 2, 2, 3, 200, 16], x: bool[2, 2, 2, 3, 200]",
                            "a, b, g, h, i", "a, b, g, h, i, c", "a, b, g, h, l, c", "a, b, g, h, l, e", "x[a, b, g, h, l]"),
}


@pytest.mark.parametrize("what", FEW)
def test_other_grids(what: str) -> None:
    """Rows that are no axis of the condition, or of nothing, and more axes than a launch has; an input with a scratch's name."""
    inputs, grid, q, k, v, mask = FEW[what]
    fused = fuse(parse_cascade(f"""cascade few({inputs}) over l
  s[{grid}, l] = sum[c] f32(q[{q}]) * f32(u[{k}])
  p[{grid}, l] = select({mask}, s * 0.25, -inf)
  m[{grid}] = max[l] p
  t[{grid}] = sum[l] exp(p - m)
  o[{grid}, e] = sum[l] exp(p - m) / t * f32(v[{v}])
  y[{grid}, e] = f16(o)
  return y
"""))
    assert isinstance(fused, Fused)
    config = TileConfig(16, 32, 32, 1, "shared", False, walk="listed")
    listed, whole = (tensorize(realise(fused, "single"), replace(config, walk=w), H200) for w in ("listed", "all"))  # type: ignore[arg-type]
    x = next(a for a in listed.args if a.name == "x")
    keep = np.arange(200) >= 50 + np.arange(np.prod(x.shape[:-1])).reshape(*x.shape[:-1], 1) * 30 % 120
    data = given(listed, {"x": keep, "low0": np.ones(2)} if "low0" in inputs else {"x": keep})
    assert max(map(len, visited(listed, data)[0])) < 7
    assert np.array_equal(interpret.run(whole, data)["y"], interpret.run(listed, data)["y"])


@pytest.mark.parametrize("arch", ["sm_80", "sm_120", "gfx942"])
def test_other_targets(arch: str) -> None:
    """Copies that threads wait for, one step ahead at most, and operands that wait in registers."""
    program, machine = of("causal documents"), target(arch)
    config = next(c for c in configs(program, machine) if not c.persistent)
    listed, whole = (tensorize(program, replace(config, walk=w), machine) for w in ("listed", "all"))  # type: ignore[arg-type]
    inputs = given(listed, {"x": np.stack([sorted_documents(100, 100), sorted_documents(20, 150, 30)])})
    assert np.array_equal(interpret.run(whole, inputs)["y"], interpret.run(listed, inputs)["y"])
    loops = [s for s in listed.kernels[-1].body if isinstance(s, For)]
    assert all(s.stages <= 1 for s in loops) or machine.tma


def test_a_pass_that_does_not_apply_gives_what_it_got() -> None:
    program = tensorize(of("documents"), replace(CONFIG, walk="all"), H200)
    listed = tiled("documents", CONFIG)
    steps, count = (next(p for p in listed.kernels[-1].params if p.name == n) for n in ("steps", "count"))
    walk = ListSteps("k", steps, count, (), 2)
    assert walk(program.kernels[0]) is not program.kernels[0]
    assert walk(listed.kernels[-1]) is listed.kernels[-1], "a loop of another name"


REFUSED: dict[str, tuple[Callable[[], Program], TileConfig, str]] = {
    "splits": (lambda: realise(attention(*MASKS["documents"]), "multi", 2), CONFIG, "walked by one block"),
    "on chip": (lambda: realise(attention(*MASKS["documents"]), "resident"), CONFIG, "walked by one block"),
    "several tiles": (lambda: of("documents"), replace(CONFIG, segment=64, schedule="persistent"), "tiles of equal work"),
    "a mask of both": (lambda: realise(attention("x[b, i, l]", "x: bool[2, 200, 200]"), "single"), CONFIG, "rows and columns apart"),
    "positions": (lambda: realise(attention("l <= i + x[0] * 0", "x: i64[2]"), "single"), CONFIG, "rows and columns apart"),
    "no mask": (lambda: realise(attention("true", "x: i64[2, 200]"), "single"), CONFIG, "rows and columns apart"),
}


@pytest.mark.parametrize("what", [w for w in REFUSED if w not in ("positions", "no mask")])
def test_refused(what: str) -> None:
    program, config, why = REFUSED[what]
    with pytest.raises(LoweringError, match="RF484") as error:
        tensorize(program(), config, H200)
    assert why in str(error.value.render())


def test_weights_that_are_a_result_are_not_left_out() -> None:
    """Where a hidden element is not neutral to everything, every step is made: a finite fill, a count, an extremum of another
    kind."""
    for text in ("select(x[b, i] == x[b, l], s, -10000.0)",):
        fused = attention(*MASKS["documents"])
        cascade = parse_cascade(str(fused.cascade).replace("select(x[b, i] == x[b, l], s * 0.25, -inf)", text))
        found = fuse(cascade)
        assert isinstance(found, Fused)
        with pytest.raises(LoweringError, match="RF484"):
            tensorize(realise(found, "single"), CONFIG, H200)


# -- choice, text and compiler -----------------------------------------------------------------------------------------


def large(mask: str, length: int) -> Fused:
    """Sixteen heads of two batches, heads of 64."""
    fused = fuse(parse_cascade(str(attention(*MASKS[mask]).cascade).replace("200", str(length)).replace("[2, 3, ", "[2, 16, ")
                               .replace(", 32]", ", 64]")))
    assert isinstance(fused, Fused)
    return fused


@pytest.mark.parametrize(("mask", "length", "listed"), [("documents", 8192, True), ("causal documents", 4096, True),
                                                        ("padding", 8192, True), ("documents", 512, False),
                                                        ("padding", 1024, False)])
def test_steps_are_listed_where_the_list_is_cheap(mask: str, length: int, listed: bool) -> None:
    """The list must take less than the part of the walk that is taken to be hidden; blocks compute one tile each then."""
    program = realise(large(mask, length), "single")
    known, usual = walked_first(program, H200), configs(program, H200)
    assert all(c.walk == "all" for c in usual) and (known[0].walk == "listed") == listed
    assert known == [*known[:listed], *usual] and not (listed and known[0].persistent)
    made = produce("attention", program.fused, "sm_90a", build=False, verify="0")
    assert ("listed steps" in made.config) == listed


def test_a_defect_of_listed_steps_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried, passed over with a note, and the walk of all steps taken."""
    sound = tiles.tensorize

    def broken(program: Program, config: TileConfig, *rest: Any, **named: Any) -> TileProgram:
        if config.walk == "listed":
            raise LoweringError("RF903", "planted")
        return sound(program, config, *rest, **named)

    for module in ("redfuser.tensorize", "redfuser.tensorize.hidden"):
        monkeypatch.setattr(f"{module}.tensorize", broken)
    made = produce("attention", large("documents", 8192), "sm_90a", build=False, verify="0")
    assert "listed" not in made.config and any(n.code == "RF903" for n in made.notes)


def test_steps_are_not_listed_without_roles() -> None:
    assert all(c.walk == "all" for c in walked_first(realise(large("documents", 8192), "single"), target("sm_80")))


@pytest.mark.parametrize(("length", "walk"), [(8192, "listed"), (512, None)])
def test_what_is_measured_lists_steps_if_the_choice_does(length: int, walk: str | None) -> None:
    """Drawn data hides nothing, and would find a list too dear whatever it spares."""
    fused = large("documents", length)
    offered = candidates(fused, "sm_90a", "quick")
    assert len(offered) > 1 and {(c.choice.config or {}).get("walk") for c in offered if c.own} == {walk}
    obeyed = produce("attention", fused, "sm_90a", build=False, verify="0",
                     decided=Decision(record(fused, offered[1].choice), "project"))
    assert ("listed steps" in obeyed.config) == (walk is not None) == ("attention_steps" in obeyed.stages["source"])


def test_golden(golden: Callable[[str, str], None]) -> None:
    program = tensorize(of("causal documents"), TileConfig(64, 64, 128, schedule="overlap", walk="listed"), H200)
    golden("kernels/documents_listed.tiles.txt", str(program))
    golden("kernels/documents_listed.py.txt", print_program(program))


@pytest.mark.slow
def test_it_lowers(tmp_path: Path) -> None:
    """With TileLang's own pipeline and with roles; the kernels that list have nothing in shared memory."""
    paths = []
    for n, (name, config) in enumerate([("documents", TileConfig(128, 128, 256, walk="listed")), ("floats", CONFIG),
                                        ("causal documents", TileConfig(128, 64, 256, schedule="overlap", walk="listed")),
                                        ("padding of both", TileConfig(64, 64, 128, schedule="overlap-lanes", walk="listed"))]):
        paths.append(tmp_path / f"kernel_{n}.py")
        paths[-1].write_text(print_program(tensorize(of(name), config, H200)))
    done = subprocess.run([sys.executable, str(LOWER), "sm_90a", *map(str, paths)], capture_output=True, text=True, timeout=150,
                          check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lowered = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("LOWERED")]
    guarded = [int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("GUARDED")]
    assert guarded[2] and not guarded[8] and not guarded[11], "in kernels with roles no element asks where its step lies"
    assert len(lowered) == 12 and all(threads == "32" and shared == "0" for name, threads, shared in lowered
                                      if name.endswith(("_bounds", "_steps")))
