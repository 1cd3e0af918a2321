"""Digits of axes, smaller in a twin than in its program: what they stay, and what keeps its meaning beside them."""

from __future__ import annotations

import pytest

from redfuser.acrf import mapped, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.chain.digits import shortened
from redfuser.chain.smaller import smaller


def small(body: str, inputs: str, over: str, wanted: dict[str, int], tiles: dict[str, int]) -> Fused:
    found = mapped(parse_cascade(f"cascade map({inputs}) over l where {over}\n  y[i, l] = {body}\n  return y\n"), "preserve")
    assert isinstance(found, Fused), found
    return smaller(found, wanted, tiles)


PICTURE = "x: f32[4, 16, 440, 1024], w: f32[7208960]"


def test_they_keep_what_tiles_cross_of_them() -> None:
    """Of 440 lines of 1024 a tile of 4096 takes four; twice as many are left, and what 440 is beyond fours."""
    f = small("x[i, l // 450560, l // 1024 % 440, l % 1024] * w[l]", PICTURE, "l = 7208960", {"l": 10000, "i": 1}, {"l": 4096})
    assert "x[i, l // 8192, l // 1024 % 8, l % 1024]" in str(f.cascade)
    assert [t.shape for t in f.cascade.inputs] == [(1, 2, 8, 1024), (16384,)]


@pytest.mark.parametrize(("n", "tile", "now"), [(1024, 2048, 1024), (8192, 2048, 4096), (8200, 2048, 4104), (511, 1, 3), (48, 1, 48)])
def test_a_digit_keeps_its_rest(n: int, tile: int, now: int) -> None:
    assert shortened((1, n, 100 * n), 4, tile, {})[1] == now


def test_what_guards_an_index_moves_with_its_end() -> None:
    """A stencil: what lies left and right of a line is no part of it, in the twin as in the program."""
    f = small("select(1 <= l % 4096, x[i, l // 4096, l % 4096 - 1], 0.0) + select(l % 4096 < 4095, x[i, l // 4096, l % 4096 + 1], 0.0)",
              "x: f32[4, 512, 4096]", "l = 2097152", {"l": 300, "i": 1}, {"l": 64})
    assert "1 <= l % 128" in str(f.cascade) and "l % 128 < 127" in str(f.cascade)
    assert [t.shape for t in f.cascade.inputs] == [(1, 3, 129)]


@pytest.mark.parametrize(("guard", "index", "length", "text"), [
    ("3 <= l", "l - 3", 300, "3 <= l"), ("l < 65533", "l + 3", 300, "l < 297"), ("l < 30000", "l + 35536", 65536, "l < 30000"),
    ("l < 65533 and l + i < 65534", "l + 3", 65536, "l < 65533")])
def test_an_axis_keeps_its_length_where_a_guard_says_something_else(guard: str, index: str, length: int, text: str) -> None:
    f = small(f"select({guard}, x[{index}], 0.0)", "x: f32[65536]", "l = 65536, i = 4", {"l": 300, "i": 2}, {"l": 64})
    assert {a.name: a.extent for a in f.cascade.axes}["l"] == length and text in str(f.cascade)


@pytest.mark.parametrize(("place", "length", "text"), [
    (65400, 300, "select(164 <= l, x[l - 164], z[l])"), (1000, 65536, "select(1000 <= l, x[l - 1000], z[l])")])
def test_what_lies_behind_something_else_begins_where_its_guard_says(place: int, length: int, text: str) -> None:
    """Joined pieces: a read from where a piece begins moves with the guard, or both stay (refused falsely, RF905, before)."""
    f = small(f"select({place} <= l, x[l - {place}], z[l])", "x: f32[65536], z: f32[65536]", "l = 65536, i = 4", {"l": 300, "i": 2},
              {"l": 64})
    assert {a.name: a.extent for a in f.cascade.axes}["l"] == length
    assert text in str(f.cascade)


def test_a_digit_that_is_compared_with_something_between_keeps_that_between() -> None:
    f = small("select(l % 4096 < 1000, x[l], 0.0)", "x: f32[2097152]", "l = 2097152, i = 4", {"l": 300, "i": 2}, {"l": 64})
    (line,) = [s for s in str(f.cascade).splitlines() if "1000" in s]
    assert int(line.split("%")[1].split("<")[0]) > 1000


@pytest.mark.parametrize(("body", "inputs", "over", "few", "text", "shapes"), [
    ("select(4 <= i, x[i * 8 + l - 32], z[i * 8 + l])", "x: f32[32], z: f32[32]", "l = 8, i = 8", 2,
     "select(3 <= i, x[i * 8 + l - 24], z[i * 8 + l])", [(32,), (32,)]),
    ("select(18 <= i, x[max(i - 16, 0), l], z[l])", "x: f32[128, 32], z: f32[32]", "l = 32, i = 27", 22,
     "select(13 <= i, x[max(i - 11, 0), l], z[l])", [(11, 32), (32,)]),
    ("select(1 <= i, x[i - 1, l], z[l])", "x: f32[2, 32], z: f32[32]", "l = 32, i = 3", 1,
     "select(1 <= i, x[i - 1, l], z[l])", [(1, 32), (32,)])])
def test_what_begins_at_a_head_or_is_clamped_moves_with_its_guard_and_what_none_reads_has_a_place(
        body: str, inputs: str, over: str, few: int, text: str, shapes: list[tuple[int, ...]]) -> None:
    """Heads, positions and slices that are joined; refused falsely (RF905, RF903), since a twin read outside of its tensors."""
    f = small(body, inputs, over, {"l": 32, "i": few}, {})
    assert text in str(f.cascade) and [t.shape for t in f.cascade.inputs] == shapes
