"""Results to global memory: whole tiles as copies, rows by element."""

from __future__ import annotations

from dataclasses import replace

from redfuser.acrf.expr import Cast, Expr, Index, Op, Ref, indices_of, op, refs_of
from redfuser.acrf.index import i64, iadd, imul
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block
from redfuser.strategies.select import ABREAST, OWN, columns
from redfuser.tensorize.axes import strip_casts
from redfuser.tensorize.builder import HALF, Builder
from redfuser.tensorize.ir.effects import writes
from redfuser.tensorize.ir.nodes import Assign, Copy, If
from redfuser.tensorize.ir.parts import Slice
from redfuser.tensorize.maps import as_tile, map_tile
from redfuser.tensorize.staging import at_point, rectangle


def lower_store(work: Builder, b: Block) -> None:
    """Write the results of a store block."""
    for name, e in zip(b.names, b.exprs, strict=True):
        _write_once(work, name, e, work.axes_of(e), work.at.source(b))


def lower_output(work: Builder, b: Block, e: Expr, axes: tuple[str, ...]) -> None:
    """Write a result, and let later blocks read its expression."""
    levels, segment, comment = work.at.facts.levels, work.at.roles.segment, work.at.source(b)
    elements = (x for o in work.at.kernel.tail if any(segment in levels.get(n, ()) for n in o.names) for x in o.exprs)
    if axes == work.at.row and isinstance(e, Op) and any(b.name in refs_of(x) for x in elements):
        v = work.tile(b.name, axes, b.dtype)  # a row's result that its elements read: evaluated once
        map_tile(work, v, e)
        work.values[b.name] = v
        e = Ref(b.name, b.dtype)
    elif axes == work.at.across and work.scope.product:  # what is written of a product's tile is what its rows are reduced of
        v = work.tile(b.name, axes, "f32" if b.dtype in HALF else b.dtype)
        map_tile(work, v, e, comment)
        work.values[b.name] = v
        e, comment = Cast(Ref(b.name, v.dtype), b.dtype) if v.dtype != b.dtype else Ref(b.name, b.dtype), ""
    elif axes == work.at.across and not work.at.has_gemm and work.repeated(b, e):
        v = work.tile(b.name, axes, b.dtype)
        map_tile(work, v, e, comment)
        work.values[b.name] = v
        e, comment = Ref(b.name, b.dtype), ""
    _write_once(work, b.name, e, axes, comment)
    work.values.setdefault(b.name, work.inline(axes, b.dtype, e))


def _write_once(work: Builder, name: str, e: Expr, axes: tuple[str, ...], comment: str) -> None:
    """A result to global memory, by the first of the blocks that share its points: those along an axis that it lacks."""
    tensor, at = work.at.stores[name]
    along = {a for i in at for a in indices_of(i)} | {work.at.kernel.split}
    several = [(a, a) for a in work.at.roles.grid if work.at.extents[a] > 1]
    several += [(a, block) for a in work.at.roles.tiled if (block := f"{a}_block") in work.at.blocks]
    first = [op("eq", Index(block), i64(0)) for a, block in several if a not in along]
    before = len(work.scope.stmts)
    _write_result(work, name, e, axes, comment)
    if first:
        once = first[0] if len(first) == 1 else op("and", *first)
        out = work.at.params[tensor].name
        written = work.scope.stmts[before:]
        work.scope.stmts[before:] = [If(once, (s,)) if out in writes(s) else s for s in written]


def _write_result(work: Builder, name: str, e: Expr, axes: tuple[str, ...], comment: str) -> None:
    """A result to global memory: whole tiles as copies (matrix results through shared memory), rows by element."""
    target, indices = work.at.stores[name]
    tensor, rect = work.at.declared[target], rectangle(work, target, indices)
    rows = work.at.roles.rows
    wide = work.ordered({*axes, *(rect[1] if rect else ())}) or work.at.row
    matrix = work.at.has_gemm and len(wide) == 2 and (wide[1] in work.at.roles.columns or work.scope.product)
    if len(wide) == 2 and rect is not None and rect[1] == wide:
        bare = strip_casts(e) if not (isinstance(e, Cast) and e.dtype in HALF) else e.arg if isinstance(e, Cast) else e
        if isinstance(e, Cast) and e.dtype == tensor.dtype:
            bare = e.arg
        if matrix and not work.at.roles.lists:
            src = as_tile(work, bare, wide, f"{name}_tile")
            if tensor.dtype == src.dtype:
                work.emit(Copy(Slice(src.buffer), rect[0], comment))
                return
            out = work.buffer(f"{name}_shared", "shared", tensor.dtype, work.shape(wide))
            work.emit(Copy(Slice(src.buffer), Slice(out), comment))
            work.emit(Copy(Slice(out), rect[0]))
            return
        _through_tile(work, name, e, wide, rect[0], comment)
        return
    if len(wide) == 2 and rect is not None and rect[1] == wide[::-1] and not work.at.has_gemm:  # rows are neighbours in memory
        _through_tile(work, name, e, rect[1], rect[0], comment)
        return
    forms = work.at.view_indices(target, indices)
    if forms is None:
        raise LoweringError("RF494", f"{work.at.kernel.name}: {name} is not stored along its axes")
    param = work.at.params[target].name
    value = at_point(work, e)
    point = tuple(work.form(p) for p in forms)
    if rows in wide and rows not in (rect[1] if rect else work.at.row):  # a result without a row axis: one row stores it
        if work.at.has_gemm:  # a loop over one row would want the product's rows in a layout of its own: others lie outside
            bare = e.arg if isinstance(e, Cast) and e.dtype == tensor.dtype else e
            value = work.here(as_tile(work, bare, wide, f"{name}_tile"))
            value = value if value.dtype == tensor.dtype else Cast(value, tensor.dtype)
            beyond = imul(Index(work.at.point[rows]), work.at.params[target].shape[0])
            work.emit(work.parallel(wide, (Assign(param, (iadd(point[0], beyond), *point[1:]), value),), comment))
            return
        first = work.parallel(wide, (Assign(param, point, value),), comment)
        apart = work.at.config.threads in (OWN, ABREAST * OWN) and work.at.sizes[rows] == OWN and work.at.neighbours
        if apart and columns(work.at.program.fused):
            work.emit(first)  # rows that are threads' own: each writes what all of them have
            return
        work.emit(replace(first, extents=tuple(1 if a == rows else n for a, n in zip(wide, first.extents, strict=True))))
        return
    work.emit(work.parallel(wide, (Assign(param, point, value),), comment))


def _through_tile(work: Builder, name: str, e: Expr, axes: tuple[str, ...], to: Slice, comment: str) -> None:
    """A result by way of a tile that lies as memory does: it leaves in whole accesses, whatever it is made with."""
    dtype = work.at.declared[work.at.stores[name][0]].dtype
    if isinstance(e, Ref) and (held := work.value(e.name)).buffer and (held.axes, held.dtype) == (axes, dtype) and (
            work.buffers[held.buffer].shape == work.shape(axes)):
        work.emit(Copy(Slice(held.buffer), to, comment))
        return
    v = work.tile(f"{name}_tile", axes, dtype)
    map_tile(work, v, e, comment)
    work.emit(Copy(Slice(v.buffer), to))
