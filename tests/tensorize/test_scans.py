"""Scans as tiles: what is right is called right, and a carry that is lost, a slip by one, another reducer are called wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from redfuser import chain
from redfuser.acrf.derive.mapped import mapped
from redfuser.acrf.expr import Expr, Index, Load, Op, map_children
from redfuser.acrf.index import i64
from redfuser.acrf.text import parse_cascade
from redfuser.chain import tiles, twin
from redfuser.chain.samples import cases
from redfuser.codegen.tilelang import print_program
from redfuser.strategies import realise
from redfuser.strategies.check import check
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.effects import every, with_bodies, with_exprs
from redfuser.tensorize.ir.nodes import Assign, Copy, Parallel, ScanTile, TileProgram, TileStmt
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.verify import verify
from tests import segment_programs

H200 = target("sm_90a")
WIDTH = 2048
"""Elements of a tile's row."""
TEXTS = {
    "masked": "cascade masked(x: f16[40, L], m: bool[40, L]) over l\n  t[i, l] = sum[..l] f32(x[i, l]) * f32(m[i, l])\n"
              "  y[i, l] = f16(t)\n",
    "positions": "cascade positions(m: i64[40, L]) over l\n  t[i, l] = sum[..l] m[i, l]\n  y[i, l] = t - 1\n",
    "product": "cascade product(x: f32[40, L]) over l\n  t[i, l] = prod[..l] sigmoid(x[i, l])\n",
    "columns": "cascade columns(x: f32[2, L, 70]) over l\n  t[b, l, i] = sum[..l] x[b, l, i] * 2.0\n  y[b, l, i] = exp(-t)\n",
}


def program(name: str, n: int) -> Program:
    fused = mapped(parse_cascade(TEXTS[name].replace("L", str(n))))
    assert not isinstance(fused, str)
    return realise(fused, "map")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("n", [2, 37, 777, 9000])
def test_every_text_reads_back_and_is_right(name: str, n: int) -> None:
    p = program(name, n)
    assert parse_cascade(str(p.fused.cascade)) == p.fused.cascade and segment_programs.parse(str(p), p.fused) == p
    assert not check(p) and not list(chain._scalar(p, False))
    config = configs(p, H200)[0]
    made = tensorize(p, config, H200)
    assert parse(str(made)) == made and not verify(made)
    assert not list(chain._tiles(p, config, H200))


def test_its_text(golden: Callable[[str, str], None]) -> None:
    for n, name in ((777, "scan_of_a_row"), (40000, "scan_with_a_carry"), (777, "scan_of_columns")):
        p = program("columns" if "columns" in name else "masked", n)
        made = tensorize(p, configs(p, H200)[0], H200)
        golden(f"kernels/{name}.tiles.txt", str(made))
        golden(f"kernels/{name}.py.txt", print_program(made))


def test_values_that_are_no_numbers_stay_behind_their_element() -> None:
    fused = mapped(parse_cascade("cascade plain(x: f32[40, 300]) over l\n  t[i, l] = sum[..l] x[i, l]\n"))
    p = realise(fused, "map")  # type: ignore[arg-type]
    made = tensorize(p, TileConfig(4, 128, 128, 0, "registers", False), H200)
    x = np.full((40, 300), 1.0, np.float32)
    x[0, 130], x[1, 5], x[1, 200], x[2, 299], x[3, 7] = np.nan, np.inf, -np.inf, np.nan, -np.inf
    got = interpret.run(made, {"x": x})["t"]
    with np.errstate(invalid="ignore"):
        want = np.cumsum(x, -1, dtype=np.float32)
    np.testing.assert_array_equal(got, want)


def _with(program: TileProgram, change: Callable[[TileStmt], tuple[TileStmt, ...]]) -> TileProgram:
    def body(stmts: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
        return tuple(x for s in stmts for x in change(with_bodies(s, body)))

    return replace(program, kernels=tuple(replace(k, body=body(k.body)) for k in program.kernels))


def _scan(how: Callable[[ScanTile], ScanTile]) -> Callable[[TileStmt], tuple[TileStmt, ...]]:
    return lambda s: (how(s),) if isinstance(s, ScanTile) else (s,)


def _exclusive(s: TileStmt) -> tuple[TileStmt, ...]:
    """What is read of a scanned row is the element before."""
    def earlier(e: Expr) -> Expr:
        if isinstance(e, Load) and e.tensor.endswith("_row"):
            return replace(e, indices=(e.indices[0], Op("sub", (e.indices[1], i64(1)), "i64")))
        return e if isinstance(e, Load) else map_children(e, earlier)

    if isinstance(s, Parallel):
        return (with_exprs(s, earlier),)
    if not (isinstance(s, Copy) and s.src.buffer.endswith("_row") and not s.dst.dims):
        return (s,)
    before = Load(s.src.buffer, (Index("r_"), Op("sub", (Index("e_"), i64(1)), "i64")), "f32")
    return (Parallel(("r_", "e_"), (1, WIDTH), (Assign(s.dst.buffer, (Index("r_"), Index("e_")), before),)),)


PLANTED = {
    "the carry is dropped": _scan(lambda s: replace(s, carry="")),
    "another reducer": _scan(lambda s: replace(s, op="prod" if s.op == "sum" else "sum")),
    "the largest so far": _scan(lambda s: replace(s, op="max")),
    "not scanned": lambda s: () if isinstance(s, ScanTile) else (s,),
    "the element before": _exclusive,
    "scanned twice": lambda s: (s, s) if isinstance(s, ScanTile) else (s,),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_planted_is_found(name: str) -> None:
    p = program(name, 9000)
    config = next(c for c in configs(p, H200) if name == "columns" or (c.segment == WIDTH and c.rows == 1))
    right = []
    for deep in (True, False):
        small = twin.of_tiles(p, config, deep)
        made = tensorize(small, config, H200, to_run=False)
        assert any(isinstance(s, ScanTile) and s.carry for k in made.kernels for s in every(k.body))
        right.append((small, made, cases(small.fused, deep)))
    for what, planted in PLANTED.items():
        assert all(_with(made, planted) != made for _, made, _ in right), what
        assert any(v for small, made, some in right for v in tiles.violations(small, _with(made, planted), some)), what
