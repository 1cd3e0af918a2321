"""The compile process, from the user's side: one, started with the first graph that is not in the store, kept for the next.

It is ended when this process ends or is interrupted, and replaced once when it dies under a graph: a kill from outside must
not decide whether a model is compiled. Errors come back as they were raised there.
"""

from __future__ import annotations

import atexit
import itertools
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

from redfuser import errors
from redfuser.child import Child, Died, environment
from redfuser.dynamo.options import Chosen
from redfuser.errors import BuildError, InternalError, RedFuserError


class Process:
    """One compile process. Thread-safe: a request at a time."""

    def __init__(self) -> None:
        self._child = Child("redfuser.dynamo.worker")
        self.stop = self._child.stop
        self._lock, self._ids = threading.Lock(), itertools.count()

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def compile(self, program: Any, arch: str, part: str, chosen: Chosen, name: str) -> bytes:
        """The artifact of an exported program. part: the device it is for, which the compile process does not see. Raises what
        compiling it raised, and BuildError RF136 when the process died twice."""
        with self._lock, tempfile.TemporaryDirectory(prefix="redfuser-") as folder:
            source, artifact = Path(folder, "graph.pt2"), Path(folder, "graph.rf")
            _write(program, source)
            request = {"id": next(self._ids), "program": str(source), "artifact": str(artifact), "arch": arch,
                       "casts": chosen.casts, "disable": chosen.disable, "verify": chosen.verify, "name": name,
                       "tuning": chosen.tuning, "part": part,
                       "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
                       "settings": {k: v for k, v in os.environ.items() if k.startswith("REDFUSER_")}}
            answer = self._ask(request)
            if answer["ok"]:
                return artifact.read_bytes()
            if answer.get("kind") == "InternalError":  # nobody knows what it left behind
                self.stop()
            raise _error(answer)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        ends = []
        for _ in range(2):
            try:
                return self._attempt(request)
            except (Died, OSError, ValueError) as error:
                status, said = self._child.status, self._child.said().strip()
                self.stop()
                ends.append(f"status {status}: {error or 'no answer'}" + (f"\n{said}" if said else ""))
            except BaseException:  # an interrupt: what the process still does is nobody's
                self.stop()
                raise
        raise BuildError("RF136", "the compile process died twice", why=ends[-1],
                         help="run `redfuser doctor`; memory that ran out ends it with status -9")

    def _attempt(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self._child.running():  # without a GPU, which it does not need
            self._child.start(environment(CUDA_VISIBLE_DEVICES=""), quiet=not os.environ.get("REDFUSER_LOGS"))
        self._child.send(request)
        answer = self._child.receive()
        if answer.get("id") != request["id"]:
            raise ValueError("not an answer")
        return answer


def _write(program: Any, path: Path) -> None:
    """As a file that holds no device: what is compiled is the same for all, and the compile process sees none. Score functions
    of ``flex_attention``, which a file cannot hold, are written out before."""
    from torch.export.passes import move_to_device_pass

    from redfuser.frontend.flex import written_out

    program.example_inputs = None
    if any(isinstance(v := n.meta.get("val"), torch.Tensor) and v.device.type != "cpu" for n in program.graph.nodes):
        program = move_to_device_pass(program, "cpu")
    try:
        torch.export.save(written_out(program), path)
    except Exception as error:
        raise InternalError("RF135", "the graph cannot be written for the compile process",
                            why=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
                            ) from error


def _error(answer: dict[str, Any]) -> RedFuserError:
    kind = getattr(errors, str(answer.get("kind")), InternalError)
    if not (isinstance(kind, type) and issubclass(kind, RedFuserError)):
        kind = InternalError
    said = {k: str(answer.get(k, "")) for k in ("where", "why", "help")}
    return kind(str(answer.get("code", "RF900")), str(answer.get("what", "")), **said)


_default: Process | None = None
_default_lock = threading.Lock()


def process() -> Process:
    """The process's own, made on first use; a forked child makes its own."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Process()
            atexit.register(_stop_if_owner, os.getpid(), _default)
        return _default


def _stop_if_owner(pid: int, one: Process) -> None:
    if os.getpid() == pid:
        one.stop()


def _forget() -> None:
    global _default, _default_lock
    _default, _default_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)  # the compile process is the parent's
