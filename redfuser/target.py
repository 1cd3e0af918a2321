"""Device facts: what the resource model of tiling and the build need to know about an architecture.

Numbers are the vendors' published limits, and for the H200 some that were measured on one; nothing here asks a device, so
kernels for any of these can be planned and compiled on a machine without a GPU. Sources:

* multiprocessors, registers, shared memory, warps and blocks of a multiprocessor, results per clock of the CUDA cores (128;
  64 on sm_80) and of the special function units (16): CUDA C++ Programming Guide, "Compute Capabilities" and "Arithmetic
  Instructions"; the A100 and H100 architecture white papers.
* A100: NVIDIA A100 80GB data sheet (312 TFLOP/s fp16, 156 tf32, 624 TOP/s int8, 2.0 TB/s, boost 1410 MHz). A10: its data
  sheet (125, 62.5, 250, 600 GB/s, boost 1695 MHz). H100 SXM, H800, H200: their data sheets (989 TFLOP/s fp16, 495 tf32,
  1979 fp8 and int8; 3.35 TB/s, 3.35 TB/s, 4.8 TB/s; boost 1980 MHz). The H800 differs from the H100 in its links and in
  double precision alone.
* H200, measured (docs/results): 4.65 TB/s read; 820 TFLOP/s fp16 and bf16 and 1400 fp8 while a product runs, of which a
  library's whole product of 4096 x 4096 gets 790 (``flops``). The H100 and the H800 get the same matrix rates, being the
  same chip; nobody has measured them here.
* L40S: its data sheet (142 multiprocessors, 362 TFLOP/s fp16, 183 tf32, 733 fp8, 864 GB/s, boost 2520 MHz). RTX 5090: NVIDIA's
  white paper of the RTX Blackwell architecture (170 multiprocessors, 209.5 fp16 with sums in fp32, 104.8 tf32, 419 fp8, 1792
  GB/s, boost 2407 MHz). B200: the data sheet of the HGX B200 (148 multiprocessors, 2250 TFLOP/s fp16, 8 TB/s, of which its
  memory's clock gives 7.7), of instructions whose sums lie in tensor memory, which no kernel here uses; those of warps
  are taken to have an A100's rate per clock, which is an assumption. Its clock is the one that its matrix rate is published
  for; the cores' boost is 1980 MHz. Compared with public tables: hmc-tech's of the L40S and the B200, Lockwood's of the B200,
  codesota's and Linux Format's of the RTX 5090, which say the same where they say anything (of the RTX 5090 nothing of tf32 and
  fp8). Nobody has measured any of these, the A100 or the A10 here.
* The second-level cache: 5120 bytes per clock of an A100 (white paper); 50 per clock and multiprocessor on Hopper, where
  neighbours ask for the same lines: what products of 4096 x 4096 in tiles of 128 x 128 draw on an H200; for the
  A10, L40S, RTX 5090 and B200 an assumption; 64 per clock of a compute unit on CDNA3 (its white paper).
* How large that is (``cache``): the data sheets and white papers above (of the B200 what its driver reports, of the MI300X its
  last-level cache).
* turn, issue, start, launch: fitted to 298 kernels on an H200 (docs/results/h200-2026-11-22-candidates and the tables of
  docs/schedules.md). latency: microbenchmarks of Hopper in the literature, loaded. local: width of
  the first-level cache's port for stores (CUDA C++ Programming Guide), as nine spilling kernels on an H200 have it. dependent:
  microbenchmarks of Volta and later in the literature.
* step, waits, ahead: fitted to routers on an H200, in graphs, 2048 rows of 768, 1024, 2048, 4096 and 8192 times 128 (64)
  experts and the best of them: one kernel takes 6.3, 7.8, 18.5 (12.5), 24.7 and (38.7) us, a library's product and a kernel
  6.8, 7.3, 10.8 (9.4), 14.8 and (17.9) (docs/results/h200-2026-11-23-families). Assumed of every other part, where a step
  takes longer as its memory does.
* MI300X: AMD Instinct MI300X data sheet (1307 TFLOP/s fp16, 163 fp32 by matrix units, 5.3 TB/s, 2100 MHz) and the CDNA3
  instruction set guide (64 lanes of a compute unit at once, transcendentals at a quarter of that, 512 registers of a lane, both
  kinds together). Its 2615 TFLOP/s of 8 bits are of AMD's own formats (``fnuz``), which no model here stores. MI325X: its data
  sheet (6.0 TB/s). MI308X: the same chip with 80 compute units; rates in proportion. MI250X: one of its two devices, from the
  data sheet (110 compute units, 383 TFLOP/s fp16, 95.7 fp32 and 3.2 TB/s of both, 1700 MHz). Nobody has measured any of them
  here.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from redfuser.errors import InputError


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture.

    sms: multiprocessors (compute units) of the reference part named in ``part``. shared_bytes: most shared memory
    (LDS) one block may use. shared_sm_bytes: shared memory of a multiprocessor. registers: 32-bit registers of a
    multiprocessor. warp: lanes. max_threads: resident threads of a multiprocessor. bandwidth: bytes/s of device memory.
    flops: dense fp16 rate, 1/s. wgmma: warp-group
    matrix instructions; tma: tensor-map copies and automatic warp specialisation. thread: registers that one thread can have.

    lead: how much faster a library's product runs than one inside a generated kernel, when bound by its operations; alone: than
    a kernel that is a product and no more, with roles (on an H200 -.03 to .02 beside what its tiles leave idle, and a margin);
    kept: than one whose tiles are written and reduced by who makes them, beside what they leave idle (with a residual and a sum
    of squares .837 ms for .850 on an H100, 16384 x 4096 x 4096, without the sum .745 for .710 on an H200).
    kernel: seconds of one more kernel that torch launches. vector: how much longer a library takes for a product with one
    vector than a kernel that walks the matrix's rows, at least (H200, 2048 x 2048 to 32000 x 4096: 1.10 to 1.96 times); 0
    where nobody has measured. broad: bytes of a tensor that meets one which is repeated beside it (a row, a scale of each row
    or channel), from which one operation is worth a kernel (H200: 2.5 us for 1.6 at 1 MB, 7.4 for 2.4 at 5, 100 for 67 at 134).

    max_blocks: resident blocks of a multiprocessor. clock: 1/s. lanes, special: results of the CUDA cores and of the special
    function units per clock of a multiprocessor. port: bytes per clock that one draws from the second-level cache.
    sector: bytes that come at least, of whatever lies apart. cache: bytes of that.
    rates: dense matrix operations per second by operand type; one that is absent is taken to them in a wider type.
    launch: seconds that one more kernel of a stream takes.
    latency: seconds from asking device memory until the data are there. turn: clocks of one turn of a loop around products
    beside the products themselves: barriers, the start of a product and the wait for it. local: bytes per clock that a
    multiprocessor's threads write to and read from spilled registers. dependent: clocks until a result can be used. banks:
    bytes per clock that its shared memory gives or takes. prefetch: the tiles of a product's next step wait in registers,
    since nothing copies ahead of a loop. singles: the matrix units multiply float32 itself, where CUDA's round it to TF32.
    issue: instructions that are issued for one that a tile program shows: addresses, conditions, moves. start: seconds until a
    block with warps that copy asks for its first data. begin: seconds from one block of a multiprocessor to the next, at least
    (an H200, rows of 128 halves: 65536 blocks 42.6 us, as many rows in 32768 34.6, as memory has them, in 262144 160).

    step: elements of a product's inner axis that a block which makes a whole row takes at a time, one step after the other.
    waits: the part of ``latency`` that each such step waits for. ahead: steps that a library's product, which shares the axis
    out among blocks, takes at once.
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
    prefetch: bool = False
    singles: bool = False
    thread: int = 255
    max_blocks: int = 32
    clock: float = 1e9
    lanes: int = 128
    special: int = 16
    port: int = 64
    sector: int = 32
    cache: int = 40 << 20
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)
    launch: float = 1e-6
    lead: float = 0.35
    alone: float = 0.05
    kept: float = 0.02
    kernel: float = 3e-6
    vector: float = 0.0
    broad: int = 1 << 20
    latency: float = 8e-7
    turn: int = 320
    local: int = 64
    dependent: int = 4
    banks: int = 128
    issue: float = 1.8
    start: float = 1.2e-6
    begin: float = 8e-8
    step: int = 128
    waits: float = 0.84
    ahead: int = 4

    @property
    def flight(self) -> float:
        """Bytes that a multiprocessor has to have asked for at any time to get its part of the bandwidth."""
        return self.bandwidth * self.latency / self.sms


def _rates(half: float, tf32: float, eight: float | None = None) -> dict[str, float]:
    """By operand type; a type that the matrix units do not have is absent."""
    found = {"f16": half, "bf16": half, "f32": tf32}
    return found | ({"e4m3": eight, "e5m2": eight} if eight else {})


_H200 = Target("sm_90a", "cuda", "H200", 132, 227 * 1024, 228 * 1024, 65536, 32, 2048, 4.65e12, 790e12, wgmma=True, tma=True,
               clock=1.98e9, port=50, cache=50 << 20, launch=2.5e-6, latency=7e-7, turn=240, vector=0.1,
               rates=_rates(820e12, 495e12, 1400e12))

_MI300X = Target("gfx942", "hip", "MI300X", 304, 64 * 1024, 64 * 1024, 131072, 64, 2048, 5.3e12, 1300e12, thread=512,
                 prefetch=True, singles=True, clock=2.1e9, lanes=64, cache=256 << 20, rates=_rates(1307e12, 163e12))

TARGETS: dict[str, Target] = {
    t.arch: t
    for t in (
        Target("sm_80", "cuda", "A100", 108, 163 * 1024, 164 * 1024, 65536, 32, 2048, 2.0e12, 312e12, clock=1.41e9, lanes=64,
               port=47, rates=_rates(312e12, 156e12)),
        Target("sm_86", "cuda", "A10", 72, 99 * 1024, 100 * 1024, 65536, 32, 1536, 0.6e12, 125e12, max_blocks=16, clock=1.695e9,
               port=32, cache=6 << 20, rates=_rates(125e12, 62.5e12)),
        Target("sm_89", "cuda", "L40S", 142, 99 * 1024, 100 * 1024, 65536, 32, 1536, 0.864e12, 362e12, max_blocks=24,
               clock=2.52e9, port=32, cache=96 << 20, rates=_rates(362e12, 183e12, 733e12)),
        _H200,
        Target("sm_100", "cuda", "B200", 148, 227 * 1024, 228 * 1024, 65536, 32, 2048, 8.0e12, 2250e12, clock=1.86e9, port=50,
               cache=126 << 20, lead=3.0, rates=_rates(564e12, 282e12)),
        Target("sm_120", "cuda", "RTX 5090", 170, 99 * 1024, 100 * 1024, 65536, 32, 1536, 1.792e12, 209.5e12, max_blocks=24,
               clock=2.407e9, port=32, cache=96 << 20, rates=_rates(209.5e12, 104.8e12, 419e12)),
        _MI300X,
        Target("gfx90a", "hip", "MI250X", 110, 64 * 1024, 64 * 1024, 131072, 64, 2048, 1.6e12, 190e12, thread=512,
               prefetch=True, singles=True, clock=1.7e9, lanes=64, cache=8 << 20, rates=_rates(191e12, 47.9e12)),
    )
}

PARTS: dict[str, Target] = {t.part: t for t in (
    *TARGETS.values(), *(replace(_H200, part=p, bandwidth=3.35e12) for p in ("H100", "H800")),
    replace(_MI300X, part="MI325X", bandwidth=6.0e12),
    replace(_MI300X, part="MI308X", sms=80, flops=342e12, rates=_rates(344e12, 42.9e12)))}
"""Targets by the part they are; several parts may be of one architecture, and run the same kernels."""


UNSERVED = {
    "sm_70": "its matrix units take no bfloat16, and CUDA 13 has no compiler for it",
    "sm_75": "its matrix units take no bfloat16, and nothing there copies into shared memory beside a program",
    "gfx906": "it has no matrix units",
    "gfx908": "its products of bfloat16 are half as deep as those that TileLang prints",
    "gfx950": "its limits (160 KiB of shared memory) and its 8-bit formats are not in the table",
    **dict.fromkeys(("gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201"),
                    "its waves are of 32 and its products are WMMA, of which no layout here knows anything"),
}
"""Architectures that people have and no kernels are made for, and why."""


def target(arch: str) -> Target:
    """The facts of ``arch`` (``sm_90`` means ``sm_90a``). Raises InputError RF496 for an architecture not in the table,
    with the reason where it is one of :data:`UNSERVED` and with the one whose binaries it runs where there is one."""
    found = TARGETS.get("sm_90a" if arch == "sm_90" else arch)
    if found is not None:
        return found
    names = f"one of: {', '.join(TARGETS)}"
    older = older_of(arch)
    if arch in UNSERVED or older:
        raise InputError("RF496", f"no kernels are made for {arch}", why=UNSERVED.get(arch, ""),
                         help=f"it runs what is built for {older}: target={older!r}" if older else names)
    raise InputError("RF496", f"unknown target architecture {arch!r}", help=names)


def older_of(arch: str) -> str:
    """The newest of CUDA's targets whose binaries ``arch`` runs: of its generation and older. Empty where there is none; those
    of an ``a`` architecture run nowhere but on their own."""
    named = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if named is None:
        return ""
    runs = [t for t in TARGETS if (own := re.fullmatch(r"sm_(\d+)(\d)", t)) and own[1] == named[1] and own[2] <= named[2]]
    return max(runs, default="")


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
