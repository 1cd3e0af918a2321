"""A record chooses among the candidates there are, and gets no further: what it names is checked and built as anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from redfuser import api, pipeline
from redfuser.autotune import records
from redfuser.autotune.lookup import Decision, Records
from redfuser.autotune.records import Choice, Record
from redfuser.autotune.space import Candidate, candidates
from redfuser.cli.explain import detail
from redfuser.errors import LoweringError
from redfuser.kernels import produce
from redfuser.plan import Produced
from tests import fused_examples as examples
from tests.autotune.planted import record

FUSED = examples.softmax(256, 4096)
TEXTS = ("program", "tiles", "source")


@cache
def found() -> list[Candidate]:
    """All candidates there are; not where tests are only collected."""
    return candidates(FUSED, "sm_90a", "full")


def other() -> Choice:
    return next(c for c in found() if c.own and c.rank == 2).choice


def decided(r: Record, **how: Any) -> Produced:
    return produce("softmax", FUSED, "sm_90a", build=False, verify="0", decided=Decision(r, "project"), **how)


def test_the_models_choice_is_the_first_candidate_and_all_can_be_had() -> None:
    plain = produce("softmax", FUSED, "sm_90a", build=False, verify="0")
    known = found()
    assert decided(record(FUSED, known[0].choice)).stages == plain.stages
    assert len(known) > 3 and len({repr(c.choice) for c in known}) == len(known)
    assert known[0].own and known[0].rank == 0 and any(not c.own for c in known)


def test_the_models_choice_comes_first_where_the_model_itself_finds_another_faster() -> None:
    """What it finds faster by less than it may be off is not taken; what is measured has to hold what would be."""
    known = candidates(examples.variance(4096, 8192), "sm_90a", "quick")
    seconds = [c.seconds for c in known if c.seconds is not None]
    assert known[0].own and known[0].rank == 0 and known[0].seconds is not None and known[0].seconds > min(seconds)
    assert len(known) <= 6


def test_a_planted_record_is_obeyed_and_named() -> None:
    choice = other()
    plain, made = produce("softmax", FUSED, "sm_90a", build=False, verify="0"), decided(record(FUSED, choice))
    assert made.stages["source"] != plain.stages["source"] and made.notes == ()
    assert made.config.startswith("project record, H200 2026-11-23: ") and made.measured is not None
    asked = produce("softmax", FUSED, "sm_90a", build=False, verify="0", strategy=choice.strategy,
                    order=lambda legal: [c for c in legal if c.to_json() == choice.config])
    again = decided(record(FUSED, choice))
    assert all(made.stages[t] == asked.stages[t] == again.stages[t] for t in TEXTS), "the same record, the same bytes"


@pytest.mark.parametrize("changed", [
    lambda c: replace(c, config={**(c.config or {}), "rows": 3}),  # no such configuration
    lambda c: replace(c, config=None), lambda c: replace(c, strategy="resident" if c.strategy != "resident" else "map"),
    lambda c: Choice("no such strategy"), lambda c: Choice("multi", 1 << 20, c.config)])
def test_what_is_no_longer_there_is_told_and_the_model_decides(changed: Callable[[Choice], Choice]) -> None:
    made, plain = decided(record(FUSED, changed(other()))), produce("softmax", FUSED, "sm_90a", build=False, verify="0")
    assert [n.code for n in made.notes] == ["RF705"] and "project record" in made.notes[0].text
    assert made.stages == plain.stages and made.config == plain.config and made.measured is None


def test_no_record_gets_past_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = other()

    def refuse(program: Any, config: Any, *rest: Any) -> tuple[str, ...]:
        if config.to_json() == choice.config:
            raise LoweringError("RF903", "does not compute its cascade", why="planted")
        return ("checked",)

    monkeypatch.setattr("redfuser.plan.checked_tiles", refuse)
    made = decided(record(FUSED, choice))
    assert [n.code for n in made.notes] == ["RF705"] and "planted" in made.notes[0].text and made.checks == ("checked",)


def test_a_kernel_of_another_text_is_told() -> None:
    text = records.text_of(decided(record(FUSED, other())).stages["source"])
    assert text and decided(record(FUSED, other(), text=text)).notes == ()
    note, = decided(record(FUSED, other(), text="0" * 16)).notes
    assert note.code == "RF706"


# -- in a model --------------------------------------------------------------------------------------------------------


def test_a_model_shows_both_times_whichever_was_faster() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT * 0.125, -1) @ v

    def planned(known: Records | None) -> pipeline.Compilation:
        args = tuple(torch.randn(2, 512, 64).half() for _ in range(3))
        return pipeline.run(attention, args, arch="sm_90a", build=False, verify="0", records=known)

    region, = planned(None).partition.regions
    slow = record(region.fused, Choice("single"), fuse=False)
    report = planned(Records("H200", {slow.key: Decision(slow, "user")})).report
    kept, = report.cascades
    assert not kept.fused and kept.reason is not None and kept.reason.code == "RF704", "and none of its parts instead"
    assert "40 us fused, 30 us unfused, measured on NVIDIA H200 (user record, H200 2026-11-23)" in report.summary()
    assert kept.measured is not None and kept.measured.whole in detail(kept)
    api.apply_fallback(report, "error")  # it could be fused: no failure

    fast = record(region.fused, candidates(region.fused, "sm_90a", "quick")[1].choice)
    report = planned(Records("H200", {fast.key: Decision(fast, "shipped")})).report
    assert report.cascades[0].config.startswith("shipped record") and "40 us measured, 80 us unfused" in report.summary()
    assert type(report).from_json(report.to_json()) == report
