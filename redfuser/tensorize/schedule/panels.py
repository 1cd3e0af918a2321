"""Results that leave panel by panel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import BYTES, Expr, Index, Load, walk
from redfuser.acrf.index import i64, iadd, placed
from redfuser.tensorize.ir.effects import Names, every, reads, writes
from redfuser.tensorize.ir.nodes import Assign, Copy, For, Gemm, Parallel, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer, Dim, Slice
from redfuser.tensorize.schedule.roles import PANEL

PLACES = 2
"""Panels of shared memory that a result goes round: one is filled while the other is sent."""


@dataclass(frozen=True, slots=True)
class SendPanels:
    """What is made of a product goes to memory in panels of 128 bytes a row, computed, staged and sent one after another::

        parallel i < 128, j < 256:                    parallel i < 128, j < 64:
          o[i, j] = f(o[i, j])                          o[i, j] = f(o[i, j])
        copy o -> y_shared                            copy o[.., 0 +: 64] -> y_shared_0
        copy y_shared -> out[..]              -->     copy y_shared_0 -> out[.., 0 +: 64]
                                                      parallel i < 128, j < 64:
                                                        o[i, j + 64] = f(o[i, j + 64])
                                                      copy o[.., 64 +: 64] -> y_shared_1;  ...

    A result takes the room of two panels, each group of warps sends the rows that it has, and a map has the registers of a
    panel. Requires one loop, whose products are of shared memory (others have not been tried), and at the end nothing but maps
    of their sums' elements at their own points and such results, all of one width, and behind them what needs registers alone
    (rows of the same tile that are reduced). Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        loops = [i for i, s in enumerate(kernel.body) if isinstance(s, For)]
        if len(loops) != 1 or any(k.a.buffer not in _shared(kernel) for k in every(kernel.body) if isinstance(k, Gemm)):
            return kernel
        last, sums = loops[0] + 1, _sums(kernel)
        end = len(kernel.body)
        while end > last and not _by_points(kernel, sums, kernel.body[end - 1]):
            end -= 1
        start = end
        while start > last and _by_points(kernel, sums, kernel.body[start - 1]):
            start -= 1
        tail, rest = kernel.body[start:end], kernel.body[end:]
        shapes, dtypes = {b.name: b.shape for b in kernel.buffers}, kernel.dtypes
        staged = [s.src.buffer for s in tail if isinstance(s, Copy) and not s.src.dims and s.src.buffer in _shared(kernel)]
        widths = {shapes[n][1] for n in staged} | {s.extents[1] for s in tail if isinstance(s, Parallel)}
        sizes = {PANEL // BYTES[dtypes[n]] for n in staged}
        if len(widths) != 1 or len(sizes) != 1 or len(set(staged)) != len(staged):
            return kernel
        (width,), (size,), rows = widths, sizes, shapes[staged[0]][0]
        if width % size or width < PLACES * size or any(
                n in reads(k) | writes(k) for n in staged for k in kernel.body[:start]) or any(
                _shared(kernel) & (reads(k) | writes(k)) for k in rest):
            return kernel
        names, rooms = Names(kernel), {}
        for n in staged:
            rooms[n] = [Buffer(names.fresh(f"{n}_{p}"), "shared", dtypes[n], (shapes[n][0], size)) for p in range(PLACES)]
        body = [_panel(s, rows, p * size, size, {n: rooms[n][p % PLACES].name for n in staged})
                for p in range(width // size) for s in tail]
        buffers = [b for old in kernel.buffers for b in rooms.get(old.name, [old])]
        return replace(kernel, buffers=tuple(buffers), body=(*kernel.body[:start], *body, *rest))


def _shared(kernel: TileKernel) -> set[str]:
    return {b.name for b in kernel.buffers if b.scope == "shared"}


def _sums(kernel: TileKernel) -> set[str]:
    """What products add to, and what is made of their sums point by point: threads share all of it alike."""
    found = {k.c for k in every(kernel.body) if isinstance(k, Gemm)}
    shapes = {b.name: b.shape for b in kernel.buffers}
    while more := {a.target for k in every(kernel.body) if isinstance(k, Parallel) for a in k.body
                   for x in walk(a.expr) if isinstance(x, Load) and x.tensor in found and x.indices == a.indices
                   and shapes.get(a.target) == shapes[x.tensor]} - found:
        found |= more
    return found


def _by_points(kernel: TileKernel, sums: set[str], s: TileStmt) -> bool:
    """A map of sums' elements at their own points, a result's copy to shared memory, or from there to global memory."""
    homes, params = {b.name: b for b in kernel.buffers}, {p.name for p in kernel.params}
    match s:
        case Parallel(vars=(_, _), body=body):
            at = tuple(map(Index, s.vars))
            loads = [x for a in body for x in walk(a.expr) if isinstance(x, Load) and x.tensor not in params]
            return all(a.target in sums and a.indices == at for a in body) and all(
                x.indices == at if x.tensor in sums else homes[x.tensor].scope == "fragment" and x.indices == at[:1]
                for x in loads) and s.extents == homes[body[0].target].shape
        case Copy(src, dst) if not dst.dims and dst.buffer in homes and homes[dst.buffer].scope == "shared":
            return src.buffer in sums and not src.dims
        case Copy(src, dst) if not src.dims and src.buffer in homes and homes[src.buffer].scope == "shared":
            return dst.buffer in params and len(homes[src.buffer].shape) == 2 and dst.sizes == homes[src.buffer].shape
    return False


def _panel(s: TileStmt, rows: int, first: int, size: int, rooms: dict[str, str]) -> TileStmt:
    """The statement for ``size`` columns."""
    match s:
        case Parallel(vars=(_, j), body=body):
            def put(e: Expr) -> Expr:
                return placed(e, j, iadd(Index(j), i64(first)))

            return replace(s, extents=(rows, size), body=tuple(
                Assign(a.target, tuple(map(put, a.indices)), put(a.expr)) for a in body),
                comment=s.comment if not first else "")
        case Copy(src, dst) if dst.buffer in rooms:
            part = Slice(src.buffer, (Dim(i64(0), rows), Dim(i64(first), size)))
            return Copy(part, Slice(rooms[dst.buffer]), s.comment if not first else "")
        case Copy(src, dst):
            at = max(k for k, d in enumerate(dst.dims) if d.size)
            part = Dim(iadd(dst.dims[at].start, i64(first)), size)
            return replace(s, src=Slice(rooms[src.buffer]), dst=Slice(dst.buffer, (*dst.dims[:at], part, *dst.dims[at + 1:])))
    return s
