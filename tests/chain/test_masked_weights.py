"""Weights that a mask makes 0 behind their softmax (dropout with its mask given, rows that see nothing): a contraction like any
other, and nothing of what their scores were."""

from __future__ import annotations

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.state import Fused
from redfuser.chain import tiles, twin
from redfuser.chain.samples import cases
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize

H200 = target("sm_90a")
CONFIG = TileConfig(64, 64, 128, 1)
ROWS, WEIGHTS = "k[b, i, 0]", "k[b, i, l]"


def fused(mask: str) -> Fused:
    found = fuse(parse_cascade(f"""cascade attention(q: f16[2, 70, 32], u: f16[2, 130, 32], k: bool[2, 70, 130], v: f16[2, 130, 32]) over l
  s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(u[b, l, c])
  p[b, i, l] = s * 0.125
  m[b, i] = max[l] p
  t[b, i] = sum[l] exp(p - m)
  o[b, i, e] = sum[l] f32(select({mask}, f16(exp(p - m) / t), f16(0.0))) * f32(v[b, l, e])
  y[b, i, e] = f16(o)
  return y
"""), "preserve")
    assert isinstance(found, Fused), found
    return found


@pytest.mark.parametrize("mask", [ROWS, WEIGHTS])
def test_their_product_is_a_contraction(mask: str) -> None:
    """It was a choice of products, and every column of the result had its scores computed again."""
    text = str(tensorize(realise(fused(mask), "single"), CONFIG, H200))
    assert sum(line.lstrip().startswith("gemm") for line in text.splitlines()) == 2


@pytest.mark.parametrize("mask", [ROWS, WEIGHTS])
def test_a_row_that_weighs_nothing_does_not_follow_its_scores(mask: str) -> None:
    """Where they are infinite the reference is, and moving the sum by it made NaN of 0."""
    f = fused(mask)
    assert not check(f)
    small = twin.of_tiles(realise(f, "single"), CONFIG, deep=False)
    assert not list(tiles.violations(small, tensorize(small, CONFIG, H200), cases(small.fused)))
