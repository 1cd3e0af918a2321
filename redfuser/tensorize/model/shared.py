"""Shared memory of a block, in the bytes that a built kernel asks for.

TileLang lays shared buffers into one allocation: linear scan over their lives, best fit, growth at the top. The rule of its
pass (0.1.15) is repeated here because the size of the allocation is its outcome and nothing smaller gives it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod

from redfuser.acrf.expr import BYTES
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Copy, Gemm, ReduceTile, TileKernel
from redfuser.tensorize.model.layout import Layout, far_reductions, layouts, warp_group, warps_meet
from redfuser.tensorize.model.steps import Step, mentions, places, specialised, steps

STATIC = 1024
"""Bytes of static shared memory that barriers take, TileLang's own or those of roles, or what the warps of a row come to in a
scan: one alignment of the dynamic part."""


@lru_cache(maxsize=256)
def dynamic_bytes(kernel: TileKernel, target: Target) -> int:
    """Bytes a launch asks for."""
    return arena_bytes(lives(kernel, target))


def shared_bytes(kernel: TileKernel, target: Target) -> int:
    """Bytes a block takes, those that no launch asks for included."""
    static = bool(kernel.barriers) or warps_meet(kernel, target) or specialised(kernel, target)
    return dynamic_bytes(kernel, target) + STATIC * static


def lives(kernel: TileKernel, target: Target) -> list[Life]:
    """Every buffer in shared memory, those of reductions across warps included, from its first step to its last."""
    shared = {b.name: b for b in kernel.buffers if b.scope == "shared"}
    many, align, meets = places(kernel, target), _alignment(kernel, target), far_reductions(kernel, target)
    size = {n: prod(b.shape) * BYTES[b.dtype] * many.get(n, 1) for n, b in shared.items()}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    nested: list[bool] = []
    spread = cache(lambda: layouts(kernel, target))
    for at, step in enumerate(steps(kernel, target)):
        nested.append(_nested(kernel, step, target, spread))
        rooms = {f"workspace_{at}_{i}": meets[id(k)] for i, k in enumerate(every(step.body)) if id(k) in meets}
        size |= rooms
        for name in (mentions(step) & set(shared)) | set(rooms):
            first.setdefault(name, at)
            last[name] = at
    events = sorted({*first.values(), *last.values()})
    return [Life(n, first[n], _end(first[n], last[n], nested, events) + 1, size[n], align.get(n, ALIGN)) for n in first]


def _end(first: int, last: int, nested: list[bool], events: list[int]) -> int:
    """TileLang's pass lets what dies inside a loop, but was born outside, live on until the next birth or death outside."""
    if nested[first] or not nested[last]:
        return last
    later = [at for at in events if at >= last]
    for at, following in zip(later, later[1:]):
        if not nested[following]:
            return at
    return later[-1]


def _nested(kernel: TileKernel, step: Step, target: Target, spread: Callable[[], dict[str, Layout]]) -> bool:
    """A step that is a loop with several statements in it once it is lowered. spread: the kernel's layouts, found once."""
    shapes = {b.name: b.shape for b in kernel.buffers}
    if step.loop:
        return True
    match s := step.body[0]:
        case Gemm(a=a, c=c, transpose_a=turned):
            inner = (a.sizes or shapes[a.buffer])[0 if turned else -1]
            return not warp_group(s, shapes[c][0], kernel.threads, target) and inner > 16
        case ReduceTile(src=src):
            own = spread().get(src)
            return own is not None and own.rows > 1
    return False


def _alignment(kernel: TileKernel, target: Target) -> dict[str, int]:
    """Operands that the matrix units or the copy engine address themselves."""
    shapes = {b.name: b.shape for b in kernel.buffers}
    found: dict[str, int] = {}
    for s in every(kernel.body):
        if isinstance(s, Gemm) and warp_group(s, shapes[s.c][0], kernel.threads, target):
            found |= {s.a.buffer: 1024, s.b.buffer: 1024}
        elif isinstance(s, Copy) and target.tma:
            params = {p.name for p in kernel.params}
            if s.dst.buffer in params or (specialised(kernel, target) and s.src.buffer in params):
                found |= {s.src.buffer: 1024, s.dst.buffer: 1024}
    return found


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
