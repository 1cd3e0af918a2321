"""The registers that fragments take, and how many of them hold something at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from redfuser.acrf.expr import BYTES
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every, loads, reads, writes
from redfuser.tensorize.ir.nodes import Copy, Fill, For, Gemm, If, Parallel, ReduceTile, TileKernel, TileStmt
from redfuser.tensorize.model.layout import layouts, matrix_warps, warp_group
from redfuser.tensorize.model.steps import trips


def fragments(kernel: TileKernel, target: Target) -> dict[str, int]:
    """32-bit registers of a thread that each fragment takes."""
    spread = layouts(kernel, target)
    shapes = {b.name: b.shape for b in kernel.buffers}
    rows: dict[int, int] = {}
    for name, at in spread.items():
        rows[shapes[name][0]] = max(rows.get(shapes[name][0], 0), at.rows)
    left = {s.a.buffer: s for s in every(kernel.body) if isinstance(s, Gemm)}
    found = {}
    for b in kernel.buffers:
        if b.scope == "shared":
            continue
        elements = prod(b.shape)
        if b.name in left and b.name in spread:  # every warp of a row of warps has it
            s = left[b.name]
            m, n = shapes[s.c]
            elements = elements * matrix_warps(s, m, n, kernel.threads, target)[1] // kernel.threads
        elif b.name in spread:
            at = spread[b.name]
            elements = max(elements // kernel.threads, 0 if at.fixed else at.rows * b.shape[1] // at.across)
        elif b.scope == "fragment":
            elements = rows.get(b.shape[0]) or -(-elements // kernel.threads)
        found[b.name] = max(1, -(-elements * BYTES[b.dtype] // 4))
    return found


def pressure(kernel: TileKernel, target: Target) -> tuple[int, int]:
    """The most registers that fragments hold across a point where threads meet (a reduction, a product), and at any
    statement if each were done whole before the next."""
    size, shapes = fragments(kernel, target), {b.name: b.shape for b in kernel.buffers}
    live: set[str] = set()
    held = most = 0
    order = list(_in_order(_gathered(kernel.body, shapes)))
    for (s, surely), known in reversed(list(zip(order, _constant(order), strict=True))):
        after = set(live)
        if surely:
            live -= _replaced(s, shapes)
        else:
            live |= writes(s) & set(size)
        live |= _needed(s) & set(size)
        here, there = (sum(size[n] for n in (live | after) - known), max(sum(size[n] for n in live - known),
                                                                         sum(size[n] for n in after - known)))
        match s:
            case Gemm():
                held = max(held, here + _operands(kernel, s, size, target))
                most = max(most, here + _operands(kernel, s, size, target))
            case ReduceTile(dst=dst):
                held, most = max(held, sum(size[n] for n in after | {dst})), max(most, here)
            case _:
                most = max(most, there)
    return held, most


def _gathered(body: tuple[TileStmt, ...], shapes: dict[str, tuple[int, ...]]) -> tuple[TileStmt, ...]:
    """The statements as a compiler sees them, which does the points of a tile one by one: what is computed of nothing that
    changes is computed where it is first used, and a stretch of statements over the same points is one, of which nothing is
    held but what it reads and what somebody else reads of it.

        p = x - y; copy z -> b; s = p * p + b  -->  copy z -> b; s = (x - y) * (x - y) + b
    """
    late = _joined([replace(s, body=_gathered(s.body, shapes)) if isinstance(s, For) else s for s in body])
    for i in reversed(range(len(late))):
        s = late[i]
        if not isinstance(s, Parallel) or _replaced(s, shapes) != writes(s):
            continue
        made, needs, j = writes(s), _needed(s), i + 1
        while j < len(late) and not isinstance(late[j], (For, If)) and not (
                made & (reads(late[j]) | writes(late[j])) or needs & writes(late[j])):
            j += 1
        if j < len(late) and made & reads(late[j]):
            late.insert(j - 1, late.pop(i))
    return tuple(_joined(late))


def _joined(body: list[TileStmt]) -> list[TileStmt]:
    """Neighbours over the same points of a tile as one, those under a condition that changes some of them too."""
    found: list[TileStmt] = []
    for s in body:
        last = found[-1] if found else None
        if isinstance(s, If) and len(s.body) == 1 and isinstance(k := s.body[0], Parallel) and writes(k) <= reads(k):
            s = k
        if isinstance(s, Parallel) and isinstance(last, Parallel) and s.extents == last.extents and len(s.extents) > 1:
            found[-1] = replace(last, body=(*last.body, *s.body))
        else:
            found.append(s)
    return found


def _needed(s: TileStmt) -> set[str]:
    """What a statement reads that was there before it: a point's values may be read again by what comes after them."""
    if not isinstance(s, Parallel):
        return reads(s)
    found: set[str] = set()
    made: set[str] = set()
    for a in s.body:
        found |= {n for e in (a.expr, *a.indices) for n in loads(e)} - made
        made.add(a.target)
    return found


def of_products(kernel: TileKernel, target: Target) -> int:
    """Registers that a product of warp groups has to have all at once: what it accumulates, and a left operand of registers."""
    size, shapes = fragments(kernel, target), {b.name: b.shape for b in kernel.buffers}
    return max((size[s.c] + size.get(s.a.buffer, 0) for s in every(kernel.body)
                if isinstance(s, Gemm) and warp_group(s, shapes[s.c][0], kernel.threads, target)), default=0)


def _in_order(body: tuple[TileStmt, ...]) -> Iterator[tuple[TileStmt, bool]]:
    """Statements as they run, a loop twice, each with whether it certainly does."""
    for s in body:
        if isinstance(s, For):
            for _ in range(1 if trips(s) == 1 else 2):
                yield from _in_order(s.body)
        elif isinstance(s, If):
            yield from ((k, False) for k, _ in _in_order(s.body))
        else:
            yield s, True


def _constant(order: Sequence[tuple[TileStmt, bool]]) -> Iterator[set[str]]:
    """Before each statement: what still holds what it was filled with, which is no register's business. A loop's body stands
    twice in the order, so that what it changes is seen changed."""
    known: set[str] = set()
    for s, _ in order:
        known -= writes(s)
        yield set(known)
        if isinstance(s, Fill):
            known.add(s.buffer)


def _replaced(s: TileStmt, shapes: dict[str, tuple[int, ...]]) -> set[str]:
    """Buffers whose old content a statement does away with."""
    match s:
        case Fill(buffer=b):
            return {b}
        case Copy(dst=dst) if not dst.dims:
            return {dst.buffer}
        case Gemm(c=c, clear=True):
            return {c}
        case ReduceTile(dst=name, clear=True):
            return {name}
        case Parallel(extents=extents, body=body):
            return {a.target for a in body if prod(shapes.get(a.target, (0,))) <= prod(extents)} - _needed(s)
    return set()


def _operands(kernel: TileKernel, s: Gemm, size: dict[str, int], target: Target) -> int:
    """What one step of a product of single warps takes from shared memory into registers."""
    m, n = next(b.shape for b in kernel.buffers if b.name == s.c)
    if warp_group(s, m, kernel.threads, target):
        return 0
    rows, columns = matrix_warps(s, m, n, kernel.threads, target)
    return (0 if s.a.buffer in size else m // (16 * rows) * (128 // target.warp)) + n // (target.warp // 4 * columns) * 2
