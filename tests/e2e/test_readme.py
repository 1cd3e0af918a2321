"""The README's example runs, and prints what the README says it prints. ``make golden`` writes the new output into it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def block(text: str, name: str) -> re.Match[str]:
    found = re.search(rf"<!-- example: {name} -->\n```\w*\n(.*?)```", text, re.S)
    assert found, f"README.md has no example block {name}"
    return found


def test_the_example_prints_what_the_readme_shows(request: pytest.FixtureRequest) -> None:
    text = README.read_text()
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", block(text, "code")[1]], cwd=ROOT, capture_output=True,
                         text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert run.returncode == 0, run.stderr
    fused, quotes, kernel = run.stdout.partition('"""')
    shown = {"fused": fused, "kernel": (quotes + kernel).rstrip() + "\n"}
    if request.config.getoption("--update-golden"):
        for name, output in shown.items():
            old = block(text, name)
            text = text[: old.start(1)] + output + text[old.end(1):]
        README.write_text(text)
        return
    for name, output in shown.items():
        assert block(text, name)[1] == output, "the README's example is out of date: run `make golden`"
