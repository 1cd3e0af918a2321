"""A record chooses among the candidates there are, and gets no further: what it names is checked and built as anything else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from redfuser import api, pipeline
from redfuser.autotune import records
from redfuser.autotune.lookup import Decision, Records
from redfuser.autotune.records import Choice, Record
from redfuser.autotune.space import candidates
from redfuser.cli.explain import detail
from redfuser.errors import LoweringError
from redfuser.kernels import produce
from redfuser.plan import Produced
from tests import fused_examples as examples
from tests.autotune.planted import record

FUSED = examples.softmax(256, 4096)
FOUND = candidates(FUSED, "sm_90a", "full")
OTHER = next(c for c in FOUND if c.own and c.rank == 2).choice
TEXTS = ("program", "tiles", "source")


def decided(r: Record, **how: Any) -> Produced:
    return produce("softmax", FUSED, "sm_90a", build=False, verify="0", decided=Decision(r, "project"), **how)


def test_the_models_choice_is_the_first_candidate_and_all_can_be_had() -> None:
    plain = produce("softmax", FUSED, "sm_90a", build=False, verify="0")
    assert decided(record(FUSED, FOUND[0].choice)).stages == plain.stages
    assert len(FOUND) > 3 and len({repr(c.choice) for c in FOUND}) == len(FOUND)
    assert FOUND[0].own and FOUND[0].rank == 0 and any(not c.own for c in FOUND)


def test_the_models_choice_comes_first_where_the_model_itself_finds_another_faster() -> None:
    """What it finds faster by less than it may be off is not taken; what is measured has to hold what would be."""
    found = candidates(examples.variance(4096, 8192), "sm_90a", "quick")
    seconds = [c.seconds for c in found if c.seconds is not None]
    assert found[0].own and found[0].rank == 0 and found[0].seconds is not None and found[0].seconds > min(seconds)
    assert len(found) <= 6


def test_a_planted_record_is_obeyed_and_named() -> None:
    plain, made = produce("softmax", FUSED, "sm_90a", build=False, verify="0"), decided(record(FUSED, OTHER))
    assert made.stages["source"] != plain.stages["source"] and made.notes == ()
    assert made.config.startswith("project record, H200 2026-11-23: ") and made.measured is not None
    asked = produce("softmax", FUSED, "sm_90a", build=False, verify="0", strategy=OTHER.strategy,
                    order=lambda legal: [c for c in legal if c.to_json() == OTHER.config])
    again = decided(record(FUSED, OTHER))
    assert all(made.stages[t] == asked.stages[t] == again.stages[t] for t in TEXTS), "the same record, the same bytes"


@pytest.mark.parametrize("choice", [
    replace(OTHER, config={**(OTHER.config or {}), "rows": 3}),  # no such configuration
    replace(OTHER, config=None), replace(OTHER, strategy="resident" if OTHER.strategy != "resident" else "map"),
    Choice("no such strategy"), Choice("multi", 1 << 20, OTHER.config)])
def test_what_is_no_longer_there_is_told_and_the_model_decides(choice: Choice) -> None:
    made, plain = decided(record(FUSED, choice)), produce("softmax", FUSED, "sm_90a", build=False, verify="0")
    assert [n.code for n in made.notes] == ["RF705"] and "project record" in made.notes[0].text
    assert made.stages == plain.stages and made.config == plain.config and made.measured is None


def test_no_record_gets_past_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: Any, config: Any, *rest: Any) -> tuple[str, ...]:
        if config.to_json() == OTHER.config:
            raise LoweringError("RF903", "does not compute its cascade", why="planted")
        return ("checked",)

    monkeypatch.setattr("redfuser.plan.checked_tiles", refuse)
    made = decided(record(FUSED, OTHER))
    assert [n.code for n in made.notes] == ["RF705"] and "planted" in made.notes[0].text and made.checks == ("checked",)


def test_a_kernel_of_another_text_is_told() -> None:
    text = records.text_of(decided(record(FUSED, OTHER)).stages["source"])
    assert text and decided(record(FUSED, OTHER, text=text)).notes == ()
    note, = decided(record(FUSED, OTHER, text="0" * 16)).notes
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
