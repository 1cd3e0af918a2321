"""Storage reused in place, where a pointwise map's operand dies with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from redfuser.acrf.expr import Load, walk
from redfuser.tensorize.ir.effects import reads, renamed, writes
from redfuser.tensorize.ir.nodes import Copy, For, If, Parallel, TileKernel, TileStmt


@dataclass(frozen=True, slots=True)
class ReuseInPlace:
    """A map's target takes its operand's storage where both are the kernel's own, of the same type, whole and not read again::

        weights[i, j] = exp2(scores[i, j] * c - m[i])    -->    scores[i, j] = exp2(scores[i, j] * c - m[i])

    Not what a pipelined loop copies in while earlier iterations run. Adds no rounding."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        return replace(kernel, body=tuple(_reuse(list(kernel.body), {b.name: b.dtype for b in kernel.buffers})))


def _reuse(stmts: list[TileStmt], homes: Mapping[str, str]) -> list[TileStmt]:
    done = False
    while not done:
        done = True
        for path, pipelined in _lists(stmts):
            pair = _candidate(path, stmts, _arriving(path) if pipelined else frozenset(), homes)
            if pair is not None:
                stmts = [renamed(s, pair[0], pair[1]) for s in stmts]
                done = False
                break
    return stmts


def _lists(stmts: list[TileStmt] | tuple[TileStmt, ...], pipelined: bool = False) -> Iterator[tuple[list[TileStmt], bool]]:
    """Every statement list, and whether it is the body of a pipelined loop."""
    yield list(stmts), pipelined
    for s in stmts:
        if isinstance(s, For):
            yield from _lists(s.body, s.stages > 0)


def _arriving(block: list[TileStmt]) -> frozenset[str]:
    """What a pipelined loop copies in while earlier iterations run: nobody else may write there."""
    return frozenset(s.dst.buffer for s in block if isinstance(s, Copy) and s.src.dims)


def _candidate(block: list[TileStmt], everything: list[TileStmt], arriving: frozenset[str],
               homes: Mapping[str, str]) -> tuple[str, str] | None:
    """(target, operand) of a map in ``block`` that can be done in place. homes: the types of the kernel's own buffers."""
    for position, s in enumerate(block):
        if not (isinstance(s, Parallel) and len(s.body) == 1 and len(s.vars) == 2):
            continue
        (a,) = s.body
        if a.target not in homes:
            continue
        for x in walk(a.expr):
            if isinstance(x, Load) and x.tensor not in (a.target, *arriving) and x.indices == a.indices \
                    and homes.get(x.tensor) == homes[a.target] \
                    and _fresh_target(a.target, block, position, everything) \
                    and _dies(x.tensor, block, position, everything, a.target):
                return a.target, x.tensor
    return None


def _fresh_target(target: str, block: list[TileStmt], position: int, everything: list[TileStmt]) -> bool:
    """Defined by this statement first, and used in this list only."""
    if any(target in reads(s) | writes(s) for s in block[:position]):
        return False
    return _uses(target, everything) == sum(_count(target, s) for s in block)


def _dies(name: str, block: list[TileStmt], position: int, everything: list[TileStmt], target: str) -> bool:
    """A local of this list, written whole before this statement, untouched after it."""
    if any(name in reads(s) | writes(s) for s in block[position + 1:]):
        return False
    for s in block[:position]:
        touched = name in reads(s) | writes(s)
        if touched:
            if name in reads(s) or isinstance(s, (For, If)):
                inside = isinstance(s, For) and block_is_top(block, everything)
                if not inside:
                    return False
            break
    else:
        return False
    if block_is_top(block, everything):
        return True
    return _uses(name, everything) == sum(_count(name, s) for s in block)


def block_is_top(block: list[TileStmt], everything: list[TileStmt]) -> bool:
    return block == everything


def _count(name: str, s: TileStmt) -> int:
    if isinstance(s, (For, If)):
        return sum(_count(name, k) for k in s.body)
    return int(name in reads(s) | writes(s))


def _uses(name: str, everything: list[TileStmt]) -> int:
    return sum(_count(name, s) for s in everything)
