"""Bounds of time that hold on any machine: ``with within(10): ...`` counts seconds of processor of a machine of known speed.

The suite has taken 607 and 1458 s on machines of two cores; a bound in their own seconds says more about them than about us. Before
what is bounded, and behind it where it took longer, a fixed piece of Python is timed; where that takes longer than on a machine on
which every bound held, the bound is longer by the same factor, never shorter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

TOOK = 0.060
"""Seconds of processor that the piece took there (.050 to .084 in three turns beside other work)."""


def _piece() -> float:
    """Seconds that a fixed piece of Python takes here: objects made, hashed, looked up and sorted, as compilers do."""
    start = time.process_time()
    for turn in range(3):
        made = {(i * 7919 % 4099, str(i)): [i, turn] for i in range(20_000)}
        sum(made[key][0] for key in sorted(made))
    return time.process_time() - start


def slower() -> float:
    """How many times longer than there Python takes here and now; at least 1."""
    return max(1.0, min(_piece(), _piece()) / TOOK)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises AssertionError when what is inside takes more than ``seconds`` of processor, on the machine of known speed."""
    factor, start = slower(), time.process_time()
    yield
    took = time.process_time() - start
    if took > seconds:
        factor = max(factor, slower())
    assert took <= seconds * factor, f"{took:.1f} s of processor on a machine {factor:.1f} times as slow: more than {seconds} s"
