"""State of one kernel's lowering: its shapes, where each name lives, what a point of a tile is, its buffers."""

from __future__ import annotations

from collections.abc import Iterable

from redfuser.acrf.cascade import Tensor
from redfuser.acrf.expr import Expr, Index, Load, Ref, walk
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block, Kernel, Program
from redfuser.target import Target
from redfuser.tensorize.arguments import argument_name
from redfuser.tensorize.axes import Roles
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.indexing import Affine, View, make
from redfuser.tensorize.ir.index import i64, iadd
from redfuser.tensorize.ir.nodes import Assign, Buffer, Parallel, Param, Policy, TileStmt
from redfuser.tensorize.masks import Analysis, Rows
from redfuser.tensorize.rewrite.facts import Facts
from redfuser.tensorize.scope import Scope, Value


class KernelState:
    """What all steps of one kernel's lowering share. scope: where statements go. roundings: casts that were added."""

    kernel: Kernel
    roles: Roles
    extents: dict[str, int]
    resident: bool
    has_gemm: bool
    sizes: dict[str, int]
    exact: bool
    facts: Facts
    alive: tuple[Expr, ...]
    unit: frozenset[str]
    declared: dict[str, Tensor]
    stores: dict[str, tuple[str, tuple[Expr, ...]]]
    original_name: dict[str, str]
    point: dict[str, str]
    counter: str
    blocks: dict[str, int]
    block_extents: dict[str, int]
    pretty: dict[str, str]
    last_staged: dict[tuple[str, tuple[Expr, ...], str], Value]
    phase_init: list[TileStmt]
    narrowed: bool = False
    # the contraction being lowered: its axis, and the part of it that one operand tile holds
    contracted: str = ""
    contract_size: int = 0
    chunk_origin: Expr = i64(0)
    chunked: bool = False

    def __init__(self, program: Program, kernel: Kernel, config: TileConfig, target: Target) -> None:
        self.program, self.original, self.config, self.target = program, kernel, config, target
        self.values: dict[str, Value] = {}
        self.buffers: dict[str, Buffer] = {}
        self.params: dict[str, Param] = {}
        self.views: dict[str, View | None] = {}
        self.roundings: list[str] = []
        self.lowered_after: dict[str, TileStmt] = {}  # what an accumulator takes once the walk is over
        self.corrections: dict[str, Expr] = {}
        self.prologue = Scope()
        self.scope = self.prologue

    def arg(self, name: str) -> str:
        """The parameter that holds a tensor."""
        return argument_name(self.program, name)

    @property
    def row(self) -> tuple[str, ...]:
        """The axes of a value per row."""
        return (self.roles.rows,)

    @property
    def across(self) -> tuple[str, ...]:
        """The axes of a value per row and element of the segment."""
        return (self.roles.rows, self.roles.segment or "")

    def ordered(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Those of ``axes`` that tiles run along, in tile order; the axis of a contraction comes last."""
        wanted = set(axes)
        return tuple(a for a in (*self.roles.tiled, self.contracted) if a in wanted)

    def origin(self, axis: str) -> Expr:
        """The first element of the current tile along an axis."""
        if axis == self.contracted:
            return self.chunk_origin
        if axis == self.roles.segment:
            return self.scope.segment if self.scope.segment is not None else i64(0)
        return self.first(axis).expr()

    def first(self, axis: str) -> Affine:
        """The first element of the block's tile along an axis of the grid's tiles."""
        block = f"{axis}_block"
        return make({block: self.sizes[axis]}, 0) if block in self.blocks else Affine(())

    def scalar(self, axis: str) -> Expr:
        """The value of an axis that no tile runs along."""
        if axis == self.roles.fold:
            return Index(self.counter)
        return i64(0) if self.extents.get(axis) == 1 else Index(axis)

    def position(self, axis: str) -> Expr:
        """The value of an axis at the current point."""
        if axis in self.roles.tiled or axis == self.contracted:
            return iadd(self.origin(axis), Index(self.point[axis]))
        return self.scalar(axis)

    def axes_of(self, e: Expr) -> tuple[str, ...]:
        """The tile axes a value varies along, in tile order."""
        found: set[str] = set()
        for x in walk(e):
            if isinstance(x, Index):
                found.add(x.axis)
            elif isinstance(x, Ref):
                found.update(self.value(x.name).axes)
        return self.ordered(found)

    def was(self, name: str) -> str:
        """What a name is called in the cascade."""
        return self.original_name.get(name, name)

    def value(self, name: str) -> Value:
        """Where a name lives. Raises LoweringError RF487 before it has a tile."""
        if name not in self.values:
            raise LoweringError("RF487", f"{self.kernel.name}: {name} is read before it has a tile")
        return self.values[name]

    def form(self, p: Affine) -> Expr:
        """An affine index at the current point."""
        return p.expr({a: self.position(a) for a in p.axes})

    def buffer(self, stem: str, scope: str, dtype: str, shape: tuple[int, ...], comment: str = "") -> str:
        """Declare a buffer; its name is ``stem``, numbered until it is free."""
        stem = stem.replace("@", "_")
        name, k = stem, 2
        taken = {*self.buffers, *(p.name for p in self.params.values()), *self.roles.grid, *self.point.values(),
                 f"{self.roles.rows}_block", *self.blocks, self.counter, "T"}
        while name in taken:
            name, k = f"{stem}{k}", k + 1
        self.buffers[name] = Buffer(name, scope, dtype, shape, comment)  # type: ignore[arg-type]
        return name

    def shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The extents of a tile along ``axes``."""
        return tuple(self.contract_size if a == self.contracted else self.sizes[a] for a in axes)

    def tile(self, name: str, axes: tuple[str, ...], dtype: str) -> Value:
        """A fragment for a name, of the current tile sizes."""
        return Value(axes, dtype, self.buffer(self._pretty(name), "fragment", dtype, self.shape(axes)))

    def here(self, v: Value) -> Expr:
        """The element of a tile at the current point."""
        return Load(v.buffer, self.points(v.axes), v.dtype)

    def _pretty(self, name: str) -> str:
        return self.pretty.get(name, name)

    def points(self, axes: tuple[str, ...]) -> tuple[Expr, ...]:
        """The loop variables of some axes."""
        return tuple(Index(self.point[a]) for a in axes)

    def parallel(self, axes: tuple[str, ...], body: tuple[Assign, ...], comment: str = "") -> Parallel:
        """A parallel loop over a tile."""
        return Parallel(tuple(self.point[a] for a in axes), self.shape(axes), body, comment)

    def store(self, v: Value, e: Expr, comment: str = "") -> None:
        """``v := e`` at every point of v's tile."""
        self.emit(self.parallel(v.axes, (Assign(v.buffer, self.points(v.axes), e),), comment))

    def emit(self, stmt: TileStmt) -> None:
        """Append to the current scope."""
        self.scope.stmts.append(stmt)

    def choose_names(self) -> None:
        """Buffers are called for what they hold: scores, row_max, row_sum, the accumulator's own name."""
        self.pretty = {}
        scores = [b.name for b in self.kernel.body if b.role == "producer" and b.reducer is not None]
        if len(scores) == 1:
            self.pretty[scores[0]] = "scores"
        for kind in ("max", "min", "sum"):
            rows = [b.name for b in self.kernel.body if b.role == "reduce" and b.reducer and b.reducer.kind == kind
                    and not self.roles.column_of(b.axes)]
            if len(rows) == 1:
                self.pretty[rows[0]] = f"row_{kind}"
                for suffix in ("shift", "finite", "inverse", "row"):
                    self.pretty[f"{rows[0]}_{suffix}"] = f"row_{kind}_{suffix}"
                self.pretty[f"{rows[0]}@old"] = f"row_{kind}_old"

    def notes(self) -> tuple[str, ...]:
        """The kernel as the segment program has it."""
        return tuple(str(self.original).splitlines())

    @property
    def analysis(self) -> Analysis:
        rows = Rows(self.roles.rows, self.first(self.roles.rows), self.sizes[self.roles.rows])
        return Analysis(self.roles.segment or "", rows, self.block_extents)

    def policy(self) -> Policy:
        """How the warps share a product: by rows where the weights stay in registers."""
        return "rows" if self.config.weights == "registers" else "cols"

    def source(self, b: Block) -> str:
        """The block as the segment program has it: the comment a reader sees."""
        for o in (*self.original.body, *self.original.tail):
            if o.names == b.names and o.role == b.role:
                return f"{o.role}: {str(o).removeprefix(o.role).strip()}"
        return ""
