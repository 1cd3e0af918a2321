"""A process of ours that answers a line of JSON with a line of JSON: started when it is first needed, heard for so long and no
longer, and ended together with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TextIO

ANSWER_BYTES = 256 << 20
"""The longest answer that is read."""
STDERR_BYTES = 16 << 20
"""What libraries may have printed before it is forgotten."""


class Died(Exception):
    """The process ended where an answer was waited for."""


def environment(without: Collection[str] = (), **more: str) -> dict[str, str]:
    """The parent's variables, so that the child finds the same packages."""
    found = {k: v for k, v in os.environ.items() if k != "PYTHONSTARTUP" and k not in without}
    root = str(Path(__file__).resolve().parents[1])
    found["PYTHONPATH"] = os.pathsep.join([root, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)])
    return found | more


def private_stdout() -> TextIO:
    """In such a process: its answers' channel. Whatever a library prints goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return channel


class Child:
    """``python -m module``, with requests on its standard input and answers on its standard output. Not thread-safe."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: Any = None
        self._buffer = b""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs, or before it was started."""
        return None if self._process is None else self._process.poll()

    def running(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        if self._stderr is not None and os.fstat(self._stderr.fileno()).st_size > STDERR_BYTES:
            self._stderr.truncate(0)
        return True

    def start(self, environment: Mapping[str, str], quiet: bool = True) -> None:
        """quiet: keep what it prints to standard error for :meth:`said`."""
        self.stop()
        if self._stderr is not None:
            self._stderr.close()
        self._stderr = tempfile.TemporaryFile() if quiet else None  # noqa: SIM115 (lives as long as the process)
        if self._stderr is not None:
            weakref.finalize(self, self._stderr.close)
        self._buffer = b""
        self._process = subprocess.Popen([sys.executable, "-m", self.module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=self._stderr, env=dict(environment), start_new_session=True)

    def send(self, request: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode("utf-8") + b"\n")
        self._process.stdin.flush()

    def receive(self, limit_s: float = float("inf")) -> dict[str, Any]:
        """The next answer. Raises TimeoutError after ``limit_s`` seconds, Died, and ValueError for what is no answer."""
        assert self._process is not None and self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if not select.select([descriptor], [], [], min(left, 1.0))[0]:
                continue
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(5)
                raise Died(f"status {self._process.poll()}")
            self._buffer += chunk
            if len(self._buffer) > ANSWER_BYTES:
                raise ValueError(f"an answer of more than {ANSWER_BYTES} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError("not an answer")
        return answer

    def said(self, limit: int = 8000) -> str:
        """The end of what it printed to standard error."""
        if self._stderr is None or self._stderr.closed:
            return ""
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, end - limit))
        return str(self._stderr.read().decode("utf-8", "replace"))

    def stop(self) -> None:
        """End the process and what it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session: nothing else is in this group
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
