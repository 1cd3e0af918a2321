"""Registers of a thread as ptxas reports them: fragments, and what the rest of a kernel needs beside them.

The rest is linear in the traits of a kernel; its coefficients are what ``redfuser bench model --fit`` makes of what ptxas 13.0
reported for sm_90a (docs/results/2026-11-26-model has the command and the errors, families held out). Nothing is refused for
what this estimate says: a compiler may always keep a value in memory.
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.expr import BYTES, FLOATS, Cast, Const, Expr, Index, Load, Op, walk
from redfuser.target import TARGETS, Target
from redfuser.tensorize.ir.effects import every, reads, writes
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, Parallel, ReduceTile, Roles, ScanTile, TileKernel
from redfuser.tensorize.model.layout import warp_group, warps_meet
from redfuser.tensorize.model.pressure import fragments, pressure
from redfuser.tensorize.model.steps import producers, specialised, trips, unrolled

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

FITTED: dict[str, dict[str, float]] = {
    "row": {"base": 8.68, "given": 1.2, "idle": 0.18, "most": 0.58, "temps": 0.12},
    "walk": {"base": 10.38, "edges": 2.11, "most": 0.98, "single": 0.08, "streams": 2.41},
    "map": {"base": 3.38, "elements": 0.65, "given": 2.28, "grid": 1.17, "late": 0.25, "most": 0.79, "outs": 1.29},
    "scan": {"base": 8.45, "idle": 0.34, "meets": 6.33, "most": 1.49},
    "warp": {"base": 21.04, "flight": 3.44, "held": 1.2},
    "group": {"ahead": 2.04, "asked": 1.46, "held": 1.41, "idle": 0.19, "products": 2.87},
    "product": {"base": 56.88, "flight": 3.96, "steady": 44.76, "work": 0.83},
}
"""Registers for each unit of a trait, by kind of kernel."""


def limit(kernel: TileKernel, target: Target) -> int:
    """Registers that a thread of this kernel can have at most, one block having all of a multiprocessor."""
    return min(target.thread, target.registers // block_threads(kernel, target) // 8 * 8)


def together(kernel: TileKernel) -> int:
    """Blocks of a row on chip each that the compiler is told to leave room for: the row in its own type, and what is computed
    of an element at a time. By itself it computes all elements side by side: a softmax of 32768 in 512 threads had 80 registers
    and a multiprocessor to itself, 88.6 us for 2048 rows on an H200; with 64 and two blocks, none of it in memory, 69.0."""
    several = any(len(b.shape) > 1 and b.shape[0] > 1 for b in kernel.buffers)
    if several or any(isinstance(s, (For, Gemm, Roles)) for s in kernel.body):
        return 1
    if _of_a_row(kernel) < ROW:  # two such blocks fit in any case, but of the larger ones
        return min(2, max(1, abreast(kernel))) if 2 * kernel.threads * (ROW + BESIDE) >= REGISTERS else 1
    return max(1, abreast(kernel))


def abreast(kernel: TileKernel) -> int:
    """Blocks of a row each whose registers a multiprocessor has."""
    wide = sum(prod(b.shape) for b in kernel.buffers if b.name in rounded(kernel)) // kernel.threads
    return REGISTERS // (kernel.threads * (_of_a_row(kernel) + wide + BESIDE))  # never more than 1024 threads


def _of_a_row(kernel: TileKernel) -> int:
    """Registers of a thread in which a row waits that came from memory."""
    given = {p.name for p in kernel.params}
    row = {n for s in kernel.body if isinstance(s, (Copy, Parallel)) and reads(s) <= given for n in writes(s)}
    held = sum(prod(b.shape) * BYTES[b.dtype] for b in kernel.buffers if b.name in row and b.scope == "fragment")
    return held // (4 * kernel.threads)


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


def fixed(kernel: TileKernel, target: Target) -> bool:
    """Do its warps move registers, so that it is launched with as many as one block can have?"""
    return isinstance(kernel.body[-1], Roles) or (specialised(kernel, target) and block_threads(kernel, target) in MOVED)


def most(kernel: TileKernel, target: Target) -> int:
    """Registers that a thread has at most, where the compiler is told to leave room for several blocks too."""
    found = limit(kernel, target)
    if (blocks := together(kernel)) > 1 and target.kind == "cuda":
        return min(found, REGISTERS // (blocks * kernel.threads) // 8 * 8)
    return found


def registers(kernel: TileKernel, target: Target) -> int:
    """Registers of a thread."""
    if fixed(kernel, target):
        return limit(kernel, target)
    found, sort = traits(kernel, target), kind(kernel, target)
    wanted = round(sum(v * found[n] for n, v in FITTED[sort].items()))
    if sort == "row" and FULL < wanted <= FULL + SAVED:
        wanted = FULL
    return max(LEAST, min(most(kernel, target), wanted))


FULL, SAVED = 32, 6
"""Registers with which a multiprocessor holds as many threads as it can, and how many more a compiler does without for that: of
nine rows in 512 threads that were estimated at 33 to 38, six have 32 or fewer."""
LEAN, LEAST_BESIDE = 0.83, 44
"""What a thread cannot do without of what it holds across products, and beside that: of 19 kernels with as many as a thread
can have, those that spill want more and those that do not want less (docs/results/2026-11-26-model)."""


def spilled(kernel: TileKernel, target: Target) -> float:
    """Registers of a thread that are kept in memory: of products with what lies between them, where tiles alone fill it."""
    if isinstance(kernel.body[-1], Roles) or kind(kernel, target) != "group":
        return 0.0
    own = GIVEN if fixed(kernel, target) else limit(kernel, target)
    return max(0.0, LEAN * pressure(kernel, target)[0] + LEAST_BESIDE - own)


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


AT_ONCE = 4
"""Turns of a loop that the compiler does at once, their loads first."""


def kind(kernel: TileKernel, target: Target) -> str:
    """``group``, ``product`` and ``warp``: products, of warp groups with reductions or without, or of single warps. ``row``
    and ``walk``: reductions of a row at once, or step by step. ``scan``: of a row so far. ``map``: none of these."""
    shapes = {b.name: b.shape for b in kernel.buffers}
    products = [s for s in every(kernel.body) if isinstance(s, Gemm)]
    reduces = any(isinstance(s, ReduceTile) for s in every(kernel.body))
    if products and not any(warp_group(s, shapes[s.c][0], kernel.threads, target) for s in products):
        return "warp"
    if products:
        return "group" if reduces else "product"
    if not reduces:
        return "scan" if any(isinstance(s, ScanTile) for s in every(kernel.body)) else "map"
    return "walk" if any(isinstance(s, For) for s in kernel.body) else "row"


def traits(kernel: TileKernel, target: Target) -> dict[str, float]:
    """Figures of one thread by name.

    held, most: registers of fragments (:func:`pressure`); idle: of those that hold nothing where most do. flight: accesses of
    16 bytes by copies inside of loops; ahead: those that a loop does a turn early, whose addresses wait; edges: those of tiles
    that may leave the tensor; streams: such copies. single: elements
    that are copied one by one, since rows are not aligned. late: the most elements that one statement outside of loops reads
    from global memory; asked: that one reads on a condition, anywhere. steady: a pipelined loop has turns between its first and
    its last. elements: what one statement computes in the turns that are done at once; temps: values on the way to elements
    that are unrolled; work: operations on one value, times such elements; outs: registers of what is computed straight into
    tensors. meets: do several warps share a row of a scan. given: tensors. products: of
    matrices, beside a first and a second."""
    held, most = pressure(kernel, target)
    looped = {id(k): s for s in kernel.body if isinstance(s, For) and trips(s) != 1 for k in every(s.body)}
    found = dict.fromkeys(("flight", "ahead", "edges", "streams", "single", "late", "asked", "steady", "elements", "temps",
                           "work", "outs"), 0.0)
    found |= {"base": 1.0, "held": held, "most": most, "idle": sum(fragments(kernel, target).values()) - held,
              "grid": len(kernel.grid), "given": len(kernel.params), "meets": float(warps_meet(kernel, target)),
              "products": max(0, sum(isinstance(s, Gemm) for s in every(kernel.body)) - 2)}
    for s in every(kernel.body):
        loop = looped.get(id(s))
        if isinstance(s, Copy):
            _copy(kernel, s, loop, found)
        elif isinstance(s, Parallel):
            _points(kernel, s, loop, found)
        elif isinstance(s, For) and s.stages:
            found["steady"] = max(found["steady"], float((turns := trips(s)) is None or turns - s.stages > 1))
    return found


def _at_once(kernel: TileKernel, loop: For | None) -> int:
    """Turns of a loop that a compiler does at once."""
    if loop is None or loop.stages:
        return 1
    return max(unrolled(kernel, loop), min(AT_ONCE, AT_ONCE if (n := trips(loop)) is None else max(1, n)))


def _copy(kernel: TileKernel, s: Copy, loop: For | None, found: dict[str, float]) -> None:
    params = {p.name: p for p in kernel.params}
    inner, outer = (s.dst, s.src) if s.src.buffer in params else (s.src, s.dst)
    if outer.buffer not in params:
        return
    tile, tensor = {b.name: b for b in kernel.buffers}[inner.buffer], params[outer.buffer]
    elements = prod(inner.sizes or tile.shape) / kernel.threads
    if loop is not None:
        found["flight"] += elements * BYTES[tile.dtype] / 16
        found["ahead"] += elements * BYTES[tile.dtype] / 16 * (loop.stages > 1)
        found["streams"] += 1
        if outer is s.src and any(d.size and n % d.size for d, n in zip(s.src.dims, tensor.shape, strict=False)):
            found["edges"] += elements * BYTES[tensor.dtype] / 16
    if tile.scope != "shared" and len(tensor.shape) > 1 and tensor.shape[-1] % (16 // BYTES[tensor.dtype]) and outer is s.src:
        found["single"] = max(found["single"], elements * (2 if BYTES[tensor.dtype] < 4 else 1))


def _points(kernel: TileKernel, s: Parallel, loop: For | None, found: dict[str, float]) -> None:
    params, elements = {p.name: BYTES[p.dtype] for p in kernel.params}, max(1.0, prod(s.extents) / kernel.threads)
    if len(s.vars) > 1 and all(isinstance(a.expr, Load) and a.expr.tensor in params for a in s.body):  # a copy, spelled out
        found["flight"] += 0.0 if loop is None else sum(elements * BYTES[a.expr.dtype] / 16 for a in s.body)
        return
    asked = sum(isinstance(x, Op) and x.name == "select" and any(isinstance(y, Load) and y.tensor in params for y in walk(x))
                for a in s.body for x in walk(a.expr))
    found["asked"] = max(found["asked"], min(elements, 64.0) * asked)
    read = {x for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.tensor in params}
    along = sum(len(s.vars) > 1 and any(s.vars[-1] in _names(i) for i in x.indices) for x in read)
    found["late"] = max(found["late"], 0.0 if loop else min(elements, 32.0) * along)
    found["elements"] = max(found["elements"], min(elements, 32.0) * _at_once(kernel, loop))
    for a in s.body:
        done = {x for x in walk(a.expr) if isinstance(x, Op)}  # what is written twice is computed once
        found["work"] = max(found["work"], min(elements, 8.0) * max(0, len(done) - 2))
        found["temps"] = max(found["temps"], min(elements, 8.0) * min(len(done), 4))
        found["outs"] += elements * params.get(a.target, 0) / 4


def _names(e: Expr) -> set[str]:
    return {x.axis for x in walk(e) if isinstance(x, Index)}
