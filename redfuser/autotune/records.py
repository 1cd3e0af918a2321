"""Tuning records: what was measured of one kernel on one device and what was decided, as JSON that people review.

A file holds one record a line, in the order of their kernels; the same records give the same bytes. A record speaks of a
fusion on a part (``H200``), named by a key over everything that the choice is about: the cascade's canonical text with its
dtypes and extents, the state that was derived of it, and the architecture. Whatever changes one of these makes another kernel,
of which the record says nothing. What may change without that is written down instead: versions, and a digest of the text of
the kernel that was measured.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from redfuser import strict
from redfuser.acrf.state import Fused
from redfuser.cache import key_of
from redfuser.errors import TuningError
from redfuser.timing import Times

FORMAT = 1
SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to realise a fusion. config: the fields of a :class:`redfuser.tensorize.config.TileConfig`; None on the CPU,
    whose kernels have no tiles."""

    strategy: str
    splits: int = 1
    config: dict[str, Any] | None = None

    def __str__(self) -> str:
        how = self.strategy + (f" x{self.splits}" if self.splits > 1 else "")
        if self.config is None:
            return how
        from redfuser.tensorize.config import WALKS

        c = self.config
        columns = f", columns {c['columns']}" if c.get("columns") else ""
        return (f"{how}, {c.get('rows')} rows x {c.get('segment')}, {c.get('threads')} threads, {c.get('stages')} stages, "
                f"{c.get('schedule')}{columns}{WALKS.get(c.get('walk', 'all'), '')}")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one variant took, in milliseconds: per call of a CUDA graph over rotating inputs, and of one call with a cold second
    cache (on a CPU the wall clock). None: not measured so."""

    graph: Times | None = None
    events: Times | None = None

    @property
    def ms(self) -> float:
        """The median that decides."""
        found = self.graph or self.events
        return found.p50 if found is not None else float("inf")

    @property
    def rounded(self) -> Sample:
        """With five digits: more says nothing, and makes a diff longer."""
        def short(t: Times | None) -> Times | None:
            if t is None:
                return None
            p50, p20, p80 = (float(f"{ms:.5g}") for ms in (t.p50, t.p20, t.p80))
            return Times(p50, p20, p80, t.samples)

        return Sample(short(self.graph), short(self.events))


@dataclass(frozen=True, slots=True)
class Record:
    """One kernel on one device.

    of: the region and where it was met; takes: its inputs; both for people. part: the GPU as :data:`redfuser.target.PARTS`
    names it, or the CPU's name; device: as the driver says. fuse: whether the fusion runs; ``choice`` is the fastest kernel
    either way and ``model`` what the model of resources chose. times: of ``choice``, ``model`` and ``unfused``, measured in
    turns on one device. candidates: how many were timed; failed: how many were wrong, died or did not end. text: digest of the
    measured kernel's text. versions, date (UTC), command, effort: how it was made."""

    key: str
    of: str
    takes: str
    arch: str
    part: str
    device: str
    fuse: bool
    choice: Choice
    model: Choice
    times: dict[str, Sample]
    candidates: int = 0
    failed: int = 0
    text: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""
    command: str = ""
    effort: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """What there is one record of."""
        return self.key, self.part


def key(fused: Fused, arch: str) -> str:
    """What a record of ``fused`` on ``arch`` is filed under."""
    state = fused.state
    parts = (*fused.producers, *state.accumulators, *state.finalize, *fused.post)
    return key_of("tuning", FORMAT, str(replace(fused.cascade, name="_")), [str(p) for p in parts], arch)[:32]


def takes(fused: Fused) -> str:
    """The inputs of a fusion, for people: ``f16[32, 8, 512, 64], f16[8]``."""
    return ", ".join(f"{t.dtype}[{', '.join(map(str, t.shape))}]" for t in fused.cascade.inputs)


def text_of(source: str) -> str:
    """A digest of a kernel's generated text, which its name is no part of; empty where there is no text."""
    body = re.sub(r'\A"""[^"\n]*"""', "", source)
    names = [n for n in re.findall(r"^\s*def (\w+)\(", body, re.M) if n != "make"]
    for i, name in enumerate(dict.fromkeys(names)):
        body = re.sub(rf"\b{re.escape(name)}(_kernel)?\b", rf"kernel{i}\1", body)
    return key_of("text", body)[:16] if source else ""


# -- files -------------------------------------------------------------------------------------------------------------


def file_name(arch: str, part: str) -> str:
    """Where a folder keeps the records of a part: ``sm_90a-H200.json``."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{arch}-{part}").strip("-") + SUFFIX


def dumps(records: Iterable[Record]) -> str:
    """A file of records: a line each."""
    lines = [json.dumps(asdict(r), sort_keys=True) for r in sorted(records, key=lambda r: (r.of, r.place))]
    return f'{{"format": {FORMAT}, "records": [\n' + ",\n".join(lines) + "\n]}\n"


def loads(text: str, name: str) -> list[Record]:
    """Raises TuningError RF701 for what is no file of records, or of a later format."""
    try:
        data = json.loads(text)
        version = strict.whole(data["format"], 0, 1 << 31)
        if version > FORMAT:
            raise ValueError(f"format {version}, and this RedFuser reads up to {FORMAT}")
        return [strict.read(Record, x) for x in strict.items(data["records"])]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TuningError("RF701", f"{name} is not a file of tuning records", why=str(error)[:300],
                          help="`redfuser tune` writes such files; remove it, or measure again") from error


def read(path: Path) -> list[Record]:
    """Raises TuningError RF701."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TuningError("RF701", f"{path.name} cannot be read as tuning records", why=str(error)) from error
    return loads(text, path.name)


def add(folder: Path, records: Iterable[Record]) -> list[Path]:
    """Write records into a folder, over what it says of the same kernels on the same parts; the files written."""
    groups: dict[str, dict[tuple[str, str], Record]] = {}
    for r in records:
        groups.setdefault(file_name(r.arch, r.part), {})[r.place] = r
    written = []
    for name, new in sorted(groups.items()):
        path = folder / name
        known = {r.place: r for r in read(path)} if path.exists() else {}
        _write(path, dumps({**known, **new}.values()))
        written.append(path)
    return written


def _write(path: Path, text: str) -> None:
    """All of it or nothing. Raises TuningError RF702 where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise TuningError("RF702", f"tuning records cannot be written to {path.parent}", why=str(error),
                          help="name a folder that can be written") from error
