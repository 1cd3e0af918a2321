"""Registers of a thread as ptxas reports them: fragments, and what the rest of a kernel needs beside them.

The rest is linear in the traits of a kernel; its coefficients are fitted to what ptxas 13.0 reported for sm_90a over kernels of
the correctness lane and a hundred configurations of larger ones, those of rows and maps to the kernels of
docs/results/2026-11-25-model, which has the table of errors. Nothing is refused for what this estimate says: a compiler may
always keep a value in memory.
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.expr import BYTES, FLOATS, Cast, Const, Expr
from redfuser.target import TARGETS, Target
from redfuser.tensorize.ir.effects import every, reads, writes
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, Parallel, Roles, TileKernel
from redfuser.tensorize.model.steps import producers, specialised
from redfuser.tensorize.model.traits import kind, traits

MOVED = (256, 384)
"""Threads of blocks whose warps move registers among themselves once they run, those that copy to those that compute."""
GIVEN = 240
"""Registers of a thread that computes in such a block, once those that copy have given up theirs."""

LEAST = 8
"""Registers of a thread that does next to nothing."""
REGISTERS = min(t.registers for t in TARGETS.values() if t.kind == "cuda")
"""Of a multiprocessor with CUDA: the same on each, and a text is printed for none in particular."""
ROW, BESIDE = 32, 32
"""Registers of a row from which a compiler is told, and those that a thread needs beside them."""

_FITTED: dict[str, dict[str, float]] = {
    "row": {"ahead": 1.89, "base": 9.36, "given": 0.9, "loads": 0.76, "quotients": 1.55, "single": 0.1, "temps": 0.11,
            "tiles": 0.3},
    "walk": {"base": 4.5, "elements": 0.19, "flight": 1.03, "grid": 4.12, "held": 0.79, "lone": 0.18, "temps": 0.16},
    "map": {"base": 4.82, "elements": 0.37, "given": 2.13, "long": 7.4, "most": 0.62, "outs": 1.26, "quotients": 3.03,
            "temps": 0.11},
    "scan": {"base": 8.51, "meets": 6.21, "most": 1.46, "scanned": 0.84},
    "warp": {"base": 18.6, "flight": 2.45, "held": 1.32, "steady": 7.76, "work": 0.28},
    "group": {"base": 35.62, "most": 0.6, "products": 4.81, "streams": 20.86},
    "product": {"base": 28.37, "held": 0.98, "late": 0.54, "steady": 58.84, "tail": 1.23},
}
"""Registers for each unit of a trait, by kind of kernel."""


def limit(kernel: TileKernel, target: Target) -> int:
    """Registers that a thread of this kernel can have at most, one block having all of a multiprocessor."""
    return min(target.thread, target.registers // block_threads(kernel, target) // 8 * 8)


def together(kernel: TileKernel) -> int:
    """Blocks of a row on chip each that the compiler is told to leave room for: the row in its own type, and what is computed
    of an element at a time. By itself it computes all elements side by side: a softmax of 32768 in 512 threads had 80 registers
    and a multiprocessor to itself, 88.6 us for 2048 rows on an H200; with 64 and two blocks, none of it in memory, 69.0."""
    given = {p.name for p in kernel.params}
    row = {n for s in kernel.body if isinstance(s, (Copy, Parallel)) and reads(s) <= given for n in writes(s)}
    held = sum(prod(b.shape) * BYTES[b.dtype] for b in kernel.buffers if b.name in row and b.scope == "fragment")
    held //= 4 * kernel.threads
    wide = sum(prod(b.shape) for b in kernel.buffers if b.name in rounded(kernel)) // kernel.threads
    several = any(len(b.shape) > 1 and b.shape[0] > 1 for b in kernel.buffers)
    if held < ROW or several or any(isinstance(s, (For, Gemm, Roles)) for s in kernel.body):
        return 1
    return max(1, REGISTERS // (kernel.threads * (held + wide + BESIDE)))  # never more than 1024 threads


def rounded(kernel: TileKernel) -> frozenset[str]:
    """Tiles of e4m3 that a loop rounds numbers to, of rows without products, for which all numbers are there first: an
    instruction rounds two."""
    if any(isinstance(s, (Gemm, Roles)) for s in every(kernel.body)):
        return frozenset()
    tiles = {b.name for b in kernel.buffers if b.scope == "fragment" and b.dtype == "e4m3"}
    return frozenset(s.body[0].target for s in every(kernel.body) if isinstance(s, Parallel) and len(s.body) == 1
                     and s.body[0].target in tiles and widened(s.body[0].expr) is not None)


def widened(e: Expr) -> Expr | None:
    """What is rounded to e4m3; None where nothing computed is."""
    e = e.arg if isinstance(e, Cast) and e.dtype == "e4m3" else e
    return None if isinstance(e, Const) or e.dtype not in FLOATS or e.dtype == "e4m3" else e


def block_threads(kernel: TileKernel, target: Target) -> int:
    """Threads of a block, those that only copy included."""
    return kernel.threads + producers(kernel, target)


def registers(kernel: TileKernel, target: Target) -> int:
    """Registers of a thread. A kernel whose warps move registers is launched with as many as one block can have."""
    most = limit(kernel, target)
    if isinstance(kernel.body[-1], Roles) or (specialised(kernel, target) and block_threads(kernel, target) in MOVED):
        return most
    if (blocks := together(kernel)) > 1 and target.kind == "cuda":
        most = min(most, REGISTERS // (blocks * kernel.threads) // 8 * 8)
    return max(LEAST, min(most, round(_wanted(kernel, target))))


def _wanted(kernel: TileKernel, target: Target) -> float:
    """What a thread would have of a machine without limits."""
    found = traits(kernel, target)
    return sum(v * found[n] for n, v in _FITTED[kind(kernel, target)].items())


def spilled(kernel: TileKernel, target: Target) -> float:
    """Registers of a thread that are kept in memory: of products with what lies between them, where tiles alone fill it."""
    if isinstance(kernel.body[-1], Roles) or kind(kernel, target) != "group":
        return 0.0
    moves = specialised(kernel, target) and block_threads(kernel, target) in MOVED
    return max(0.0, _wanted(kernel, target) - (GIVEN if moves else limit(kernel, target)))


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
