"""Tile programs of many sizes: one text, which is at every size what the cascade means, and not where a size is wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from redfuser.chain import sizes
from redfuser.codegen import tilelang
from redfuser.errors import InputError, LoweringError
from redfuser.fitted import Apart, samples
from redfuser.sizes import Quotient, Size, Symbol, Term
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.strategies.symbols import at
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize, tiles
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import TileProgram
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.symbols import bound, merge
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.tiles import tensorize_sizes

HOPPER = target("sm_90a")
SOFTMAX = """cascade softmax(x: f32[n, width]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp(x[i, l] - m[i])
  o[i, l] = exp(x[i, l] - m[i]) / t[i]
  return o
"""
ATTENTION = """cascade attention(q: f16[b, 2, n, 32], k: f16[b, 2, s, 32], v: f16[b, 2, s, 32]) over l
  w[z, h, i, l] = sum[c] f32(q[z, h, i, c]) * f32(k[z, h, l, c])
  m[z, h, i] = max[l] w[z, h, i, l] * 0.3
  t[z, h, i] = sum[l] exp(w[z, h, i, l] * 0.3 - m[z, h, i])
  o[z, h, i, d] = sum[l] exp(w[z, h, i, l] * 0.3 - m[z, h, i]) / t[z, h, i] * f32(v[z, h, l, d])
  y[z, h, i, d] = f16(o[z, h, i, d])
  return y
"""
AUTO = TileConfig(rows=64, segment=32, threads=128, stages=2, warp_specialized=False)
ROWS = TileConfig(rows=4, segment=64, threads=64, stages=0, warp_specialized=False)


def fused(text: str, **extents: int) -> Fused:
    for name, n in extents.items():
        text = text.replace(f"[{name},", f"[{n},").replace(f", {name}]", f", {n}]").replace(f", {name},", f", {n},")
    found = fuse(parse_cascade(text))
    assert isinstance(found, Fused)
    return found


def symbols(program: Program, high: int = 300) -> tuple[Symbol, ...]:
    return tuple(Symbol(n, 1, high) for n in dict.fromkeys(a.extent for a in program.axes if isinstance(a.extent, str)))


CASES = {
    "rows": (realise(fused(SOFTMAX, width=96), "resident"), replace(ROWS, segment=128)),
    "walked rows": (realise(fused(SOFTMAX, width=96), "single"), ROWS),
    "keys": (realise(fused(SOFTMAX, n=5), "single"), ROWS),
    "batch, queries and keys": (realise(fused(ATTENTION), "single"), AUTO),
    "roles": (realise(fused(ATTENTION, b=1), "single"), TileConfig(rows=128, segment=64, schedule="overlap")),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Program, TileConfig, TileProgram]:
    program, config = CASES[request.param]
    return program, config, tensorize_sizes(program, symbols(program), config, HOPPER)


def test_one_program_prints_parses_and_is_that_of_each_size(case: tuple[Program, TileConfig, TileProgram]) -> None:
    program, config, whole = case
    assert verify(whole) == [] and parse(str(whole)) == whole
    assert [s.name for s in whole.symbols] == [s.name for s in symbols(program)]
    binding = {s.name: n for s, n in zip(whole.symbols, (777, 931, 845), strict=False)}
    assert str(bound(whole, binding)) == str(tensorize(at(program, binding), config, HOPPER))
    text = tilelang.print_program(whole)
    assert all(f'    {s.name} = T.dynamic("{s.name}")' in text for s in whole.symbols)


def test_no_size_is_lowered_twice_and_more_are_asked_of_what_is_unclear_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot of the last keys has few values: 12 further numbers of keys tell which it is."""
    program, config = CASES["roles"]
    asked: list[Program] = []

    def lowered(small: Program, *args: Any, **kwargs: Any) -> TileProgram:
        asked.append(small)
        return tensorize(small, *args, **kwargs)

    monkeypatch.setattr(tiles, "tensorize", lowered)
    tensorize_sizes(program, symbols(program), config, HOPPER)
    assert len(asked) == len(set(asked)) == 17 + 12


@pytest.mark.parametrize("n", [1, 3, 64, 65, 130])
def test_the_interpreter_runs_it_at_any_size(n: int) -> None:
    program, config = CASES["keys"]
    whole = tensorize_sizes(program, symbols(program), config, HOPPER)
    x = np.random.default_rng(n).standard_normal((5, n)).astype(np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(interpret.run(whole, {"x": x})["o"], e / e.sum(1, keepdims=True), rtol=1e-5)
    with pytest.raises(InputError, match="RF498"):
        interpret.run(whole, {"x": x[:3]})


def wrong(program: Program, config: TileConfig, whole: TileProgram) -> list[str]:
    """What the chain says of a program, whose other extents are small."""
    places = {s.name: sizes._places(s, config.segment if s.name in ("s", "width") else config.rows, 3, True) for s in whole.symbols}
    return list(sizes.violations(program, whole, sizes.bindings(places), True))


def _tile(k: int) -> Size:
    return Size((Term(1, (Quotient("n" if k else "s", 0, 64 if k else 32),)),))


def test_the_chain_holds_it_and_finds_a_wrong_bound() -> None:
    program = realise(fused(ATTENTION, b=1), "single")
    whole = tensorize_sizes(program, symbols(program), AUTO, HOPPER)
    assert wrong(program, AUTO, whole) == []
    text = str(whole)
    planted = {"one tile of rows too few": ("(n + 63) // 64", "n // 64"), "one segment too few": ("(s + 31) // 32", "s // 32"),
               "a segment too few, and one more": ("(s + 31) // 32", "s // 32 + 1 - 1"),
               "queries for keys": ("+ j < s", "+ j < n"), "an element too many": ("+ j < s", "+ j <= s"),
               "tiles of another width": ("(s + 31) // 32", "(s + 63) // 64")}
    for name, (right, other) in planted.items():
        assert right in text, right
        bad = parse(text.replace(right, other))
        assert verify(bad) == [], name
        assert wrong(program, AUTO, bad), name


def test_no_other_number_is_a_size() -> None:
    """Stages, threads, clusters: what a symbol decides there is another program."""
    program, config = CASES["walked rows"]
    found = samples(symbols(program))
    made = [tensorize(at(program, b), config, HOPPER) for b in found]

    def changed(**fields: Any) -> list[TileProgram]:
        return [replace(m, kernels=(replace(m.kernels[0], **{k: f(i) for k, f in fields.items()}),)) for i, m in enumerate(made)]

    assert merge(made, found, ()).kernels[0].threads == made[0].kernels[0].threads
    for fields in ({"threads": lambda i: found[i]["n"]}, {"cluster": lambda i: -(-found[i]["n"] // 128)},
                   {"cluster": lambda i: 2, "grid": lambda i: (("block", -(-found[i]["n"] // 128)),)},
                   {"raster": lambda i: found[i]["n"] - 1000}):
        with pytest.raises(Apart):
            merge(changed(**fields), found, ())
    even = merge(changed(cluster=lambda i: 2, grid=lambda i: (("block", -(-found[i]["n"] // 128) * 2),)), found, ())
    assert even.kernels[0].cluster == 2


def test_schedules_that_need_a_number_say_so() -> None:
    program = realise(fused(ATTENTION), "single")
    with pytest.raises(LoweringError, match="RF499"):
        tensorize_sizes(program, symbols(program), TileConfig(schedule="persistent"), HOPPER)
    held = realise(fused(SOFTMAX, n=5), "resident")
    with pytest.raises(LoweringError, match="RF492"):
        tensorize_sizes(held, symbols(held), ROWS, HOPPER)


def test_a_symbol_has_a_name_of_its_own() -> None:
    for name in ("i_block", "k", "row_sum", "T", "lambda"):
        program = realise(fused(SOFTMAX.replace("[n, width]", f"[5, {name}]")), "single")
        with pytest.raises(LoweringError, match="RF520"):
            tensorize_sizes(program, symbols(program), ROWS, HOPPER)
    program, config = CASES["keys"]
    text = str(tensorize_sizes(program, symbols(program), config, HOPPER))
    assert verify(parse(re.sub(r"\bwidth\b", "k", text))) == ["symbol k in 1 .. 300: another thing has this name"]
