"""Device facts: what the resource model of tiling and the build need to know about an architecture.

Numbers are the vendors' published limits; nothing here asks a device, so kernels for any of these can be planned and
compiled on a machine without a GPU.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from redfuser.errors import InputError


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture.

    sms: multiprocessors (compute units) of the reference part named in ``part``. shared_bytes: most shared memory
    (LDS) one block may use. shared_sm_bytes: shared memory of a multiprocessor. registers: 32-bit registers of a
    multiprocessor. warp: lanes. bandwidth: bytes/s of device memory. flops: dense fp16 peak, 1/s. wgmma: warp-group
    matrix instructions; tma: tensor-map copies and automatic warp specialisation. bf16_gemm, fp8_gemm: matrix units
    for these operand types.
    """

    arch: str
    kind: str
    part: str
    sms: int
    shared_bytes: int
    shared_sm_bytes: int
    registers: int
    warp: int
    max_threads: int
    bandwidth: float
    flops: float
    wgmma: bool = False
    tma: bool = False
    bf16_gemm: bool = True
    fp8_gemm: bool = False


TARGETS: dict[str, Target] = {
    t.arch: t
    for t in (
        Target("sm_80", "cuda", "A100", 108, 163 * 1024, 164 * 1024, 65536, 32, 2048, 2.0e12, 312e12),
        Target("sm_86", "cuda", "A10", 72, 99 * 1024, 100 * 1024, 65536, 32, 1536, 0.6e12, 125e12),
        Target("sm_90a", "cuda", "H200", 132, 227 * 1024, 228 * 1024, 65536, 32, 2048, 4.65e12, 790e12, True, True, True, True),
        Target("gfx942", "hip", "MI300X", 304, 64 * 1024, 64 * 1024, 131072, 64, 2048, 5.3e12, 1300e12, fp8_gemm=True),
    )
}


def target(arch: str) -> Target:
    """The facts of ``arch`` (``sm_90`` means ``sm_90a``). Raises InputError RF496 for an architecture not in the table."""
    found = TARGETS.get("sm_90a" if arch == "sm_90" else arch)
    if found is None:
        raise InputError("RF496", f"unknown target architecture {arch!r}", help=f"one of: {', '.join(TARGETS)}")
    return found


_CPU_LEVELS = (("x86-64-v4", {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"}),
               ("x86-64-v3", {"avx2", "fma", "f16c", "bmi2"}), ("x86-64-v2", {"sse4_2", "ssse3", "popcnt"}))


@lru_cache(maxsize=1)
def cpu_levels() -> tuple[str, ...]:
    """Architectures of CPU kernels that this machine runs, best first: x86-64 levels, or ``generic`` elsewhere. A kernel
    is built for the first, and its ``arch`` says so."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ("generic",)
    try:
        flags = set(re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[0].split())
    except (OSError, IndexError):
        flags = set()
    return (*(level for level, needs in _CPU_LEVELS if needs <= flags), "x86-64")
