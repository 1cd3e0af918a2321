"""The content-addressed store: damage, atomicity, the cap, two processes at once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from redfuser.cache import Cache, default_root, key_of


def test_keys() -> None:
    assert key_of("a", {"x": 1, "y": [2]}) == key_of("a", {"y": [2], "x": 1})
    assert len({key_of("a"), key_of("b"), key_of(["a"]), key_of("a", ""), key_of(1), key_of(True), key_of(1.0)}) == 7


def test_store_and_count(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.get(key_of("k")) is None
    cache.put(key_of("k"), b"payload")
    assert cache.get(key_of("k")) == b"payload" and (cache.hits, cache.misses) == (1, 1)
    assert cache.get_or_build(key_of("k"), lambda: pytest.fail("was built again")) == b"payload"
    assert cache.size() > 0 and cache.clear() == 1 and cache.get(key_of("k")) is None


@pytest.mark.parametrize("damage", [b"", b"short", b"0" * 64 + b"\npayload", None])
def test_damage_is_found_and_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None) -> None:
    cache, key = Cache(tmp_path), key_of("x")
    cache.put(key, b"payload")
    path = cache.path(key)
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    with caplog.at_level(logging.WARNING):
        assert cache.get_or_build(key, lambda: b"again") == b"again"
    assert "RF608" in caplog.text and cache.damaged == 1
    assert cache.get(key) == b"again"


def test_oldest_used_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=3 * 1065)
    keys = [key_of(i) for i in range(4)]
    for age, key in enumerate(keys[:3]):
        cache.put(key, bytes(1000))
        os.utime(cache.path(key), (age, age))
    assert cache.get(keys[0]) is not None, "reading makes it recent"
    cache.put(keys[3], bytes(1000))
    assert [cache.get(key) is not None for key in keys] == [True, False, True, True]


def test_the_store_is_looked_at_seldom_and_keeps_to_its_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    entries = Cache.entries
    monkeypatch.setattr(Cache, "entries", lambda self: looked.append(1) or entries(self))
    for i in range(200):
        Cache(tmp_path, max_bytes=100 * 165).put(key_of(i), bytes(100))  # an object for each, as callers have
        if i == 89:
            assert len(looked) < 12
    assert sum(size for _, size, _ in entries(Cache(tmp_path))) <= 100 * 165


def test_an_unwritable_root_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    with caplog.at_level(logging.WARNING):
        assert cache.get_or_build(key_of("x"), lambda: b"built") == b"built"
        cache.put(key_of("y"), b"more")
        Cache(cache.root).put(key_of("z"), b"and more")
    assert caplog.text.count("RF607") == 1, "once, and not of every entry"


def test_failed_builds_leave_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(ValueError, match="no"):
        cache.get_or_build(key_of("x"), lambda: (_ for _ in ()).throw(ValueError("no")))
    assert cache.entries() == []
    assert cache.get_or_build(key_of("x"), lambda: b"yes") == b"yes", "and the lock is free"


BUILDER = '''
import pathlib, sys, time
from redfuser.cache import Cache, key_of
log = pathlib.Path(sys.argv[2])
def build():
    with log.open("a") as file:
        file.write("built\\n")
    time.sleep(0.5)
    return b"result" * 1000
assert Cache(sys.argv[1]).get_or_build(key_of("shared"), build) == b"result" * 1000
'''


def test_two_processes_build_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "cache"), str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    running = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "built\n"


def test_the_default_root_follows_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))
    assert default_root() == tmp_path == Cache().root
