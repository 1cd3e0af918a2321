"""A row shared out among the threads of one block, each of which walks its part with a state of its own.

A block that walks a row exchanges numbers among its threads in every step, once for each number of the state; what it has
asked for by then is all that is under way. Threads that walk by themselves exchange nothing until the end, where their states
are merged at once. The program is that of a row in as many splits as a block has threads::

    split kernel, a block:     n[s], t[s]            s < 256, the walk of split s
    merge kernel, a block:     m_part[i, s]          a row's partials, s < 256
    -->
    one kernel, a block a row, a thread a split, whose partials go from one to the other in registers

The splits of a row are interleaved, so that neighbouring threads read neighbouring elements, one access at a time each: element
``l`` of thread ``s`` is ``l // 4 * 1024 + 4 * s + l % 4`` of the row. Which elements are a split's does not matter to what is
reduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from redfuser.acrf.expr import BYTES, Expr, Index, Load, Op, indices_of, loads_of, map_children, substitute
from redfuser.acrf.index import i64, iadd, imul
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block, Kernel, Program
from redfuser.strategies.select import OWN
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.ir.effects import at_value, reads, renamed, with_exprs, writes
from redfuser.tensorize.ir.names import Names
from redfuser.tensorize.ir.nodes import Assign, Copy, Parallel, TileKernel, TileStmt
from redfuser.tensorize.rewrite.arranged import Arranged

WIDTH = 16
"""Bytes of an access."""


def by_thread(program: Program, config: TileConfig) -> bool:
    """Is a split of a row a thread's?"""
    return config.by_thread and program.splits == config.threads > OWN


def possible(program: Program, elements: int) -> bool:
    """May each thread have its split, walked so many elements at a time?"""
    if program.strategy != "multi" or len(program.kernels) != 2 or program.kernels[1].kind != "merge":
        return False
    split, merge = program.kernels
    extent = program.extent(split.raxis)
    whole = {t.name for t in split.writes} == {t.name for t in merge.reads if t.name in {w.name for w in program.workspaces}}
    places = any(len(b.names) > 1 for b in split.init)  # of elements in the order of the row
    return isinstance(extent, int) and whole and not places and elements % _run(split) == 0 and (
        extent % (program.splits * elements) == 0)


def _run(kernel: Kernel) -> int:
    """Elements of the row in one access."""
    along = [BYTES[x.dtype] for b in kernel.body for e in b.exprs for x in loads_of(e) if kernel.raxis in indices_of(x)]
    return WIDTH // max(along, default=WIDTH)


def interleaved(at: Arranged) -> Arranged:
    """A split kernel whose splits are points of its grid, each with every so many elements of the row."""
    kernel, split, row = at.kernel, at.kernel.split or "", at.kernel.raxis
    run, splits = _run(kernel), at.extents[split]
    within = iadd(imul(Index(split), run), Op("mod", (Index(row), i64(run)), "i64"))
    place = iadd(imul(Op("floordiv", (Index(row), i64(run)), "i64"), run * splits), within)

    def moved(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        return tuple(replace(b, exprs=tuple(substitute(e, indices={row: place}) for e in b.exprs),
                             axes=(*b.axes, split) if split not in b.axes else b.axes) for b in blocks)

    kernel = replace(kernel, kind="single", grid=(*kernel.grid, split), split=None, init=moved(kernel.init),
                     body=moved(kernel.body), tail=moved(kernel.tail))
    return replace(at, kernel=kernel, extents={**at.extents, row: at.extents[row] // splits})


def joined(split: TileKernel, merge: TileKernel, name: str) -> TileKernel:
    """Both kernels as one, in which the partials of a row are a tile. Raises LoweringError RF489 where they are not of one
    block."""
    partial = {p.name for p in split.params if p.out}
    if [n for _, n in split.grid] != [n for _, n in merge.grid] or split.threads != merge.threads or split.lets or merge.lets:
        raise LoweringError("RF489", f"{name}: a row's partials are not of one block")
    stored: dict[tuple[str, tuple[Expr, ...]], Assign] = {}
    first: list[TileStmt] = []
    walk = list(split.body)
    for (old, _), (new, _) in zip(split.grid, merge.grid, strict=True):
        walk = [at_value(s, old, Index(new)) for s in walk]
    for s in walk:
        if isinstance(s, Parallel) and partial & writes(s):
            stored |= {(a.target, a.indices[:-1]): a for a in s.body if a.target in partial}
            kept = tuple(a for a in s.body if a.target not in partial)
            first += [replace(s, body=kept)] if kept else []
        else:
            first.append(s)
    taken, body, buffers = Names(split), list(merge.body), []
    row, place = (Names(merge).fresh(n) for n in ("i_", "j_"))
    for b in merge.buffers:
        fresh = taken.fresh(b.name)
        body = [renamed(s, b.name, fresh) for s in body]
        buffers.append(replace(b, name=fresh))
    last = [_in_registers(s, stored, partial, (row, place), name) for s in body]
    params = {p.name: p for p in (*split.params, *merge.params) if p.name not in partial}
    return replace(split, name=name, grid=merge.grid, params=tuple(params.values()), buffers=(*split.buffers, *buffers),
                   body=(*first, *last), notes=(*split.notes, *merge.notes))


def _in_registers(s: TileStmt, stored: Mapping[tuple[str, tuple[Expr, ...]], Assign], partial: set[str],
                  points: tuple[str, str], name: str) -> TileStmt:
    """Partials from the threads that have them."""
    if not partial & reads(s):
        return s

    def held(tensor: str, at: tuple[Expr, ...], last: Expr) -> Expr | None:
        if (a := stored.get((tensor, at))) is None:
            return None
        (mine,) = indices_of(a.indices[-1])
        return substitute(a.expr, indices={mine: last})

    def value(e: Expr) -> Expr:
        own = held(e.tensor, e.indices[:-1], e.indices[-1]) if isinstance(e, Load) and e.tensor in partial else None
        return own if own is not None else e if isinstance(e, Load) else map_children(e, value)

    if isinstance(s, Copy) and not s.dst.dims and (
            own := held(s.src.buffer, tuple(d.start for d in s.src.dims[:-1]), Index(points[1]))) is not None:
        return Parallel(points, (1, s.src.dims[-1].size), (Assign(s.dst.buffer, tuple(map(Index, points)), own),))
    if not partial & reads(s := with_exprs(s, value)):
        return s
    raise LoweringError("RF489", f"{name}: partials are read as {s}")


__all__ = ["by_thread", "interleaved", "joined", "possible"]
