"""What this machine's processor and GPU can run: architecture names, best first."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path

import torch

_X86_LEVELS: tuple[tuple[str, set[str]], ...] = (("x86-64-v4", {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"}),
               ("x86-64-v3", {"avx2", "fma", "f16c", "bmi2"}), ("x86-64-v2", {"sse4_2", "ssse3"}), ("x86-64", set()))


@functools.lru_cache(maxsize=1)
def cpu_architectures() -> tuple[str, ...]:
    """Names a CPU kernel of this processor may carry: its x86-64 levels (psABI), and ``generic`` and ``cpu``, which a
    kernel carries that was built for no level in particular."""
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64"):
        return ("generic", "cpu")
    try:
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    flags = set(found.group(1).split()) if found else set()
    return (*(level for level, needs in _X86_LEVELS if needs <= flags), "generic", "cpu")


def gpu_architectures() -> tuple[str, ...]:
    """Names of architectures whose binaries the current GPU runs: its own, then lower ones of the same generation. An
    ``a`` architecture runs nowhere but on its own. Empty without a GPU."""
    if not torch.cuda.is_available():
        return ()
    major, minor = torch.cuda.get_device_capability()
    return (f"sm_{major}{minor}a", *(f"sm_{major}{lower}" for lower in range(minor, -1, -1)))
