"""A row walked in the steps that positions leave, where a mask hides the others to a number, and again in all steps where that
number counts::

    kernel NAME(.., again: i32[2, 512] out)         the steps that positions leave, and of every row whether they were enough
    kernel NAME_tiles(again, rows_again: i32[2, 4] out)          whether a tile has a row of which they were not
    kernel NAME_again(.., rows_again)               every step, in blocks of which one has

The first stores what a row comes to whether or not that is right; of a tile where it is not, the third stores all rows once
more. Both are the kernel that there is without this, in whatever schedule, but for the ends of the first's loop, one number a
row behind it, and one question before the third.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from redfuser.acrf.cascade import Tensor
from redfuser.acrf.expr import Const, Expr, Index, Load, Op, Ref, op
from redfuser.acrf.index import i64, iadd, imin, imul
from redfuser.strategies.alive import both, common
from redfuser.strategies.names import fresh
from redfuser.strategies.program import Block, Kernel, Program
from redfuser.tensorize.filled import Filled, filled
from redfuser.tensorize.geometry import Geometry, argument_name, tensors
from redfuser.tensorize.ir.nodes import Assign, Parallel, ReduceTile, TensorArg, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer, Param
from redfuser.tensorize.schedule.asked import OnlyAsked
from redfuser.tensorize.summary.kernels import WARP
from redfuser.tensorize.walk import segment_steps


def asking(program: Program) -> tuple[Program, str] | str:
    """A program whose first kernel also writes of each row whether what positions leave of it was not enough, and the name of
    what it writes; or why there is no such question."""
    kernel = program.kernels[0]
    if kernel.kind != "single" or kernel.scans or program.kernels[1:]:
        return "its row is not walked by one block, from one end to the other"
    found = filled(kernel.body, {b.name: b.exprs[0] for b in kernel.body if b.role == "producer" and b.reducer is None})
    if isinstance(found, str):
        return found
    axes = next(b.axes for b in kernel.init if found.maximum in b.names)
    extents = {a.name: a.extent for a in program.axes}
    taken = {n for t, _ in tensors(program) for n in (t.name, argument_name(program, t.name))}
    taken |= {*extents, *(n for b in (*kernel.init, *kernel.body, *kernel.tail) for n in b.names)}
    again = Tensor(fresh("again", taken), "i32", tuple(extents[a] for a in axes))
    return _writing(program, kernel, found, axes, again), again.name


def _writing(program: Program, kernel: Kernel, found: Filled, axes: tuple[str, ...], again: Tensor) -> Program:
    enough = op("ge", Ref(found.maximum, "f32"), Const(found.enough, "f32"))
    asked = Block("epilogue", (again.name,), axes, (Op("select", (enough, Const(0, "i32"), Const(1, "i32")), "i32"),), "i32")
    kernel = replace(kernel, writes=(*kernel.writes, again), tail=(asked, *kernel.tail))
    return replace(program, kernels=(kernel,), workspaces=(*program.workspaces, again))


def shorter(at: Geometry) -> Geometry | str:
    """The kernel of :func:`asking` where it walks the steps that positions leave; or why it would walk as many."""
    if at.resident or at.roles.segment is None or at.roles.lists or not at.has_gemm:
        return "no product is made in steps of its row"
    if at.config.persistent:
        return "blocks that compute several tiles ask for tiles of equal work"
    if any(at.facts.counted(b) for b in at.kernel.body):
        return "one of its accumulators counts"
    usual = common(at.alive)
    found = filled(at.kernel.body, at.facts.lets, usual)
    if isinstance(found, str):
        return found
    where = both(usual, found.where)
    if segment_steps(at, where) == segment_steps(at, usual):
        return "positions leave no step of a tile out"
    return replace(at, alive=(where,))


@dataclass(frozen=True, slots=True)
class Tiles:
    """What is asked of tiles of rows: ``again``, of each row, is where ``at`` (the kernel that walks every step) has its rows;
    ``rows`` of them are a tile's, of so many. grid: the other axes, as the kernel's own grid has them, with their extents."""

    at: Geometry
    name: str
    again: Param
    where: tuple[Expr, ...]
    taken: frozenset[str]

    @property
    def grid(self) -> tuple[tuple[str, int], ...]:
        return tuple((a, n) for a in reversed(self.at.roles.grid) if (n := self.at.extents[a]) > 1)

    @property
    def count(self) -> int:
        return -(-self.at.extents[self.at.roles.rows] // self.at.sizes[self.at.roles.rows])

    @property
    def param(self) -> Param:
        """Whether a tile has a row that is asked for again."""
        return Param(fresh(f"rows_{self.name}", set(self.taken)), "i32", (*(n for _, n in self.grid), self.count), True)

    def _at(self, tile: Expr) -> tuple[Expr, ...]:
        return (*(Index(a) for a, _ in self.grid), tile)

    def kernel(self) -> TileKernel:
        """What finds out: a warp for each tile."""
        size, extent = self.at.sizes[self.at.roles.rows], self.at.extents[self.at.roles.rows]
        width = max(WARP, 1 << (size - 1).bit_length())
        taken = {*self.taken, self.param.name}
        tile, i, j, rows, found = (fresh(n, taken) for n in ("tile", "i", "j", "rows", "found"))
        within: Expr = Index(j) if size == width else imin(Index(j), i64(size - 1))
        row = imin(iadd(imul(Index(tile), size), within), i64(extent - 1))
        row = iadd(imul(Index(tile), size), within) if self.count * size == extent else row
        body: tuple[TileStmt, ...] = (
            Parallel((i, j), (1, width), (Assign(rows, (Index(i), Index(j)), self._row(row)),)),
            ReduceTile("max", rows, found),
            Parallel((i,), (1,), (Assign(self.param.name, self._at(Index(tile)), Load(found, (Index(i),), "i32")),)))
        buffers = (Buffer(rows, "fragment", "i32", (1, width)), Buffer(found, "fragment", "i32", (1,)))
        return TileKernel(f"{self.at.kernel.name}_tiles", (replace(self.again, out=False), self.param),
                          ((tile, self.count), *self.grid), WARP, (), buffers, body, False,
                          notes=("has a tile a row whose first walk was not enough?",))

    def _row(self, row: Expr) -> Expr:
        known: Mapping[str, Expr] = {self.at.roles.rows: row}
        places = tuple(p.expr({a: known[a] if a in known else self.at.scalar(a) for a in p.axes})
                       for p in self.at.view_indices(self.name, self.where) or ())
        return Load(self.again.name, places, "i32")

    def only(self) -> OnlyAsked:
        """The pass that makes a kernel do what tiles ask for."""
        block = f"{self.at.roles.rows}_block"
        tile = Index(block) if block in self.at.blocks else i64(0)
        return OnlyAsked(replace(self.param, out=False), self._at(tile))

    @property
    def scratch(self) -> list[TensorArg]:
        return [TensorArg(p.name, p.dtype, p.shape, "workspace") for p in (self.again, self.param)]
