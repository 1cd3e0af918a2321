"""Rows that share nothing: on chip, in steps or in splits, as the model of resources finds fastest."""

from __future__ import annotations

import pytest

from redfuser.acrf.state import Fused
from redfuser.strategies import alone, realise
from redfuser.target import target
from redfuser.tensorize import configs
from redfuser.tensorize.walks import quickest, seconds
from redfuser.untuned import untuned
from tests import fused_examples as examples

H200 = target("sm_90a")


@pytest.mark.parametrize("rows, n, strategy, splits", [
    (1, 8192, "resident", (1,)),  # one row that a block holds: two kernels take longer
    (1, 32768, "multi", (4, 8, 16)),  # 128 partial results are merged one after the other: .0392 ms for .0051 in 8
    (128, 8192, "resident", (1,)), (128, 32768, "multi", (2, 4, 8)),  # a block a multiprocessor asks for too little at once
    (4096, 8192, "single", (1,)), (1024, 32768, "single", (1,))])
def test_a_row_is_walked_as_the_model_finds_fastest(rows: int, n: int, strategy: str, splits: tuple[int, ...]) -> None:
    fused = examples.variance(rows, n)
    chosen, program = untuned(fused, "sm_90a")
    assert (chosen, program.strategy) == (strategy, strategy) and program.splits in splits
    others = [realise(fused, "single"), realise(fused, "multi", 32)]
    assert all((seconds(program, H200) or 0.0) <= 1.06 * (seconds(o, H200) or 0.0) for o in others)


def test_only_rows_that_share_nothing_are_asked_about() -> None:
    assert alone(examples.variance(7, 100)) == 7 and alone(examples.softmax(9, 100)) == 9
    assert not alone(examples.attention(1, 2, 2, 64, 128, 64)) and not alone(examples.router(64, 64, 96, 4))


def test_what_is_nearly_as_fast_does_not_replace_the_choice() -> None:
    fused: Fused = examples.variance(4096, 8192)
    program = realise(fused, "single")
    assert quickest(fused, 4096, program, H200) is program


def test_a_thread_adds_few_elements_in_turn_to_a_float32_result() -> None:
    """64 of them lose the ties of a variance (docs/results/h200-2026-11-23-tuning)."""
    for n in (4096, 8192, 16384):
        assert all(c.rows * c.segment <= 40 * c.threads for c in configs(realise(examples.variance(128, n), "resident"), H200))
