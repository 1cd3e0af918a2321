"""What is not clearly faster is a tie, and ties go to the unfused region; among fused kernels, to the model's choice."""

from __future__ import annotations

import pytest

from redfuser.autotune.judge import best, faster, finalists
from redfuser.autotune.records import Sample
from redfuser.timing import Times
from tests.autotune.planted import sample


@pytest.mark.parametrize("ours, theirs, wins", [
    (sample(0.040), sample(0.060), True),
    (sample(0.060), sample(0.040), False),
    (sample(0.0400), sample(0.0403), False),  # within a hundredth
    (sample(0.040, spread=0.3), sample(0.044, spread=0.3), False),  # within the spread
    (sample(0.040, spread=0.02), sample(0.044, spread=0.02), True),
    (sample(0.040, events=0.050), sample(0.040, events=0.090), True),  # alike in a graph: one launch for many decides
    (sample(0.040, events=0.090), sample(0.040, events=0.050), False),
    (sample(0.050, events=0.050), sample(0.040, events=0.090), False),  # the graph's word is the first
    (Sample(None, Times(0.04, 0.04, 0.04, 9)), Sample(Times(0.01, 0.01, 0.01, 9), Times(0.06, 0.06, 0.06, 9)), True),
    (Sample(), sample(0.04), False)])
def test_only_what_is_clearly_faster_is(ours: Sample, theirs: Sample, wins: bool) -> None:
    assert faster(ours, theirs) is wins
    assert not (faster(ours, theirs) and faster(theirs, ours))


def test_among_fused_kernels_a_tie_goes_to_the_models_choice() -> None:
    assert best({"0": sample(0.0402), "3": sample(0.0400), "unfused": sample(0.01)}, "0") == "0"
    assert best({"0": sample(0.0450), "3": sample(0.0400), "unfused": sample(0.01)}, "0") == "3"
    assert best({"2": sample(0.05), "3": sample(0.04)}, "0") == "3", "the model's own was lost"


def test_those_that_could_decide_are_measured_again() -> None:
    samples = {"unfused": sample(0.9), "0": sample(0.7), "1": sample(0.3), "2": sample(0.4), "3": sample(0.5)}
    assert finalists(samples, "0") == ["unfused", "0", "1", "2"]
    assert finalists({"unfused": sample(1), "4": sample(1)}, "0") == ["unfused", "4"]
