"""A long command says how far it is: counts, while it runs."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

import redfuser
from redfuser import progress
from redfuser.cli import console
from redfuser.cli.explain import explain


def model() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return torch.nn.Softmax(-1), (torch.randn(4, 16),)


def test_every_long_stage_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_VERIFY", "0")
    told: list[str] = []
    with progress.heard(told.append):
        redfuser.compile(*model(), target="cpu")
    for what in ("looking for cascades: reductions", "deriving states: cascades", "checking certificates", "building kernels"):
        counts = [tuple(map(int, t.removeprefix(what + ", ").split(" of "))) for t in told if t.startswith(what)]
        assert counts and counts[-1][0] == counts[-1][1] > 0, (what, told)
    before = len(told)
    redfuser.explain(*model())
    assert len(told) == before, "nobody listens any more"


def test_a_command_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "EVERY_S", 0.0)
    done = CliRunner().invoke(explain, ["tests.unit.cli.test_progress:model"])
    assert "analysing ... deriving states: cascades, 1 of 1" in done.stderr and "planning kernels, 1 of 1" in done.stderr
    assert "1 of 1 (" not in done.stdout
    quiet = CliRunner().invoke(explain, ["-q", "tests.unit.cli.test_progress:model"])
    assert not quiet.stderr and quiet.stdout
