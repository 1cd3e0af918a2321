"""Which axis becomes what: grid, tile rows, segment, contraction, free columns. By dataflow, never by name or extent.

In a contraction ``sum[c] A[.., i, c] * B[.., l, c]`` the axes of A that B lacks can be rows of one tile, since they share
the B tile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from redfuser.acrf.expr import NARROW, Cast, Const, Expr, Index, Load, Op, Ref, indices_of, walk
from redfuser.errors import LoweringError
from redfuser.outline import FEW, MANY
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.algebra import factors

SHORT = 16
"""Elements below which an axis is none of a matrix unit's."""
SMALL = 64
"""Elements of a small matrix that is no tile for a block: fewer than two for each lane of a warp."""
TILE = 4096
"""Elements that a block reads at once, at most."""
LINED = 16
"""Rows that lie side by side from which a tile takes them along that axis: half a line of memory, at least."""
UNIT = "row"
"""The row axis of a kernel whose values share no axis that could be one: extent 1."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The axes that tiles run along: rows; the segment of the r-axis (missing in a kernel that only folds partials);
    columns, the free axes of vector-valued accumulators, at most one of each. lists: columns are the places of a top-k
    list. grid: the other axes of every output point. extents: of all axes, split ones included. fold: the axis walked
    step by step in a combine kernel."""

    rows: str
    segment: str | None
    columns: tuple[str, ...]
    grid: tuple[str, ...]
    extents: dict[str, int]
    fold: str | None = None
    lists: bool = False

    @property
    def tiled(self) -> tuple[str, ...]:
        """The axes that tiles run along, in the order in which a tile has them."""
        return (self.rows, *((self.segment,) if self.segment else ()), *self.columns)

    def column_of(self, axes: Iterable[str]) -> str | None:
        """The column axis among ``axes``."""
        return next((a for a in axes if a in self.columns), None)


def operand_axes(e: Expr, axes_of: dict[str, tuple[str, ...]]) -> set[str]:
    found: set[str] = set()
    for x in walk(e):
        if isinstance(x, Index):
            found.add(x.axis)
        elif isinstance(x, Ref):
            found.update(axes_of.get(x.name.partition("@")[0], ()))
    return found


def choose(kernel: Kernel, extents: dict[str, int]) -> Roles:
    """The roles of a kernel's axes. Raises LoweringError RF486 when an accumulator has two free axes, or some have lists."""
    grid = list(kernel.grid)
    if kernel.split and kernel.kind != "combine":
        grid.insert(0, kernel.split)
    segment = None if kernel.kind == "combine" else kernel.raxis
    grid += _points(kernel, grid, extents)
    if kernel.kind == "map":  # another kernel has reduced what these are points of
        grid += dict.fromkeys(a for b in kernel.tail for a in b.axes if a not in (*grid, kernel.raxis))
    reserved = {*grid, kernel.raxis, kernel.split}
    lists = dict.fromkeys(b.axes[-1] for b in (*kernel.init, *kernel.body, *kernel.tail) if _list_valued(b))
    vectors = [tuple(a for a in b.axes if a not in reserved and a not in lists) for b in (*kernel.init, *kernel.body)
               if b.role != "producer"]
    columns = tuple(dict.fromkeys((*(a for free in vectors for a in free), *lists)))
    if not columns and segment and (column := _late_column(kernel) or _product_column(kernel, segment, extents)):
        grid, columns = [a for a in grid if a != column], (column,)
    if several := next((free for free in vectors if len(free) > 1), columns if lists and len(columns) > 1 else ()):
        raise LoweringError("RF486", f"{kernel.name}: accumulators with the free axes {', '.join(several)}",
                            why="a tile has one column axis, and the places of a list are one", help="the cascade runs unfused")
    rows = _row_axis(kernel, grid, segment, columns, extents)
    return Roles(rows, segment, columns, tuple(a for a in grid if a != rows), {**extents, UNIT: 1},
                 kernel.split if kernel.kind == "combine" else None, bool(lists))


def _points(kernel: Kernel, grid: list[str], extents: dict[str, int]) -> list[str]:
    """Axes that some accumulators lack and that are points of the grid all the same, since along them run whole reductions:
    no columns, which are an axis of one factor of a product and not of the others, with rows, or of narrow elements that are
    weighed by what earlier results make (a mask in memory is read at each as cheaply), unless a tile holds them all and no
    product is made on the way. What does not depend on them (a count, a sum of columns) is computed at each: of two axes that
    whole reductions run along, those of inputs alone are made again beside the others."""
    axes_of = {n: b.axes for b in (*kernel.init, *kernel.body) for n in b.names}
    inner = {*grid, kernel.raxis, kernel.split}
    columns: dict[str, set[str]] = {}
    whole: set[str] = set()
    computed: set[str] = set()
    free: dict[str, None] = {}
    for b in kernel.body:
        if b.role != "reduce" or _list_valued(b):
            continue
        parts = [(p, operand_axes(p, axes_of)) for p in factors(b.exprs[0])]
        for a in b.axes:
            if a in inner:
                continue
            free.setdefault(a)
            own = [(p, axes) for p, axes in parts if a in axes]
            rest = set().union(*(axes for p, axes in parts if a not in axes)) - {kernel.raxis}
            rows = rest - set().union(*(axes for _, axes in own))
            narrow = len(own) == 1 and isinstance(x := strip_casts(own[0][0]), Load) and x.dtype in NARROW and any(
                _of_results(kernel, p) for p, axes in parts if a not in axes) and (
                extents[kernel.raxis] * extents[a] > TILE or any(p.role == "producer" and p.reducer for p in kernel.body))
            if b.reducer is not None and b.reducer.kind == "sum" and len(own) < len(parts) and (rows or narrow):
                columns.setdefault(a, set()).update(rows)
            else:
                whole.add(a)
                computed |= {a} if any(isinstance(x, Ref) for x in walk(b.exprs[0])) else set()
    return [a for a in free if a not in columns or any(
        a in runs and columns[a] and not columns[a] & runs for runs in (whole, computed))]


def _of_results(kernel: Kernel, e: Expr) -> bool:
    """Does a value depend on what is reduced?"""
    made = {n: b for b in kernel.body if b.role == "producer" and b.reducer is None for n in b.names}
    names = {x.name for x in walk(e) if isinstance(x, Ref)}
    return any(n not in made or any(_of_results(kernel, k) for k in made[n].exprs) for n in names)


def _late_column(kernel: Kernel) -> str | None:
    """The columns of a product whose left factor is a contraction: the axis that the contraction has not."""
    inner = [set(b.axes) for b in kernel.body if b.role == "producer" and b.reducer is not None]
    lacking = [a for a in kernel.grid if inner and not any(a in axes for axes in inner)]
    return lacking[0] if len(lacking) == 1 else None


def _product_column(kernel: Kernel, segment: str, extents: dict[str, int]) -> str | None:
    """The columns of a kernel that is a matrix product: ``sum[l] A[i, l] * B[j, l]`` has the grid axes i and j, of which one
    becomes rows and one columns. None where a reduction is anything else, or no matrix unit takes the operands as they are."""
    pairs = []
    for b in kernel.body:
        if b.role != "reduce" or b.reducer is None or b.reducer.kind != "sum" or len(parts := factors(b.exprs[0])) != 2:
            return None
        axes = [{x.axis for x in walk(p) if isinstance(x, Index)} for p in parts]
        if not all(isinstance(x := strip_casts(p), Load) and x.dtype in NARROW and segment in of
                   for p, of in zip(parts, axes, strict=True)):
            return None
        pairs.append(axes)
    if any(b.reducer is not None for b in kernel.tail):
        return None
    apart = [{a for left, right in (pair, pair[::-1]) for a in right - left if left - right - {segment}} for pair in pairs]
    found = [a for a in kernel.grid if apart and all(a in some for some in apart) and extents[a] >= SHORT]
    stored = [a for b in (*kernel.body, *kernel.tail) for a in b.axes if a in found]
    both = sorted((a for a in kernel.grid if apart and all(a in some for some in apart)), key=lambda a: extents[a])
    if len(both) == 2 and extents[both[0]] <= FEW < extents[both[1]]:
        return both[0]
    return stored[-1] if stored else None  # neighbours in the result are neighbours in a tile


def _list_valued(b: Block) -> bool:
    return b.reducer is not None and b.reducer.kind == "topk"


def _row_axis(kernel: Kernel, grid: list[str], segment: str | None, columns: tuple[str, ...],
              extents: dict[str, int]) -> str:
    axes_of = {n: b.axes for b in (*kernel.init, *kernel.body) for n in b.names}
    candidates: list[set[str]] = []
    for b in kernel.body:
        if b.reducer is None or b.reducer.kind != "sum":
            continue
        parts = factors(b.exprs[0])
        if b.role == "producer" and segment:
            right = [p for p in parts if segment in operand_axes(p, axes_of)]
        elif b.role == "reduce" and set(columns) & set(b.axes):
            right = [p for p in parts if set(columns) & operand_axes(p, axes_of)]
        else:
            continue
        left = set().union(*(operand_axes(p, axes_of) for p in parts if p not in right))
        if b.role == "reduce" and not left:
            continue  # a sum of columns is computed beside every tile of rows
        shared = set().union(*(operand_axes(p, axes_of) for p in right))
        candidates.append({a for a in left - shared if a in grid})
    usable = [a for a in grid if a != kernel.split and (not candidates or all(a in c for c in candidates))]
    if not usable:
        return UNIT
    if candidates:  # the axis with most points: rows of one matrix tile
        return max(usable, key=lambda a: (extents[a], usable.index(a)))
    last = ([a for a in usable if extents[a] > 1] or usable)[-1]
    if segment and (beside := _beside(kernel, segment)) in usable and extents[beside] >= LINED:
        last = beside
    many = prod(extents[a] for a in usable) >= MANY
    small = segment and many and not columns and (
        extents[segment] * extents[last] < SMALL or (extents[last] < SHORT and extents[segment] < 2 * SHORT))
    if small:  # small matrices: each row of another
        return max(usable, key=lambda a: (extents[a], usable.index(a)))
    return last


def _beside(kernel: Kernel, segment: str) -> str:
    """The axis along which rows lie side by side in every tensor that has their elements, whatever results are like: along any
    other, a row is read an element at a time. None: ""."""
    loads = (x for b in (*kernel.body, *kernel.tail) for e in b.exprs for x in walk(e) if isinstance(x, Load) and x.indices)
    ends = {x.indices[-1] for x in loads if segment in (axes := indices_of(x)) and len(axes) > 1}
    end = next(iter(ends)) if len(ends) == 1 else None
    return end.axis if isinstance(end, Index) and end.axis != segment else ""


def neighbours(kernel: Kernel, rows: str) -> bool:
    """Do neighbouring rows lie next to each other in memory, and the elements of a row apart?"""
    loads = (x for b in (*kernel.body, *kernel.tail) for e in b.exprs for x in walk(e) if isinstance(x, Load) and x.indices)
    return any(kernel.raxis in indices_of(x) and Index(rows) == x.indices[-1] for x in loads)


def weighed(kernel: Kernel, rows: str) -> bool:
    """Does what is reduced read elements along the r-axis that all rows have?"""
    loads = (x for b in kernel.body for e in b.exprs for x in walk(e) if isinstance(x, Load) and x.indices)
    return any(Index(kernel.raxis) == x.indices[-1] and rows not in indices_of(x) for x in loads)


def strip_casts(e: Expr) -> Expr:
    """The operand under widening casts: a half-precision value used in single precision."""
    while isinstance(e, Cast) and e.dtype in ("f32", "f64") and e.arg.dtype in (*NARROW, "f32"):
        e = e.arg
    return e


def constants(parts: Iterable[Expr]) -> tuple[float, tuple[Expr, ...]]:
    """A product's constant and its other factors."""
    k = 1.0
    rest: list[Expr] = []
    for p in parts:
        if isinstance(p, Const):
            k *= float(p.value)
        elif isinstance(p, Op) and p.name == "neg":
            k, rest = -k, [*rest, p.args[0]]
        else:
            rest.append(p)
    return k, tuple(rest)
