"""Which record speaks of a kernel: the first of explicit > project > user > shipped; where none does, the model decides.

* explicit: ``REDFUSER_TUNING_RECORDS`` (or the argument), a file or a folder.
* project: ``redfuser-tuning/`` in the working directory, or in a folder above it as far as the project's (the first that has a
  ``pyproject.toml`` or a ``.git``). It belongs under version control.
* user: ``tuning/`` in the store (``REDFUSER_CACHE_DIR``), where ``redfuser tune`` writes.
* shipped: with the package.

One of another part is never used; the report tells that it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redfuser.acrf.state import Fused
from redfuser.autotune import records
from redfuser.autotune.device import part_for
from redfuser.autotune.records import Record
from redfuser.cache import key_of
from redfuser.errors import TuningError
from redfuser.reported import Measured, Note
from redfuser.settings import Settings, working_folder

PROJECT = "redfuser-tuning"
SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True, slots=True)
class Decision:
    """A record, and from where: ``shipped``, ``user`` ..."""

    record: Record
    source: str

    @property
    def by(self) -> str:
        return f"{self.source} record, {self.record.part} {self.record.date[:10]}".rstrip()

    @property
    def measured(self) -> Measured:
        r = self.record
        ms = {name: sample.ms / 1e3 for name, sample in r.times.items()}
        return Measured(ms.get("choice", 0.0), ms.get("unfused", 0.0), ms.get("model", 0.0), r.device, self.source)


@dataclass(slots=True)
class Records:
    """What is known of the kernels of one compile. ``notes`` fill as it is asked."""

    part: str
    found: dict[str, Decision] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def decision(self, fused: Fused, arch: str) -> Decision | None:
        """What a record says of ``fused``; None: nothing does."""
        name = records.key(fused, arch)
        if name not in self.found and name in self.foreign:
            note = Note(f"{fused.cascade.name}: a tuning record of {self.foreign[name]} is not used for {self.part}", "RF703")
            if note not in self.notes:
                self.notes.append(note)
        return self.found.get(name)

    def fuses(self, fused: Fused, arch: str) -> bool:
        """Was its kernel measured, and faster than its operations unfused?"""
        found = self.found.get(records.key(fused, arch))
        return found is not None and found.record.fuse


def places(chosen: Settings) -> list[tuple[str, Path]]:
    """(source, file or folder), the first the strongest. Raises TuningError RF702 for an explicit one that is not there."""
    found: list[tuple[str, Path]] = []
    if chosen.tuning_records is not None:
        if not chosen.tuning_records.exists():
            raise TuningError("RF702", f"no tuning records at {chosen.tuning_records}",
                              where=chosen.sources["tuning_records"], help="a file that `redfuser tune` wrote, or its folder")
        found.append(("explicit", chosen.tuning_records))
    project = project_folder()
    return [*found, *([("project", project)] if project is not None else []), ("user", user_folder(chosen)),
            ("shipped", SHIPPED)]


def project_folder() -> Path | None:
    """The project's folder of records, where it has one."""
    here = working_folder()
    for folder in (here, *here.parents) if here is not None else ():
        if (folder / PROJECT).is_dir():
            return folder / PROJECT
        if (folder / "pyproject.toml").exists() or (folder / ".git").exists():
            return None
    return None


def user_folder(chosen: Settings) -> Path:
    return chosen.cache_dir / "tuning"


def look_up(chosen: Settings, arch: str, part: str = "") -> Records | None:
    """The records for a compile, or None under ``tuning="never"``. part: what it is for; default: :func:`part_for`. A file
    that is damaged is a note, of an explicit place an error. Raises TuningError RF701, RF702."""
    if chosen.tuning == "never":
        return None
    known = Records(part or part_for(arch))
    for source, place in places(chosen):
        for path in _files(place):
            try:
                read = records.read(path)
            except TuningError as error:
                if source == "explicit":
                    raise
                known.notes.append(Note(f"{error.what} ({source}): passed over", error.code, "warning"))
                continue
            for r in read:
                if r.arch != arch:
                    continue
                if r.part == known.part:
                    known.found.setdefault(r.key, Decision(r, source))
                else:
                    known.foreign.setdefault(r.key, r.part)
    return known


def state(chosen: Settings, arch: str, part: str = "") -> str:
    """A digest of everything that :func:`look_up` would answer from."""
    if chosen.tuning == "never":
        return ""
    return key_of(part or part_for(arch), [[source, path.name, path.read_bytes().hex()] for source, place in places(chosen)
                                           for path in _files(place)])


def _files(place: Path) -> Sequence[Path]:
    return sorted(_in(place)) if place.is_dir() else [place] if place.is_file() else []


def _in(folder: Path) -> Iterator[Path]:
    return (p for p in folder.glob(f"*{records.SUFFIX}") if not p.name.startswith("."))
