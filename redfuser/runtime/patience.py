"""Waiting for a kernel that nobody has seen end: with a limit. A kernel whose groups wait for each other never gives the device
back, and a process that synchronises with it never returns."""

from __future__ import annotations

import time

import torch

LIMIT_S = 20.0
"""Kernels in docs/results take microseconds to milliseconds: what has not ended after so long will not."""
PAUSE_S = 0.0005


class Hang(Exception):
    """What was started on the device has not ended within the limit. The device is lost to this process."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"it did not end within {limit_s:g} s")


def settle(device: torch.device) -> None:
    """Wait, however long it takes, for what torch was asked to do, so that :func:`ended` waits for what comes after it only."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ended(device: torch.device, limit_s: float | None = None) -> None:
    """Return when all that the current stream holds has ended. Raises Hang when it has not within ``limit_s`` seconds."""
    if device.type != "cuda":
        return
    limit = LIMIT_S if limit_s is None else limit_s
    stream, until = torch.cuda.current_stream(device), time.monotonic() + limit
    while not stream.query():
        if time.monotonic() > until and not stream.query():  # the process itself may have been stopped for so long
            raise Hang(limit)
        time.sleep(PAUSE_S)
