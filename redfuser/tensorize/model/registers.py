"""Registers of a thread as ptxas reports them: fragments, and what the rest of a kernel needs beside them.

The rest is linear in the traits of a kernel; its coefficients are fitted to what ptxas 13.0 reported for sm_90a over the
kernels of the correctness lane and some of their other configurations, and docs/results has the table of errors. Nothing is
refused for what this estimate says: a compiler may always keep a value in memory.
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.expr import BYTES
from redfuser.target import Target
from redfuser.tensorize.ir.effects import reads, writes
from redfuser.tensorize.ir.nodes import For, Roles, TileKernel
from redfuser.tensorize.model.steps import producers, specialised
from redfuser.tensorize.model.traits import kind, traits

MOST = 255
"""Registers a thread can have."""
MOVED = (256, 384)
"""Threads of blocks whose warps move registers among themselves once they run, those that copy to those that compute."""

_FITTED: dict[str, dict[str, float]] = {
    "row": {"ahead": 1.05, "base": 8.97, "loads": 3.33, "most": 0.44,
            "points": 0.19, "quotients": 3.65, "reductions": 1.66, "single": 0.27},
    "walk": {"ahead": 1.04, "calls": 2.2, "grid": 2.95, "loads": 1.12, "masks": 6.7,
             "most": 0.55, "quotients": 2.83, "single": 0.15, "stores": 0.92, "streams": 9.81},
    "map": {"base": 8.22, "calls": 2.41, "grid": 0.4, "inverses": 3.78,
            "most": 0.88, "points": 0.27, "quotients": 3.06, "stores": 1.94, "work": 0.31},
    "warp": {"ahead": 1.69, "flight": 3.66, "held": 0.87,
             "masks": 19.44, "points": 1.23, "stores": 1.2, "work": 0.27},
    "group": {"base": 38.3, "held": 0.18, "most": 0.43, "staged": 0.79, "streams": 11.69},
}
"""Registers for each unit of a trait, by kind of kernel."""


def limit(kernel: TileKernel, target: Target) -> int:
    """Registers that a thread of this kernel can have at most, one block having all of a multiprocessor."""
    return min(MOST, target.registers // block_threads(kernel, target) // 8 * 8)


def block_threads(kernel: TileKernel, target: Target) -> int:
    """Threads of a block, those that only copy included."""
    return kernel.threads + producers(kernel, target)


def registers(kernel: TileKernel, target: Target) -> int:
    """Registers of a thread. A kernel whose warps move registers is launched with as many as one block can have."""
    most = limit(kernel, target)
    if isinstance(kernel.body[-1], Roles) or specialised(kernel, target) and block_threads(kernel, target) in MOVED:
        return most
    found = traits(kernel, target)
    return max(16, min(most, round(sum(v * found[n] for n, v in _FITTED[kind(kernel, target)].items()))))


def carried(kernel: TileKernel) -> int:
    """Registers that a thread certainly holds from one step of a loop to the next: tiles which the loop writes and something
    outside of it touches. A lower bound, whatever the compiler does."""
    most = 0
    for loop in (s for s in kernel.body if isinstance(s, For)):
        outside = {n for s in kernel.body if s is not loop for n in reads(s) | writes(s)}
        held = sum(prod(b.shape) * BYTES[b.dtype] for b in kernel.buffers
                   if b.scope != "shared" and len(b.shape) > 1 and b.name in writes(loop) & outside)
        most = max(most, -(-held // (4 * kernel.threads)))
    return most
