"""Twins are small whatever the program's sizes are, and what is drawn for them is in memory a part at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from redfuser import chain
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from redfuser.cache import Cache
from redfuser.chain import samples, twin
from redfuser.chain.draws import facts
from redfuser.chain.smaller import smaller
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs
from tests.chain import kernels

HOPPER = target("sm_90a")
LABELLED = """cascade labelled(x: f16[4096, 32000], label: i64[4096]) over l
  m[i] = max[l] f32(x[i, l])
  t[i] = sum[l] exp(f32(x[i, l]) - m)
  y[i] = select(label[i] != -100, m + log(t) - f32(x[i, {place}]), 0.0)
  return y
"""
BIG = {"I": 4096, "L": 32000, "N": 32000, "C": 128, "D": 128, "E": 128, "H": 32}
WALK = TileConfig(1, 4096, 256, 0, "registers", False)
MOST = 1 << 23
"""Elements of the largest twin there may be: a row of 131072 is in it whole, for sixteen rows and what is computed of them."""


def fused(text: str) -> Fused:
    found = fuse(parse_cascade(text))
    assert isinstance(found, Fused), found
    return found


def labelled(place: str = "min(max(label[i], 0), 31999)") -> Fused:
    return fused(LABELLED.format(place=place))


def extents(of: Fused) -> dict[str, int]:
    return {a.name: int(a.extent) for a in of.cascade.axes}


def test_a_label_is_a_label_in_whichever_row() -> None:
    """Nor is it a position where it is compared with one. The row that it points into is as long as it is walked, and it is
    held inside that; where nothing holds it, the row keeps its length in memory."""
    small = smaller(labelled(), {"i": 16, "l": 300})
    assert extents(small) == {"i": 16, "l": 300}
    assert [t.shape for t in small.cascade.inputs] == [(16, 300), (16,)] and "min(max(label[i], 0), 299)" in str(small.cascade)
    small = smaller(labelled("label[i]"), {"i": 16, "l": 300})
    assert [t.shape for t in small.cascade.inputs] == [(16, 32000), (16,)]


def test_positions_that_move_beside_data_keep_what_they_reach() -> None:
    assert extents(smaller(labelled("min(max(label[i] + i, 0), 31999)"), {"i": 16, "l": 300}))["i"] == 4096
    apart = fused(LABELLED.format(place="min(max(label[i], 0), 31999)").replace("label[i] != -100", "i < 200"))
    assert extents(smaller(apart, {"i": 16, "l": 300}))["i"] > 200


TABLE = """cascade table(ids: i64[4, 512], pages: i64[9000], w: f16[128256, 4096], g: f16[4096]) over l
  y[b, i, l] = w[{place}, l]
  t[b, i] = sum[l] f32(y[b, i, l]) * f32(y[b, i, l])
  z[b, i, l] = f32(y[b, i, l]) * rsqrt(t[b, i] / 4096.0 + 1e-05) * f32(g[l])
  return z
"""
INSIDE = "min(max({}, 0), 128255)"


def test_a_number_that_places_are_compared_with_is_one_of_them() -> None:
    """It was never drawn, and what is chosen there never looked at."""
    text = TABLE.format(place=INSIDE.format("ids[b, i]")).replace("* f32(g[l])", "* select(ids[b, i] == 29000, 0.0, f32(g[l]))")
    small = smaller(fused(text), {"b": 1, "i": 16, "l": 4096}).cascade
    assert {t.name: t.shape for t in small.inputs}["w"][0] > 29001 and facts(small).marks == {"ids": (29000,)}


@pytest.mark.parametrize(("place", "rows", "pages"), [
    (INSIDE.format("ids[b, i]"), 144, 0),
    (INSIDE.format("select(ids[b, i] < 0, ids[b, i] + 128256, ids[b, i])"), 144, 0),
    (INSIDE.format("pages[min(max(ids[b, i], 0), 8999)]"), 144, 144 + 9000 % 16),
    ("ids[b, i]", 128256, 0)])  # nothing holds it inside
def test_of_a_table_are_as_many_rows_as_data_may_choose_among(place: str, rows: int, pages: int) -> None:
    """A vocabulary was drawn whole, dozens of times: five minutes for the norm of an embedding."""
    small = smaller(fused(TABLE.format(place=place)), {"b": 1, "i": 16, "l": 4096})
    shapes = {t.name: t.shape for t in small.cascade.inputs}
    assert shapes["w"] == (rows, 4096) and shapes.get("pages", (pages,)) in ((pages,), (9000,))
    text = str(small.cascade)
    assert ("128255" in text, "128256" in text) == (rows == 128256 and "128255" in place, rows == 128256)
    assert ("143" in text) == (rows == 144)


@pytest.mark.parametrize("name", [n for n in kernels.ROWS if n != "covariance_matrix"])  # which has no tiles
def test_twins_of_long_rows_are_small(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SIZES", BIG)
    found = fuse(kernels._bound(kernels.CORPUS[name].cascade), kernels.CORPUS[name].casts)
    assert isinstance(found, Fused)
    program = realise(found, "single")
    for deep in (True, False):
        for small in (twin.of_tiles(program, WALK, deep), twin.of_scalar(program, deep)):
            assert samples.elements(small.fused.cascade) < MOST


def test_draws_come_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    small = twin.of_scalar(realise(labelled(), "single"), True).fused
    whole = [c.name for c in samples.cases(small)]
    monkeypatch.setattr(samples, "AT_ONCE", 3 * samples.elements(small.cascade))
    parts = list(samples.batches(small))
    assert [c.name for some in parts for c in some] == whole and {len(some) for some in parts[:-1]} == {3}
    monkeypatch.setattr(samples, "AT_ONCE", 1)
    assert next(samples.batches(small), [])[1:] == [], "one at least"


@pytest.mark.parametrize("at_once", [1, samples.AT_ONCE])
def test_an_error_is_found_in_whichever_part(at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose tiles are another's: of a constant off by a millionth."""
    monkeypatch.setattr(samples, "AT_ONCE", at_once)
    program = realise(labelled(), "single")
    config = configs(program, HOPPER)[0]
    assert chain.tile_program(program, config, HOPPER, Cache(tmp_path)).violations == ()
    lower = chain.tensorize
    monkeypatch.setattr(chain, "tensorize", lambda p, *a, **k: lower(realise(
        fused(str(p.fused.cascade).replace("log(t)", "log(t) * 1.000001")), p.strategy, p.splits, p.segment), *a, **k))
    assert chain.tile_program(program, config, HOPPER, Cache(tmp_path / "other")).violations


def test_what_no_tile_has_is_checked_where_a_cpu_runs_it() -> None:
    """Sums over ``e``, over ``e1`` and over both: accumulators with two free axes (RF486), which loops have all the same."""
    of = fused("""cascade cost(x: f32[40, 153], y: f32[700, 153]) over l
  o[e, f] = sum[l] x[e, l] * y[f, l]
  t[e] = sum[l] sigmoid(x[e, l])
  u[f] = sum[l] y[f, l]
  z[e, f] = o / (t[e] + u[f] + 1.0)
  return z
""")
    small = twin.of_scalar(realise(of, "single", 1), deep=False)
    assert extents(small.fused)["f"] < 40 and extents(small.fused)["e"] == 40


def test_what_is_summed_over_is_no_point_of_the_grid() -> None:
    """Squared distances from a mean, weighted: the row is held, and each ``e`` has a mean and a sum of its own to be added up."""
    of = fuse(parse_cascade("""cascade spread(w: f32[3, 65], x: f32[3, 65, 3]) over l
  o[i, e] = sum[l] w[i, l] * x[i, l, e]
  s[i, l] = sum[e] (x[i, l, e] - o) * (x[i, l, e] - o)
  t[i] = sum[l] w[i, l] * s
  return t
"""), row="final")
    assert isinstance(of, Fused) and any("_whole" in s.name for s in of.post)
    program = realise(of, "resident", 1)
    assert program.kernels[0].grid == ("i",)
    assert not chain.scalar_program(program, True).violations
