"""What a result depends on, as digests of source text: which programs to build again, and whether a table is older than the
code it speaks of. Content alone counts, so a fresh clone answers alike."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from workloads.correctness import Program

ROOT = Path(__file__).resolve().parents[3]
LOWERING = ("strategies", "tensorize", "codegen", "runtime")
"""Packages of redfuser/ that turn a state into what runs; a table of correctness speaks of these."""
CHECKS = ("acrf", "chain", "strategies", "tensorize", "gate.py", "rule.py", "unseen.py", "places.py", "tvm_compat.py",
          "codegen/machine_code.py")
"""What decides whether a kernel is built at all."""
COMPILER = ("codegen/build.py", "codegen/overlap.py", "codegen/pool.py", "codegen/reread.py", "codegen/toolchain.py",
            "codegen/worker.py", "elf.py")
"""What makes a binary of a text: options of the compilers are in no text."""
RUNTIME = ("runtime", "artifact.py")
"""What loads and launches kernels."""
BESIDE = ("bench", "cli", "demo.py", "doctor.py", "describe.py")
"""Parts of redfuser/ that no build depends on."""


def lowering() -> str:
    """The digest a table carries; a test compares it with the code's."""
    return _some(LOWERING)


def checks() -> str:
    """Under one digest, a kernel of one text is accepted or rejected alike."""
    return _some(CHECKS)


def compiler() -> str:
    """Under one digest, and of one version of TileLang, one text gives one binary."""
    return _some(COMPILER)


def runtime() -> str:
    """Of the code around the kernels; a row speaks of it as well."""
    return _some(RUNTIME)


def runs(done: Any, target: str) -> str:
    """What a compilation would run, without its binaries: the outer graph's text and that of every kernel in it, whatever
    profilers call it."""
    from redfuser import outer
    from redfuser.doctor import installed

    kept = [r for r in done.partition.parts if done.produced[r.name].reason is None]
    names = {r.name: done.produced[r.name].name for r in kept}
    stages = {done.produced[r.name].name: done.produced[r.name].stages for r in kept}
    symbols = {done.produced[r.name].name: r.symbol for r in reversed(kept)}
    texts = {name: re.sub(rf"\b{symbols[name]}(?=\b|_)", "cascade", found.get("source") or found.get("tir", ""))
             for name, found in stages.items()}
    parts = [target, installed().get("tilelang", ""), outer.emit(done.imported, kept, names).source,
             *(part for item in sorted(texts.items()) for part in item)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n{part}".encode())
    return digest.hexdigest()[:20]


def ran(artifact: Path) -> str:
    """What an artifact runs, byte for byte: its graph, and every kernel's binary and launches. Empty where there is none."""
    if not artifact.exists():
        return ""
    with zipfile.ZipFile(io.BytesIO(gzip.decompress(artifact.read_bytes()))) as files:
        parts = [(n, files.read(n)) for n in sorted(files.namelist()) if n == "graph.py" or (
            n.startswith("kernels/") and not n.endswith("source.txt"))]
    digest = hashlib.sha256()
    for name, data in parts:
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:20]


@lru_cache(maxsize=4)
def _some(names: tuple[str, ...]) -> str:
    package = ROOT / "redfuser"
    files = [p for name in names for p in ((package / name).rglob("*") if (package / name).is_dir() else [package / name])]
    return _digest(p for p in files if p.suffix in (".py", ".cc", ".h"))


@lru_cache(maxsize=1)
def _builder() -> str:
    package = ROOT / "redfuser"
    beside = {package / name for name in BESIDE}
    return _digest(p for p in package.rglob("*.py") if not beside & {p, *p.parents})


def key(program: Program, target: str) -> str:
    """What a program's artifact depends on: its family's text, its name, the whole compiler, the target."""
    module = sys.modules.get(program.fn.__module__)
    text = Path(str(module.__file__)).read_bytes() if module is not None else b""
    parts = (program.name.encode(), repr((program.ins, program.roles)).encode(), text, _builder().encode(), target.encode())
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
