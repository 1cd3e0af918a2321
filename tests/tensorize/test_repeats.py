"""Long row expressions: their repeated parts are evaluated once, and no value changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.expr import Index, Load, Op, f32, walk
from redfuser.acrf.index import at, i64
from redfuser.acrf.state import Fused
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, schedule, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.nodes import Assign, For, If, Parallel, TileKernel, TileProgram, TileStmt
from redfuser.tensorize.ir.parts import Buffer, Param

SPAN = """cascade span(x: f32[5, 37]) over l
  lo[i] = min[l] x[i, l]
  hi[i] = max[l] x[i, l]
  s[i] = sum[l] (x[i, l] - lo) / (hi - lo)
  y[i] = sum[l] ((x[i, l] - lo) / (hi - lo) - s / 37.0) * ((x[i, l] - lo) / (hi - lo) - s / 37.0)
  return y
"""


def program() -> TileProgram:
    fused = fuse(parse_cascade(SPAN))
    assert isinstance(fused, Fused), fused
    return tensorize(realise(fused, "multi", 3), TileConfig(4, 16, 64, 0, warp_specialized=False), target("sm_90a"))


def longest(stmts: Sequence[TileStmt]) -> Iterator[int]:
    for s in stmts:
        if isinstance(s, (For, If)):
            yield from longest(s.body)
        elif isinstance(s, Parallel):
            yield from (sum(1 for _ in walk(a.expr)) for a in s.body)


def test_the_same_values_from_shorter_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    short = program()
    monkeypatch.setattr(schedule.NameRepeats, "__call__", lambda self, kernel: kernel)
    long = program()
    most = [max(n for k in p.kernels for n in longest(k.body)) for p in (short, long)]
    assert most[1] > 400 and most[0] < 200, "TileLang took 265 s over the long ones, and a few seconds over the short ones"
    x = np.random.default_rng(3).standard_normal((5, 37)).astype(np.float32)
    ours, plain = (interpret.run(p, {"x": x})["y"] for p in (short, long))
    assert np.array_equal(ours, plain)
    z = x.astype(np.float64)
    z = (z - z.min(1, keepdims=True)) / (z.max(1, keepdims=True) - z.min(1, keepdims=True))
    np.testing.assert_allclose(ours, z.var(1) * 37, rtol=1e-5)


def test_a_part_is_not_read_after_its_operand_changed() -> None:
    """And what a select guards, a read past a tensor's end, stays behind it."""
    a, b = at("a", "f32", "i"), at("b", "f32", "i")
    part = Op("mul", (Op("add", (a, b), "f32"), f32(0.5)), "f32")
    twice = Op("add", (part, Op("mul", (part, part), "f32")), "f32")
    far = Op("mul", (Load("x", (Index("i"),), "f32"), f32(2.0)), "f32")
    guarded = Op("select", (Op("lt", (Index("i"), i64(3)), "bool"), Op("mul", (far, far), "f32"), twice), "f32")
    row = (Index("i"),)
    body = (Assign("t", row, twice), Assign("u", row, twice), Assign("a", row, twice), Assign("u", row, guarded))
    buffers = tuple(Buffer(n, "fragment", "f32", (4,)) for n in "abtu")
    kernel = TileKernel("k", (Param("x", "f32", (3,)),), (("one", 1),), 32, (), buffers, (Parallel(("i",), (4,), body),))
    done = schedule.NameRepeats(long=8)(kernel)
    assert [(b.dtype, b.shape) for b in done.buffers[4:]] == [("f32", (4,))] * 2
    (out,) = done.body
    assert str(out).splitlines()[1:] == [
        "  t_common[i] = (a[i] + b[i]) * 0.5",
        "  t[i] = t_common[i] + t_common[i] * t_common[i]",
        "  u[i] = t_common[i] + t_common[i] * t_common[i]",
        "  a[i] = t_common[i] + t_common[i] * t_common[i]",
        "  u_common[i] = (a[i] + b[i]) * 0.5",
        "  u[i] = select(i < 3, x[i] * 2.0 * (x[i] * 2.0), u_common[i] + u_common[i] * u_common[i])",
    ]
