"""One kernel of a segment program as tile operations.

The walk follows the blocks in their order; each becomes the tile operation its shape says:

    a contraction of loads, per element of the segment       copy, copy, gemm        (scores)
    a map over rows x segment or rows x columns              parallel
    a reduction along the segment                            reduce                  (row maximum, row sum)
    a reduction along the segment with a column axis         gemm                    (accumulator += weights @ values)
    a map over rows                                          parallel over rows

Loads of whole tiles are copies, of which those that do not move with the segment are made once, before the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, Ref, refs_of, walk
from redfuser.acrf.index import i64, placed
from redfuser.errors import LoweringError
from redfuser.strategies.alive import TRUE
from redfuser.strategies.program import Block, made_again
from redfuser.tensorize.axes import strip_casts
from redfuser.tensorize.builder import HALF, Builder, Scope
from redfuser.tensorize.contraction import lower_contraction
from redfuser.tensorize.geometry import Geometry, argument_name
from redfuser.tensorize.ir.effects import at_value
from redfuser.tensorize.ir.nodes import Fill, For, TileKernel, TileStmt
from redfuser.tensorize.maps import map_tile
from redfuser.tensorize.reductions import keep_old, lower_correct, lower_late_reduce, lower_merge, lower_reduce
from redfuser.tensorize.scans import lower_scan
from redfuser.tensorize.selection import LAST
from redfuser.tensorize.stores import lower_output, lower_store
from redfuser.tensorize.walk import alive_positions, constant_trip, from_the_end, one_step, segment_steps


def lower_kernel(at: Geometry) -> tuple[TileKernel, list[str]]:
    """The tile form of a kernel, and the roundings that it adds. Raises LoweringError RF485 to RF494."""
    prologue = Scope()
    work = Builder(at, prologue, prologue, prologue.stmts)
    _init_state(work)
    tail = Scope(segment=i64(0) if at.resident else at.first(at.roles.segment or "").expr() if at.kernel.spread else None)
    body: list[TileStmt] = []
    if at.kernel.body:
        walked = _lower_body(work, tail)
        body += [*walked, *work.after.values()]
    _lower_tail(work.into(tail))
    cascade = at.program.fused.cascade
    order = [argument_name(at.program, t.name) for t in (*cascade.inputs, *at.kernel.reads, *at.kernel.writes)]
    params = tuple(sorted(at.params.values(), key=lambda p: order.index(p.name)))
    stmts = (*prologue.stmts, *body, *tail.stmts)
    grid, lets = _launch_grid(at, stmts)
    return TileKernel(at.kernel.name, params, grid, at.config.threads, lets, tuple(work.buffers.values()), stmts,
                      at.config.warp_specialized and at.target.tma, at.config.raster, at.exact,
                      tuple(str(at.original).splitlines())), work.roundings


def _launch_grid(at: Geometry, stmts: tuple[TileStmt, ...]) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, Expr], ...]]:
    """Grid variables, fastest first, and the scalars derived from them."""
    axes = [(a, at.extents[a]) for a in reversed(at.roles.grid) if at.extents[a] > 1]
    axes = [*at.blocks.items(), *axes]
    lets: list[tuple[str, Expr]] = []
    rows = f"{at.roles.rows}_block"
    narrowed = any(Index(rows) in walk(e) for s in stmts if isinstance(s, For) for e in (s.start, s.stop))
    if rows in at.blocks and at.config.reverse and narrowed:
        axes[0] = (f"{rows}_from_end", at.blocks[rows])
        lets.append((rows, Op("sub", (i64(at.blocks[rows] - 1), Index(axes[0][0])), "i64")))
    return tuple(axes), tuple(lets)


def _init_state(work: Builder) -> None:
    at = work.at
    for b in at.kernel.init:
        if at.roles.lists and not at.resident:
            raise LoweringError("RF489", f"{at.kernel.name}: {', '.join(b.names)} is a list",
                                why="the tile form of this reducer needs the row on chip")
        for n, neutral in zip(b.names, b.exprs, strict=True):
            if neutral.dtype == "f64":
                raise LoweringError("RF489", f"{at.kernel.name}: {n} is accumulated in float64",
                                    why="tiles accumulate in single precision")
            dtype = "i32" if n == b.names[-1] and len(b.names) > 1 else neutral.dtype  # the place of a best element
            v = work.tile(n, (*at.row, *work.ordered(set(b.axes) & set(at.roles.columns))), dtype)
            work.values[n] = v
            assert isinstance(neutral, Const)
            if not at.resident:
                work.prologue.stmts.append(Fill(v.buffer, Const(LAST, dtype) if dtype != neutral.dtype else neutral))


def _lower_body(work: Builder, tail: Scope) -> list[TileStmt]:
    """The walk of the row, or the row held on chip, whose tiles are those of ``tail`` as well."""
    at = work.at
    if at.roles.fold is not None:
        return [For(at.counter, i64(0), i64(at.extents[at.roles.fold]), tuple(_lower_blocks(work, at.kernel.body, Scope())),
                    comment="fold the partial states of the splits")]
    if at.resident:
        return _lower_blocks(work, at.kernel.body, Scope(segment=i64(0), staged=tail.staged))
    first, last, start = segment_steps(at, alive_positions(at))
    if at.config.chunk and one_step(at, first, last):  # a product in a loop of its own: nothing is left to walk
        return _lower_blocks(work, at.kernel.body, Scope(segment=placed(start, at.counter, first), product=True))
    stmts = _lower_blocks(work, at.kernel.body, Scope(segment=start))
    nested = any(isinstance(x, For) for x in stmts)
    stages = 0 if nested else at.config.stages
    asynchronous = at.config.warp_specialized and at.target.tma
    if stages > 1 and not asynchronous and not constant_trip(at, first, last):
        stages = 1  # TileLang 0.1.15 cannot drain a deeper cp.async pipeline after an unknown number of steps
    return [For(at.counter, first, last, tuple(stmts), stages)]


def _lower_blocks(work: Builder, blocks: Iterable[Block], scope: Scope) -> list[TileStmt]:
    inside = work.into(scope)
    for b in blocks:
        _lower_block(inside, b)
    return scope.stmts


def _lower_block(work: Builder, b: Block) -> None:
    if b.role == "producer" and b.reducer is not None:
        lower_contraction(work, b)
    elif b.role == "store" and "@" in b.name:
        keep_old(work, b)
    elif b.role == "correct":
        lower_correct(work, b)
    elif b.role == "reduce":
        lower_reduce(work, b)
    elif b.role == "merge":
        lower_merge(work, b)
    elif b.running:
        lower_scan(work, b)
    elif b.reducer is not None:
        lower_late_reduce(work, b)
    else:
        _lower_let(work, b)


def _lower_let(work: Builder, b: Block) -> None:
    """Give a value a tile where that is worth one, else evaluate it where it is read."""
    (e,) = b.exprs
    name = b.name
    axes = work.ordered(work.at.facts.levels.get(name, ()))
    if not work.at.has_gemm:  # what is of the segment alone may have been evaluated for every row
        axes = work.ordered({*axes, *(a for r in refs_of(e) for a in work.value(r).axes)})
        if axes != work.at.across and work.repeated(b, e):
            axes = work.at.across if work.at.roles.segment in axes else work.at.row
    if name in work.at.stores:
        lower_output(work, b, e, axes)
        return
    rows = work.at.roles.rows
    if not axes or (len(axes) == 1 and axes != work.at.row) or (axes == work.at.row and not _worth_a_buffer(e)):
        work.values[name] = work.inline(axes, b.dtype, e)
        return
    if axes[0] != rows or len(axes) > 2:
        raise LoweringError("RF493", f"{work.at.kernel.name}: {name} spans {', '.join(axes)} at once",
                            why="a tile has rows and one other axis")
    if axes == work.at.across and isinstance(strip_casts(e), Load) and rows in work.axes_of(e):
        work.values[name] = work.inline(axes, b.dtype, e)
        return
    v = work.tile(name, axes, b.dtype if b.dtype not in ("f64", *HALF) or isinstance(e, Cast) else "f32")
    map_tile(work, v, e, work.at.source(b))
    work.values[name] = v


def _worth_a_buffer(e: Expr) -> bool:
    return isinstance(e, Op) or (isinstance(e, Cast) and isinstance(e.arg, Op)) or isinstance(strip_casts(e), Load)


def _lower_tail(work: Builder) -> None:
    """Finalize and epilogue run once; blocks along the segment run in further walks unless the row is on chip."""
    walk_again: list[Block] = []
    walked: list[Block] = []

    def flush() -> None:
        if not walk_again:
            return
        before: list[TileStmt] = []
        blocks = (*made_again(walk_again, walked, work.at.roles.segment, work.at.stores), *walk_again)
        walked.extend(walk_again)
        walk_again.clear()
        first, last, start = segment_steps(work.at, TRUE)
        why = "walk the row" if any(b.running for b in blocks) else "visit the row again"
        stmts = _lower_blocks(replace(work, before=before), blocks, Scope(segment=start))
        if all(b.reducer is None for b in blocks):  # what was read last is the nearest
            stmts = [at_value(s, work.at.counter, from_the_end(work.at, first, last)) for s in stmts]
        stages = 0 if work.at.has_gemm else work.at.config.stages
        work.scope.stmts.extend([*before, For(work.at.counter, first, last, tuple(stmts), stages, comment=why)])

    pending: set[str] = set()
    for b in work.at.kernel.tail:
        along = _along_segment(work.at, b)
        if along and not work.at.resident and not work.at.kernel.spread:
            if pending & {x.name for e in b.exprs for x in walk(e) if isinstance(x, Ref)}:
                flush()
                pending = set()
            walk_again.append(b)
            if b.reducer is not None and b.over == work.at.roles.segment and not b.running:
                pending |= set(b.names)
            continue
        if not along and walk_again and {x.name for e in b.exprs for x in walk(e) if isinstance(x, Ref)} & {
                n for w in walk_again for n in w.names}:
            flush()
            pending = set()
        lower_store(work, b) if b.role == "store" else _lower_block(work, b)
    flush()


def _along_segment(at: Geometry, b: Block) -> bool:
    n = at.roles.segment
    return n is not None and (b.over == n or any(n in at.facts.levels.get(x, ()) for x in b.names)
                              or n in b.axes)
