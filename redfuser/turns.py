"""One thread at a time thinks; while it waits for a compiler, another may.

torch.export, apache-tvm and our own stages are not made for two threads at once (torch.export dies), and under one
interpreter lock they would gain nothing from it. Compilers run in processes of their own: those overlap. So every compile
holds the process's one turn, and gives it up around what only waits.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext


class _Turn:
    """A lock that its holder may give up from any depth; ``mine.depth`` counts how often this thread has taken it."""

    def __init__(self) -> None:
        self.lock, self.mine = threading.Lock(), threading.local()


_turn = _Turn()


def _fresh() -> None:
    global _turn
    _turn = _Turn()


os.register_at_fork(after_in_child=_fresh)  # whoever held it is not in the child


@contextmanager
def _frozen() -> Iterator[None]:
    """What is there already is kept from the collector of cycles meanwhile: it would walk all of torch and of the model, .2 s
    each time, for what a compile makes. Where somebody has frozen something, it is theirs to undo."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def taken() -> Iterator[None]:
    """Hold the turn; a thread that holds it already goes on."""
    turn = _turn
    depth = getattr(turn.mine, "depth", 0)
    if not depth:
        turn.lock.acquire()
    turn.mine.depth = depth + 1
    try:
        with nullcontext() if depth else _frozen():
            yield
    finally:
        turn.mine.depth = depth
        if not depth:
            turn.lock.release()


@contextmanager
def given_up() -> Iterator[None]:
    """Let others have the turn meanwhile; for a thread that does not hold it, nothing."""
    turn = _turn
    depth = getattr(turn.mine, "depth", 0)
    if not depth:
        yield
        return
    turn.mine.depth = 0
    turn.lock.release()
    try:
        yield
    finally:
        turn.lock.acquire()
        turn.mine.depth = depth


def passed_on() -> None:
    """Let whoever waits for the turn have it once: a lock that is released and taken again at once goes to nobody else."""
    with given_up():
        time.sleep(0.001)
