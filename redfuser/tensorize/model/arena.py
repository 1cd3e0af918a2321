"""How TileLang lays shared buffers into one allocation: linear scan over their lives, best fit, growth at the top.

The rule of its pass over shared allocations (0.1.15), repeated here because the size of the allocation is its outcome and
nothing smaller gives it exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ALIGN = 16
"""Bytes to which every buffer and the whole allocation are aligned."""


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer from the step that first touches it until (not with) the step ``end``."""

    name: str
    start: int
    end: int
    size: int
    align: int = ALIGN


def arena_bytes(lives: Iterable[Life]) -> int:
    """Bytes of the one allocation that holds them all, those that never live together sharing a place."""
    lives = sorted(lives, key=lambda v: (v.start, -v.size, v.name))
    if len(lives) < 2:  # a single buffer stays as it is declared
        return sum(v.size for v in lives)
    free: list[tuple[int, int]] = []  # (offset, bytes), in order, no two adjacent
    active: list[tuple[int, int, int]] = []
    top = most = 0
    for v in lives:
        for gone in [a for a in active if a[0] <= v.start]:
            active.remove(gone)
            _free(free, gone[1], gone[2])
        offset = _best(free, v)
        if offset is None:
            offset, top = _grow(free, v, top)
        active.append((v.end, offset, v.size))
        most = max(most, offset + v.size)
    return _up(most, ALIGN)


def _up(value: int, align: int) -> int:
    return -(-value // align) * align


def _best(free: list[tuple[int, int]], v: Life) -> int | None:
    """The place in the free block that it wastes least of."""
    fits = [(size - v.size, offset, size) for offset, size in free if _up(offset, v.align) - offset + v.size <= size]
    if not fits:
        return None
    _, offset, size = min(fits, key=lambda f: f[0])
    free.remove((offset, size))
    at = _up(offset, v.align)
    _free(free, at + v.size, offset + size - at - v.size)
    _free(free, offset, at - offset)
    return at


def _grow(free: list[tuple[int, int]], v: Life, top: int) -> tuple[int, int]:
    """A place that reaches past the top, from the free block that ends there where there is one: where, and the new top."""
    if free and sum(free[-1]) == top and (at := _up(free[-1][0], v.align)) < top:
        offset, _ = free.pop()
        _free(free, offset, at - offset)
        return at, at + v.size
    at = _up(top, v.align)
    _free(free, top, at - top)
    return at, at + v.size


def _free(free: list[tuple[int, int]], offset: int, size: int) -> None:
    if size <= 0:
        return
    free.append((offset, size))
    free.sort()
    joined: list[tuple[int, int]] = []
    for at, n in free:
        if joined and sum(joined[-1]) >= at:
            first, m = joined.pop()
            joined.append((first, max(first + m, at + n) - first))
        else:
            joined.append((at, n))
    free[:] = joined
