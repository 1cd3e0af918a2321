"""No text that is printed has a form that TVM's simplifier, TileLang's or the CPU's, takes for another."""

from __future__ import annotations

import subprocess
import sys

from tvm import arith, tirx

from tests.codegen.simplified import wrong

DRAWN = 600


def test_what_is_written_stays_what_it_is() -> None:
    assert wrong(tirx, arith.Analyzer(), DRAWN) == []


def test_tilelangs_simplifier_leaves_it_too() -> None:
    found = subprocess.run([sys.executable, "-m", "tests.codegen.simplified", str(DRAWN)], capture_output=True, text=True, check=True)
    assert found.stdout == ""


def test_as_it_is_much_would_be_changed() -> None:
    """The draws reach what goes wrong: otherwise the tests above say nothing."""
    assert len(wrong(tirx, arith.Analyzer(), DRAWN, lambda e: e)) > DRAWN // 10
