"""A folder of candidates: what ``redfuser tune --prepare`` writes, ``--measure`` runs and ``--adopt`` reads.

    DIR/manifest.json                    versions, and per kernel its candidates, what was left out and why
    DIR/kernels/KEY/region.py            the torch code that the kernel stands for
    DIR/kernels/KEY/0, 1 ...             a candidate each: description, binaries and generated text
    DIR/measured.jsonl                   a line per event of a measurement; what was measured is not measured again

It holds no weights, and the machine that measures needs nothing else but torch and this package without its compilers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from redfuser import strict
from redfuser.autotune.records import Choice, Sample
from redfuser.cache import key_of
from redfuser.errors import TuningError
from redfuser.untuned import SPILLED

FORMAT = 1
MANIFEST, MEASURED, REGION = "manifest.json", "measured.jsonl", "region.py"


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate: ``id`` is its folder. seconds: modelled, None where nothing was. own: of the model's program, in
    its order. registers (per thread), spills (bytes per thread) and shared (bytes)
    are the largest of its launches."""

    id: str
    choice: Choice
    seconds: float | None = None
    own: bool = False
    registers: int = 0
    spills: int = 0
    shared: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A distinct kernel of what was prepared. uses: calls of it in the models it is of. left: candidates that were not built or
    not kept, each with why. command: what prepared it."""

    key: str
    of: str
    takes: str
    arch: str
    uses: int
    candidates: tuple[Built, ...]
    left: tuple[str, ...] = ()
    command: str = ""

    @property
    def first(self) -> str:
        """The candidate that would be taken without a record: of the model's own program the first that keeps its registers
        (or the one that keeps most of them), else the first of all."""
        own = [c for c in self.candidates if c.own] or list(self.candidates[:1])
        return next((c.id for c in own if c.spills <= SPILLED), min(own, key=lambda c: c.spills).id)

    @property
    def seconds(self) -> float:
        """What the model gives all its calls."""
        return self.uses * (next((c.seconds for c in self.candidates if c.id == self.first), None) or 0.0)

    @property
    def digest(self) -> str:
        """What a measurement is of."""
        return key_of(self.key, [[c.id, asdict(c.choice), c.text] for c in self.candidates])[:16]


@dataclass(frozen=True, slots=True)
class Manifest:
    arch: str
    effort: str
    kernels: tuple[Kernel, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of ``measured.jsonl``: a kernel's samples by candidate (with ``unfused``), or, with ``lost``, the candidate that
    cost a process and what became of that. wrong: candidates that were not timed and why. why: nothing was timed."""

    kernel: str
    digest: str
    device: str
    samples: dict[str, Sample] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    lost: str = ""
    why: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    date: str = ""
    effort: str = ""


def place(folder: Path, kernel: Kernel, candidate: str = "") -> Path:
    """Where a kernel, or one of its candidates, lies."""
    found = folder / "kernels" / kernel.key
    return found / candidate if candidate else found


def write(folder: Path, manifest: Manifest) -> None:
    """The manifest; raises TuningError RF702 where it cannot be written."""
    data = {"format": FORMAT, **asdict(manifest)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise TuningError("RF702", f"{folder} cannot be written", why=str(error)) from error


def read(folder: Path) -> Manifest:
    """Raises TuningError RF707 for a folder that is not prepared, damaged, or of a later format."""
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if strict.whole(data["format"], 0, 1 << 31) > FORMAT:
            raise ValueError(f"format {data['format']}, and this RedFuser reads up to {FORMAT}")
        found = strict.read(Manifest, data)
        for k in found.kernels:
            if not k.candidates or not all(part.isalnum() for part in (k.key, *(c.id for c in k.candidates))):
                raise ValueError(f"kernel {k.key[:40]!r}")
        return found
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TuningError("RF707", f"{folder} is not a folder of candidates", why=str(error)[:300],
                          help="`redfuser tune MODEL --target sm_90a --prepare DIR` writes one") from error


def events(folder: Path, manifest: Manifest, device: str = "") -> Iterator[Event]:
    """What was measured there of the kernels as they are (on ``device``, where one is named); a line that was cut short by an
    interrupt is passed over."""
    digests = {k.key: k.digest for k in manifest.kernels}
    path = folder / MEASURED
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            event = strict.read(Event, json.loads(line))
        except ValueError:
            continue
        if digests.get(event.kernel) == event.digest and device in ("", event.device):
            yield event


def append(folder: Path, event: Event) -> None:
    with (folder / MEASURED).open("a", encoding="utf-8") as file:
        file.write(json.dumps({k: v for k, v in asdict(event).items() if v}, sort_keys=True) + "\n")
        file.flush()


def merged(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """One of each key, the last; the most called first."""
    return tuple({k.key: k for k in kernels}.values())
