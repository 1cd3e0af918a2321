"""A row whose parts are threads': the kernel against the cascade, what it exchanges, and who has it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from redfuser import chain
from redfuser.acrf.state import Fused
from redfuser.codegen.tilelang import print_program
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.by_thread import by_thread, possible
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import For, ReduceTile
from tests.fused_examples import layer_norm, logsumexp, variance

H200 = target("sm_90a")


def _lanes(elements: int) -> TileConfig:
    return TileConfig(256, elements, 256, 0, "registers", False)


def _program(of: Callable[[int, int], Fused], rows: int, elements: int) -> Program:
    return realise(of(rows, elements), "multi", 256)


@pytest.mark.parametrize("of", [variance, logsumexp])
def test_it_computes_the_cascade_and_exchanges_nothing_in_its_steps(of: Callable[[int, int], Fused]) -> None:
    program = _program(of, 512, 32768)
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
    assert re.search(r"// (4|8) \* (1024|2048)", text), "neighbouring threads read neighbouring elements"
    if of is logsumexp:  # the moments of the other lose a mean far from zero in any way that they are merged
        assert chain.tile_program(program, config, H200).holds


def test_who_walks_by_itself() -> None:
    assert not possible(_program(variance, 512, 32768 + 64), 16), "whole steps of every thread"
    assert not possible(_program(layer_norm, 512, 32768), 16), "results along the row are another kernel's"
    many, one = _program(variance, 512, 32768), _program(variance, 1, 32768)
    assert configs(many, H200)[0].by_thread
    assert not configs(one, H200)[0].by_thread, "a row alone is shared by many blocks"
