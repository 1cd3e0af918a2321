"""Rows of products that a block holds whole while it looks for places: padded to what the matrix units take, whatever the extent,
with elements that are never chosen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen.tilelang import print_program
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, sizes, tensorize
from redfuser.tensorize.configs import configs
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.model import fits, uneven
from redfuser.tensorize.spaces import wide_space
from tests.tensorize.holding import TYPES

H200 = target("sm_90a")
LOWER = Path(__file__).with_name("lower.py")
DEPTH = 8
HOW = {"argmax": "a[i] = argmax[l] {p}", "argmin": "a[i] = argmin[l] {p}",
       "both": "a[i] = argmax[l] {p}\n  v[i] = max[l] {p}\n  b[i] = argmin[l] {p}"}
BACK = {"argmax": "a", "argmin": "a", "both": "a, v, b"}


def program(how: str, rows: int, n: int, dtype: str = "f16", scores: str = "s") -> Program:
    """The best of the products of each row with ``n`` others. how: a number of places, or a name in HOW."""
    text = HOW[how].format(p=scores) if how in HOW else f"v, a = topk({how})[l] {scores}"
    found = fuse(parse_cascade(f"cascade nearest(z: {dtype}[{rows}, {DEPTH}], e: {dtype}[{n}, {DEPTH}]) over l\n"
                               f"  s[i, l] = sum[c] f32(z[i, c]) * f32(e[l, c])\n  {text}\n"
                               f"  return {BACK.get(how, 'v, a')}\n"))
    assert isinstance(found, Fused), found
    return realise(found, "resident")


def best_first(scores: np.ndarray, k: int = 1, least: bool = False) -> np.ndarray:
    """Places of the best of each row, as torch has them: NaN before all, the lowest of equal ones."""
    better = torch.from_numpy(-scores if least else scores)
    return torch.sort(better, dim=-1, descending=True, stable=True).indices[:, :k].numpy()


def data(rows: int, n: int, dtype: str, seed: int, odd: bool = True) -> dict[str, np.ndarray]:
    """Small integers, whose products are exact, with many ties. odd: the last element of each ``e`` is infinite or NaN, where
    rows have 0, 1 and -1: all products of a row are NaN, inf or -inf, some of them NaN, or as they would be without."""
    rng = np.random.default_rng(seed)
    z, e = (rng.integers(-2, 3, (count, DEPTH)).astype(np.float32) for count in (rows, n))
    e[:, -1] = 0
    if odd:
        e[:, -1] = np.inf
        z[:, -1] = rng.choice([0.0, 1.0, -1.0], rows)
        z[0, -1] = -1
        if rows > 1:
            e[rng.integers(n, size=3), 0] = (np.nan, -np.inf, np.inf)
    return {"z": z.astype(TYPES[dtype]), "e": e.astype(TYPES[dtype])}


def products(given: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return (given["z"].astype(np.float32)[:, None] * given["e"].astype(np.float32)[None]).sum(-1)


def check(how: str, rows: int, n: int, dtype: str, seed: int) -> None:
    """Against torch; in a row with NaN and what is as good as it, an infinity, any place of the row will do (docs/algebra.md)."""
    made = program(how, rows, n, dtype)
    tiles = tensorize(made, configs(made, H200)[0], H200)
    assert not uneven(tiles.kernels[0], H200) and fits(tiles.kernels[0], H200)
    for odd in (False, True):
        given = data(rows, n, dtype, seed, odd)
        scores, got = products(given), interpret.run(tiles, given)
        found = [("a", how == "argmin", got["a"].reshape(rows, -1))]
        found += [("b", True, got["b"].reshape(rows, -1))] if how == "both" else []
        for name, least, places in found:
            best = -np.inf if least else np.inf
            either = np.isnan(scores).any(-1) & (scores == best).any(-1)
            want = best_first(scores, places.shape[1], least)
            np.testing.assert_array_equal(places[~either], want[~either], name)
            assert ((places >= 0) & (places < n)).all()
            assert all(len(set(row)) == len(row) for row in places.tolist())
        if "v" in got:
            np.testing.assert_array_equal(got["v"].reshape(want.shape), np.take_along_axis(scores, best_first(
                scores, want.shape[1]), 1))


@pytest.mark.parametrize("how", ["argmax", "argmin", "1", "8"])
def test_every_extent_has_tiles(how: str) -> None:
    """Those that are proposed are what the warps can share, and hold the row."""
    for n in (*range(9, 120, 11), 130, 199, 250, 256, 257, 300, 431, 500, 700, 950):
        for rows in (7, 64):
            made = program(how, rows, n)
            config = configs(made, H200)[0]
            (kernel,) = tensorize(made, config, H200).kernels
            assert not uneven(kernel, H200) and fits(kernel, H200), (n, rows, config)


@pytest.mark.parametrize("n", range(65, 320, 17))
@pytest.mark.parametrize(("rows", "threads"), [(16, 64), (16, 128), (32, 64), (32, 256), (64, 128), (64, 256), (128, 256), (128, 512)])
def test_a_padded_row_is_shared_by_the_warps(n: int, rows: int, threads: int) -> None:
    """Whichever way they share, by rows first or by columns, and with no more than there has to be."""
    ways: tuple[Literal["shared", "registers"], ...] = ("shared", "registers")
    for weights in ways:
        config = TileConfig(rows, 64, threads, 1, weights, False)
        assert n <= sizes.beside_product(n, config) < n + max(16, 4 * threads // rows)
        (kernel,) = tensorize(program("argmax", rows, n), config, H200).kernels
        assert not uneven(kernel, H200)


@pytest.mark.parametrize("how", [*HOW, *map(str, range(1, 9))])
@pytest.mark.parametrize(("rows", "n", "dtype"), [(64, 33, "f16"), (7, 65, "bf16"), (1, 100, "f16"), (300, 130, "f16"),
                                                  (64, 250, "bf16"), (20, 271, "f16"), (9, 300, "bf16")])
def test_places_are_torchs(how: str, rows: int, n: int, dtype: str) -> None:
    check(how, rows, n, dtype, seed=n)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("rows", "n"), [(64, 33), (7, 65), (130, 130), (9, 250)])
def test_places_of_float32_products_are_torchs(how: str, rows: int, n: int) -> None:
    check(how, rows, n, "f32", seed=n)


@pytest.mark.parametrize("seed", range(12))
def test_places_are_torchs_of_extents_that_are_drawn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, n = int(rng.integers(1, 90)), int(rng.integers(16, 700))
    check(str(rng.choice([*HOW, "2", "5"])), rows, n, str(rng.choice(["f16", "bf16"])), seed)


def test_a_second_product_takes_the_padding_for_nothing() -> None:
    """Weights behind a row's end are 0, and so are the columns' elements there, whatever lies behind them in memory."""
    found = fuse(parse_cascade("""cascade chosen(q: f16[64, 32], k: f16[130, 32], v: f16[130, 32]) over l
  s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
  m[i] = max[l] s
  t[i] = sum[l] exp(s - m)
  o[i, d] = sum[l] exp(s - m) / t * f32(v[l, d])
  a[i] = argmax[l] s
  y[i, d] = f16(o)
  return y, a
"""))
    assert isinstance(found, Fused), found
    made = realise(found, "resident")
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((64 if n == "q" else 130, 32)).astype(np.float16) for n in "qkv"}
    tiles = tensorize(made, configs(made, H200)[0], H200)
    assert not uneven(tiles.kernels[0], H200)
    got = interpret.run(tiles, given)
    s = torch.from_numpy(given["q"]).double() @ torch.from_numpy(given["k"]).double().T
    np.testing.assert_array_equal(got["a"], s.argmax(-1).numpy())
    want = (s.softmax(-1) @ torch.from_numpy(given["v"]).double()).numpy()
    np.testing.assert_allclose(got["y"].astype(np.float64), want, rtol=2e-3, atol=2e-3)


def test_tilelang_reduces_what_two_warps_have_side_by_side(tmp_path: Path) -> None:
    """What is left where it has no layout for four, and rows that no warp's registers hold with ease."""
    paths = []
    for n in (130, 300, 500, 900):
        made = program("argmax", 64, n)
        chosen = configs(made, H200)[0] if n == 130 else next(c for c in wide_space(n, H200) if c.threads == 64)
        paths.append(tmp_path / f"held_{n}.py")
        paths[-1].write_text(print_program(tensorize(made, chosen, H200)))
    done = subprocess.run([sys.executable, str(LOWER), "sm_90a", *map(str, paths)], capture_output=True, text=True, timeout=150,
                          check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("LOWERED") == len(paths)
