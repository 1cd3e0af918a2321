"""Neighbouring blocks that read the same tiles have them brought once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from redfuser.acrf.expr import Expr, Index, Load, walk
from redfuser.tensorize.ir.effects import alike, bodies, every, steers, with_bodies
from redfuser.tensorize.ir.flight import Arrive, Await, Fetch, Let
from redfuser.tensorize.ir.nodes import Roles, TileKernel, TileStmt

SIZES = (2, 3)
"""Blocks of a cluster: as many as divide the grid, the fewer the sooner."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A tile that does not move with the first grid variable is brought to the shared memory of two neighbours at once::

        kernel .. grid (i < 8, b < 4)               kernel .. grid (i < 8, b < 4) cluster 2
          x_empty: barrier[2] of 2                    x_empty: barrier[2] of 4
          role accumulate of 2:                       role accumulate of 2:
            arrive x_empty[k % 2]             -->       arrive x_empty[k % 2] of all
          role copy of 1:                             role copy of 1:
            await x_empty[k % 2] phase ..               await x_empty[k % 2] phase ..
            fetch x[b, ..] -> x_shared[..]              fetch x[b, ..] -> x_shared[..]
              signals x_full[k % 2]                       signals x_full[k % 2] of all

    The first block brings it, once the groups of both have given the slot back; the other says that it expects it. Both start
    and end together. Requires blocks that take the same steps whatever the first grid variable is, and a ring of slots whose
    tile is the same for all of them. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        last = kernel.body[-1]
        beside, extent = kernel.grid[0]
        size = next((n for n in SIZES if extent % n == 0), 1)
        if not isinstance(last, Roles) or size == 1 or kernel.cluster > 1 or beside not in alike(kernel):
            return kernel
        moving = _moving(kernel, beside)
        if any(_moves(e, moving) for e in steers(kernel)):
            return kernel
        shared = dict(_shared(last, moving))
        if not shared:
            return kernel
        told = {*shared, *shared.values()}
        roles = Roles(tuple(replace(r, body=_of_all(r.body, told)) for r in last.roles))
        barriers = tuple(replace(b, arrivals=size * b.arrivals) if b.name in shared else b for b in kernel.barriers)
        return replace(kernel, body=(*kernel.body[:-1], roles), barriers=barriers, cluster=size)


def _moving(kernel: TileKernel, beside: str) -> set[str]:
    """The first variable of the grid, what depends on it, and the tiles of a block, which may."""
    found = {beside, *(b.name for b in kernel.buffers)}
    lets = [*kernel.lets, *((s.var, s.value) for s in every(kernel.body) if isinstance(s, Let))]
    for n, e in lets:
        if _moves(e, found):
            found.add(n)
    return found


def _moves(e: Expr, moving: set[str]) -> bool:
    return any((isinstance(x, Index) and x.axis in moving) or (isinstance(x, Load) and x.tensor in moving) for x in walk(e))


def _shared(roles: Roles, moving: set[str]) -> Iterator[tuple[str, str]]:
    """Rings of tiles that are the same for neighbours: the barriers at which slots are empty, and full."""
    lists = [r.body for r in roles.roles] + [b for s in every((roles,)) for b in bodies(s)]
    fetches = [s for s in every((roles,)) if isinstance(s, Fetch)]
    for a, s in ((a, s) for body in lists for a, s in zip(body, body[1:], strict=False)):
        if isinstance(a, Await) and isinstance(s, Fetch) and not any(_moves(d.start, moving) for d in s.src.dims) and sum(
                f.at.barrier == s.at.barrier or f.dst.buffer == s.dst.buffer for f in fetches) == 1:
            yield a.at.barrier, s.at.barrier


def _of_all(body: tuple[TileStmt, ...], told: set[str]) -> tuple[TileStmt, ...]:
    return tuple(replace(s, all=True) if isinstance(s, (Arrive, Fetch)) and s.at.barrier in told else
                 with_bodies(s, lambda b: _of_all(b, told)) for s in body)
