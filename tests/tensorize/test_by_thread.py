"""A row whose parts are threads': the kernel against the cascade, what it exchanges, and who has it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from redfuser import chain
from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.expr import Expr, Load, map_children
from redfuser.acrf.index import i64, iadd
from redfuser.acrf.state import Fused
from redfuser.cache import Cache
from redfuser.codegen.tilelang import print_program
from redfuser.errors import LoweringError
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.by_thread import by_thread, possible
from redfuser.tensorize.configs import ALL
from redfuser.tensorize.ir.effects import every, writes
from redfuser.tensorize.ir.nodes import Copy, For, If, ReduceTile
from redfuser.tensorize.model import predicted, roofline
from redfuser.tensorize.schedule.prefetch import _Ahead
from redfuser.tensorize.walks import quickest
from tests.fused_examples import layer_norm, logsumexp, rms_norm, softmax, variance

H200 = target("sm_90a")


def _lanes(elements: int) -> TileConfig:
    return TileConfig(256, elements, 256, 0, "registers", False)


def _program(of: Callable[[int, int], Fused], rows: int, elements: int) -> Program:
    return realise(of(rows, elements), "multi", 256)


@pytest.mark.parametrize("elements", [32768, 32768 + 64, 32768 + 1])
@pytest.mark.parametrize("of", [variance, logsumexp])
def test_it_computes_the_cascade_and_exchanges_nothing_in_its_steps(of: Callable[[int, int], Fused], elements: int) -> None:
    program = _program(of, 512, elements)
    config = _lanes(16)
    assert possible(program, 16) and by_thread(program, config)
    tiles = tensorize(program, config, H200)
    (kernel,) = tiles.kernels
    assert not any(a.role == "workspace" for a in tiles.args) and dict(kernel.grid) == {"i_block": 512}
    (loop,) = (s for s in kernel.body if isinstance(s, For))
    inside = [s for s in every(loop.body) if isinstance(s, ReduceTile)]
    shapes = {b.name: b.shape for b in kernel.buffers}
    assert inside and all(shapes[s.src] == (256, 16) and shapes[s.dst] == (256,) for s in inside)
    text = print_program(tiles)
    assert "forward_fn=lambda i, j: (i, j)" in text
    access = r"// (4|8) \* (1024|2048)" if elements % 8 == 0 else r"\* 256 \+ r"
    assert re.search(access, text), "neighbouring threads read neighbouring elements"
    if of is logsumexp:  # the moments of the other lose a mean far from zero in any way that they are merged
        assert chain.tile_program(program, config, H200).holds


def test_who_walks_by_itself() -> None:
    assert not possible(_program(variance, 512, 2047), 16), "most threads would have nothing to do"
    many, one = _program(variance, 512, 32768), _program(variance, 1, 32768)
    assert configs(many, H200)[0].by_thread
    assert not configs(one, H200)[0].by_thread, "a row alone is shared by many blocks"


@pytest.mark.parametrize("of", [softmax, layer_norm, rms_norm])
def test_a_row_that_is_visited_again_is_one_kernel(of: Callable[[int, int], Fused]) -> None:
    program, config = realise(of(264, 65536), "multi", ALL), TileConfig(ALL, 16, ALL, 0, "registers", False)
    assert [k.kind for k in program.kernels] == ["split", "merge", "map"] and possible(program, 16)
    tiles = tensorize(program, config, H200)
    (kernel,) = tiles.kernels
    assert not any(a.role == "workspace" for a in tiles.args) and dict(kernel.grid) == {"i_block": 264}
    _, again = (s for s in kernel.body if isinstance(s, For))
    assert not any(isinstance(s, ReduceTile) for s in again.body), "nothing is exchanged in the second visit"
    (read,) = (s for s in again.body if isinstance(s, Copy) and s.src.buffer == "x")
    assert str(read.src.dims[-1].start) == "(3 - k) * 16384", "from the end"
    at = kernel.body.index(again)
    assert not any(writes(s) & {"m_row", "t_row", "mean_row", "rstd_row"} for s in kernel.body[:at])
    assert chain.tile_program(program, config, H200).holds


@pytest.mark.parametrize("elements", [65536, 50304, 50257])
def test_the_next_step_is_on_its_way_through_registers(elements: int, monkeypatch: pytest.MonkeyPatch,
                                                              tmp_path: Path) -> None:
    fused = fuse(parse_cascade(f"""
cascade logsumexp(x: f16[264, {elements}]) over l
  m[i] = max[l] f32(x[i, l])
  t[i] = sum[l] exp(f32(x[i, l]) - m)
  y[i] = log(t) + m
  return y
"""))
    assert isinstance(fused, Fused)
    program, config = realise(fused, "multi", 256), replace(_lanes(32), stages=2)
    (kernel,) = tensorize(program, config, H200).kernels
    (loop,) = (s for s in kernel.body if isinstance(s, For))
    (asked,) = (s for s in loop.body if isinstance(s, If))
    assert not loop.stages and str(asked).startswith("if k + 1 < ") and writes(asked) == {"x_tile_next"}
    assert "//" not in str(asked) or "j // 8 * 2048" in str(asked), "neighbours are seen in what is asked for"
    assert chain.tile_program(program, config, H200, Cache(tmp_path / "as it is")).holds
    at = _Ahead.at
    monkeypatch.setattr(_Ahead, "at", lambda self, loop, s, step: at(self, loop, s, loop.start))
    assert not chain.tile_program(program, config, H200, Cache(tmp_path / "planted")).holds, "planted: the first step again and again"


def test_what_has_no_room_on_its_way_is_read_where_it_is_needed() -> None:
    program, config = realise(variance(512, 32768), "multi", 256), replace(_lanes(32), stages=2)
    (kernel,) = tensorize(program, config, H200).kernels  # 32 registers of float32
    assert "_next" not in str(kernel) and not any(s.stages for s in kernel.body if isinstance(s, For))


def test_a_value_of_another_row_is_not_taken_for_this_ones() -> None:
    """Planted: what a second visit reads of a row before is no value that its block has."""
    def next_row(e: Expr) -> Expr:
        if isinstance(e, Load) and e.tensor == "m_row":
            return replace(e, indices=tuple(iadd(i, i64(1)) for i in e.indices))
        return map_children(e, next_row)

    program = realise(softmax(264, 65536), "multi", ALL)
    again = program.kernels[2]
    wrong = replace(again, tail=tuple(replace(b, exprs=tuple(map(next_row, b.exprs))) for b in again.tail))
    with pytest.raises(LoweringError, match="RF489"):
        tensorize(replace(program, kernels=(*program.kernels[:2], wrong)), TileConfig(ALL, 16, ALL, 0, "registers", False), H200)


def test_who_is_visited_again_by_all_threads_of_a_multiprocessor() -> None:
    def chosen(rows: int, columns: int) -> tuple[str, int]:
        fused = softmax(rows, columns)
        program = quickest(fused, rows, realise(fused, "single"), H200)
        return program.strategy, program.splits

    assert chosen(264, 65536) == chosen(264, 65536 + 64) == ("multi", ALL)
    assert chosen(140, 65536) != ("multi", ALL), "half of the multiprocessors would wait for eight rows"
    assert chosen(264, 8192) == ("resident", 1), "a row that is held is read once"


def test_what_is_read_again_comes_from_memory_where_many_rows_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of layer norms of halves an H200 takes 34.5 us for 2048 rows of 12288 by blocks of 256 threads and 73 by one of 1024, for
    2048 of 131072 470 and 355 (docs/decisions/0029)."""
    def seconds(rows: int, columns: int, splits: int) -> float:
        program = realise(softmax(rows, columns, "f16"), "multi" if splits > 1 else "single", splits)
        config = TileConfig(ALL, 32, ALL, 0) if splits > 1 else TileConfig(1, 4096, 256, 0)
        return predicted(tensorize(program, config, H200), H200) or 0.0

    cases = ((4096, 65536, 1), (4096, 65536, ALL), (132, 16384, 1))
    found = [seconds(*case) for case in cases]
    monkeypatch.setattr(roofline, "STAYS", 1e9)  # a cache that keeps everything
    kept = [seconds(*case) for case in cases]
    assert found[0] > 1.3 * kept[0] and found[1] < 1.02 * kept[1] and found[2] == kept[2]
    monkeypatch.undo()
    for rows, columns, wanted in ((2048, 12288, "single"), (2048, 131072, "multi")):
        fused = layer_norm(rows, columns, "f16")
        assert quickest(fused, rows, realise(fused, "single"), H200).strategy == wanted


def test_a_second_visit_asks_for_nothing_ahead() -> None:
    program = realise(softmax(264, 65536), "multi", ALL)
    assert not any(c.stages for c in configs(program, H200) if by_thread(program, c))


def test_an_exponential_below_what_another_kernel_reduced_is_the_hardwares() -> None:
    """It is bounded as in the kernel that reduced: no exponential of data alone."""
    text = print_program(tensorize(realise(softmax(8, 65536), "multi", 32), TileConfig(1, 2048, 128, 0, "registers", False), H200))
    assert "T.exp2((x_tile" in text.split("def softmax_map")[1] and "T.exp(" not in text
