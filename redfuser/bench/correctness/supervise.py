"""Work through a list of programs in child processes: whatever one program does to its process, the others are done.

A child says which program it begins and gives one answer for each. One that dies or stays silent beyond the limit has lost
the program it had begun; the rest of its list goes to a fresh child.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BATCH = 24
ROOT = Path(__file__).resolve().parents[3]
START_LIMIT_S = 180.0
CHILD = "redfuser.bench.correctness.child"


AS_BUILT = {"REDFUSER_VERIFY": "0"}
"""What is judged on a device is the kernel: not torch in its place, where the trial before first use finds it wrong."""


def supervise(step: str, names: Sequence[str], options: dict[str, Any], jobs: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """One answer (a dict with ``program``) per name, in the order they come. An answer of a lost program has ``lost``: what
    became of its process. ``step`` is a function of :mod:`redfuser.bench.correctness.child`."""
    waiting: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    size = max(1, min(BATCH, -(-len(names) // max(jobs, 1))))
    for start in range(0, len(names), size):
        waiting.put(list(names[start:start + size]))
    answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    children: list[subprocess.Popen[bytes]] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                try:
                    batch = waiting.get_nowait()
                except queue.Empty:
                    return
                while batch and not stop.is_set():
                    batch = _batch(step, batch, options, limit_s, answers, children, stop)
        finally:
            answers.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(jobs, waiting.qsize())))]
    for t in threads:
        t.start()
    try:
        running = len(threads)
        while running:
            answer = answers.get()
            if answer is None:
                running -= 1
            else:
                yield answer
    finally:
        stop.set()
        for child in children:
            _end(child)


def _batch(step: str, batch: list[str], options: dict[str, Any], limit_s: float, answers: Any,
           children: list[subprocess.Popen[bytes]], stop: threading.Event) -> list[str]:
    """Run one child over ``batch``; the programs it left undone, without the one it lost."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
                   **(AS_BUILT if step == "run" else {})}
    child = subprocess.Popen([sys.executable, "-m", CHILD, step, json.dumps(options)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True)
    children.append(child)
    assert child.stdin is not None and child.stdout is not None
    with contextlib.suppress(OSError):
        child.stdin.write("\n".join(batch).encode())
        child.stdin.close()
    left, begun, why = list(batch), "", ""
    silence = [START_LIMIT_S]
    for line in _lines(child, silence, stop):
        if line is None:
            why = f"no answer within {silence[0]:g} s"
            break
        if line.startswith(b"begin "):
            begun, silence[0] = line[6:].decode(), limit_s
        elif line.startswith(b"{"):
            answer = json.loads(line)
            answers.put(answer)
            left.remove(answer["program"])
            begun = ""
    _end(child)
    children.remove(child)
    if not left or stop.is_set():
        return []
    lost = begun or left[0]
    status = child.returncode
    if not (status == 0 and not begun and not why and len(left) < len(batch)):
        answers.put({"program": lost, "lost": why or f"the process ended with status {status}"})
        left.remove(lost)
    return left


def _lines(child: subprocess.Popen[bytes], limit: list[float], stop: threading.Event) -> Iterator[bytes | None]:
    """The child's lines until it ends; None when it was silent for ``limit[0]`` seconds."""
    assert child.stdout is not None
    descriptor, buffer, heard = child.stdout.fileno(), b"", time.monotonic()
    while not stop.is_set():
        if not select.select([descriptor], [], [], 1.0)[0]:
            if time.monotonic() - heard > limit[0]:
                yield None
                return
            continue
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return
        heard = time.monotonic()
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from lines


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and the compilers it started: its own session, so nothing else is in that group."""
    if child.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.2)
    if child.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
