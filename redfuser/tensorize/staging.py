"""Values at a point of a tile, and tiles of tensors on chip: one copy per rectangle, made before the loop when it does not
move with the segment."""

from __future__ import annotations

from redfuser.acrf.affine import Affine, Indices
from redfuser.acrf.expr import Const, Expr, Index, Load, Op, Ref, map_children, op, print_expr
from redfuser.acrf.index import i64, iadd
from redfuser.errors import LoweringError
from redfuser.tensorize.builder import Builder, Value
from redfuser.tensorize.ir.nodes import Assign, Copy
from redfuser.tensorize.ir.parts import Dim, Slice
from redfuser.tensorize.ir.typed import typed


def at_point(work: Builder, e: Expr) -> Expr:
    """``e`` at a point of the enclosing parallel loop: names become elements of buffers, axes positions."""
    return at_elements(work, _placed(work, e))


def at_elements(work: Builder, e: Expr) -> Expr:
    """``e``, of elements of buffers and parameters, with one type in every operation."""
    homes = {p.name: p.dtype for p in work.at.params.values()} | {b.name: b.dtype for b in work.buffers.values()}
    return typed(e, homes)


def _placed(work: Builder, e: Expr) -> Expr:
    match e:
        case Ref(name=name, indices=()):
            v = work.value(name)
            if v.expr is not None:
                return _placed(work, v.expr)
            return work.here(v)
        case Ref():
            raise LoweringError("RF488", f"{work.at.kernel.name}: {print_expr(e)} is a gather of a computed value")
        case Load(tensor=name, indices=indices, dtype=dtype):
            return element(work, name, indices, dtype)
        case Index(axis=a):
            return work.position(a)
    return map_children(e, lambda x: _placed(work, x))


def element(work: Builder, name: str, indices: tuple[Expr, ...], dtype: str) -> Expr:
    """An element of a tensor at the current point: of its tile where it has one, else loaded."""
    staged = _find_staged(work, name, indices)
    if staged is not None:
        return work.here(staged)
    forms = work.at.view_indices(name, indices)
    if work.axes_of(Load(name, indices, dtype)) == work.at.across and work.depth is None and not (
            work.scope.product or _leaves(work, name, forms)):
        return work.here(stage_tile(work, name, indices, dtype))
    if forms is None:
        return Load(work.at.arg(name), tuple(map_children(Op("add", (i, i64(0)), "i64"), lambda x: at_point(work, x)).args[0]  # type: ignore[union-attr]
                                          for i in indices), dtype)
    return Load(work.at.arg(name), tuple(work.form(p) for p in forms), dtype)


def _leaves(work: Builder, name: str, forms: tuple[Affine, ...] | None) -> bool:
    """Does a tile of it begin before its tensor, or lie beyond it (the line below the last, for a window)? A ``select`` that
    takes some of its elements loads those, where a copy has no 0 to give for the others."""
    ix, view = Indices({a: max(2, n) for a, n in work.at.extents.items()}), work.at.views[name]
    tiled = set(work.at.roles.tiled)
    beyond = Indices(dict(work.at.extents))
    return any(ix.range(p)[0] < 0 for p in forms or ()) or (forms is not None and view is not None and any(
        not tiled & set(p.axes) and beyond.range(p)[1] >= extent for p, extent in zip(forms, view.shape, strict=True)))


def _find_staged(work: Builder, name: str, indices: tuple[Expr, ...]) -> Value | None:
    for scope in (work.scope, work.prologue):
        for (n, ix, part), value in scope.staged.items():
            if n == name and ix == indices and part == _contraction_part(work, value.axes):
                return value
    return None


def _contraction_part(work: Builder, axes: tuple[str, ...]) -> str:
    """Which part of a contraction's own axis a tile holds; empty for a tile without that axis."""
    depth = work.depth
    return f"{depth.origin} +: {depth.size}" if depth is not None and depth.axis in axes else ""


def rectangle(work: Builder, name: str, indices: tuple[Expr, ...]) -> tuple[Slice, tuple[str, ...]] | None:
    """The rectangle of a parameter that one tile covers, with the axes of its dimensions in memory order; None when the
    index map is not a rectangle."""
    forms = work.at.view_indices(name, indices)
    if forms is None:
        return None
    dims: list[Dim] = []
    axes: list[str] = []
    for p in forms:
        tiled = [a for a in p.axes if a in work.at.roles.tiled or work.deep(a)]
        if not tiled:
            dims.append(Dim(p.expr({a: work.at.scalar(a) for a in p.axes})))
            continue
        axis, *more = tiled
        if more or p.coefficient(axis) != 1:
            return None
        rest = p.without(axis)
        start = iadd(work.origin(axis), rest.expr({a: work.at.scalar(a) for a in rest.axes}))
        dims.append(Dim(start, *work.shape((axis,))))
        axes.append(axis)
    if len(set(axes)) != len(axes):
        return None
    return Slice(work.at.arg(name), tuple(dims)), tuple(axes)


def _of_one_row(work: Builder, name: str, rect: tuple[Slice, tuple[str, ...]]) -> tuple[Slice, tuple[str, ...]]:
    """A rectangle without rows, of a tensor with a dimension of one element: that is where they are, all but the first outside
    the tensor, which leaves 0."""
    (part, axes), rows = rect, work.at.roles.rows
    ones = [d for d, dim in enumerate(part.dims) if not dim.size and work.at.params[name].shape[d] == 1]
    if rows in axes or not axes or not ones or any(dim.size for dim in part.dims[: ones[-1]]):
        return rect
    dims = list(part.dims)
    dims[ones[-1]] = Dim(i64(0), *work.shape((rows,)))
    return Slice(part.buffer, tuple(dims)), (rows, *axes)


def stage_tile(work: Builder, name: str, indices: tuple[Expr, ...], dtype: str, *, want: tuple[str, ...] = (),
               shared: bool | None = None) -> Value:
    """A tile of a tensor on chip. ``want``: axes it must have (a missing one is broadcast by element loads)."""
    shared = work.at.has_gemm if shared is None else shared
    found = _find_staged(work, name, indices)
    if found is not None and (not shared or work.buffers[found.buffer].scope == "shared"):
        return found
    rect, own = rectangle(work, name, indices), work.axes_of(Load(name, indices, dtype))
    rect = _of_one_row(work, name, rect) if rect is not None and work.at.roles.rows in want else rect
    home = work.home(own)
    if rect is not None and set(rect[1]) >= set(want):
        source, axes = rect
        if (source, shared) in home.slices:  # read twice, loaded once
            buffer = home.slices[source, shared]
        else:
            buffer = work.buffer(f"{name}_shared" if shared else f"{name}_tile", "shared" if shared else "fragment",
                                 dtype, work.shape(axes))
            home.stmts.append(Copy(source, Slice(buffer)))
            home.slices[source, shared] = buffer
    else:
        axes = work.ordered({*own, *want})
        buffer = work.buffer(f"{name}_shared" if shared else f"{name}_tile", "shared" if shared else "fragment",
                             dtype, work.shape(axes))
        forms = work.at.view_indices(name, indices)
        there = work.into(home)
        value: Expr = Load(work.at.arg(name), tuple(map(there.form, forms)) if forms is not None else
                           tuple(at_point(there, i) for i in indices), dtype)
        rows = work.at.roles.rows
        if rows in want and rows not in own:
            value = Op("select", (op("lt", Index(work.at.point[rows]), i64(1)), value, Const(0.0, dtype)), dtype)
        home.stmts.append(work.parallel(axes, (Assign(buffer, work.points(axes), value),)))
    staged = Value(axes, dtype, buffer)
    home.staged[(name, indices, _contraction_part(work, axes))] = staged
    return staged
