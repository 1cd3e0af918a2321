"""The chain bites: an error planted in the tiles of any kernel of the corpus is found, whatever it is, by the check that every
kernel gets; or it is no error, since nothing that can occur shows it (:mod:`tests.chain.survivors`)."""

from __future__ import annotations

import os
import random

import pytest

from tests.chain.kernels import NAMES, ROWS, kernels
from tests.chain.survivors import table

SAMPLE = ("torch causal", *random.Random(5).sample(ROWS, 5))
EACH = 4
"""Errors tried in each kernel of the sample."""


@pytest.mark.parametrize("name", SAMPLE)
def test_what_is_planted_is_found(name: str) -> None:
    for kernel in kernels(name, forms=(("", 1),)):
        errors = random.Random(name).sample(kernel.planted, min(EACH, len(kernel.planted)))
        found = table(kernel, errors)
        assert not found.refused and not found.missed, found
        assert found.caught, "nothing was caught"


@pytest.mark.slow
@pytest.mark.skipif("REDFUSER_ALL_MUTANTS" not in os.environ, reason="an hour: set REDFUSER_ALL_MUTANTS to run it")
@pytest.mark.parametrize("name", NAMES)
def test_everything_planted_is_found(name: str) -> None:
    for kernel in kernels(name):
        found = table(kernel)
        assert not found.missed
        assert found.refused or found.caught >= len(found.equivalent), found
