"""Values at a point of a tile, and tiles of tensors on chip: one copy per rectangle, made before the loop when it does not
move with the segment."""

from __future__ import annotations

from redfuser.acrf.expr import Const, Expr, Index, Load, Op, Ref, map_children, op, print_expr
from redfuser.errors import LoweringError
from redfuser.tensorize.ir.index import at, i64, iadd
from redfuser.tensorize.ir.nodes import Assign, Copy, Dim, Slice
from redfuser.tensorize.ir.typed import typed
from redfuser.tensorize.params import view_indices
from redfuser.tensorize.scope import Value
from redfuser.tensorize.state import KernelState


def at_point(work: KernelState, e: Expr) -> Expr:
    """``e`` at a point of the enclosing parallel loop: names become elements of buffers, axes positions."""
    return at_elements(work, _placed(work, e))


def at_elements(work: KernelState, e: Expr) -> Expr:
    """``e``, of elements of buffers and parameters, with one type in every operation."""
    homes = {p.name: p.dtype for p in work.params.values()} | {b.name: b.dtype for b in work.buffers.values()}
    return typed(e, homes)


def _placed(work: KernelState, e: Expr) -> Expr:
    match e:
        case Ref(name=name, indices=()):
            v = work.value(name)
            if v.expr is not None:
                return _placed(work, v.expr)
            return at(v.buffer, v.dtype, *(work.point[c] for c in v.letters))
        case Ref():
            raise LoweringError("RF488", f"{work.kernel.name}: {print_expr(e)} is a gather of a computed value")
        case Load(tensor=name, indices=indices, dtype=dtype):
            return element(work, name, indices, dtype)
        case Index(axis=a):
            return work.position(a)
    return map_children(e, lambda x: _placed(work, x))


def element(work: KernelState, name: str, indices: tuple[Expr, ...], dtype: str) -> Expr:
    """An element of a tensor at the current point: of its tile where it has one, else loaded."""
    letters = work.letters_of(Load(name, indices, dtype))
    staged = _find_staged(work, name, indices)
    if staged is not None:
        return at(staged.buffer, dtype, *(work.point[c] for c in staged.letters))
    if set(letters) == {"m", "n"} and not work.contracted:
        tile = stage_tile(work, name, indices, dtype)
        return at(tile.buffer, dtype, *(work.point[c] for c in tile.letters))
    forms = view_indices(work, name, indices)
    if forms is None:
        return Load(work.arg(name), tuple(map_children(Op("add", (i, i64(0)), "i64"), lambda x: at_point(work, x)).args[0]  # type: ignore[union-attr]
                                          for i in indices), dtype)
    return Load(work.arg(name), tuple(work.form(p) for p in forms), dtype)


def _find_staged(work: KernelState, name: str, indices: tuple[Expr, ...]) -> Value | None:
    for scope in (work.scope, work.prologue):
        for (n, ix, part), value in scope.staged.items():
            if n == name and ix == indices and part == _contraction_part(work, value.letters):
                return value
    return None


def _contraction_part(work: KernelState, letters: str) -> str:
    """Which part of a contraction's own axis a tile holds; empty for a tile without that axis."""
    return f"{work.chunk_origin} +: {work.contract_size}" if "c" in letters else ""


def rectangle(work: KernelState, name: str, indices: tuple[Expr, ...], sizes: dict[str, int]) -> tuple[Slice, str] | None:
    """The rectangle of a parameter that one tile covers, with the letters of its dimensions in memory order; None
    when the index map is not a rectangle."""
    forms = view_indices(work, name, indices)
    if forms is None:
        return None
    dims, letters = [], ""
    for p in forms:
        tiled = [(a, k) for a, k in p.terms if work.roles.letter(a) or a in work.contracted]
        if not tiled:
            dims.append(Dim(p.expr({a: work.scalar(a) for a in p.axes})))
            continue
        (axis, k), *more = tiled
        if more or k != 1:
            return None
        letter = "c" if axis in work.contracted else work.roles.letter(axis)
        rest = p.without(axis)
        start = iadd(work.origin(letter), rest.expr({a: work.scalar(a) for a in rest.axes}))
        dims.append(Dim(start, sizes[letter]))
        letters += letter
    if len(set(letters)) != len(letters):
        return None
    return Slice(work.arg(name), tuple(dims)), letters


def stage_tile(work: KernelState, name: str, indices: tuple[Expr, ...], dtype: str, *, want: str = "",
               shared: bool | None = None) -> Value:
    """A tile of a tensor on chip. ``want``: letters it must have (a missing one is broadcast by element loads)."""
    shared = work.has_gemm if shared is None else shared
    found = _find_staged(work, name, indices)
    if found is not None and (not shared or work.buffers[found.buffer].scope == "shared"):
        return found
    sizes = {**work.sizes, "c": work.contract_size}
    rect = rectangle(work, name, indices, sizes)
    home = work.scope if work.chunked or "n" in work.letters_of(Load(name, indices, dtype)) else work.prologue
    if rect is not None and set(rect[1]) >= set(want):
        source, letters = rect
        if (source, shared) in home.slices:  # read twice, loaded once
            buffer = home.slices[source, shared]
        else:
            buffer = work.buffer(f"{name}_shared" if shared else f"{name}_tile", "shared" if shared else "fragment",
                                 dtype, tuple(sizes[c] for c in letters))
            home.stmts.append(Copy(source, Slice(buffer)))
            home.slices[source, shared] = buffer
    else:
        letters = "".join(c for c in "mnce" if c in work.letters_of(Load(name, indices, dtype)) or c in want)
        buffer = work.buffer(f"{name}_shared" if shared else f"{name}_tile", "shared" if shared else "fragment",
                             dtype, tuple(sizes[c] for c in letters))
        saved, work.scope = work.scope, home
        forms = view_indices(work, name, indices)
        value: Expr = Load(work.arg(name), tuple(work.form(p) for p in forms) if forms is not None else
                           tuple(at_point(work, i) for i in indices), dtype)
        work.scope = saved
        if "m" in want and "m" not in work.letters_of(Load(name, indices, dtype)):
            value = Op("select", (op("lt", Index(work.point["m"]), i64(1)), value, Const(0.0, dtype)), dtype)
        home.stmts.append(work.parallel(letters, (Assign(buffer, work.points(letters), value),), sizes=sizes))
    staged = Value(letters, dtype, buffer)
    home.staged[(name, indices, _contraction_part(work, letters))] = staged
    return staged
