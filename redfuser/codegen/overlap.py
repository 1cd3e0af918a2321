"""Kernels of one call that start while the one before is at work."""

from __future__ import annotations

import re

WAIT = '  asm volatile("griddepcontrol.wait;" ::: "memory");\n'
LET_ON = '  asm volatile("griddepcontrol.launch_dependents;");\n'


def overlapped(text: str, arch: str, first: bool, last: bool) -> str:
    """A CUDA text whose kernels, but the first, start while the launch before is at work and wait for it before anything else;
    and, but the last, let the one behind them start when all their blocks have: what a launch costs passes meanwhile. (Beside
    somebody else's kernels a wait costs more than it saves.) GPUs before Hopper know no such launches. What waits may not be
    told that nobody else writes what it reads (``__restrict__``): compilers ask for such elements in front of the wait."""
    if int(re.sub(r"\D", "", arch)) < 90:
        return text
    said = WAIT * (not first) + LET_ON * (not last)
    if not first:
        text = re.sub(r"__global__ void [^;{]*\)", lambda m: m[0].replace(" __restrict__", ""), text)
    return re.sub(r"(__global__ void [^;{]*\) \{\n)", lambda m: m[1] + said, text)
