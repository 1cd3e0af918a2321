"""Tile programs against float64, through the interpreter: tails, masks, layouts, splits, resident rows."""

from __future__ import annotations

import numpy as np
import pytest

from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import TileProgram
from tests import fused_examples as cascades
from tests.tensorize import examples
from tests.tensorize.examples import Shape

H200 = target("sm_90a")
SMALL = TileConfig(32, 16, 64, 2)
DECODE = TileConfig(16, 16, 128, 2, "shared", False)
ROWS = TileConfig(4, 64, 64, 0, warp_specialized=False)


def check(f, config, strategy="single", splits=1, tolerance=2e-3, seed=0) -> TileProgram:
    program = realise(f, strategy, splits)
    tiles = tensorize(program, config, H200)
    values = examples.inputs(f, seed)
    got = interpret.run(tiles, values)
    for name, expected in examples.reference(f, values).items():
        have = got[name].astype(np.float64)
        assert have.shape == expected.shape
        scale = max(1.0, float(np.nanmax(np.abs(np.where(np.isfinite(expected), expected, 0)))))
        np.testing.assert_allclose(have, expected, atol=tolerance * scale, rtol=tolerance, err_msg=name)
    return tiles


@pytest.mark.parametrize("i, n", [(64, 64), (40, 72), (33, 17), (1, 50), (5, 5)])
@pytest.mark.parametrize("d", [16, 40, 80])
def test_attention_with_tails(i, n, d):
    check(examples.attention(Shape(i=i, n=n, d=d)), SMALL)


@pytest.mark.parametrize("name", sorted(examples.masks(Shape())))
@pytest.mark.parametrize("i, n", [(40, 40), (24, 56), (32, 32)])
def test_masks(name, i, n):
    shape = Shape(i=i, n=n)
    mask = examples.masks(shape)[name]
    if name == "strict":
        shape = Shape(i=i - 1, n=n)
        mask = examples.masks(shape)["causal"]
    check(examples.attention(shape, mask=mask), SMALL)


@pytest.mark.parametrize("options", [dict(bias="tile"), dict(bias="alibi"), dict(cap=5.0), dict(flat=True),
                                     dict(kv_order="bhld"), dict(kv_order="bhdl"), dict(bias="tile", cap=3.0)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_variants(options, causal):
    shape = Shape(i=40, n=44, h=4, hk=2)
    mask = examples.masks(shape)["causal"] if causal else None
    check(examples.attention(shape, mask=mask, **options), SMALL, tolerance=3e-3)


@pytest.mark.parametrize("splits", [1, 2, 3, 7])
@pytest.mark.parametrize("flat", [False, True])
def test_split_decode_packs_heads(splits, flat):
    f = examples.attention(Shape(b=2, h=8, hk=2, i=1, n=77), flat=flat)
    tiles = check(f, DECODE, "multi", splits)
    gemms = [s for s in tiles.kernels[0].body if type(s).__name__ == "For"]
    assert gemms
    assert all(p.dtype == "f32" for p in tiles.kernels[0].params if p.out), "partials are single precision"
    grid = dict(tiles.kernels[0].grid)
    assert grid.get("h_group") == 2 and "h_member" not in grid, "heads of a group share a block"


def test_bfloat16():
    check(examples.attention(Shape(dtype="bf16")), SMALL, tolerance=2e-2)


@pytest.mark.parametrize("n", [64, 50, 7])
@pytest.mark.parametrize("make", [cascades.layer_norm, cascades.rms_norm, cascades.softmax])
@pytest.mark.parametrize("strategy", ["resident", "single"])
def test_rows(make, n, strategy):
    check(make(9, n, "f16"), ROWS if strategy == "resident" else TileConfig(4, 16, 64, 0, warp_specialized=False),
          strategy)


@pytest.mark.parametrize("make", [cascades.variance, cascades.logsumexp])
@pytest.mark.parametrize("strategy, splits", [("single", 1), ("resident", 1), ("multi", 3)])
def test_statistics(make, strategy, splits):
    check(make(5, 70), TileConfig(2, 16, 64, 0, warp_specialized=False) if strategy != "resident" else
          TileConfig(2, 128, 64, 0, warp_specialized=False), strategy, splits, tolerance=1e-5)


@pytest.mark.parametrize("n, k", [(8, 2), (24, 3), (128, 8)])
def test_router(n, k):
    """The k largest softmax probabilities and their experts, with ties and -inf: lowest index first."""
    f = cascades.router(20, n, 96, k)
    values = {x.name: a for x, a in zip(f.cascade.inputs, examples.inputs(f).values(), strict=True)}
    values = {m: np.round(v * 2).astype(np.float32) / 4 for m, v in values.items()}  # ties
    config = TileConfig(16, 128, 64, 2, "registers", False, tf32=True, chunk=32)
    tiles = tensorize(realise(f, "single"), config, H200)
    got = interpret.run(tiles, values)
    logits = values["x"].astype(np.float64) @ values["w"].astype(np.float64).T
    order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    e = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_array_equal(got["expert"], order)
    np.testing.assert_allclose(got["top"], np.take_along_axis(e / e.sum(1, keepdims=True), order, 1), rtol=1e-5)


def test_short_sums_are_unrolled():
    """A weighted sum of 4 expert outputs, then RMSNorm: no matrix product, and rows at a stride."""
    from redfuser.acrf.cascade import Axis, Cascade, Let, Reduce, Tensor
    from redfuser.acrf.expr import Index, f32, op

    term = op("mul", cascades.load("x", "f16", op("add", op("mul", Index("i"), cascades.i64(4)), Index("c")), "l"),
              cascades.load("g", "f32", "i", "c"))
    s, t = cascades.ref("s"), cascades.ref("t")
    y = op("mul", s, op("rsqrt", op("add", op("div", t, f32(64.0)), f32(1e-6))))
    cascade = Cascade("mix", (Tensor("x", "f16", (36, 64)), Tensor("g", "f32", (9, 4))),
                      (Axis("i", 9), Axis("l", 64), Axis("c", 4)), "l",
                      (Reduce(("s",), ("i", "l"), cascades.SUM, "c", term, "f32"),
                       Reduce(("t",), ("i",), cascades.SUM, "l", op("mul", s, s), "f32"), Let("y", ("i", "l"), y)), ("y",))
    f = cascades.fused(cascade, (cascades.plain("t", ("i",), cascades.SUM, op("mul", s, s), cascades.ZERO),), (),
                       (cascade.stmts[-1],))
    for strategy, config in (("resident", ROWS), ("single", TileConfig(4, 16, 64, 0, warp_specialized=False))):
        check(f, config, strategy, tolerance=1e-5)


@pytest.mark.parametrize(("strategy", "splits"), [("single", 1), ("multi", 100)])
def test_totals_of_many_steps_keep_their_digits(strategy, splits):
    """Of a hundred parts and more: added one after the other, float32 totals would lose 4 units and more; partials of a row are
    merged as a tree."""
    f = cascades.variance(3, 25600)
    tiles = tensorize(realise(f, strategy, splits), ROWS, H200)
    errors = []
    for seed in range(4):
        values = examples.inputs(f, seed)
        expected = examples.reference(f, values)
        errors += [np.abs(got / expected[name] - 1).max() for name, got in interpret.run(tiles, values).items()
                   if name.startswith("v")]
    assert ("_wide" in str(tiles)) == (strategy == "single")
    assert max(errors) < 4 * 2.0**-24, np.array(errors) * 2**24


def test_blocks_that_walk_together_are_blocks(monkeypatch):
    """Side by side or one after the other: bit for bit the same, whatever is tiled, masked, split, combined or grouped."""
    causal, grouped = Shape(i=70, n=70), Shape(b=3, h=8, hk=2, i=1, n=77)
    programs = [(examples.attention(causal, mask=examples.masks(causal)["causal"]), SMALL, "single", 1),
                (examples.attention(causal, mask=examples.masks(causal)["data"], bias="alibi"), SMALL, "multi", 3),
                (examples.attention(grouped, flat=True), DECODE, "multi", 3),
                (cascades.layer_norm(37, 50, "f16"), ROWS, "resident", 1), (cascades.softmax(37, 50), ROWS, "single", 1)]
    for f, config, strategy, splits in programs:
        tiles = tensorize(realise(f, strategy, splits), config, H200)
        sets = [examples.inputs(f, seed) for seed in (0, 1)]
        found = []
        for together in (0, interpret.TOGETHER):
            monkeypatch.setattr(interpret, "TOGETHER", together)
            found.append(interpret.run_all(tiles, sets, wide=True))
        for alone, beside in zip(*found, strict=True):
            for name in alone:
                np.testing.assert_array_equal(alone[name], beside[name], err_msg=f"{strategy} {name}")
