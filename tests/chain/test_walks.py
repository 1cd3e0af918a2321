"""Rows that a kernel walks several times: each walk computes what it reads of them, and the checks' rows are long enough to see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from redfuser import chain
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.expr import Const, Ref, op
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from redfuser.cache import Cache
from redfuser.chain import twin
from redfuser.strategies import realise
from redfuser.strategies.program import Block, made_again
from redfuser.target import target
from redfuser.tensorize import configs, tensorize
from redfuser.tensorize.ir.nodes import For

HOPPER = target("sm_90a")
TEXT = """cascade far(x: f16[3, 1031], y: f16[3, 1031]) over l
  p[i, l] = f32(x[i, l]) * 2.0 + f32(y[i, l])
  m[i] = max[l] p
  t[i] = sum[l] exp(p - m)
  a[i] = sum[l] abs(exp(p - m) / t - 0.001)
  b[i] = a * 0.5
  c[i] = sum[l] min(exp(p - m) / t, 0.001)
  d[i] = c + 1.0
  return b, d
"""


def far() -> Fused:
    found = fuse(parse_cascade(TEXT, "far.txt"), row="held")
    assert isinstance(found, Fused) and len(found.post) > 2, "two reductions behind the results, and a result between them"
    return found


@pytest.mark.parametrize("strategy, splits", [("multi", 3), ("single", 1)])
def test_two_reductions_behind_the_results_are_two_walks_of_the_row(strategy: str, splits: int, tmp_path: Path) -> None:
    program = realise(far(), strategy, splits)
    assert chain.scalar_program(program, True, store=Cache(tmp_path)).violations == ()
    config = max(configs(program, HOPPER), key=lambda c: c.segment)
    assert chain.tile_program(program, config, HOPPER, store=Cache(tmp_path)).violations == ()


@pytest.mark.parametrize("splits", [3, 32])
def test_a_twin_walks_a_whole_row_in_several_steps(splits: int) -> None:
    """The ranges of a split row may be shorter than a segment; the kernel behind them takes the row as a whole."""
    program = realise(far(), "multi", splits)
    config = max(configs(program, HOPPER), key=lambda c: c.segment)
    small = twin.of_tiles(program, config, True)
    tiles = tensorize(small, config, twin.machine(small, program, config, HOPPER), to_run=False)
    (behind,) = [k for k in tiles.kernels if k.name.endswith("_map")]
    steps = [s for s in behind.body if isinstance(s, For)]
    assert len(steps) == 2 and all(isinstance(s.stop, Const) and s.stop.value > 1 for s in steps), str(behind)


def test_what_is_made_again_is_what_is_read_and_not_stored() -> None:
    def block(name: str, read: str) -> Block:
        return Block("post", (name,), ("i", "l"), (op("abs", Ref(read, "f32")),), "f32")

    p, q, z, other = block("p", "m"), block("q", "p"), block("z", "q"), block("other", "m")
    assert made_again([block("s", "z")], [p, q, z, other], "l", ()) == (p, q, z)
    assert made_again([block("s", "z")], [p, q, z, other], "l", ("z",)) == (p, q)
    assert made_again([block("s", "m")], [p, q, z, other], "l", ()) == ()
