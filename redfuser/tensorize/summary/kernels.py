"""The two small kernels before a walk that is listed: bounds of every tile, and from them the steps of every tile of rows.

::

    kernel NAME_bounds(x2: i64[2, 512], low0: i32[2, 4] out, high0: i32[2, 4] out, ..) grid (tile < 4, b < 2) threads 32
      parallel i < 1, j < 128:
        term[i, j] = i32(max(min(x2[b, tile * 128 + j], 536870912), -536870912))
      reduce min term -> least clear;  reduce max term -> most clear
      low0[b, tile] = least;  high0[b, tile] = most
      ...

    kernel NAME_steps(low0: .., steps: i32[2, 4, 4] out in 0 .. 3, count: i32[2, 4] out in 1 .. 4) grid (rows_tile < 1, b < 2)
      for k in 0 .. 4:
        parallel i < 32:
          steps[b, rows_tile * 32 + i, found[i]] = k
          found[i] = found[i] + select(NEVER, 0, 1)
      parallel i < 32:
        count[b, rows_tile * 32 + i] = max(min(found[i], 4), 1)

A warp is a block, so that nothing is exchanged through shared memory: beside kernels with roles there are no barriers for it.
In the second each thread lists the steps of one tile of rows, in order; where every step is hidden it lists one all the same.
Past the end of a row (or of the rows) stands its last element again, which changes no bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, Ref, map_children, op, print_expr
from redfuser.acrf.index import i64, iadd, imax, imin, imul
from redfuser.strategies.names import fresh
from redfuser.tensorize.geometry import Geometry
from redfuser.tensorize.ir.nodes import Assign, Fill, For, If, Parallel, ReduceTile, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer, Param
from redfuser.tensorize.ir.typed import typed
from redfuser.tensorize.summary.intervals import WIDE, Derived, Leaf

WARP = 32


@dataclass(frozen=True, slots=True)
class Side:
    """Tiles of ``size`` along an axis of so many elements."""

    axis: str
    extent: int
    size: int

    @property
    def tiles(self) -> int:
        return -(-self.extent // self.size)

    def ends(self, tile: Expr) -> tuple[Expr, Expr]:
        """The first and the last position of a tile."""
        last = iadd(imul(tile, self.size), i64(self.size - 1))
        return imul(tile, self.size), last if self.extent % self.size == 0 else imin(last, i64(self.extent - 1))


@dataclass(frozen=True, slots=True)
class Summary:
    """What is made of a kernel's condition: where the bounds, the steps and their number lie, and who writes them. grid: axes
    of the kernel's grid that the condition depends on, with their extents. taken: names that it has itself."""

    at: Geometry
    derived: Derived
    rows: Side
    columns: Side
    grid: tuple[tuple[str, int], ...]
    taken: frozenset[str]

    def _name(self, stem: str) -> str:
        return fresh(stem, set(self.taken))

    @property
    def steps(self) -> Param:
        return Param(self._name("steps"), "i32", (*self._points, self.rows.tiles, self.columns.tiles), True,
                     (0, self.columns.tiles - 1))

    @property
    def count(self) -> Param:
        return Param(self._name("count"), "i32", (*self._points, self.rows.tiles), True, (1, self.columns.tiles))

    @property
    def _points(self) -> tuple[int, ...]:
        return tuple(n for _, n in self.grid)

    @property
    def measured(self) -> tuple[Leaf, ...]:
        """Terms whose bounds are those of data."""
        return tuple(leaf for leaf in self.derived.leaves if not leaf.axis)

    def side(self, leaf: Leaf) -> Side:
        return self.columns if leaf.columns else self.rows

    def bounds(self, leaf: Leaf, out: bool) -> tuple[Param, Param]:
        """Where the least and the greatest of a term are, by tile."""
        shape = (*self._points, self.side(leaf).tiles)
        low, high = (Param(self._name(f"{n}{leaf.number}"), leaf.dtype, shape, out, leaf.span) for n in ("low", "high"))
        return low, high

    @property
    def scratch(self) -> tuple[Param, ...]:
        """All that is written by one of the kernels and read by a later one."""
        return (*(p for leaf in self.measured for p in self.bounds(leaf, True)), self.steps, self.count)

    @property
    def notes(self) -> tuple[str, ...]:
        terms = [f"  {leaf.low}, {leaf.high}: {print_expr(leaf.term)} over a tile of {self.side(leaf).axis}"
                 for leaf in self.derived.leaves]
        return ("nothing of a step counts where", f"  {print_expr(self.derived.never)}", *terms)

    # -- bounds --------------------------------------------------------------------------------------------------------

    def bounding(self) -> TileKernel:
        """The least and the greatest of every term over every tile of its side."""
        tiles = max(self.side(leaf).tiles for leaf in self.measured)
        taken = {*self.taken, *(p.name for p in self.scratch)}
        tile, i, j = (fresh(n, taken) for n in ("tile", "i", "j"))
        buffers: list[Buffer] = []
        body: list[TileStmt] = []
        for leaf in self.measured:
            side = self.side(leaf)
            width = max(WARP, 1 << (side.size - 1).bit_length())
            stmts = self._reduced(leaf, (tile, i, j), width, buffers, taken)
            body += stmts if side.tiles == tiles else [If(op("lt", Index(tile), i64(side.tiles)), tuple(stmts))]
        out = tuple(p for leaf in self.measured for p in self.bounds(leaf, True))
        read = {x for leaf in self.measured for x in _tensors(leaf.term)}
        params = tuple(p for n, p in self.at.params.items() if n in read)
        return TileKernel(f"{self.at.kernel.name}_bounds", (*params, *out), ((tile, tiles), *self.grid), WARP, (),
                          tuple(buffers), tuple(body), False, notes=self.notes)

    def _reduced(self, leaf: Leaf, names: tuple[str, str, str], width: int, buffers: list[Buffer],
                 taken: set[str]) -> list[TileStmt]:
        tile, i, j = names
        side, (low, high) = self.side(leaf), self.bounds(leaf, True)
        within: Expr = Index(j) if side.size == width else imin(Index(j), i64(side.size - 1))
        at: Expr = iadd(imul(Index(tile), side.size), within)
        at = at if side.extent % side.size == 0 else imin(at, i64(side.extent - 1))
        value = self._value(leaf.term, {side.axis: at})
        out: list[TileStmt] = []
        for kind, param, over in (("min", low, -inf), ("max", high, inf)):
            if kind == "min" or leaf.floats:
                term = fresh(f"term{leaf.number}", taken)
                buffers.append(Buffer(term, "fragment", leaf.dtype, (1, width)))
                out.append(Parallel((i, j), (1, width), (Assign(term, (Index(i), Index(j)), _cut(leaf, value, over)),)))
            found = fresh(f"{'least' if kind == 'min' else 'most'}{leaf.number}", taken)
            buffers.append(Buffer(found, "fragment", leaf.dtype, (1,)))
            out.append(ReduceTile(kind, term, found))
            where = (*(Index(a) for a, _ in self.grid), Index(tile))
            own: Expr = Load(found, (Index(i),), leaf.dtype)
            if leaf.span is not None:
                own = imax(imin(Cast(own, "i64"), i64(leaf.span[1])), i64(leaf.span[0]))
            out.append(Parallel((i,), (1,), (Assign(param.name, where, own),)))
        return out

    def _value(self, e: Expr, axes: Mapping[str, Expr]) -> Expr:
        """A term at a point, of the kernel's parameters."""
        homes = {p.name: p.dtype for p in self.at.params.values()}

        def go(x: Expr) -> Expr:
            if isinstance(x, Index):
                return axes[x.axis] if x.axis in axes else self.at.scalar(x.axis)
            if isinstance(x, Load):
                forms = self.at.view_indices(x.tensor, x.indices)
                places = tuple(go(k) for k in x.indices) if forms is None else tuple(
                    p.expr({a: go(Index(a)) for a in p.axes}) for p in forms)
                return Load(self.at.arg(x.tensor), places, x.dtype)
            return map_children(x, go)

        return typed(go(e), homes)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def listing(self) -> TileKernel:
        """The steps of every tile of rows, and how many they are."""
        taken = {*self.taken, *(p.name for p in self.scratch)}
        block, i, k, found = (fresh(n, taken) for n in (f"{self.rows.axis}_tiles", "i", "k", "found"))
        rows, columns = self.rows.tiles, self.columns.tiles
        point = tuple(Index(a) for a, _ in self.grid)
        row = iadd(imul(Index(block), WARP), Index(i))
        here = Load(found, (Index(i),), "i32")
        known: dict[str, Expr] = {}
        buffers = [Buffer(found, "fragment", "i32", (WARP,))]
        kept: list[Assign] = []
        for leaf in (leaf for leaf in self.derived.leaves if leaf.axis):
            tile: Expr = Index(k) if leaf.columns else imin(row, i64(rows - 1))
            known |= dict(zip((str(leaf.low), str(leaf.high)), self.side(leaf).ends(tile), strict=True))
        for leaf in self.measured:
            for ref, p in zip((leaf.low, leaf.high), self.bounds(leaf, False), strict=True):
                if leaf.columns:
                    value: Expr = Load(p.name, (*point, Index(k)), p.dtype)
                else:
                    own = fresh(f"{p.name}_row", taken)
                    buffers.append(Buffer(own, "fragment", p.dtype, (WARP,)))
                    kept.append(Assign(own, (Index(i),), Load(p.name, (*point, imin(row, i64(rows - 1))), p.dtype)))
                    value = Load(own, (Index(i),), p.dtype)
                known[str(ref)] = value if leaf.floats else Cast(value, "i64")
        more = Op("select", (_with(self.derived.never, known), Const(0, "i32"), Const(1, "i32")), "i32")
        number = imax(imin(Cast(here, "i64"), i64(columns)), i64(1))
        params = (*(p for leaf in self.measured for p in self.bounds(leaf, False)), self.steps, self.count)
        body: list[TileStmt] = [
            Fill(found, Const(0, "i32")), *([Parallel((i,), (WARP,), tuple(kept))] if kept else []),
            For(k, i64(0), i64(columns), (Parallel((i,), (WARP,), (
                Assign(self.steps.name, (*point, row, Cast(here, "i64")), Index(k)),
                Assign(found, (Index(i),), Op("add", (here, more), "i32")))),)),
            Parallel((i,), (WARP,), (Assign(self.count.name, (*point, row), number),))]
        return TileKernel(f"{self.at.kernel.name}_steps", params, ((block, -(-rows // WARP)), *self.grid), WARP, (),
                          tuple(buffers), tuple(body), False, notes=self.notes)


def _cut(leaf: Leaf, value: Expr, over: float) -> Expr:
    """A value as its bounds keep it: a truth as 0 or 1, whole numbers as far as they are known, and at the end of the floats
    what is no number (``over``)."""
    if leaf.term.dtype == "bool":
        return Op("select", (value, Const(1, "i32"), Const(0, "i32")), "i32")
    if leaf.floats:
        single = value if value.dtype == "f32" else Cast(value, "f32")
        return Op("select", (op("isnan", single), Const(over, "f32"), single), "f32")
    whole = value if value.dtype == "i64" else Cast(value, "i64")
    return Cast(imax(imin(whole, i64(WIDE)), i64(-WIDE)), "i32")


def _tensors(e: Expr) -> set[str]:
    found = {e.tensor} if isinstance(e, Load) else set()
    kids = e.indices if isinstance(e, Load) else e.args if isinstance(e, Op) else (e.arg,) if isinstance(e, Cast) else ()
    return found.union(*map(_tensors, kids))


def _with(e: Expr, known: Mapping[str, Expr]) -> Expr:
    return known[e.name] if isinstance(e, Ref) else map_children(e, lambda x: _with(x, known))
