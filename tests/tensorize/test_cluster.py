"""Neighbouring blocks that have their tiles brought once: what is computed, what breaks, where it does not apply."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from redfuser.codegen.tilelang import print_program
from redfuser.tensorize import TileProgram
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.schedule.cluster import Cluster
from tests.tensorize.planting import Planted, found
from tests.tensorize.test_relay import APART, LATE, LATENT, inputs, tiles
from tests.tensorize.test_roles import tiles as attention

THREE = APART.replace("100", "180")


def alone(made: TileProgram) -> TileProgram:
    """The program without clusters: every block brings its own."""
    text = re.sub(r" cluster \d", "", str(made)).replace(" of all", "")
    size = made.kernels[0].cluster
    return parse(re.sub(r"(empty: barrier\[2\] of )(\d+)", lambda m: m[1] + str(int(m[2]) // size), text))


@pytest.mark.parametrize("text", [LATENT, APART, THREE, LATE.replace("+ 200", "+ 70").replace("l + 70 <= i", "l <= 70")])
def test_the_same_bits_in_any_order(text: str) -> None:
    made = tiles(text, "relay")
    assert made.kernels[0].cluster == (3 if text is THREE else 2) and verify(made) == [] and parse(str(made)) == made
    given = inputs(made)
    wanted = interpret.run(alone(made), given)
    for seed in range(3):
        got = interpret.run(made, given, seed=seed)
        for name, array in wanted.items():
            assert np.array_equal(array, got[name], equal_nan=True), (name, seed)


def test_a_plain_kernel_with_roles() -> None:
    """Keys and values of a head are the same for all of its rows."""
    made = attention("plain", "overlap")
    assert made.kernels[0].cluster == 1
    beside = replace(made, kernels=tuple(map(Cluster(), made.kernels)))
    assert beside.kernels[0].cluster == 3 and verify(beside) == []
    given = inputs(made)
    wanted = interpret.run(made, given)
    for seed in range(2):
        got = interpret.run(beside, given, seed=seed)
        assert all(np.array_equal(array, got[name], equal_nan=True) for name, array in wanted.items())


PLANTED: dict[str, Planted] = {
    "a slot given back to its own block alone": ("arrive x_shared_0_empty[k % 2] of all", "arrive x_shared_0_empty[k % 2]", ""),
    "a barrier that waits for one block's groups": ("x_shared_0_empty: barrier[2] of 4", "x_shared_0_empty: barrier[2] of 2", ""),
    "a barrier that waits for a block more": ("x_shared_0_empty: barrier[2] of 4", "x_shared_0_empty: barrier[2] of 6", "deadlock"),
    "a tile expected before the one before is there": (
        re.compile(r" *await x_shared_0_empty\[k % 2\] phase k // 2 - 1\n"), "", "before|overwrites|while"),
    "rows of the first block for both": (re.compile(r"(fetch q.* -> q_shared2.*q_shared2_full\[0\])"), r"\1 of all", ""),
    "a slot's phase off by one": ("await x_shared_0_empty[k % 2] phase k // 2 - 1", "await x_shared_0_empty[k % 2] phase k // 2", ""),
    "a tile given back under its product": (
        re.compile(r"( *drain 1 for o_acc_0\n)( *arrive x_shared_0_empty\[k % 2\] of all\n)"), r"\2\1", "overwrites"),
}


@pytest.mark.parametrize("what", [n for n in PLANTED if not n.startswith("rows")])
def test_what_breaks_is_found(what: str) -> None:
    found(tiles(LATENT, "relay"), inputs, PLANTED[what])


def test_a_tile_that_is_not_the_same_for_both() -> None:
    """It would be the first block's in both: other results, no hazard."""
    made = tiles(LATENT, "relay")
    old, new, _ = PLANTED["rows of the first block for both"]
    assert isinstance(old, re.Pattern)
    broken = parse(old.sub(new, str(made)))
    given = inputs(made)
    assert not np.array_equal(interpret.run(made, given)["y"], interpret.run(broken, given)["y"])


def test_where_it_does_not_apply() -> None:
    """Blocks whose steps depend on the first grid variable, a grid that has no neighbours, blocks that compute several tiles."""
    late = tiles(LATE, "relay")
    assert late.kernels[0].cluster == 1
    assert tiles(APART.replace("100", "60"), "relay").kernels[0].cluster == 1
    (several,) = attention("plain", "persistent").kernels
    assert Cluster()(several) is several
    odd = str(tiles(APART, "relay")).replace("i_block < 2", "i_block < 3")
    assert any("clusters of 2" in w for w in verify(parse(odd)))
    alone_but_said = re.sub(r" cluster \d", "", str(tiles(APART, "relay")))
    assert any("barrier of all blocks" in w for w in verify(parse(alone_but_said)))


def test_blocks_that_their_own_tiles_steer_are_not_alike() -> None:
    """Neighbours may have computed other bounds: one would wait for the other for ever."""
    plain = str(alone(tiles(APART, "relay")))
    assert Cluster()(parse(plain).kernels[0]).cluster == 2
    steered = re.sub(r"for step in 0 \.\. \d+:", "for step in 0 .. own[0]:", plain)
    steered = re.sub(r"\n(  \w+: barrier)", r"\n  own: local i64[1]\n\1", steered, count=1)
    assert "own[0]" in steered and Cluster()(parse(steered).kernels[0]).cluster == 1
    moved = re.sub(r"(fetch [kv]\[)step \* 64", r"\1own[0]", plain)
    moved = re.sub(r"\n(  \w+: barrier)", r"\n  own: local i64[1]\n\1", moved, count=1)
    assert "own[0]" in moved and Cluster()(parse(moved).kernels[0]).cluster == 1


def test_threads_do_not_each_arrive_at_a_barrier_of_all() -> None:
    text = re.sub(r"(arrive x_shared\w*_empty\[k % 2\]) of all", r"\1 each of all", str(tiles(LATENT, "relay")))
    assert any("at which each thread arrives" in w for w in verify(parse(text)))


def test_the_text_has_the_cluster_in_the_kernel() -> None:
    """Whoever launches it: TileLang tells its own launcher alone. The blocks meet before and after."""
    text = print_program(tiles(LATENT, "relay"))
    assert "#define latent_kernel __cluster_dims__(2, 1, 1) latent_kernel" in text and "cluster_dims=2" in text
    assert text.count("T.cluster_sync()") == 2 and text.count("cluster_mask=3") == 3
    assert "cluster" not in print_program(alone(tiles(LATENT, "relay")))
