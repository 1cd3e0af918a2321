"""A mask that puts a number in the place of what it hides: rows in which all else is lower still are drawn, and a walk that takes
what is hidden for nothing is found out by them."""

from __future__ import annotations

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.expr import Const, Expr
from redfuser.acrf.fold import is_const
from redfuser.acrf.state import Fused
from redfuser.chain import tiles, twin
from redfuser.chain.draws import draws
from redfuser.chain.samples import cases
from redfuser.strategies import alive, realise
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, tensorize

H200 = target("sm_90a")
CONFIG = TileConfig(128, 128, 256, 2, schedule="overlap")
LEAST = "-3.4028234663852886e38"


def attention(mask: str, fill: str) -> Program:
    found = fuse(parse_cascade(f"""cascade attention(q: f16[2, 512, 32], u: f16[2, 512, 32], v: f16[2, 512, 32]) over l
  s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(u[b, l, c])
  p[b, i, l] = select({mask}, s * 0.125, {fill})
  m[b, i] = max[l] p
  t[b, i] = sum[l] exp(p - m)
  o[b, i, e] = sum[l] exp(p - m) / t * f32(v[b, l, e])
  y[b, i, e] = f16(o)
  return y
"""))
    assert isinstance(found, Fused), found
    return realise(found, "single")


def violations(program: Program) -> list[str]:
    small = twin.of_tiles(program, CONFIG, deep=False)
    return list(tiles.violations(small, tensorize(small, CONFIG, H200), cases(small.fused)))


@pytest.mark.parametrize("mask, fill", [("l <= i", LEAST), ("l <= i", "-1e4"), ("l <= i and i - l < 100", "-1e9"),
                                        ("l <= i or l < 100", LEAST)])
def test_a_hidden_number_taken_for_nothing_is_found(mask: str, fill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the draw of :func:`redfuser.chain.draws.draws` a prefix passes: its rows see a hundred columns, of which none
    happens to be finite in no row."""
    program = attention(mask, fill)
    assert not violations(program)

    def low(e: Expr, *value: float) -> bool:
        return is_const(e, *value) or (value == (float("-inf"),) and isinstance(e, Const) and -1e39 < float(e.value) < -1000)

    monkeypatch.setattr(alive, "is_const", low)
    assert any("inf among positive" in text for text in violations(program))


def test_other_programs_are_not_asked() -> None:
    program = attention("l <= i", "-inf")
    assert not any("inf among positive" in d.name for d in draws(program.fused.cascade))
