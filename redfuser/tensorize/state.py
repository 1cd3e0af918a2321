"""State of one kernel's lowering: its shapes, where each name lives, what a point of a tile is, its buffers."""

from __future__ import annotations

from redfuser.acrf.cascade import Tensor
from redfuser.acrf.expr import Expr, Index, Ref, walk
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block, Kernel, Program
from redfuser.target import Target
from redfuser.tensorize.arguments import argument_name
from redfuser.tensorize.axes import Roles
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.facts import Prepared
from redfuser.tensorize.indexing import Affine, View
from redfuser.tensorize.ir.index import i64, iadd
from redfuser.tensorize.ir.nodes import Assign, Buffer, Parallel, Param, Policy, TileStmt
from redfuser.tensorize.masks import Analysis, Rows
from redfuser.tensorize.scope import ORDER, Scope, Value


class KernelState:
    """What all steps of one kernel's lowering share. scope: where statements go. roundings: casts that were added."""

    kernel: Kernel
    groups: dict[str, Expr]
    roles: Roles
    extents: dict[str, int]
    resident: bool
    has_gemm: bool
    sizes: dict[str, int]
    exact: bool
    prepared: Prepared
    written: dict[str, Tensor]
    declared: dict[str, Tensor]
    stores: dict[str, tuple[Expr, ...]]
    point: dict[str, str]
    counter: str
    row_blocks: int
    block_var: str
    block_extents: dict[str, int]
    row_origin: Affine
    pretty: dict[str, str]
    last_staged: dict[tuple[str, tuple[Expr, ...], str], Value]
    phase_init: list[TileStmt]
    narrowed: bool = False
    # the contraction being lowered: its axis, and the part of it that one operand tile holds
    contracted: frozenset[str] = frozenset()
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

    def origin(self, letter: str) -> Expr:
        """The first element of the current tile along a letter."""
        if letter == "m":
            return self.row_origin.expr()
        if letter == "n":
            return self.scope.segment if self.scope.segment is not None else i64(0)
        return self.chunk_origin if letter == "c" else i64(0)

    def scalar(self, axis: str) -> Expr:
        """The value of an axis that no tile runs along."""
        if axis == self.roles.fold:
            return Index(self.counter)
        return i64(0) if self.extents.get(axis) == 1 else Index(axis)

    def position(self, axis: str) -> Expr:
        """The value of an axis at the current point."""
        letter = self.roles.letter(axis)
        if letter:
            return iadd(self.origin(letter), Index(self.point[letter]))
        if axis in self.contracted:
            return iadd(self.chunk_origin, Index(self.point["c"]))
        return self.scalar(axis)

    def letters_of(self, e: Expr) -> str:
        """The tile letters a value varies along, in tile order."""
        found: set[str] = set()
        for x in walk(e):
            if isinstance(x, Index):
                letter = "c" if x.axis in self.contracted else self.roles.letter(x.axis)
                found |= {letter} if letter else set()
            elif isinstance(x, Ref):
                found |= set(self.value(x.name).letters)
        return "".join(c for c in ORDER if c in found)

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
                 self.block_var, self.counter, "T"}
        while name in taken:
            name, k = f"{stem}{k}", k + 1
        self.buffers[name] = Buffer(name, scope, dtype, shape, comment)  # type: ignore[arg-type]
        return name

    def tile(self, name: str, letters: str, dtype: str) -> Value:
        """A fragment for a name, of the current tile sizes."""
        shape = tuple(self.sizes[c] for c in letters)
        return Value(letters, dtype, self.buffer(self._pretty(name), "fragment", dtype, shape))

    def _pretty(self, name: str) -> str:
        return self.pretty.get(name, name)

    def points(self, letters: str) -> tuple[Expr, ...]:
        """The loop variables of some letters."""
        return tuple(Index(self.point[c]) for c in letters)

    def parallel(self, letters: str, body: tuple[Assign, ...], comment: str = "",
                 sizes: dict[str, int] | None = None) -> Parallel:
        """A parallel loop over a tile."""
        sizes = sizes or self.sizes
        return Parallel(tuple(self.point[c] for c in letters), tuple(sizes[c] for c in letters), body, comment)

    def emit(self, stmt: TileStmt) -> None:
        """Append to the current scope."""
        self.scope.stmts.append(stmt)

    def choose_names(self) -> None:
        """Buffers are called for what they hold: scores, row_max, row_sum, the accumulator's own name."""
        self.pretty = {}
        scores = [b.name for b in self.prepared.body if b.role == "producer" and b.reducer is not None]
        if len(scores) == 1:
            self.pretty[scores[0]] = "scores"
        for kind in ("max", "min", "sum"):
            rows = [b.name for b in self.prepared.body if b.role == "reduce" and b.reducer and b.reducer.kind == kind
                    and self.roles.columns not in b.axes]
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
        rows = Rows(self.roles.rows, self.row_origin, self.sizes["m"])
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
