"""Products that are carried from tile to tile, totals that threads keep to themselves, loops in parts: what is computed, what
breaks, where they do not apply."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from redfuser.acrf.expr import Index, Op
from redfuser.acrf.index import i64, iadd, imul, value
from redfuser.codegen.tilelang import print_program
from redfuser.tensorize import TileProgram
from redfuser.tensorize.ir import interpret
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import For, Gemm, ReduceTile, TileKernel
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.ir.verify import verify
from redfuser.tensorize.model.layout import layouts
from redfuser.tensorize.schedule import scheduled
from redfuser.tensorize.schedule.carry import Carry
from redfuser.tensorize.schedule.lanes import SumByLane
from redfuser.tensorize.schedule.peel import first_step
from redfuser.tensorize.schedule.persistent import Persist
from redfuser.tensorize.schedule.skew import Skew
from redfuser.tensorize.schedule.specialise import Specialise
from tests.tensorize.planting import Planted, found
from tests.tensorize.test_roles import CASES, SMALL, inputs, tiles

EQUAL = ("plain", "mask of data", "bias and cap", "two results")
"""Cases whose tiles are of equal work."""


def kept(made: TileProgram) -> list[ReduceTile]:
    return [s for s in every(made.kernels[0].body) if isinstance(s, ReduceTile) and s.lanes]


def skewed(case: str) -> TileKernel:
    return scheduled(tiles(case, "auto").kernels[0], (Persist(SMALL), Specialise(SMALL), Skew()))


@pytest.mark.parametrize("case", EQUAL)
def test_products_are_carried(case: str) -> None:
    """That they change no bit, nor a random order of roles, is seen where all schedules are compared (test_roles.py)."""
    made = tiles(case, "persistent")
    assert verify(made) == [] and parse(str(made)) == made
    before, turns, *_ = str(made).partition("      for turn in ")[2].partition("if turn + 1 < ")
    assert turns and "clear async" not in before.split("for step in")[0]


@pytest.mark.parametrize("case", [c for c in CASES if c != "weights of data"])
def test_sums_by_lane_are_the_same_sums_in_another_order(case: str) -> None:
    """Without roundings they agree to those of float64; in their own types with the same distance from that."""
    made = tiles(case, "persistent-lanes", 192)
    assert kept(made) and verify(made) == [] and parse(str(made)) == made
    given, plain = inputs(made), tiles(case, "auto", 192)
    exact, wide = interpret.run(plain, given, wide=True), interpret.run(made, given, wide=True)
    one, two = interpret.run(plain, given), interpret.run(made, given)
    for name, array in exact.items():
        np.testing.assert_allclose(wide[name], array, rtol=1e-12, atol=1e-12)
        far = [np.max(np.abs(x[name].astype(np.float64) - array)) for x in (one, two)]
        assert far[1] <= 1.1 * far[0]


def test_what_a_thread_adds_up_is_what_it_holds() -> None:
    """Column j of a product's result is with thread ``j // 2 % 4`` of the four of its row, and so is its part of the sum."""
    made = tiles("plain", "persistent-lanes", 192)
    (kernel,), (add, *_) = made.kernels, kept(made)
    spread, text = layouts(kernel, SMALL), print_program(made)
    assert spread[add.dst] == spread[add.src]
    (at,) = set(re.findall(rf"{add.dst}: T\.Fragment\(\(192, 4\), forward_fn=(lambda i, c: \(.*?\))\)[,}}]", text))
    place = eval(at)
    held = {(i, c): place(i, c) for i in range(192) for c in range(4)}
    assert len(set(held.values())) == 192 * 4 and {t for t, _ in held.values()} == set(range(384))
    for (i, c), (thread, n) in held.items():  # the accumulator of one warp: rows 0 to 7, then 8 to 15, four threads a row
        assert thread == i // 16 * 32 + i % 8 * 4 + c and n == i % 16 // 8
    assert f"{add.dst}[i, j % 8 // 2] + {add.src}[i, j]" in text


# Each is a line of a kernel with carried products changed, and what is said of it.
PLANTED: dict[str, Planted] = {
    "no wait for the next tile's operands": (re.compile(r"        if turn \+ 1 < .*\n.*\n.*\n"), "", "before"),
    "a wait for a tile after the last": (re.compile(r"if turn \+ 1 < .*:"), "if turn + 1 < 100:", "deadlock|awaits|waits"),
    "another slot than was awaited": ("k_shared[(turn + 1) * 6 % 2", "k_shared[((turn + 1) * 6 + 1) % 2", ""),
    "a phase off by one": ("phase (turn + 1) // 2\n", "phase (turn + 1) // 2 + 1\n", ""),
    "results read before they are there": ("drain 1 for o_acc", "drain 2 for o_acc", "done"),
    "results scaled under their product": (re.compile(r"( *drain 1 for o_acc\n *arrive v.*\n *arrive q.*\n)(.*\n.*row_sum_inverse\[i\]\n)"),
                                           r"\2\1", "before"),
    "scores read before they are there": ("        drain 0 for scores\n        arrive k_empty[turn", "        arrive k_empty[turn",
                                          "before|while"),
    "a slot given back under the product that was carried": (
        re.compile(r"( *drain 0 for scores\n)( *arrive k_empty\[turn.*\n)"), r"\2\1", "overwrites|while"),
    "a product under way at the end": ("      drain 0 for scores\n      await sent", "      await sent", "under way"),
    "scores overwritten while the next are computed": ("        drain 1 for o_acc", "        fill scores 0.0\n        drain 1 for o_acc", "before"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_breaks_is_found(what: str) -> None:
    found(tiles("plain", "persistent"), inputs, PLANTED[what])


def test_a_total_that_is_not_put_together_is_not_read() -> None:
    made = tiles("plain", "persistent-lanes")
    text = str(made)
    assert "reduce sum row_sum_lanes -> row_sum clear\n" in text
    for old, new in (("        reduce sum row_sum_lanes -> row_sum clear\n", ""), ("lanes: fragment f32[128, 4]", "lanes: fragment f32[128, 8]"),
                     ("reduce sum scores -> row_sum_segment_lanes by lane", "reduce sum scores -> row_sum_segment_lanes")):
        assert old in text and verify(parse(text.replace(old, new)))


_ADDED = "row_sum[i] = row_sum[i] * t_scale[i] + row_sum_segment[i]"


@pytest.mark.parametrize(("old", "new"), [
    (_ADDED, "row_sum[i] = row_sum[i] * row_sum[i] + row_sum_segment[i]"), (_ADDED, "row_sum[i] = row_sum[i] + row_sum_segment[i] * t_scale[i]"),
    (_ADDED, "row_sum[i] = row_sum[127 - i] * t_scale[i] + row_sum_segment[i]"), (_ADDED, "row_max[i] = row_max[i] * t_scale[i] + row_sum_segment[i]"),
    (_ADDED, f"{_ADDED}\n      row_max[i] = row_sum[i]"), (_ADDED, f"{_ADDED}\n      row_max[i] = row_sum_segment[i]"),
    (_ADDED, f"row_sum[i] = 1.0\n      {_ADDED}"), ("fill row_sum 0.0", "fill row_sum 1.0"), ("fill row_sum 0.0", "fill row_sum 0.0\n  fill row_sum 0.0"),
    ("reduce sum scores -> row_sum_segment clear", "reduce max scores -> row_sum_segment clear"),
    ("reduce sum scores -> row_sum_segment clear", "reduce sum o_acc -> row_sum_segment")])
def test_a_total_that_somebody_needs_in_the_loop_stays(old: str, new: str) -> None:
    plain = tiles("plain", "auto")
    text = str(plain)
    assert old in text and kept(replace(plain, kernels=(SumByLane(SMALL)(plain.kernels[0]),)))
    (kernel,) = parse(text.replace(old, new)).kernels
    assert SumByLane(SMALL)(kernel) == kernel


@pytest.mark.parametrize(("old", "new"), [
    ("        drain 0 for o_acc\n        arrive v_empty[(turn", "        drain 0 for o_acc\n        fill scores 0.0\n        arrive v_empty[(turn"),
    ("gemm q_shared[turn % 2", "gemm q_shared[tile % 2"), ("drain 0 for scores\n        arrive k_empty[turn", "drain 1 for scores\n        arrive k_empty[turn"),
    ("-> scores clear async", "-> scores async")])
def test_products_that_something_needs_are_not_carried(old: str, new: str) -> None:
    """The scores are written once more; the slot depends on the tile; they are not waited for; they add to what there was."""
    made = tiles("plain", "persistent")
    kernel = skewed("plain")
    assert "if turn + 1 <" in str(Carry()(kernel))
    text = str(replace(made, kernels=(kernel,)))
    assert old in text, text
    (kernel,) = parse(text.replace(old, new)).kernels
    assert Carry()(kernel) == kernel


def test_a_block_of_one_tile_carries_nothing() -> None:
    kernel = skewed("causal")
    assert Carry()(kernel) == kernel


@pytest.mark.parametrize(("case", "loops"), [("causal", 2), ("grouped heads", 2), ("window", 1), ("plain", 1)])
def test_steps_that_need_no_mask_do_not_ask(case: str, loops: int) -> None:
    """The diagonal's steps are the last ones; a window masks the first steps too, and the last step of all blocks is no matter."""
    kernel = tiles(case, "overlap").kernels[0]
    found = [s for s in every(kernel.body) if isinstance(s, For) and any(isinstance(k, Gemm) for k in s.body)]
    assert len(found) == loops
    if loops == 2:
        assert found[0].stop == found[1].start and len(found[0].body) + 1 == len(found[1].body)


def test_the_first_step_at_which_a_comparison_holds() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        a, b, c, d = (int(x) for x in rng.integers(-70, 70, 4))
        left, right = iadd(imul(Index("k"), a), i64(b)), iadd(imul(Index("k"), c), iadd(Index("i"), i64(d)))
        name, args = ("gt", (left, right)) if rng.random() < 0.5 else ("lt", (right, left))
        first = first_step(Op(name, args, "bool"), "k")
        assert (first is None) == (a <= c)
        for i in (0, 3, 11) if first is not None else ():
            at = value(first, {"i": i})
            holds = [a * k + b > c * k + i + d for k in (at - 1, at)]
            assert holds == [False, True]
    assert first_step(Op("gt", (Op("mod", (Index("k"), i64(2)), "i64"), i64(0)), "bool"), "k") is None
    assert first_step(Op("ge", (Index("k"), i64(3)), "bool"), "k") is None
