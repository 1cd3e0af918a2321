"""What a mask hides is what no number in a tensor's place changes."""

from __future__ import annotations

import warnings

import numpy as np

from redfuser.chain.judge import Hidden, Want, rule
from redfuser.unseen import unseen


def test_a_weight_of_zero_hides_and_a_small_one_does_not() -> None:
    x = np.array([1.0, np.nan, 3.0])
    weights = np.array([[0.5, 0.0, 0.5], [0.5, 1e-30, 0.5], [0.0, 1.0, 0.0], [1.0, -0.0, 0.0]])

    def run(name: str, number: float) -> list[np.ndarray]:
        plain = np.where(np.isfinite(x), x, number)
        return [weights @ plain, np.argmax(weights * plain, -1)]

    ((name, (where, places), (values, _)),) = unseen(run, ["x"])
    assert name == "x" and where.tolist() == [True, False, False, True] and values[0] == 2.0
    assert not places.any(), "an index is judged by what it chooses among"


def test_the_chain_excuses_those_results_alone_and_holds_them_to_what_is_there_without() -> None:
    nan = np.full(4, np.nan, np.float32)
    exact = np.array([2.0, 2.0, 3.0, 1.0])
    hidden = Hidden(np.array([True, True, False, True]), exact.astype(np.float32), exact)
    want = Want(nan, nan.astype(np.float64), "f32", lambda: [hidden], 1e30, has_nan=True)
    assert rule(np.array([2.0, np.nan, np.nan, 1.0], np.float32), want) == ""
    assert "class" in rule(np.array([2.0, np.nan, 3.0, 1.0], np.float32), want), "one that is seen"
    assert "error" in rule(np.array([2.0, np.nan, np.nan, 1.01], np.float32), want)
    assert "class" in rule(np.array([2.0, np.inf, np.nan, 1.0], np.float32), want), "NaN, or as if it were not there"


def test_judging_infinite_results_says_nothing_on_stderr() -> None:
    """numpy's own warnings are not for whoever compiles a model."""
    program, exact = np.array([np.inf, np.nan, 1.0], np.float32), np.array([1e39, np.inf, 1.0])
    want = Want(program, exact, "f32", lambda: [], 1e30, extreme=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rule(np.array([np.inf, np.inf, 1.0], np.float32), want) == ""
        exact[0] = np.inf
        assert rule(np.array([np.inf, np.inf, 1.0], np.float32), want) == ""
