"""A seeded sample of the correctness programs through the tile interpreter: whole programs against eager torch and float64.
`make correctness` runs all of them."""

from __future__ import annotations

import random

import pytest

from redfuser.bench.correctness.interpret import one
from tests.listed import all_programs
from workloads.correctness import Program, draws

FAMILIES = ("mha", "masks", "scored", "sinks", "gqa", "decode", "norms", "softmax", "losses", "routing", "quant", "statistics")


def sample() -> list[Program]:
    """One program per family; another seed is another sample."""
    rng, programs = random.Random(7), all_programs()
    return [rng.choice([p for p in programs if p.family == f and "131072" not in p.name]) for f in FAMILIES]


@pytest.mark.parametrize("program", sample(), ids=str)
def test_tile_programs_are_right(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_VERIFY", "0")  # the interpreter is the check here
    usual = list(draws(program))
    special = [d for d in usual if ":" in d]
    chosen = [d for d in ("normal", "ties", "hidden") if d in usual] + special[:1] + special[-1:]
    found = one(program, "sm_90a", chosen)
    assert "code" in found or (not found["bad"] and found["draws"] == len(chosen)), found["bad"]
    if "code" in found:
        pytest.skip(f"{found['code']}: {found['why'][:100]}")
