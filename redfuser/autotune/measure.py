"""Run a folder of candidates: each kernel by a measurer, within a time limit, one at a time on the device; what is done is
written down at once, so that an interrupt, a crash or the end of the budget leaves everything before it to be used.

A measurer answers for one kernel; the one here asks a child process (:mod:`redfuser.autotune.child`). A candidate that costs
the child its life, or does not come back, is lost: that is written down, and a fresh child goes on without it.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from redfuser import strict
from redfuser.autotune import adopt, records
from redfuser.autotune import folder as folders
from redfuser.autotune.device import here
from redfuser.autotune.folder import Event, Kernel
from redfuser.autotune.records import Record, Sample
from redfuser.child import Child, Died, environment
from redfuser.errors import TuningError

SECONDS = {"quick": 0.1, "full": 0.3}
"""Per variant and method; finalists three times that."""
START_S, SILENCE_S = 180.0, 120.0
"""What a child may take to start, and between two of its words: references in float64 of a large kernel take some."""
SPENT, PASSED_OVER = "RF709", "RF710"
LOST_MOST = 4
"""Children that one kernel may cost."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a measurer found of one kernel: samples by candidate and ``unfused``, candidates that were not timed with why, and
    why nothing was timed, where nothing was."""

    samples: dict[str, Sample] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    why: str = ""


class Measurer(Protocol):
    """Measures one kernel without the candidates in ``without``. Raises :class:`Lost` for one that costs the process."""

    def __call__(self, folder: Path, kernel: Kernel, without: Mapping[str, str], effort: str) -> Measurement: ...


class Lost(Exception):
    """A candidate (or ``timing``, of all of them) after which the measuring process was no more."""

    def __init__(self, candidate: str, why: str) -> None:
        super().__init__(why)
        self.candidate = candidate


class InChild:
    """The measurer of ``device``: a child process, kept from kernel to kernel and replaced when it is lost."""

    def __init__(self, device: str, module: str = "redfuser.autotune.child", silence_s: float = SILENCE_S) -> None:
        self.device, self.silence_s = device, silence_s
        self._child = Child(module)

    def __call__(self, folder: Path, kernel: Kernel, without: Mapping[str, str], effort: str) -> Measurement:
        begun = "start"
        try:
            if not self._child.running():
                self._child.start(environment(REDFUSER_VERIFY="0"))
                if not self._child.receive(START_S).get("ready"):
                    raise ValueError("not an answer")
            self._child.send({"region": (folders.place(folder, kernel) / folders.REGION).read_text(), "device": self.device,
                              "candidates": {c.id: str(folders.place(folder, kernel, c.id)) for c in kernel.candidates
                                             if c.id not in without}, "first": kernel.first, "seconds": SECONDS[effort]})
            while True:
                said = self._child.receive(self.silence_s)
                if "begin" in said:
                    begun = str(said["begin"])
                elif "lost" in said:
                    raise Lost(begun, str(said["lost"]))
                else:
                    return strict.read(Measurement, said["done"])
        except Lost:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise Lost(begun, f"no answer within {self.silence_s:g} s") from None
        except (Died, BrokenPipeError, ValueError, KeyError) as error:
            said_last = self._child.said(600).strip().splitlines()
            self.close()
            if begun == "start":
                raise TuningError("RF708", "the measuring process cannot start", why=(said_last or [str(error)])[-1],
                                  help="it needs torch, tvm-ffi and the GPU that the folder is for") from error
            raise Lost(begun, f"the process died ({error})") from None
        except BaseException:  # an interrupt: what the child still does is nobody's
            self.close()
            raise

    def close(self) -> None:
        self._child.stop()


def run(folder: Path, measurer: Measurer, device: str, effort: str, budget_s: float,
        tell: Callable[[str], None] = lambda text: None, machine: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic) -> Iterator[Event]:
    """Measure what of the folder was not measured on ``device`` (its driver's name), the costliest kernels first, until the
    budget is spent; an event per kernel, as it is done. What is left is told (RF709) and measured by the next run."""
    manifest = folders.read(folder)
    done = list(folders.events(folder, manifest, device))
    by = {k.key: k for k in manifest.kernels}
    finished = {e.kernel for e in done if not e.lost and (e.why or adopt.record(by[e.kernel], e, manifest) is not None)}
    waiting = sorted((k for k in manifest.kernels if k.key not in finished), key=lambda k: -k.seconds)
    until = clock() + budget_s
    for i, kernel in enumerate(waiting):
        if clock() > until:
            tell(f"{SPENT} the budget of {budget_s:g} s is spent: {len(waiting) - i} of {len(waiting)} kernels are left; run "
                 "the same command again")
            return
        tell(f"[{i + 1}/{len(waiting)}] {kernel.of}: {len(kernel.candidates)} candidates")
        lost = {e.lost: e.why for e in done if e.kernel == kernel.key and e.lost}
        yield _one(folder, kernel, measurer, device, effort, lost, tell, machine or {})


def _one(folder: Path, kernel: Kernel, measurer: Measurer, device: str, effort: str, lost: dict[str, str],
         tell: Callable[[str], None], machine: Mapping[str, str]) -> Event:
    base = Event(kernel.key, kernel.digest, device, machine=dict(machine), effort=effort)
    while True:
        left = [c for c in kernel.candidates if c.id not in lost]
        try:
            if not left or len(lost) >= LOST_MOST or "timing" in lost:
                found = Measurement(why="its candidates cost too many processes")
            else:
                found = measurer(folder, kernel, lost, effort)
        except Lost as error:
            tell(f"{PASSED_OVER} {kernel.of}: candidate {error.candidate} was lost: {error}")
            lost[error.candidate] = str(error)
            folders.append(folder, replace(base, lost=error.candidate, why=str(error), date=_now()))
            continue
        for name, why in found.wrong.items():
            tell(f"{PASSED_OVER} {kernel.of}: candidate {name} is passed over: {why}")
        event = replace(base, samples=found.samples, wrong={**lost, **found.wrong}, why=found.why, date=_now())
        folders.append(folder, event)
        return event


def for_device(arch: str) -> str:
    """The name of this machine's device that runs ``arch``. Raises TuningError RF708 where it has none."""
    found = here(arch)
    if not found:
        raise TuningError("RF708", f"nothing here runs kernels for {arch}", why="measuring needs the device itself",
                          help="`redfuser tune --measure DIR` on the machine that has it, with torch alone")
    return found


def machine() -> dict[str, str]:
    """Driver and torch, for the record."""
    import torch

    from redfuser.runtime.host import gpu_software

    found = {"torch": str(torch.__version__)}
    if not torch.cuda.is_available():
        return found
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.split("\n")[0].strip()
    except (OSError, subprocess.TimeoutExpired):
        driver = ""
    return found | gpu_software() | ({"driver": driver} if driver else {})


@contextlib.contextmanager
def alone(store: Path) -> Iterator[None]:
    """Hold this machine's device against other tuners of the same store."""
    from redfuser.cache import Cache

    with Cache(store).lock("tuning"):
        yield


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def measured(folder: Path, arch: str, effort: str, budget_s: float, store: Path, into: Path | None,
             tell: Callable[[str], None] = lambda text: None, measurer: Measurer | None = None) -> list[Record]:
    """The records of the folder, after as much was measured as ``budget_s`` seconds allow. into: a folder that gets each record
    as soon as it is made; store: what tuners of this machine wait for each other by. Raises TuningError RF708 without the
    device."""
    device = for_device(arch)
    with measurer_of(arch, measurer) as by, alone(store):
        for event in run(folder, by, device, effort, budget_s, tell, machine()):
            found = [r for r in adopt.adopted(folder)[1] if r.key == event.kernel and r.device == device]
            if into is not None:
                records.add(into, found)
            for row in adopt.table(found):
                tell(f"    model {row[2]} ms, best {row[3]}, unfused {row[4]}: {row[7]}")
            if not found:
                tell(f"    {adopt.undecided(event)}")
    return adopt.adopted(folder)[1]


@contextlib.contextmanager
def measurer_of(arch: str, given: Measurer | None = None) -> Iterator[Measurer]:
    """The one that is given, or one of this machine's device, whose process ends with it."""
    if given is not None:
        yield given
        return
    own = InChild("cpu" if arch == "cpu" else "cuda")
    try:
        yield own
    finally:
        own.close()
