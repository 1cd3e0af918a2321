"""The pool of compile workers: jobs with time limits, in parallel, surviving whatever a candidate does.

A worker that crashes, hangs or answers nonsense is killed with its compilers and replaced. A job whose worker died is given
to a fresh one once, since a kill from outside must not decide which kernel is built; after that it becomes a
:class:`BuildFailure`, a value. Workers are separate processes, so it does not matter what the parent has imported.
"""

from __future__ import annotations

import atexit
import base64
import itertools
import logging
import os
import queue
import re
import signal
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from redfuser.child import Child, Died, environment
from redfuser.codegen.toolchain import find_nvcc
from redfuser.errors import BuildError

logger = logging.getLogger("redfuser.codegen")

START_LIMIT_S = 120.0
DEFAULT_LIMIT_S = 120.0

_CODE_OF_STAGE = {"source": "RF451", "lower": "RF452", "metadata": "RF457", "resources": "RF456", "nvcc": "RF453",
                  "timeout": "RF454", "crash": "RF455", "start": "RF458", "binary": "RF460", "waits": "RF463"}
_OF_ITSELF = {str(-s.value) for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)}


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate. ``pass_configs`` are TileLang's; ``flags`` go to nvcc. ``shared_limit`` (bytes of dynamic shared
    memory) and ``declared`` (names: inputs and workspaces, outputs) let a worker stop before nvcc runs. ``limit_s`` is
    wall-clock seconds."""

    source: str
    arch: str
    pass_configs: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    shared_limit: int | None = None
    declared: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    limit_s: float = DEFAULT_LIMIT_S


@dataclass(frozen=True, slots=True)
class Built:
    """What a worker made: launch data, cubins, CUDA text, the compiler's log, seconds per step."""

    launches: tuple[dict[str, Any], ...]
    cubins: tuple[bytes, ...]
    cuda: tuple[str, ...]
    log: str
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """A candidate that did not build: a value, which a tuner skips. ``stage`` is source, lower, metadata, resources,
    nvcc, binary, waits, timeout, crash or start."""

    code: str
    stage: str
    message: str
    log: str = field(repr=False, default="")
    source: str = field(repr=False, default="")

    @property
    def lasting(self) -> bool:
        """Whether the same build would fail again: not where time, memory, disk or somebody's signal ended it."""
        if self.stage == "crash":
            ends = set(re.findall(r"status (-?\w+)", self.message))
            return bool(ends) and ends <= _OF_ITSELF
        transient = ("No space left", "out of memory", "Out of memory", "MemoryError", "Cannot allocate memory",
                     "Permission denied", "Too many open files", "Resource temporarily unavailable", "Read-only file system",
                     "Disk quota exceeded", "File too large", "No usable temporary directory", "No such file or directory",
                     "command not found", "nvcc fatal", "unsupported GNU version", "Input/output error")
        said, stages = self.message + self.log, ("source", "lower", "metadata", "resources", "nvcc", "waits")
        return self.stage in stages and not any(t in said for t in transient)

    def to_error(self, name: str = "") -> BuildFailureError:
        return BuildFailureError(self, name)


class BuildFailureError(BuildError):
    """The failure raised, for callers that have no other candidate; ``.failure`` holds the log and the source."""

    def __init__(self, failure: BuildFailure, name: str = "") -> None:
        self.failure = failure
        tail = "\n".join(failure.log.strip().splitlines()[-8:])
        super().__init__(failure.code, f"kernel {name or '?'} did not build at stage {failure.stage}",
                         why=failure.message + (f"\n{tail}" if tail and failure.message not in tail else ""),
                         help="the generated source and the whole log are on the error's .failure")


def worker_environment() -> dict[str, str]:
    """The parent's, minus what would point a worker at apache-tvm's libraries."""
    return {"OMP_NUM_THREADS": "1"} | environment(without=("TVM_HOME", "TVM_LIBRARY_PATH"))


class Worker:
    """One worker process, started on first use and again after it dies. Not thread-safe: one owner at a time."""

    def __init__(self) -> None:
        self._child = Child("redfuser.codegen.worker")
        self._ids = itertools.count()
        self.stop = self._child.stop

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def run(self, job: Job) -> Built | BuildFailure:
        """Compile; never raises for what a candidate does. Raises :class:`BuildError` RF450 without nvcc."""
        found = self._attempt(job)
        if isinstance(found, Built) or not (found.stage == "crash" or found.message.startswith("Died")):
            return found
        logger.warning("%s %s; the same candidate is tried once more", found.code, found.message)
        again = self._attempt(job)
        if isinstance(again, Built) or again.stage not in ("crash", "start"):
            return again
        return replace(again, message=f"twice: {found.message}; {again.message}")

    def _attempt(self, job: Job) -> Built | BuildFailure:
        nvcc = find_nvcc()
        started = self._ensure_started()
        if started is not None:
            return BuildFailure(_CODE_OF_STAGE["start"], "start", started, self._child.said(), job.source)
        request: dict[str, Any] = {"id": next(self._ids), "source": job.source, "arch": job.arch, "flags": list(job.flags),
                   "pass_configs": dict(job.pass_configs), "nvcc": {**asdict(nvcc), "environment": nvcc.environment},
                   "shared_limit": job.shared_limit, "limit_s": job.limit_s, "declared": None}
        if job.declared is not None:
            request["declared"] = {"inputs": list(job.declared[0]), "outputs": list(job.declared[1])}
        try:
            self._child.send(request)
            answer = self._child.receive(job.limit_s)
            while answer.get("id") != request["id"]:  # cannot happen unless a library wrote to our channel
                answer = self._child.receive(job.limit_s)
            return _read(answer, job)
        except TimeoutError:
            self.stop()
            return self._failure("timeout", f"no answer within {job.limit_s:g} s", job)
        except (Died, OSError, ValueError, KeyError, TypeError) as error:
            status = self._child.status
            self.stop()
            return self._failure("crash", f"the worker died ({error or f'status {status}'})", job)

    def _failure(self, stage: str, message: str, job: Job) -> BuildFailure:
        return BuildFailure(_CODE_OF_STAGE[stage], stage, message, self._child.said(), job.source)

    def _ensure_started(self) -> str | None:
        """None, or why the worker could not start."""
        if self._child.running():
            return None
        self._child.start(worker_environment())
        try:
            hello = self._child.receive(START_LIMIT_S)
        except (TimeoutError, Died, OSError, ValueError) as error:
            self.stop()
            return f"{type(error).__name__}: {error}"
        if not hello.get("ready"):
            self.stop()
            return (f"tilelang cannot be imported ({hello.get('error')}); it comes with the extra that compiles: "
                    "pip install 'redfuser[compile]'")
        return None


def _read(answer: Mapping[str, Any], job: Job) -> Built | BuildFailure:
    """Raises KeyError, TypeError or ValueError for what is no answer."""
    if answer["ok"]:
        return Built(tuple(answer["launches"]), tuple(base64.b64decode(c) for c in answer["cubins"]),
                     tuple(answer["cuda"]), answer["log"], answer["seconds"])
    return BuildFailure(_CODE_OF_STAGE[answer["stage"]], answer["stage"], answer["error"], answer["log"], job.source)


class Pool:
    """``workers`` processes (default: one per core this process may use). Thread-safe."""

    def __init__(self, workers: int | None = None) -> None:
        self.size = max(1, workers if workers is not None else len(os.sched_getaffinity(0)))
        self._idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        self._workers = [Worker() for _ in range(self.size)]
        for worker in self._workers:
            self._idle.put(worker)

    def compile(self, job: Job) -> Built | BuildFailure:
        """Run one job on an idle worker; waits for one."""
        worker = self._idle.get()
        try:
            return worker.run(job)
        finally:
            self._idle.put(worker)

    def map(self, jobs: Iterable[Job]) -> list[Built | BuildFailure]:
        """Run all jobs, as many at a time as there are workers; answers in the jobs' order."""
        waiting = list(jobs)
        if len(waiting) <= 1:
            return [self.compile(job) for job in waiting]
        with ThreadPoolExecutor(min(self.size, len(waiting))) as threads:
            return list(threads.map(self.compile, waiting))

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_default: tuple[int, Pool] | None = None
_default_lock = threading.Lock()


def default_pool() -> Pool:
    """The process's own pool, made on first use; a forked child makes its own."""
    global _default
    with _default_lock:
        if _default is None or _default[0] != os.getpid():
            pool = Pool()
            _default = (os.getpid(), pool)
            atexit.register(_close_if_owner, os.getpid(), pool)
        return _default[1]


def _close_if_owner(pid: int, pool: Pool) -> None:
    if os.getpid() == pid:
        pool.close()
