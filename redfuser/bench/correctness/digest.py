"""What a result depends on, as digests of source text: which programs to build again, and whether a table is older than the
code it speaks of. Content alone counts, so a fresh clone answers alike."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from workloads.correctness import Program

ROOT = Path(__file__).resolve().parents[3]
LOWERING = ("strategies", "tensorize", "codegen", "runtime")
"""Packages of redfuser/ that turn a state into what runs; a table of correctness speaks of these."""
BESIDE = ("bench", "cli", "demo.py", "doctor.py", "describe.py")
"""Parts of redfuser/ that no build depends on."""


def lowering() -> str:
    """The digest a table carries; a test compares it with the code's."""
    package = ROOT / "redfuser"
    return _digest(p for name in LOWERING for p in (package / name).rglob("*") if p.suffix in (".py", ".cc", ".h"))


@lru_cache(maxsize=1)
def _builder() -> str:
    package = ROOT / "redfuser"
    beside = {package / name for name in BESIDE}
    return _digest(p for p in package.rglob("*.py") if not beside & {p, *p.parents})


def key(program: Program, target: str) -> str:
    """What a program's artifact depends on: its family's text, its name, the whole compiler, the target."""
    module = sys.modules.get(program.fn.__module__)
    text = Path(str(module.__file__)).read_bytes() if module is not None else b""
    parts = (program.name.encode(), repr(program.ins).encode(), text, _builder().encode(), target.encode())
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n".encode() + part)
    return digest.hexdigest()[:20]


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(set(files)):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:20]
