"""Registers of a thread as ptxas reports them: fragments, and what the rest of a kernel needs beside them.

The rest is linear in the traits of a kernel; its coefficients are fitted to what ptxas 12 reported for sm_90a over the
kernels of the correctness lane and some of their other configurations, and docs/results has the table of errors. Nothing is
refused for what this estimate says: a compiler may always keep a value in memory.
"""

from __future__ import annotations

from math import prod

from redfuser.target import Target
from redfuser.tensorize.ir.effects import reads, writes
from redfuser.tensorize.ir.nodes import For, TileKernel
from redfuser.tensorize.model.steps import specialised
from redfuser.tensorize.model.traits import kind, traits
from redfuser.traffic import BYTES

MOST = 255
"""Registers a thread can have."""
PRODUCERS = 128
"""Threads of the warp group that copies."""

_FITTED: dict[str, dict[str, float]] = {
    "row": {"ahead": 1.22, "base": 8.15, "loads": 2.16, "most": 0.41,
            "points": 0.2, "quotients": 2.65, "reductions": 2.01, "single": 0.27, "work": 0.15},
    "walk": {"grid": 4.71, "held": 0.1, "masks": 7.33, "most": 0.57, "stores": 0.43, "streams": 6.68},
    "map": {"base": 9.22, "inverses": 3.64, "most": 0.9, "stores": 1.42, "work": 0.4},
    "warp": {"ahead": 2.29, "flight": 3.81, "grid": 4.9, "inverses": 11.08,
             "masks": 14.75, "most": 0.52, "points": 1.44, "work": 0.25},
    "group": {"inverses": 14.28, "most": 0.87, "streams": 20.19},
}
"""Registers for each unit of a trait, by kind of kernel."""


def limit(kernel: TileKernel, target: Target) -> int:
    """Registers that a thread of this kernel can have at most, one block having all of a multiprocessor."""
    return min(MOST, target.registers // block_threads(kernel, target) // 8 * 8)


def block_threads(kernel: TileKernel, target: Target) -> int:
    """Threads of a block, those that only copy included."""
    return kernel.threads + PRODUCERS * specialised(kernel, target)


def registers(kernel: TileKernel, target: Target) -> int:
    """Registers of a thread. A kernel with a producer warp group is launched with as many as one block can have, and moves
    them between its warps afterwards."""
    most = limit(kernel, target)
    if specialised(kernel, target):
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
