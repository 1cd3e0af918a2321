"""The order in which a block touches its buffers, once loops are pipelined as TileLang pipelines them.

A step is a statement outside of every loop, or a whole loop. A pipelined loop of n stages is three runs: a prologue of
copies, the loop, and an epilogue of everything else, statement by statement; one that makes no more trips than it has
stages in flight is no loop at all. What a copy brings from global memory in such a loop has n places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from redfuser.acrf.expr import BYTES, Cast, Const, Expr, Load, Op
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every, reads, writes
from redfuser.tensorize.ir.nodes import (
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Parallel,
    ReduceTile,
    Roles,
    ScanTile,
    TileKernel,
    TileStmt,
)


@dataclass(frozen=True, slots=True)
class Step:
    """Statements that stand outside of every loop, or (``loop``) all that a loop does."""

    body: tuple[TileStmt, ...]
    loop: bool = False


def specialised(kernel: TileKernel, target: Target) -> bool:
    """Warps of their own copy: it is allowed, and a pipelined loop has copies that the copy engine does."""
    return kernel.warp_specialized and target.tma and any(_engine(kernel, k) for k in _arriving(kernel))


def producers(kernel: TileKernel, target: Target) -> int:
    """Threads that only copy: a warp group where the copy engine does it all, else as many as compute."""
    if kernel.body and isinstance(kernel.body[-1], Roles):
        return sum(r.groups * 128 for r in kernel.body[-1].roles) - kernel.threads
    if not specialised(kernel, target):
        return 0
    return 128 if all(_engine(kernel, k) for k in _arriving(kernel)) else kernel.threads


def _arriving(kernel: TileKernel) -> list[TileStmt]:
    return [k for s in kernel.body if isinstance(s, For) and s.stages for k in s.body if arrives(kernel, k)]


def _engine(kernel: TileKernel, s: TileStmt) -> bool:
    """A copy of a rectangle whose rows, and whatever else it steps over, are multiples of 16 bytes."""
    if not isinstance(s, Copy):
        return False
    p = next(p for p in kernel.params if p.name == s.src.buffer)
    return all(prod(p.shape[i:]) * BYTES[p.dtype] % 16 == 0 for i in range(1, len(p.shape)))


def arrives(kernel: TileKernel, s: TileStmt) -> bool:
    """A statement that does nothing but bring data from global memory into shared: a rectangle, or element by element."""
    params = {p.name for p in kernel.params}
    shared = {b.name for b in kernel.buffers if b.scope == "shared"}
    match s:
        case Copy(src, dst):
            return src.buffer in params and dst.buffer in shared
        case Parallel(body=body):
            return all(a.target in shared and _element(a.expr, params) for a in body)
        case If(body=body):
            return all(arrives(kernel, k) for k in body)
    return False


def _element(e: Expr, params: set[str]) -> bool:
    """An element of a parameter as it is, or in another type."""
    return (isinstance(e, Load) and e.tensor in params) or (isinstance(e, Cast) and _element(e.arg, params))


def fetches_ahead(kernel: TileKernel, loop: For) -> bool:
    """Are tiles of the next step asked for in this one, to wait in registers?"""
    params = {p.name for p in kernel.params}
    return any(isinstance(k, (Copy, Parallel)) and reads(k) & params for s in loop.body if isinstance(s, If) for k in s.body)


def places(kernel: TileKernel, target: Target) -> dict[str, int]:
    """Buffers that have more than one place, and how many. TileLang pipelines nothing on gfx942."""
    return {} if target.kind == "hip" else {name: s.stages for s in every(kernel.body) if isinstance(s, For) and s.stages > 1
            for k in s.body if arrives(kernel, k) and _last_use(s, k) is not None for name in writes(k)}


def steps(kernel: TileKernel, target: Target) -> Iterator[Step]:
    """The steps in order."""
    whole = target.kind == "hip" or specialised(kernel, target)
    for s in kernel.body:
        yield from _steps(kernel, s, whole)


def _steps(kernel: TileKernel, s: TileStmt, whole: bool) -> Iterator[Step]:
    if not isinstance(s, For):
        yield Step((s,))
    elif s.stages and not whole:
        yield from _pipelined(kernel, s)
    elif trips(s) == 1:
        for k in s.body:
            yield from _steps(kernel, k, whole)
    elif trips(s) != 0:
        yield Step((s,), True)


def _pipelined(kernel: TileKernel, loop: For) -> Iterator[Step]:
    """Prologue, loop, epilogue. Copies are stage 0 and go after their last reader; the rest is the last stage."""
    last = {i: use for i, k in enumerate(loop.body) if arrives(kernel, k) and (use := _last_use(loop, k)) is not None}
    order: list[int] = []
    for i in range(len(loop.body)):
        if i not in last:
            order += [i, *(c for c, use in last.items() if use == i)]
    depth = loop.stages if last else 0
    if last and order[-len(last):] == list(last) and depth > 1:  # all at the end: first, one stage less ahead
        order, depth = order[-len(last):] + order[:-len(last)], depth - 1
    n = trips(loop)

    def run(first: int, stop: int) -> Iterator[Step]:
        """Turns ``first`` to ``stop``: a copy does its own, everything else that of ``depth`` turns before."""
        done = [[loop.body[i] for i in order if at >= (late := 0 if i in last else depth) and (n is None or at < n + late)]
                for at in range(first, stop)]
        if len(done) > 1 and not isinstance(loop.start, Const):
            yield Step(tuple({id(s): s for turn in done for s in turn}.values()), True)
        else:
            yield from (Step((s,)) for turn in done for s in turn)

    yield from run(0, depth)
    if n is None:
        yield Step(loop.body, True)
        yield Step(tuple(loop.body[i] for i in order if i not in last), depth > 1)
    else:
        if n - depth > 1:
            yield Step(loop.body, True)
        elif n > depth:
            yield from run(depth, n)
        yield from run(n, n + depth)


def _last_use(loop: For, copy: TileStmt) -> int | None:
    """The last statement of the body that reads what a copy brings."""
    brought, found = writes(copy), None
    for i, k in enumerate(loop.body):
        if k is not copy and brought & _used(k):
            found = i
    return found


def _used(s: TileStmt) -> set[str]:
    return reads(s) | {n for k in every((s,)) for n in reads(k)}


def trips(loop: For) -> int | None:
    """How often a loop runs, where that is a number."""
    if isinstance(loop.start, Const) and isinstance(loop.stop, Const):
        return max(0, int(loop.stop.value) - int(loop.start.value))
    match loop.stop:
        case Op(name="add", args=(first, Const(value=n))) if first == loop.start:
            return int(n)
    return None


AHEAD, TURNS, MANY = 128, 32, 8
"""Numbers of a thread that a loop which :func:`unrolled` asks for at once, and turns, at most; turns from which it is told."""


def unrolled(kernel: TileKernel, loop: For) -> int:
    """Turns of a loop that ask for their data before any of them computes: of one that folds what it reads into what it keeps,
    in a block whose threads wait for nobody (the partial results of a row's splits). A compiler that is not told does four at
    once or none: sixteen partials of 512 columns then wait for memory as often."""
    meets = any(b.scope == "shared" for b in kernel.buffers) or any(
        isinstance(s, (Gemm, ReduceTile, ScanTile, If, Roles)) for s in every(kernel.body))
    n = trips(loop)
    kept = {k for s in loop.body for k in reads(s)} & writes(loop) & {s.buffer for s in kernel.body if isinstance(s, Fill)}
    if meets or loop.stages or n is None or n < MANY or not kept:
        return 1
    turn = sum(prod(s.extents) for s in loop.body if isinstance(s, Parallel) and any(
        x in {p.name for p in kernel.params} for x in reads(s))) // kernel.threads
    return min(n, max(4, min(TURNS, AHEAD // max(1, turn))))


def mentions(step: Step) -> set[str]:
    """Every buffer that a step touches."""
    return {n for k in every(step.body) for n in reads(k) | writes(k)}
