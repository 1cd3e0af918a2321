"""Content-addressed store for what is expensive to build: kernels, and the launcher library.

An entry is one file named by its key (a SHA-256 over everything the result depends on). Its first line holds the hash of
the rest, so that damage is found on reading; writes go to a temporary name and are renamed, so a reader sees all of an
entry or none; builders of one key wait for each other through a file lock. The oldest-used entries go when the store
exceeds its cap, which a process looks at again when it has written half of what was left of it. The store lives in
``REDFUSER_CACHE_DIR``, or in the platform's cache directory for users.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger("redfuser.cache")

DEFAULT_MAX_BYTES = 4 << 30
_LOCK_WAIT_S = 600.0
_KEY = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = re.compile(r"\.tmp-\w{8}")
_left: dict[tuple[Path, int], int] = {}
"""By root and cap, bytes that this process may write before it looks at the whole store again: thousands of small entries take
a third of a second to look at."""
_told: set[tuple[Path, int | None]] = set()
"""Roots that cannot be written, with the system's reason: said once in a process, and not of every entry."""


def default_root() -> Path:
    """``REDFUSER_CACHE_DIR``, or the user's cache directory on this platform."""
    from redfuser import settings

    return settings.current().cache_dir


def key_of(*parts: Any) -> str:
    """The key of JSON-like parts: equal parts give equal keys in every process."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode("utf-8")).hexdigest()


class Cache:
    """``max_bytes`` caps the store's size. A root that cannot be written makes every lookup a miss and every store a
    no-op, with one warning: a read-only machine still compiles."""

    def __init__(self, root: Path | str | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.max_bytes = max_bytes
        self.hits = self.misses = self.damaged = 0

    def path(self, key: str) -> Path:
        return self.root / "v1" / key[:2] / key

    def get(self, key: str) -> bytes | None:
        """The entry's bytes, or None. A damaged entry is removed, counted and reported as RF608: the caller rebuilds."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            self.misses += 1
            return None
        digest, separator, payload = data.partition(b"\n")
        if not separator or digest.decode("ascii", "replace") != hashlib.sha256(payload).hexdigest():
            self.drop(key)
            self.misses += 1
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        self.hits += 1
        return payload

    def drop(self, key: str) -> None:
        """Remove a damaged entry."""
        logger.warning("%s cache entry %s was damaged and will be rebuilt", "RF608", key[:12])
        self.damaged += 1
        self.remove(key)

    def remove(self, key: str) -> bool:
        """Remove an entry; whether it is gone now and was there before."""
        try:
            self.path(key).unlink()
        except OSError:
            return False
        return True

    def put(self, key: str, payload: bytes) -> None:
        """Store atomically, and evict down to the cap where that may have been reached."""
        path = self.path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(hashlib.sha256(payload).hexdigest().encode("ascii") + b"\n" + payload)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            level = logging.DEBUG if (self.root, error.errno) in _told else logging.WARNING
            _told.add((self.root, error.errno))
            logger.log(level, "%s the cache at %s cannot be written (%s); continuing without it", "RF607", self.root, error)
            return
        self._evict(path, len(payload) + 65)

    def get_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        """The entry, built once even when several processes ask at the same time."""
        found = self.get(key)
        if found is not None:
            return found
        with self.lock(key):
            found = self.get(key)
            if found is None:
                found = build()
                self.put(key, found)
        return found

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the key against other processes. Without a writable root, or when a holder takes longer than any build
        may, go on without it: the worst case is building twice."""
        try:
            import filelock

            path = self.root / "locks" / f"{key}.lock"
            path.parent.mkdir(parents=True, exist_ok=True)
            held = filelock.FileLock(str(path), timeout=_LOCK_WAIT_S)
            held.acquire()
        except (ImportError, OSError, TimeoutError) as error:  # filelock.Timeout is a TimeoutError
            logger.debug("building %s without a lock: %s", key[:12], error)
            yield
            return
        try:
            yield
        finally:
            held.release()

    def entries(self) -> list[tuple[Path, int, float]]:
        """``(path, bytes, time last used)`` of every entry, oldest first. What else lies in the folder is not ours."""
        found = []
        for path in (self.root / "v1").glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(OSError):
                info = path.lstat()
                if not stat.S_ISREG(info.st_mode):
                    continue
                if _KEY.fullmatch(path.name) and path.name[:2] == path.parent.name:
                    found.append((path, info.st_size, info.st_mtime))
                elif _UNFINISHED.fullmatch(path.name) and time.time() - info.st_mtime > 3600:
                    path.unlink()  # left by a process that died while writing
        return sorted(found, key=lambda entry: entry[2])

    def size(self) -> int:
        """Bytes in the store."""
        return sum(size for _, size, _ in self.entries())

    def clear(self) -> int:
        """Remove every entry; returns how many."""
        return sum(self.remove(path.name) for path, _, _ in self.entries())

    def _evict(self, keep: Path, written: int) -> None:
        at = self.root, self.max_bytes
        _left[at] = _left.get(at, 0) - written
        if _left[at] > 0:
            return
        entries = self.entries()
        excess = sum(size for _, size, _ in entries) - self.max_bytes
        for path, size, _ in entries:
            if excess <= 0:
                break
            if path != keep:
                with contextlib.suppress(OSError):
                    path.unlink()
                    excess -= size
        _left[at] = -excess // 2
