"""Operands that no matrix unit takes exactly: float32, halves of two kinds, weights without a bound."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.cascade import Cascade
from redfuser.acrf.state import Fused
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import configs, contraction, tensorize
from redfuser.tensorize.builder import Value
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import For, Gemm, TileKernel, TileProgram
from redfuser.tensorize.pieces import Operand, products
from tests.tensorize.test_meaning import PRODUCT, attention, hold, values
from tests.tensorize.test_meaning import tiles as tiles_of

MIXED = """cascade mixed(q: {q}[21, 16], k: {k}[37, 16], v: {v}[37, 16]) over l
  s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
  m[i] = max[l] s * 0.3
  t[i] = sum[l] exp(s * 0.3 - m)
  o[i, e] = sum[l] exp(s * 0.3 - m) / t * f32(v[l, e])
  return o
"""
POOLED = "cascade pooled(w: f32[21, 37], v: f32[37, 16]) over l\n  o[i, e] = sum[l] w[i, l] * v[l, e]\n  y[i] = sum[l] w[i, l]\n" \
         "  z[i, e] = o / y\n  return z\n"
UNBOUND = """cascade unbound(q: f16[21, 16], k: f16[37, 16], v: f16[37, 16]) over l
  s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
  t[i] = sum[l] exp(s * 2.0)
  o[i, e] = sum[l] exp(s * 2.0) * f32(v[l, e])
  y[i, e] = f16(o / t)
  return y
"""
KEPT = """cascade kept(q: {q}[130, 64], k: {q}[600, 64], v: {q}[600, 64]) over l
  s[i, l] = sum[c] f32(q[i, c]) * f32(k[l, c])
  m[i] = max[l] s
  t[i] = sum[l] exp(s - m)
  o[i, e] = sum[l] exp(s - m) / t * f32(v[l, e])
  {end}
"""
DEEP = """cascade deep(a: f16[9000, {c}], b: f16[600, {c}]) over l
  s[i, l] = sum[c] f32(a[i, c]) * f32(b[l, c])
  m[i] = max[l] {s}
  t[i] = sum[l] exp({s} - m)
  return t
"""
SINGLE = ["scale", "bias", "causal"]


def tiles(cascade: Cascade, strategy: str = "single", splits: int = 1) -> TileProgram:
    return tiles_of(cascade, strategy, splits, replace(PRODUCT, pieces=True))


@pytest.mark.parametrize("strategy, splits", [("single", 1), ("multi", 3), ("resident", 1)])
def test_float32_is_kept(strategy: str, splits: int) -> None:
    for scale in (1.0, 6.0):
        cascade = attention(SINGLE, "f32")
        program = tiles(cascade, strategy, splits)
        hold(cascade, values(cascade, scale), program)
        text = str(program)
        assert text.count("gemm") == 12 and "bf16" in text and any("3 bf16 pieces" in r for r in program.roundings)


@pytest.mark.parametrize("q, k, v", [("f16", "bf16", "f32"), ("f32", "f16", "bf16"), ("bf16", "bf16", "f16"), ("f16", "f16", "e4m3")])
def test_operands_of_two_types(q: str, k: str, v: str) -> None:
    cascade = parse_cascade(MIXED.format(q=q, k=k, v=v))
    hold(cascade, values(cascade), tiles(cascade))


def test_weights_that_are_data_and_weights_without_a_bound() -> None:
    """A pooling by float32 weights; exponentials beyond float16's largest number."""
    cascade = parse_cascade(POOLED)
    given = values(cascade)
    given["w"] = np.abs(given["w"])
    hold(cascade, given, tiles(cascade))
    cascade = parse_cascade(UNBOUND)
    given = values(cascade, 1.2)
    program = tiles(cascade)
    hold(cascade, given, program)
    s = given["q"].astype(np.float64) @ given["k"].astype(np.float64).T
    assert np.exp(2 * s).max() > 70000 and "bf16" in str(program)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_infinities_stay_infinities(where: str, number: float) -> None:
    cascade = attention(["scale"], "f32")
    given = values(cascade)
    given[where][5, 3] = number
    hold(cascade, given, tiles(cascade))


@pytest.mark.parametrize("q, k, where", [("f32", "bf16", "k"), ("f16", "bf16", "k"), ("bf16", "f32", "q"), ("bf16", "f16", "q")])
def test_infinities_of_an_operand_in_one_piece(q: str, k: str, where: str) -> None:
    """They do not meet the other operand's rests: a score of -inf is a weight of 0, not NaN."""
    for number in (np.inf, -np.inf):
        cascade = parse_cascade(MIXED.format(q=q, k=k, v="bf16"))
        given = values(cascade)
        given[where][5, 3] = number
        hold(cascade, given, tiles(cascade))


@pytest.mark.parametrize("number", [np.inf, -np.inf])
@pytest.mark.parametrize("v", ["f16", "bf16", "f32"])
def test_an_infinite_value_of_weights_in_pieces(v: str, number: float) -> None:
    """Every piece of a weight has its sign: what is weighed is infinite, not NaN."""
    cascade = parse_cascade(MIXED.format(q="f16", k="f16", v=v))
    given = values(cascade)
    given["v"][5, 3] = number
    program = tiles(cascade)
    found = interpret.run(program, given)["o"]
    assert any("pieces" in r for r in program.roundings) and (found[:, 3] == number).all()
    assert np.isfinite(np.delete(found, 3, 1)).all()


@pytest.mark.parametrize("number", [np.inf, -np.inf])
def test_an_infinite_value_of_weights_that_are_data(number: float) -> None:
    cascade = parse_cascade(POOLED.replace("v: f32", "v: bf16").replace("* v[l, e]", "* f32(v[l, e])"))
    given = values(cascade)
    given["w"], given["v"][5, 3] = np.abs(given["w"]), number
    found = interpret.run(tiles(cascade), given)["z"]
    assert (found[:, 3] == number).all() and np.isfinite(np.delete(found, 3, 1)).all()


def test_every_product_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of the six, digits are lost that float32 has."""
    cascade = attention(["scale"], "f32")
    given = values(cascade)
    full = tiles(cascade)
    hold(cascade, given, full)
    exact = interpret.run(full, given, wide=True)["y"]
    error = np.abs(interpret.run(full, given)["y"] - exact).max()
    for k in range(6):
        monkeypatch.setattr(contraction, "products", lambda a, b, k=k: [p for n, p in enumerate(products(a, b)) if n != k])
        found = interpret.run(tiles(cascade), given)["y"]
        assert not np.abs(found - exact).max() <= 4 * error, k
        if k > 2:
            with pytest.raises(AssertionError):
                hold(cascade, given, tiles(cascade))


def test_pairs_of_pieces() -> None:
    def operand(name: str, count: int) -> Operand:
        return Operand(tuple(Value("mc", "bf16", f"{name}{i}") for i in range(count)), Value("mc", "bf16", f"{name}_finite"))

    def pairs(n: int, m: int) -> list[tuple[str, str]]:
        return [(x.buffer, y.buffer) for x, y in products(operand("a", n), operand("b", m))]

    assert pairs(1, 1) == [("a0", "b0")]
    assert pairs(2, 1) == [("a1", "b_finite"), ("a0", "b0")]
    assert len(pairs(3, 3)) == 6 and pairs(3, 3)[-1] == ("a0", "b0") and ("a_finite", "b2") in pairs(3, 3)


def test_one_tile_is_split_once() -> None:
    """Keys that are also the values (the latent attention of MLA) are taken apart once."""
    cascade: Cascade = parse_cascade(MIXED.format(q="f32", k="f32", v="f32").replace("v[l, e]", "k[l, e]").replace(
        ", v: f32[37, 16]", ""))
    program = tiles(cascade)
    assert str(program).count("k_piece:") == 1
    hold(cascade, values(cascade), program)


def test_sums_apart_have_their_registers() -> None:
    """256 columns of sums and of their segments are more than 256 threads have registers for: blocks share the columns."""
    fused = fuse(parse_cascade("cascade features(x: f32[4096, 64], w: f32[256, 64]) over l\n  o[i, e] = sum[l] x[i, l] * w[e, l]\n"
                               "  t[i] = sum[l] x[i, l] * x[i, l]\n  y[i, e] = o - t * 0.5\n  return y\n"))
    assert isinstance(fused, Fused)
    of = realise(fused, "single")
    for config in configs(of, target("sm_90a"))[:4]:
        kernel = tensorize(of, config, target("sm_90a")).kernels[0]
        sums = [b for b in kernel.buffers if b.scope == "fragment" and len(b.shape) == 2 and b.name.startswith("o")]
        assert len(sums) == 2 and sum(prod(b.shape) for b in sums) <= 160 * config.threads


@pytest.mark.parametrize("scores", ["x[i, l]", "x[i, l] * 0.1"])
@pytest.mark.parametrize("rows, keys, columns", [(100, 100, 192), (128, 100, 192), (100, 60, 128), (90, 120, 256)])
def test_pieces_are_not_written_beside_a_group_that_copies(scores: str, rows: int, keys: int, columns: int) -> None:
    """With a producer group, of 100 rows and keys and 192 columns on one H200: .02 off, and another result each run. Why is not
    known; the interpreter sees nothing."""
    fused = fuse(parse_cascade(f"cascade pooled(x: f32[{rows}, {keys}], v: f32[{keys}, {columns}]) over l\n  m[i] = max[l] {scores}\n"
                               f"  t[i] = sum[l] exp({scores} - m)\n  o[i, e] = sum[l] exp({scores} - m) / t * v[l, e]\n  return o"))
    assert isinstance(fused, Fused)
    found = configs(realise(fused, "single"), target("sm_90a"))
    assert any(c.pieces for c in found) and not any(c.pieces and c.warp_specialized for c in found)


def at_once(kernel: TileKernel) -> dict[str, float]:
    """Of each sum of products, how many its matrix unit adds up before they are added to it or it is cleared."""
    shapes = {b.name: b.shape for b in kernel.buffers}
    found: dict[str, float] = {}
    for block in ([*kernel.body], *([*s.body] for s in every(kernel.body) if isinstance(s, For))):
        sums: dict[str, float] = {}
        for g in (s for s in block if isinstance(s, Gemm)):
            sums[g.c] = (0 if g.clear else sums.get(g.c, inf)) + shapes[g.a.buffer][0 if g.transpose_a else 1]
        found |= {c: max(n, found.get(c, 0)) for c, n in sums.items()}
    return found


@pytest.mark.parametrize("q, end, most", [("f16", "return o", 2 * 64), ("bf16", "return o", 3 * 128),
                                          ("f16", "y[i, e] = f16(o)\n  return y", inf)])
def test_sums_that_are_kept_in_float32_begin_afresh(q: str, end: str, most: float) -> None:
    """A matrix unit cuts off as it adds: of positive values and 4096 keys that was 3e-5 on one H200, always to one side. Of
    weights in so many pieces, each counts."""
    fused = fuse(parse_cascade(KEPT.format(q=q, end=end)))
    assert isinstance(fused, Fused), fused
    for of in (realise(fused, "single"), realise(fused, "multi", 4)):
        for config in configs(of, target("sm_90a"))[:6]:
            (sums,) = {max(n for c, n in at_once(k).items() if c.startswith("o")) for k in tensorize(
                of, config, target("sm_90a")).kernels if at_once(k)}
            assert 0 < sums <= most and (most < inf or sums == inf), (config, sums)


@pytest.mark.parametrize("depth, s, most", [(320, "s", 64), (1500, "s", 64), (1500, "f32(f16(s))", inf), (192, "s", 192)])
def test_deep_products_that_are_kept_in_float32_begin_afresh(depth: int, s: str, most: float) -> None:
    fused = fuse(parse_cascade(DEEP.format(c=depth, s=s)))
    assert isinstance(fused, Fused), fused
    for of in (realise(fused, "single"), realise(fused, "multi", 4)):
        for config in configs(of, target("sm_90a"))[:4]:
            (sums,) = {max(at_once(k).values()) for k in tensorize(of, config, target("sm_90a")).kernels if at_once(k)}
            assert 0 < sums <= most and (most < inf or sums == inf), (config, sums)
