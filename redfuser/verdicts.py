"""Verdicts of checkers, remembered: what was found right once, by code and data that have not changed since, is right.

A verdict is stored under a key over everything it depends on: what it is about, node by node with every dtype
(:func:`content`), the source text of the packages that judged it, and the versions of what they compute with. What did not
hold is remembered as what was found: whoever damages a store can take a fusion away, and give none.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from redfuser.cache import Cache, key_of

Origin = Literal["now", "cache", "off"]
HOLDS, VIOLATED = b"holds", b"violated\n"
JUDGED = ("RF901", "RF903", "RF905")
"""A check found something wrong: the certificate, the scalar program, the tile program."""
_LOADED = time.time()
"""When this process read the sources. One that changed since is not the one that runs, and names no verdict."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker says of one fusion: ``violations`` (none: it holds), and whether it was asked ``now``, earlier
    (``cache``) or not at all (``off``). ``seconds``: processor time that asking took."""

    origin: Origin
    violations: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        return not self.violations

    @property
    def words(self) -> str:
        """For the report."""
        if self.violations:
            return "violated"
        return {"now": "re-checked now", "cache": "re-checked, from cache", "off": "not re-checked"}[self.origin]


def remember(kind: str, about: Any, packages: Sequence[str], ask: Callable[[], Sequence[str]], store: Cache) -> Verdict:
    """The verdict of ``ask`` (its violations, none: it holds) on ``about``: remembered, or found now and remembered. packages:
    whose sources decide."""
    judges = digest(*packages)
    key = key_of(kind, judges, content(about)) if judges else ""
    known = store.get(key) if key else None
    if known == HOLDS:
        return Verdict("cache")
    if known and (violations := _violations(known)):
        return Verdict("cache", violations)
    started = time.process_time()
    found = tuple(ask())
    seconds = time.process_time() - started
    if key:
        store.put(key, VIOLATED + "\n".join(found).encode() if found else HOLDS)
    return Verdict("now", found, seconds)


def _violations(known: bytes) -> tuple[str, ...]:
    """What was found once, a line each; nothing of what is no such record."""
    text = known.removeprefix(VIOLATED).decode(errors="replace") if known.startswith(VIOLATED) else ""
    return tuple(line for line in text.split("\n") if line)


def content(x: Any) -> Any:
    """Everything that ``==`` compares in a fusion, as JSON-like data, spelt so that values which Python calls equal stay
    apart (``0.0``, ``-0.0``, ``0`` and ``False``). Source lines are no part of it."""
    if is_dataclass(x):
        return [type(x).__name__, *(content(getattr(x, f.name)) for f in fields(x) if f.compare)]
    if isinstance(x, (tuple, list)):
        return [content(v) for v in x]
    return x if isinstance(x, str) else f"{type(x).__name__} {x!r}"


def digest(*packages: str) -> str:
    """A digest of the code of packages and modules and of what it computes with; empty where that cannot be named (no
    sources, or sources that changed while this process ran): then nothing is remembered."""
    modules = [importlib.import_module(p) for p in packages]
    sources = {f"{m.__name__}/{p.relative_to(folder).as_posix()}": p
               for m in modules for folder in getattr(m, "__path__", ()) for p in Path(folder).rglob("*.py")}
    sources |= {m.__name__: Path(str(m.__file__)) for m in modules if not hasattr(m, "__path__")}
    try:
        states = tuple((name, str(p), os.stat(p).st_mtime_ns, os.stat(p).st_size) for name, p in sorted(sources.items()))
    except OSError:
        return ""
    if not states or max(mtime for _, _, mtime, _ in states) > _LOADED * 1e9:
        return ""
    return _digest(states)


@lru_cache(maxsize=16)
def _digest(states: tuple[tuple[str, str, int, int], ...]) -> str:
    """Whole files, named as in their packages wherever those lie: more than a verdict needs, so never less."""
    found = hashlib.sha256(f"python {platform.python_version()} {platform.machine()}\n".encode())
    for package in ("numpy", "mpmath", "ml_dtypes", "apache-tvm"):
        found.update(f"{package} {metadata.version(package)}\n".encode())
    for name, path, _, _ in states:
        text = Path(path).read_bytes()
        found.update(f"{name} {len(text)}\n".encode() + text)
    return found.hexdigest()
