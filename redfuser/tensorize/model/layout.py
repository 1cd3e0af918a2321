"""How a block's threads share the elements of a fragment, as TileLang deals them out.

A matrix product fixes the layout of what it accumulates: its warps form a grid over rows and columns, and in a warp four
threads hold a row between them, so that a warp holds 8 rows at once, a wave of 64 holds 16.
What no product fixes is dealt out in runs of one vector access. Fragments that a
``parallel`` uses at the same point share one layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from redfuser.acrf.expr import BYTES, Index, Load, walk
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Gemm, Parallel, ReduceTile, Roles, ScanTile, TileKernel
from redfuser.tensorize.model.alike import Access, accesses, alike, run
from redfuser.tensorize.model.told import Dealt, beside, led, told


@dataclass(frozen=True, slots=True)
class Layout:
    """Threads that hold a row between them (``across``), the rows of one thread, and whether a product fixed it.
    ``far``: a row spans warps, so that reducing it goes through shared memory. ``apart``: threads of a warp have rows of their
    own."""

    across: int
    rows: int
    far: bool
    fixed: bool = False
    apart: bool = False


def matrix_warps(g: Gemm, m: int, n: int, threads: int, target: Target) -> tuple[int, int]:
    """The grid of warps over an accumulator of m x n, rows by columns."""
    return next(_grids(g, m, n, threads, target), (1, max(1, threads // target.warp)))


def uneven(kernel: TileKernel, target: Target) -> str:
    """A product that the warps cannot share: each takes 16 rows and 8 columns, or some of these; or a tile beside one for which
    there is no layout (:func:`led`). Empty where there is neither."""
    if target.kind == "cuda" and kernel.warp_specialized and (found := beside(kernel)):
        return f"a layout for {', '.join(sorted(found))} beside a product"
    shapes = {b.name: b.shape for b in kernel.buffers if b.scope == "fragment"}
    for s in every(kernel.body):
        if isinstance(s, Gemm) and not s.flies and len(shape := shapes.get(s.c, ())) == 2 and next(
                _grids(s, shape[0], shape[1], kernel.threads, target), None) is None:
            return f"a way to share {shape[0]} x {shape[1]} of a product among {kernel.threads // target.warp} warps"
    return ""


def _grids(g: Gemm, m: int, n: int, threads: int, target: Target) -> Iterator[tuple[int, int]]:
    warps = threads // target.warp
    group = 4 if warp_group(g, m, threads, target) else 1
    for rows in _by_policy(g, warps, m, n):
        columns = warps // rows
        if warps % rows == 0 and rows % group == 0 and m % (16 * rows) == 0 and n % (target.warp // 4 * columns) == 0:
            yield rows, columns


def _by_policy(g: Gemm, warps: int, m: int, n: int) -> list[int]:
    """Warps over the rows, those tried first in front."""
    ways = [r for r in range(1, warps + 1) if warps % r == 0]
    if g.policy == "square":
        return sorted(ways, key=lambda r: abs((m / (16 * r)) / (n / (8 * warps / r)) - m / n))
    return ways if g.policy == "cols" else ways[::-1]


def crews(kernel: TileKernel) -> dict[int, int]:
    """Threads that a statement of a role has, by its identity: those of the role's groups. Any other has the block's."""
    return {id(s): 128 * r.groups for k in kernel.body if isinstance(k, Roles) for r in k.roles for s in every(r.body)}


def warp_group(g: Gemm, m: int, threads: int, target: Target) -> bool:
    """A product of four warps at once."""
    return target.wgmma and m >= 64 and threads % 128 == 0


@lru_cache(maxsize=256)
def layouts(kernel: TileKernel, target: Target) -> dict[str, Layout]:
    """The layout of every fragment of two dimensions."""
    shapes, root = alike(kernel)
    fixed: dict[str, Layout] = {}
    crew = crews(kernel)
    for s in every(kernel.body):
        if isinstance(s, Gemm) and s.c in shapes:
            m, n = shapes[s.c]
            rows, columns = matrix_warps(s, m, n, crew.get(id(s), kernel.threads), target)
            fixed.setdefault(root(s.c), Layout(4 * columns, max(1, m // (target.warp // 4 * rows)), columns > 1, True))
    for s in every(kernel.body):  # a product lays a left operand of registers out as its sum
        if isinstance(s, Gemm) and {a := s.a.buffer, s.c} <= set(shapes):
            (rows, _), (m, n) = shapes[a], shapes[s.c]
            down = target.warp // 4 * matrix_warps(s, m, n, kernel.threads, target)[0]
            fixed.setdefault(root(a), Layout(4, max(1, rows // down), False, True))
    for n in led(kernel) if target.kind == "cuda" else ():
        fixed.setdefault(root(n), Layout(4, 2, False, True))
    for s in every(kernel.body):
        if isinstance(s, ReduceTile) and s.lanes and root(s.src) in fixed:
            fixed.setdefault(root(s.dst), fixed[root(s.src)])
    found: dict[str, Layout] = {}
    own, touched = told(kernel, target.warp if target.kind == "cuda" else 0), None
    for n, shape in shapes.items():
        if (at := root(n)) in fixed:
            found[n] = fixed[at]
        elif n in own:
            found[n] = _told(own[n], shape, kernel.threads, target.warp)
        else:
            touched = touched if touched is not None else accesses(kernel)
            found[n] = _dealt(kernel, shape, [k for k in shapes if root(k) == at], touched, target.warp)
    turned = {n: at for n, at in found.items() if n not in own}
    return found | {n: _turned(kernel, n, shapes, at, found, target.warp) for n, at in turned.items()}


def _told(d: Dealt, shape: tuple[int, ...], threads: int, warp: int) -> Layout:
    if d.lies:
        return Layout(threads // d.across, max(1, shape[0] // d.across), False)
    return Layout(d.across, max(1, d.beside), threads > warp if d.beside else d.across > 1 and not d.run,
                  apart=not d.run and not d.beside)


def _turned(kernel: TileKernel, name: str, shapes: dict[str, tuple[int, ...]], own: Layout, found: dict[str, Layout],
            warp: int) -> Layout:
    """The layout of a fragment whose group takes its elements from a fragment that lies the other way round."""
    for s in every(kernel.body):
        if isinstance(s, Parallel) and len(s.vars) == 2 and not own.fixed and name in {a.target for a in s.body}:
            back = tuple(Index(v) for v in s.vars[::-1])
            for x in (x for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.indices == back):
                if x.tensor in shapes:  # its columns are this one's rows: a thread has those that it has of a row there
                    side = min(kernel.threads, found[x.tensor].across)
                    across = min(kernel.threads // side, shapes[x.tensor][0])
                    return Layout(across, max(1, shapes[name][0] // side), across > 1 and kernel.threads > warp)
    return own


def _dealt(kernel: TileKernel, shape: tuple[int, ...], group: list[str], touched: list[Access], warp: int) -> Layout:
    """Runs of the widest vector that an access to global memory allows, while every thread gets one. touched: every access."""
    vector, total = run(kernel, group, touched), prod(shape)
    while vector > 1 and total % (kernel.threads * vector):
        vector //= 2
    across = min(kernel.threads, max(1, shape[1] // vector))
    return Layout(across, max(1, shape[0] * across // kernel.threads), across > warp)


def warps_meet(kernel: TileKernel, target: Target) -> bool:
    """Are there several warps to a row of a scan, which tell each other what they come to?"""
    rows = {b.name: b.shape[0] for b in kernel.buffers if b.scope == "shared"}
    return any(isinstance(s, ScanTile) and kernel.threads > rows[s.src] * target.warp for s in every(kernel.body))


def far_reductions(kernel: TileKernel, target: Target) -> dict[int, int]:
    """By the identity of a reduction: bytes of shared memory that its rows meet in, where they span warps. TileLang keeps that
    room where threads that exchange are more than 32 apart, as in a wave's product: for a wave's threads, and once more for
    its waves unless they carry on where the threads end, each with one instruction's columns and no other rows between them."""
    spread, dtypes, crew = layouts(kernel, target), kernel.dtypes, crews(kernel)
    shapes = {b.name: b.shape for b in kernel.buffers}

    def times(at: Layout, columns: int) -> int:
        inside = target.warp > 32 and (at.fixed or (at.across > 32 and not at.far))
        return inside + (at.far and not (inside and (columns, kernel.threads) == (4 * at.across, target.warp // 4 * at.across)))

    return {id(s): many * s.at_once * crew.get(id(s), kernel.threads) * BYTES[dtypes[s.dst]]
            for s in every(kernel.body) if isinstance(s, ReduceTile)
            and (at := spread.get(s.src)) is not None and (many := times(at, shapes[s.src][1]))}
