"""explicit > project > user > shipped; another part's records and damaged files are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from redfuser import settings
from redfuser.autotune import lookup, records
from redfuser.autotune.records import Choice
from redfuser.errors import TuningError
from tests import fused_examples as examples
from tests.autotune.planted import record

FUSED = examples.softmax(64, 300)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Four empty places, and a project to stand in, one folder below its root."""
    root = tmp_path / "project"
    (root / "below").mkdir(parents=True)
    (root / "pyproject.toml").write_text("")
    monkeypatch.chdir(root / "below")
    monkeypatch.setattr(lookup, "SHIPPED", tmp_path / "shipped")
    return {"explicit": tmp_path / "explicit", "project": root / lookup.PROJECT, "user": tmp_path / "cache" / "tuning",
            "shipped": tmp_path / "shipped"}


def look_up(tmp_path: Path, explicit: Path | None = None, tuning: str = "cached") -> lookup.Records | None:
    return lookup.look_up(settings.load({"REDFUSER_CACHE_DIR": str(tmp_path / "cache"), "REDFUSER_TUNING": tuning},
                                        tuning_records=explicit), "sm_90a", "H200")


def test_the_nearest_to_the_user_decides(world: dict[str, Path], tmp_path: Path) -> None:
    for n, (source, place) in enumerate(reversed(world.items())):  # the weakest first: each beats all before it
        records.add(place, [record(FUSED, Choice("multi", 2 + n))])
        found = look_up(tmp_path, place if source == "explicit" else None)
        decided = found.decision(FUSED, "sm_90a") if found else None
        assert decided is not None and (decided.source, decided.record.choice.splits) == (source, 2 + n)
        assert decided.by == f"{source} record, H200 2026-11-23"
    assert look_up(tmp_path, tuning="never") is None


def test_a_project_ends_where_it_begins(world: dict[str, Path], tmp_path: Path) -> None:
    records.add(tmp_path / lookup.PROJECT, [record(FUSED, Choice("single"))])
    found = look_up(tmp_path)
    assert found is not None and found.decision(FUSED, "sm_90a") is None


def test_a_record_of_another_part_is_told_and_not_used(world: dict[str, Path], tmp_path: Path) -> None:
    records.add(world["user"], [record(FUSED, Choice("single"), part="H100")])
    found = look_up(tmp_path)
    assert found is not None
    assert found.decision(FUSED, "sm_90a") is None and found.decision(FUSED, "sm_90a") is None
    assert [(n.code, "H100" in n.text and "H200" in n.text) for n in found.notes] == [("RF703", True)], "told once"
    assert found.decision(examples.softmax(64, 301), "sm_90a") is None and len(found.notes) == 1


def test_what_is_damaged_is_passed_over_but_not_where_it_was_named(world: dict[str, Path], tmp_path: Path) -> None:
    records.add(world["shipped"], [record(FUSED, Choice("single"))])
    for source in ("user", "explicit"):
        world[source].mkdir(parents=True)
        (world[source] / "x.json").write_text("{")
    found = look_up(tmp_path)
    assert found is not None and [(n.code, n.level) for n in found.notes] == [("RF701", "warning")]
    assert found.decision(FUSED, "sm_90a") is not None
    with pytest.raises(TuningError, match="RF701"):
        look_up(tmp_path, world["explicit"])
    with pytest.raises(TuningError, match="RF702"):
        look_up(tmp_path, tmp_path / "nowhere")


def test_a_changed_record_is_another_state(world: dict[str, Path], tmp_path: Path) -> None:
    """What torch.compile's store is asked with."""
    def state(tuning: str = "cached") -> str:
        return lookup.state(settings.load({"REDFUSER_CACHE_DIR": str(tmp_path / "cache")}, tuning=tuning), "sm_90a", "H200")

    before = state()
    records.add(world["user"], [record(FUSED, Choice("single"))])
    assert state() not in (before, "") and state() == state() and state("never") == ""
