"""Which device a kernel is for, by the name that records use.

Parts of one architecture run the same kernels at other speeds: an H100 has 0.7 of an H200's bandwidth. So a record speaks of
its part alone. A compile for ``cuda`` is for this machine's GPU, and so is one for a named architecture where this machine has
such a GPU; otherwise it is for the part that the model of resources has in mind (:data:`redfuser.target.TARGETS`).
"""

from __future__ import annotations

import platform
import re
from functools import lru_cache
from pathlib import Path

from redfuser.target import PARTS, target


def part_of(device: str) -> str:
    """The part that a driver's name of a device means: ``NVIDIA H200`` --> ``H200``; the name itself for a part not known."""
    words = set(re.findall(r"[A-Za-z0-9]+", device))
    return next((p for p in PARTS if p in words), device)


def here(arch: str) -> str:
    """The device of this machine that runs ``arch``, as its driver names it; empty where there is none."""
    if arch == "cpu":
        return _processor()
    import torch

    if not torch.cuda.is_available():
        return ""
    from redfuser.runtime.host import gpu_architectures

    return str(torch.cuda.get_device_name()) if arch in gpu_architectures() else ""


def part_for(arch: str) -> str:
    """The part that a compile for ``arch`` on this machine is for."""
    found = here(arch)
    return part_of(found) if found else target(arch).part


@lru_cache(maxsize=1)
def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
