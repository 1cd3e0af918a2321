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

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, Ref, walk
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.tensorize.arguments import argument_name
from redfuser.tensorize.axes import strip_casts
from redfuser.tensorize.contraction import lower_contraction
from redfuser.tensorize.ir.index import i64
from redfuser.tensorize.ir.nodes import Fill, For, TileKernel, TileStmt
from redfuser.tensorize.maps import map_tile
from redfuser.tensorize.masks import TRUE
from redfuser.tensorize.reductions import keep_old, lower_correct, lower_late_reduce, lower_merge, lower_reduce
from redfuser.tensorize.scope import HALF, Scope, Value
from redfuser.tensorize.state import KernelState
from redfuser.tensorize.stores import lower_output, lower_store
from redfuser.tensorize.walk import alive_positions, constant_trip, segment_steps


def lower_kernel(work: KernelState) -> TileKernel:
    """The tile form of a kernel. Raises LoweringError RF485 to RF494."""
    work.choose_names()
    _init_state(work)
    body: list[TileStmt] = []
    if work.kernel.body:
        loop = _lower_body(work)
        body += [*loop, *work.lowered_after.values()]
    tail = Scope(segment=i64(0) if work.resident else None)
    if work.resident:
        tail.staged = work.last_staged
    work.scope = tail
    _lower_tail(work, tail)
    cascade = work.program.fused.cascade
    order = [argument_name(work.program, t.name) for t in (*cascade.inputs, *work.kernel.reads, *work.kernel.writes)]
    params = tuple(sorted(work.params.values(), key=lambda p: order.index(p.name)))
    grid, lets = _launch_grid(work)
    return TileKernel(work.kernel.name, params, grid, work.config.threads, lets, tuple(work.buffers.values()),
                      (*work.prologue.stmts, *body, *tail.stmts), work.config.warp_specialized and work.target.tma,
                      work.config.raster, work.exact, work.notes())


def _launch_grid(work: KernelState) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, Expr], ...]]:
    """Grid variables, fastest first, and the scalars derived from them."""
    axes = [(a, work.extents[a]) for a in reversed(work.roles.grid) if work.extents[a] > 1]
    axes = [*work.blocks.items(), *axes]
    lets: list[tuple[str, Expr]] = []
    rows = f"{work.roles.rows}_block"
    if rows in work.blocks and work.config.reverse and work.narrowed:
        axes[0] = (f"{rows}_from_end", work.blocks[rows])
        lets.append((rows, Op("sub", (i64(work.blocks[rows] - 1), Index(axes[0][0])), "i64")))
    return tuple(axes), tuple(lets)


def _init_state(work: KernelState) -> None:
    for b in work.kernel.init:
        if len(b.names) > 1 and not work.resident:
            raise LoweringError("RF489", f"{work.kernel.name}: {', '.join(b.names)} carries a payload",
                                why="the tile form of this reducer needs the row on chip")
        for n, neutral in zip(b.names, b.exprs, strict=True):
            if neutral.dtype == "f64":
                raise LoweringError("RF489", f"{work.kernel.name}: {n} is accumulated in float64",
                                    why="tiles accumulate in single precision")
            dtype = "i32" if neutral.dtype == "i64" and len(b.names) > 1 else neutral.dtype  # the place of a best element
            v = work.tile(n, (*work.row, *work.ordered(set(b.axes) & set(work.roles.columns))), dtype)
            work.values[n] = v
            assert isinstance(neutral, Const)
            if not work.resident:
                work.prologue.stmts.append(Fill(v.buffer, neutral))


def _lower_body(work: KernelState) -> list[TileStmt]:
    scope = Scope()
    work.scope = scope
    work.last_staged = {}
    if work.roles.fold is not None:
        for b in work.kernel.body:
            _lower_block(work, b)
        return [For(work.counter, i64(0), i64(work.extents[work.roles.fold]), tuple(scope.stmts),
                    comment="fold the partial states of the splits")]
    if work.resident:
        scope.segment = i64(0)
        for b in work.kernel.body:
            _lower_block(work, b)
        work.last_staged = scope.staged
        return scope.stmts
    first, last, start = segment_steps(work, work.kernel.body, alive_positions(work))
    scope.segment = start
    for b in work.kernel.body:
        _lower_block(work, b)
    nested = any(isinstance(x, For) for x in scope.stmts)
    stages = work.config.stages if work.has_gemm and not nested else 0
    asynchronous = work.config.warp_specialized and work.target.tma
    if stages > 1 and not asynchronous and not constant_trip(work, first, last):
        stages = 1  # TileLang 0.1.15 cannot drain a deeper cp.async pipeline after an unknown number of steps
    return [For(work.counter, first, last, tuple(scope.stmts), stages)]


def _lower_block(work: KernelState, b: Block) -> None:
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
    elif b.reducer is not None:
        lower_late_reduce(work, b)
    else:
        _lower_let(work, b)


def _lower_let(work: KernelState, b: Block) -> None:
    """Give a value a tile where that is worth one, else evaluate it where it is read."""
    (e,) = b.exprs
    name = b.name
    axes = work.ordered(work.facts.levels.get(name, ()))
    if name in work.stores:
        lower_output(work, b, e, axes)
        return
    rows = work.roles.rows
    if not axes or (len(axes) == 1 and axes != work.row) or (axes == work.row and not _worth_a_buffer(e)):
        work.values[name] = Value(axes, b.dtype, expr=e)
        return
    if axes[0] != rows or len(axes) > 2:
        raise LoweringError("RF493", f"{work.kernel.name}: {name} spans {', '.join(axes)} at once",
                            why="a tile has rows and one other axis")
    if axes == work.across and isinstance(strip_casts(e), Load) and rows in work.axes_of(e):
        work.values[name] = Value(axes, b.dtype, expr=e)
        return
    v = work.tile(name, axes, b.dtype if b.dtype not in ("f64", *HALF) or isinstance(e, Cast) else "f32")
    map_tile(work, v, e, work.source(b))
    work.values[name] = v


def _worth_a_buffer(e: Expr) -> bool:
    return isinstance(e, Op) or (isinstance(e, Cast) and isinstance(e.arg, Op)) or isinstance(strip_casts(e), Load)


def _lower_tail(work: KernelState, tail: Scope) -> None:
    """Finalize and epilogue run once; blocks along the segment run in a second walk unless the row is on chip."""
    work.phase_init = []
    walk_again: list[Block] = []

    def flush() -> None:
        if not walk_again:
            return
        blocks, work.phase_init = tuple(walk_again), []
        walk_again.clear()
        inner = Scope()
        work.scope = inner
        first, last, inner.segment = segment_steps(work, blocks, TRUE)
        for b in blocks:
            _lower_block(work, b)
        work.scope = tail
        tail.stmts += work.phase_init
        tail.stmts.append(For(work.counter, first, last, tuple(inner.stmts), comment="visit the row again"))

    pending: set[str] = set()
    for b in work.kernel.tail:
        along = _along_segment(work, b)
        if along and not work.resident:
            if pending & {x.name for e in b.exprs for x in walk(e) if isinstance(x, Ref)}:
                flush()
                pending = set()
            walk_again.append(b)
            if b.reducer is not None and b.over == work.roles.segment:
                pending |= set(b.names)
            continue
        if not along and walk_again and {x.name for e in b.exprs for x in walk(e) if isinstance(x, Ref)} & {
                n for w in walk_again for n in w.names}:
            flush()
            pending = set()
        work.scope = tail
        lower_store(work, b) if b.role == "store" else _lower_block(work, b)
    flush()


def _along_segment(work: KernelState, b: Block) -> bool:
    n = work.roles.segment
    return n is not None and (b.over == n or any(n in work.facts.levels.get(x, ()) for x in b.names)
                              or n in b.axes)
