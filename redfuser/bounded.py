"""Run a compiler whose output may be of any length."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence

LOG_BYTES = 1 << 18
"""Of what a compiler says, so much of the beginning and so much of the end is kept."""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None, limit_s: float = 600.0) -> tuple[int, str]:
    """Exit status (negative: the signal that ended it; it is killed after ``limit_s`` seconds) and output (stdout and stderr
    as they came), of which a few times :data:`LOG_BYTES` are held however much there is."""
    head, tail, dropped, deadline = b"", b"", 0, time.monotonic() + limit_s
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=None if environment is None else dict(environment)) as process:
        assert process.stdout is not None
        while True:
            if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                process.kill()
                tail += f"\n... killed after {limit_s:g} s ...\n".encode()
                break
            if not (chunk := os.read(process.stdout.fileno(), 1 << 16)):
                break
            room = LOG_BYTES - len(head)
            head, tail = head + chunk[:room], tail + chunk[room:]
            if len(tail) > 2 * LOG_BYTES:
                dropped += len(tail) - LOG_BYTES
                tail = tail[-LOG_BYTES:]
    between = f"\n... {dropped} bytes left out ...\n".encode() if dropped else b""
    return process.returncode, (head + between + tail).decode("utf-8", "replace")


def cut(text: str) -> str:
    """A text of any origin, to the same length."""
    return text if len(text) <= 2 * LOG_BYTES else f"{text[:LOG_BYTES]}\n... cut ...\n{text[-LOG_BYTES:]}"
