"""Hold every distinct fusion against its certificate, once: what a compile trusts was checked by code that shares nothing
with the deriver (:mod:`redfuser.acrf.verify`), by this process or by an earlier one.

A verdict is remembered in the store under a key over everything it depends on: the fusion itself, node by node with every
dtype (cascade, producers, state, post, certificate with its cast policy), the checker's own source text, and the versions
of what it computes with. Only "holds" is remembered: a violation is our bug and is found again by every compile.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from redfuser.cache import Cache, key_of
from redfuser.errors import InternalError
from redfuser.report import Reason

Origin = Literal["now", "cache", "off"]
HOLDS = b"holds"
_LOADED = time.time()
"""When this process read the sources. One that changed since is not the one that runs, and names no verdict."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker says of one fusion: ``violations`` (none: it holds), and whether it was asked ``now``, earlier
    (``cache``) or not at all (``off``). ``seconds``: what asking took."""

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


def recheck(regions: Iterable[Any], policy: str = "1", cache: Cache | None = None) -> dict[str, Verdict]:
    """A verdict per distinct fusion, by the regions' ``key``.

    policy: the setting ``verify``. ``0`` asks nobody. ``strict`` raises InternalError RF901 for the first that does not
    hold (not for RF215: there is nothing to prove about such a program); otherwise that is a warning, and the caller keeps
    such a region unfused (:func:`refused`)."""
    verdicts: dict[str, Verdict] = {}
    store = cache if cache is not None else Cache()
    for region in regions:
        if region.key in verdicts:
            continue
        verdict = Verdict("off") if policy == "0" else examine(region.fused, store)
        verdicts[region.key] = verdict
        if (reason := refused(verdict)) is not None:
            what = f"the certificate of {region.name} does not hold"
            if policy == "strict" and reason.code == "RF901":
                raise InternalError("RF901", what, why=reason.why, help=reason.help)
            warnings.warn(f"{reason.code} {what}: it stays unfused, and so does every cascade equal to it. {reason.why}",
                          RuntimeWarning, stacklevel=2)
    return verdicts


def refused(verdict: Verdict) -> Reason | None:
    """Why a region with this verdict stays unfused; None when nothing speaks against it."""
    if verdict.holds:
        return None
    return unprovable(verdict.violations) or Reason(
        "RF901", condition="its certificate holds", why="; ".join(verdict.violations[:3]),
        help="this is a defect of RedFuser: please report the cascade that `explain` prints")


def unprovable(violations: Sequence[str]) -> Reason | None:
    """Nothing contradicts the fusion, but the program's own results are NaN or infinite wherever one looks."""
    if not violations or not all(v.startswith("samples:") for v in violations):
        return None
    return Reason("RF215", condition="the program's results are defined on some inputs", why=violations[0],
                  help="look for a constant that makes every result NaN or infinite (x / 0.0, x * inf, nan), or an empty axis")


def examine(fused: Any, store: Cache) -> Verdict:
    """The verdict on one fusion: remembered, or found now and remembered if it holds."""
    from redfuser.acrf import verify

    checker = checker_digest()
    key = key_of("certificate", checker, content(fused)) if checker else ""
    if key and store.get(key) == HOLDS:
        return Verdict("cache")
    started = time.perf_counter()
    found = verify.check(fused)
    seconds = time.perf_counter() - started
    if key and not found:
        store.put(key, HOLDS)
    return Verdict("now", tuple(found), seconds)


def content(x: Any) -> Any:
    """Everything that ``==`` compares in a fusion, as JSON-like data, spelt so that values which Python calls equal stay
    apart (``0.0``, ``-0.0``, ``0`` and ``False``). Source lines are no part of it."""
    if is_dataclass(x):
        return [type(x).__name__, *(content(getattr(x, f.name)) for f in fields(x) if f.compare)]
    if isinstance(x, (tuple, list)):
        return [content(v) for v in x]
    return x if isinstance(x, str) else f"{type(x).__name__} {x!r}"


def checker_digest() -> str:
    """A digest of the code that decides and of what it computes with; empty where that cannot be named (no sources, or
    sources that changed while this process ran): then nothing is remembered."""
    import redfuser.acrf
    import redfuser.rule

    sources = sorted(Path(p) for folder in redfuser.acrf.__path__ for p in Path(folder).glob("*.py"))
    sources.append(Path(redfuser.rule.__file__))
    try:
        states = tuple((str(p), os.stat(p).st_mtime_ns, os.stat(p).st_size) for p in sources)
    except OSError:
        return ""
    if not states or max(mtime for _, mtime, _ in states) > _LOADED * 1e9:
        return ""
    return _digest(states)


@lru_cache(maxsize=4)
def _digest(states: tuple[tuple[str, int, int], ...]) -> str:
    """The whole of redfuser.acrf, and the rule: the checker's modules and what a fusion is made of. More than it needs, so
    never less."""
    digest = hashlib.sha256(f"python {platform.python_version()} {platform.machine()}\n".encode())
    for package in ("numpy", "mpmath", "ml_dtypes"):
        digest.update(f"{package} {metadata.version(package)}\n".encode())
    for path, _, _ in states:
        text = Path(path).read_bytes()
        digest.update(f"{Path(path).name} {len(text)}\n".encode() + text)
    return digest.hexdigest()
