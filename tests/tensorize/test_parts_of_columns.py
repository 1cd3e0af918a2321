"""An accumulator that two warp groups would share, shared by blocks where there are too few of these."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from redfuser.acrf.expr import Index
from redfuser.acrf.index import i64, iadd
from redfuser.codegen.tilelang import print_program
from redfuser.strategies import realise
from redfuser.tensorize import TileConfig, configs, tensorize
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import For
from redfuser.untuned import untuned
from tests.tensorize.test_relay import HOPPER, LATENT, RELAY, cascade, inputs

PARTS = TileConfig(64, 64, 128, 1, "registers", True, columns=128)


def latent(sequences: int, keys: int) -> str:
    return LATENT.replace("[2, 100, 576]", f"[{sequences}, 128, 576]").replace("[2, 200, 576]", f"[{sequences}, {keys}, 576]")


@pytest.mark.parametrize("keys, splits", [(1024, 16), (2048, 16)])
def test_few_rows_of_many_columns_are_shared_by_blocks(keys: int, splits: int) -> None:
    """One H100, a sequence of 1024 and 2048 keys: 8.6 us in 64 blocks and 9.6 in 128, with a relay 11.5 and 13.3
    (docs/results/h100-2026-11-25-rows-and-decode)."""
    strategy, program = untuned(cascade(latent(1, keys)), "sm_90a")
    first = configs(program, HOPPER)[0]
    assert (strategy, program.splits, first) == ("multi", splits, PARTS)
    assert prod(n for _, n in tensorize(program, first, HOPPER).kernels[0].grid) == 8 * splits


def test_many_sequences_keep_the_relay() -> None:
    """There each column's block would weigh the row again for nothing."""
    for sequences, keys in ((32, 1024), (16, 2048)):
        _, program = untuned(cascade(latent(sequences, keys)), "sm_90a")
        assert configs(program, HOPPER)[0].schedule == "relay"


def test_parts_compute_what_the_relay_does() -> None:
    program = realise(cascade(LATENT), "multi", 2)
    parts, relay = tensorize(program, PARTS, HOPPER), tensorize(program, RELAY, HOPPER)
    given = inputs(parts)
    got, want = (interpret.run(made, given)["y"].astype(np.float32) for made in (parts, relay))
    np.testing.assert_allclose(got, want, rtol=2 ** -7, atol=2 ** -12)
    off = replace(parts, kernels=(parts.kernels[0], *relay.kernels[1:]))
    np.testing.assert_array_equal(interpret.run(off, given)["y"].astype(np.float32), got)


def test_a_single_step_begins_at_nought() -> None:
    """TileLang finds no bounds of one that begins at a split's number and is pipelined (RF452)."""
    made = tensorize(realise(cascade(latent(1, 1024)), "multi", 16), PARTS, HOPPER)
    (walk,) = [s for s in every(made.kernels[0].body) if isinstance(s, For)]
    assert walk.start == Index("split") and walk.stop == iadd(Index("split"), i64(1)) and walk.start != i64(0)
    text = print_program(made)
    assert "for k in T.Pipelined(1, num_stages=1):" in text and "x1[0, (split + k) * 64" in text.replace("x[0, ", "x1[0, ")
