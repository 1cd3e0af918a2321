"""What every check draws: what happens in few rows only is made to happen, whatever the seed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from redfuser.acrf.text import parse_cascade
from redfuser.chain import kinds
from redfuser.chain.draws import draws, facts, inputs
from redfuser.chain.kinds import PARTS, PEAKS, Place
from tests.chain.lowered import fused_of, twin_of

ONE_ROW = """cascade c(x: f32[700], y: f32[700]) over l
  d = sum[l] y[l]
  r = max[l] x[l] * d
  return r
"""
LABELS = """cascade c(x: f32[16, 700], qid: i32[16], kid: i32[700], word: i64[16], group: i64[16], n: i32[16, 700]) over l
  m[i] = max[l] select(qid[i] == kid[l], x[i, l], -inf)
  s[i] = sum[l] select(word[i] == l and word[i] != -100, x[i, l], 0.0)
  g[i] = sum[l] select(l // 100 == group[i], x[i, l], 0.0)
  c[i] = max[l] n[i, l]
  return m, s, g, c
"""


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_peak_stands_at_every_end_on_each_side_with_any_other_tensor_on_either() -> None:
    seen = set()
    for turn in range(PEAKS):
        x, y = (kinds.floats(rng(), "f32", (700,), "peak", Place(k, None, 0, turn)) for k in range(2))
        seen.add((int(np.abs(x).argmax()), x.sum() > 0, y.sum() > 0))
        assert abs(x).max() == 6.0 and np.sign(x[abs(x).argmax()]) == np.sign(x.sum())
    assert seen == set(itertools.product((0, 511, 512, 699), (False, True), (False, True)))


@pytest.mark.parametrize("kind, value", [("hidden", -np.inf), ("zeros", 0.0), ("least", None)])
def test_a_row_is_hidden_altogether_and_by_halves(kind: str, value: float | None) -> None:
    """A whole segment hidden, and not the row: the guards of a state that has seen nothing yet."""
    def patterns(x: np.ndarray) -> set[tuple[bool, bool]]:
        hidden = (x == value) if value is not None else np.abs(x) > 100
        return {(bool(h[:350].all()), bool(h[350:].all())) for h in hidden}

    rows = kinds.floats(rng(), "f32", (8, 700), kind, Place(0, None, 1))
    turns = np.stack([kinds.floats(rng(), "f32", (700,), kind, Place(0, None, 0, t)) for t in range(PARTS)])
    assert patterns(rows) == {(True, True), (True, False), (False, True), (False, False)}
    assert patterns(turns) >= {(True, True), (True, False), (False, True)}


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_rows_of_every_tile_have_a_nan_and_have_none_and_it_stands_at_every_end(kind: str) -> None:
    x = kinds.floats(rng(), "f32", (16, 700), kind, Place(0, None, 1, 1))
    has = ~np.isfinite(x)
    assert has.sum() == 9 and has.any(0)[[0, 511, 512, 699]].all()
    for tile in (2, 4):
        assert all(has[k::tile].any(1).tolist() not in ([True] * (16 // tile), [False] * (16 // tile)) for k in range(tile))
    turns = [kinds.floats(rng(), "f32", (700,), kind, Place(0, None, 0, t)) for t in kinds.SINGLE]
    assert sorted(int((~np.isfinite(t)).argmax()) for t in turns) == [0, 511, 512, 699]


def test_masks_hide_whole_segments_too() -> None:
    x = kinds.mask(rng(), (16, 700), False, False, Place(0, None, 1))
    assert {(bool(r[:350].any()), bool(r[350:].any())) for r in x} == set(itertools.product((False, True), repeat=2))
    assert kinds.mask(rng(), (16, 700), True, True, Place(0, None, 1))[:, 0].any()


def test_where_there_is_one_row_each_tensor_is_hidden_and_zero_by_itself_in_every_way() -> None:
    cascade = parse_cascade(ONE_ROW, "c.txt")
    found = {d.name: d for d in draws(cascade)}
    known = facts(cascade)
    for name, other in (("x", "y"), ("y", "x")):
        ways = set()
        for k in range(PARTS):
            given = inputs(cascade, found[f"{name} zeros, {k}"], known)
            ways.add((bool(given[name][:350].any()), bool(given[name][350:].any())))
            assert given[other].all()
            hidden = inputs(cascade, found[f"{name} -inf, {k}"], known)[name] == -np.inf
            assert k != 1 or (hidden[:350].all() and not hidden[350:].all())
        assert {(False, False), (False, True), (True, False)} <= ways
    assert sum(d.exactly for d in found.values()) == PEAKS + 2 * len(cascade.inputs)
    far = [inputs(cascade, found[f"far {side} zero"], known) for side in ("below", "above")]
    assert all(np.sign(far[0][n].mean()) == -np.sign(far[1][n].mean()) for n in ("x", "y"))


def test_a_weighted_mean_leaves_the_range_of_its_data_in_every_coordinate() -> None:
    """What is done where it does, a clamp of a running reference, is to happen in each."""
    cascade = parse_cascade("""cascade c(w: f32[900], x: f32[900, 3]) over l
  t = sum[l] w[l]
  s[d] = sum[l] w[l] * x[l, d]
  return t, s
""", "c.txt")
    for seed in range(4):
        given = [inputs(cascade, d, facts(cascade), seed) for d in draws(cascade) if d.name.startswith("w balanced")]
        means = [np.abs((g["w"].astype(float) @ g["x"]) / g["w"].sum(dtype=float)) for g in given]
        assert np.any([m > np.abs(g["x"]).max(0) for m, g in zip(means, given, strict=True)], 0).all()


def test_rows_of_a_twin_with_two_points_of_every_axis_are_hidden_altogether_too() -> None:
    cascade = parse_cascade("""cascade c(x: f32[2, 700], k: bool[2, 700]) over l
  s[i] = sum[l] select(k[i, l], x[i, l], 0.0)
  return s
""", "c.txt")
    seen = [~inputs(cascade, d, facts(cascade))["k"].any(1) for d in draws(cascade) if d.deep]
    assert np.any(seen, 0).all() and not np.any(np.all(seen, 0))


def test_labels_are_few_and_places_reach_the_ends_of_segments() -> None:
    cascade = parse_cascade(LABELS, "c.txt")
    known = facts(cascade)
    assert known.limits == {"word": 700, "group": 7} and known.marks == {"word": (-100,)}
    wide, ties = (next(d for d in draws(cascade) if d.name == name) for name in ("normal", "ties"))
    given = inputs(cascade, wide, known)
    assert (given["qid"][:, None] == given["kid"]).any(1).all(), "every document has its keys"
    assert given["word"].min() >= 0
    given = inputs(cascade, ties, known)
    assert (np.diff(given["kid"]) >= 0).all() and -100 in given["word"]
    assert known.counts == {"n"} and given["n"].min() < 0 < given["n"].max()
    far = inputs(cascade, next(d for d in draws(cascade) if d.name == "far below zero"), known)["n"]
    for k in range(4):
        assert (far[k::4].max(1) < 0).any() and (far[k::4].min(1) > 0).any(), "what fills up a tile is no number of the row"
    places = kinds.places(rng(), (400,), 700, False)
    assert {0, 15, 16, 127, 128, 255, 256, 511, 512, 699} <= set(places.tolist())


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_a_choice_among_whole_numbers_is_among_some_that_float32_has_one_for(kind: str) -> None:
    cascade = parse_cascade(f"cascade c(n: i64[16, 700], x: f32[16, 700]) over l\n  a[i] = {kind}[l] n[i, l]\n  return a\n", "c.txt")
    n = inputs(cascade, next(d for d in draws(cascade) if d.name == "close together"), facts(cascade))["n"]
    assert all(len(np.unique(row)) == 8 for row in n) and len(np.unique(n.astype(np.float32))) < 3
    scores = parse_cascade(f"cascade c(x: f32[16, 700]) over l\n  a[i] = {kind}[l] x[i, l]\n  return a\n", "c.txt")
    assert "close together" not in {d.name for d in draws(scores)}


def test_what_a_place_is_converted_from_is_finite_unless_a_clamp_holds_it() -> None:
    """Positions less a minimum that a scatter gives as numbers: of an infinity every machine has a place of its own."""
    place = "max(min(127, i - i64({})), 0)"
    body = f"  p[i, l] = x[i, l] + t[{place.format('n[i]')}, l] + t[{place.format('max(min(m[i], 9.0), 0.0)')}, l]\n"
    cascade = parse_cascade("cascade c(x: f32[16, 70], t: f32[128, 70], n: f32[16], m: f32[16]) over l\n" + body +
                            "  s[i] = sum[l] p\n  return s\n", "c.txt")
    known = facts(cascade)
    given = [inputs(cascade, d, known) for d in draws(cascade)]
    assert all(np.isfinite(x["n"]).all() for x in given) and not all(np.isfinite(x["m"]).all() for x in given)


def test_queries_keys_and_values_of_one_tensor() -> None:
    """An infinite value that a mask hides is hidden though the same tensor's infinite keys are seen, and rows that are
    multiplied with one another have magnitudes whose products are in range."""
    def packed(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(1, 256, 2, 64).transpose(1, 2) for t in x.split(128, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    fused = fused_of(packed, torch.randn(1, 256, 384).bfloat16())
    for deep in (False, True):
        t = twin_of(fused, deep, "overlap" if not deep else "")
        assert t.wrong(t.tiles) == ""


def test_what_a_row_squares_stays_in_range_through_the_contraction_that_makes_it() -> None:
    """The lowest number as a weight of a linear layer makes its layer norm's squares infinite, where no two ways to that agree;
    of scores, which nothing but exponentials read, it hides as it should."""
    product = "  s[i, l] = sum[c] x[i, c] * k[l, c]\n"
    norm = parse_cascade(f"cascade n(x: f32[4, 8], k: f32[16, 8]) over l\n{product}  t[i] = sum[l] s\n"
                         "  v[i] = sum[l] (s - t / 16.0) * (s - t / 16.0)\n  return v\n")
    attention = parse_cascade(f"cascade a(x: f32[4, 8], k: f32[16, 8], v: f32[16, 8]) over l\n{product}"
                              "  p[i, l] = s * 0.5\n  m[i] = max[l] p\n  t[i] = sum[l] exp(p - m)\n"
                              "  o[i, e] = sum[l] exp(p - m) / t * v[l, e]\n  return o\n")
    assert facts(norm).terms == {"x", "k"}
    assert facts(attention).terms == {"v"} and facts(attention).operands == {"x", "k"}
    (draw,) = (d for d in draws(norm) if d.name == "k least, 0")
    assert abs(inputs(norm, draw, facts(norm))["k"]).max() < 1e18
