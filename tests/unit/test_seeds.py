"""What a test draws is the same alone and among others, whatever is collected or run before it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import SEED

ROOT = Path(__file__).parents[2]
FIRST = torch.randn(4), random.random()


@pytest.fixture
def drawn():
    return torch.randn(4)


def own():
    return torch.randn(4, generator=torch.Generator().manual_seed(SEED))


def test_a_module_starts_from_the_seed():
    assert torch.equal(FIRST[0], own()) and FIRST[1] == random.Random(SEED).random()


@pytest.mark.parametrize("again", [0, 1])
def test_every_test_and_its_fixtures_start_from_the_seed(again, drawn):
    assert torch.equal(drawn, own()) and torch.equal(torch.randn(4), own())
    assert random.random() == random.Random(SEED).random()
    assert np.random.rand() == np.random.RandomState(SEED).rand()


def test_torch_is_seeded_as_it_is_imported():
    """Also where a test, or the first module of a process, is what imports it."""
    draw = "import tests.conftest, torch; print(torch.randn(4).tolist())"
    got = subprocess.run([sys.executable, "-c", draw], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert got.strip() == str(own().tolist())
