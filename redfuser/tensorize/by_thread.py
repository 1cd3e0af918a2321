"""A row shared out among the threads of one block, each of which walks its part with a state of its own.

A block that walks a row exchanges numbers among its threads in every step, once for each number of the state; what it has
asked for by then is all that is under way. Threads that walk by themselves exchange nothing until the end, where their states
are merged at once. The program is that of a row in as many splits as a block has threads::

    split kernel, a block:     n[s], t[s]            s < 256, the walk of split s
    merge kernel, a block:     m_part[i, s]          a row's partials, s < 256
    -->
    one kernel, a block a row, a thread a split, whose partials go from one to the other in registers

Results along the row are a second visit of it in the same kernel, by the block, from its end: what was read last is the
nearest. A multiprocessor has then one row under way in all of its threads, of which its own cache and its share of the next one
hold most, in the place of a kernel that reads from memory what the first of three has read.

The splits of a row are interleaved, so that neighbouring threads read neighbouring elements, one access at a time each: element
``l`` of thread ``s`` is ``l // 4 * 1024 + 4 * s + l % 4`` of the row. Which elements are a split's does not matter to what is
reduced. Where the row ends within a step of all threads, an access past its end is one of its last elements, and padding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import gcd

from redfuser.acrf.expr import BYTES, Expr, Index, Load, indices_of, loads_of, map_children, op, substitute
from redfuser.acrf.index import i64, iadd, ifloordiv, imin, imod, imul, placed
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block, Kernel, Program
from redfuser.strategies.select import OWN
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.ir.effects import Names, at_value, reads, renamed, with_exprs, writes
from redfuser.tensorize.ir.nodes import Assign, Copy, For, Parallel, TileKernel, TileStmt
from redfuser.tensorize.rewrite.arranged import Arranged

WIDTH = 16
"""Bytes of an access."""


def by_thread(program: Program, config: TileConfig) -> bool:
    """Is a split of a row a thread's?"""
    return config.by_thread and program.splits == config.threads > OWN


def possible(program: Program, elements: int) -> bool:
    """May each thread have its split, walked so many elements at a time?"""
    if program.strategy != "multi" or program.kernels[1].kind != "merge":
        return False
    split, merge, *again = program.kernels
    if any(k.split is None or k.scans for k in again):  # something is reduced in the second visit
        return False
    extent = program.extent(split.raxis)
    between = {t.name for t in program.workspaces}
    all_partials = {t.name for t in split.writes} == {t.name for t in merge.reads if t.name in between}
    places = any(len(b.names) > 1 for b in split.init)  # of elements in the order of the row
    return isinstance(extent, int) and all_partials and not places and extent >= program.splits * elements // 2 and (
        elements % _run(split, extent) == 0)


def by_block(kernel: Kernel) -> Kernel:
    """A kernel that visits a row again, whose splits are one block's."""
    return replace(kernel, kind="single", split=None) if kernel.kind == "map" else kernel


def _run(kernel: Kernel, extent: int) -> int:
    """Elements of the row in one access, with which one that is so long ends."""
    along = [BYTES[x.dtype] for b in kernel.body for e in b.exprs for x in loads_of(e) if kernel.raxis in indices_of(x)]
    return gcd(WIDTH // max(along, default=WIDTH), extent)


def interleaved(at: Arranged, elements: int) -> Arranged:
    """A split kernel whose splits are points of its grid, each with every so many elements of the row; ``elements`` of each at
    a time."""
    kernel, split, row = at.kernel, at.kernel.split or "", at.kernel.raxis
    extent, splits = at.extents[row], at.extents[split]
    run = _run(kernel, extent)
    first = iadd(imul(ifloordiv(Index(row), run), run * splits), imul(Index(split), run))
    rest, inside, each = imod(Index(row), run), None, extent // splits
    held = place = iadd(first, rest)
    if extent % (splits * elements):
        inside, each = op("lt", first, i64(extent)), -(-extent // (splits * elements)) * elements
        held = iadd(imin(first, i64(extent - run)), rest)

    def put(e: Expr) -> Expr:
        if isinstance(e, Load):
            return replace(e, indices=tuple(substitute(i, indices={row: held}) for i in e.indices))
        return place if e == Index(row) else map_children(e, put)

    def moved(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        return tuple(replace(b, exprs=tuple(map(put, b.exprs)),
                             axes=(*b.axes, split) if split not in b.axes else b.axes) for b in blocks)

    kernel = replace(kernel, kind="single", grid=(*kernel.grid, split), split=None, init=moved(kernel.init),
                     body=moved(kernel.body), tail=moved(kernel.tail))
    return replace(at, kernel=kernel, extents={**at.extents, row: each}, inside=inside)


def joined(split: TileKernel, merge: TileKernel, name: str) -> TileKernel:
    """Both kernels as one, in which the partials of a row are a tile. Raises LoweringError RF489 where they are not of one
    block."""
    partial = {p.name for p in split.params if p.out}
    _one_block(split, merge, name)
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
    points = (Names(merge).fresh("i_"), Names(merge).fresh("j_"))
    return _behind(replace(split, body=tuple(first), grid=merge.grid), merge,
                   lambda s: _in_registers(s, stored, partial, points, name), partial, name)


def revisited(kernel: TileKernel, again: TileKernel, scratch: set[str], name: str) -> TileKernel:
    """A walk and the second visit of its row as one kernel, in which the row's values stay in registers. scratch: what nothing
    but the second visit reads. Raises LoweringError RF489 where they are not of one block."""
    given = {p.name for p in kernel.params if p.out} & {p.name for p in again.params}
    _one_block(kernel, again, name)
    values: dict[tuple[str, tuple[Expr, ...]], tuple[str, Expr]] = {}
    body = list(kernel.body)
    for (old, _), (new, _) in zip(kernel.grid, again.grid, strict=True):
        body = [at_value(s, old, Index(new)) for s in body]
    first: list[TileStmt] = []
    for s in body:
        if isinstance(s, Parallel) and s.extents == (1,) and given & writes(s):
            values |= {(a.target, _first_row(a.indices, s.vars[0])): (s.vars[0], a.expr) for a in s.body if a.target in given}
            kept = tuple(a for a in s.body if a.target not in scratch)
            first += [replace(s, body=kept)] if kept else []
        else:
            first.append(s)

    def held(s: TileStmt) -> TileStmt:
        if isinstance(s, For):
            return replace(s, body=tuple(map(held, s.body)))
        own = with_exprs(s, functools.partial(value, s.vars[0])) if isinstance(s, Parallel) and s.extents[0] == 1 else s
        if given & reads(own):
            raise LoweringError("RF489", f"{name}: a row's values are read as {s}")
        return own

    def value(row: str, e: Expr) -> Expr:
        if isinstance(e, Load) and (found := values.get((e.tensor, _first_row(e.indices, row)))) is not None:
            return substitute(found[1], indices={found[0]: Index(row)})
        return map_children(e, functools.partial(value, row))

    return _behind(replace(kernel, body=tuple(first), grid=again.grid), again, held, given & scratch, name)


def _first_row(indices: tuple[Expr, ...], row: str) -> tuple[Expr, ...]:
    """Where a value of the only row of a block lies."""
    return tuple(placed(i, row, i64(0)) for i in indices)


def _one_block(kernel: TileKernel, other: TileKernel, name: str) -> None:
    """Raises LoweringError RF489 where two kernels' blocks are not each other's, or see a tensor in two ways."""
    same = [n for _, n in kernel.grid] == [n for _, n in other.grid] and kernel.threads == other.threads
    views = {p.name: p.shape for p in kernel.params}
    if not same or kernel.lets or other.lets or any(views.get(p.name, p.shape) != p.shape for p in other.params):
        raise LoweringError("RF489", f"{name}: a row's partials are not of one block")


def _behind(kernel: TileKernel, other: TileKernel, moved: Callable[[TileStmt], TileStmt], gone: set[str],
            name: str) -> TileKernel:
    """``kernel``, and behind it another with buffers of its own, whose statements are ``moved``. gone: parameters that are none
    any more."""
    taken, body, buffers = Names(kernel), list(other.body), []
    for b in other.buffers:
        fresh = taken.fresh(b.name)
        body = [renamed(s, b.name, fresh) for s in body]
        buffers.append(replace(b, name=fresh))
    params = {p.name: p for p in (*other.params, *kernel.params) if p.name not in gone}
    return replace(kernel, name=name, params=tuple(params.values()), buffers=(*kernel.buffers, *buffers),
                   body=(*kernel.body, *map(moved, body)), notes=(*kernel.notes, *other.notes))


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
