from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from redfuser import settings
from redfuser.errors import InputError


def test_defaults_name_their_source() -> None:
    s = settings.load({})
    assert (s.target, s.fallback, s.trace, s.verify, s.disable) == ("cpu", "warn", None, "1", False)
    assert set(s.sources.values()) == {"default"}


def test_an_argument_beats_a_variable() -> None:
    env = {"REDFUSER_TARGET": "sm_80", "REDFUSER_FALLBACK": "error"}
    s = settings.load(env, target="sm_90a")
    assert (s.target, s.sources["target"]) == ("sm_90a", "argument")
    assert (s.fallback, s.sources["fallback"]) == ("error", "REDFUSER_FALLBACK")


def test_values_are_parsed(tmp_path: Path) -> None:
    s = settings.load({"REDFUSER_CACHE_DIR": str(tmp_path), "REDFUSER_VERIFY": "strict", "REDFUSER_TRACE": "a/b"})
    assert s.cache_dir == tmp_path and s.verify == "strict" and s.trace == Path("a/b")
    assert settings.load({}, verify=False).verify == "0"


def test_a_bad_value_names_the_nearest() -> None:
    with pytest.raises(InputError, match="strict") as caught:
        settings.load({"REDFUSER_VERIFY": "stric"})
    assert caught.value.code == "RF191" and "REDFUSER_VERIFY" in str(caught.value)
    with pytest.raises(InputError, match="RF190"):
        settings.load({}, verfy="0")


def test_a_misspelt_variable_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "redfuser.settings"):
        for _ in range(3):
            settings.load({"REDFUSER_TRAGET": "cpu"})
    assert caplog.text.count("'REDFUSER_TARGET'") == 1, "once, and not at every compile"


def test_logging_levels_by_package(monkeypatch: pytest.MonkeyPatch) -> None:
    loggers = {n: logging.getLogger(f"redfuser.{n}") for n in ("acrf", "partition", "runtime")}
    before = {n: lg.level for n, lg in loggers.items()}
    try:
        settings.configure_logging("+acrf,partition,-runtime")
        assert [lg.level for lg in loggers.values()] == [logging.DEBUG, logging.INFO, logging.ERROR]
        with pytest.raises(InputError, match="partition"):
            settings.configure_logging("partitoin")
    finally:
        for n, lg in loggers.items():
            lg.setLevel(before[n])


def test_the_docs_table_is_the_one_generated() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
    assert settings.table() in page.read_text()


def test_every_setting_is_read_by_somebody() -> None:
    """A documented variable that nobody reads is a promise nobody keeps."""
    source = "\n".join(p.read_text() for p in Path(settings.__file__).parent.rglob("*.py") if p.name != "settings.py")
    idle = [f.variable for f in settings.FIELDS if f.name not in ("cache_dir", "logs")
            and not re.search(rf"(chosen|settings\.current\(\)|\bs)\.{f.name}\b", source)]
    assert not idle
