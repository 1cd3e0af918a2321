"""docs/algebra.md quotes the tool: its derivations are what the engine derives today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.describe import describe
from tests.unit.acrf.corpus import ACCEPT

TEXT = (Path(__file__).parents[3] / "docs" / "algebra.md").read_text()
BLOCKS = {b.split(":")[0]: b for b in re.findall(r"```text\n(.*?)\n```", TEXT, re.S)}


def test_the_page_works_four_cascades_through():
    assert len(BLOCKS) == 4


@pytest.mark.parametrize("name", BLOCKS)
def test_a_quoted_derivation_is_the_tools_own(name):
    case = next(c for c in ACCEPT if c.cascade.name == name)
    assert describe(fuse(case.cascade, case.casts), case.name) == BLOCKS[name], "the derivation changed: quote it anew"
