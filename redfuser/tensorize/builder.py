"""The tiles of a kernel under construction: where each name lives, the buffers, and where statements go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from redfuser.acrf.affine import Affine
from redfuser.acrf.expr import Expr, Index, Load, Op, Ref, walk
from redfuser.acrf.index import i64, iadd
from redfuser.errors import LoweringError
from redfuser.strategies.names import fresh
from redfuser.strategies.program import Block
from redfuser.tensorize.geometry import Geometry
from redfuser.tensorize.ir.nodes import Assign, Parallel, TileStmt
from redfuser.tensorize.ir.parts import Buffer, Slice

HALF = ("f16", "bf16")
LONG = 32
"""Operations that the readers of a value may write out: what is longer has a tile. TileLang's simplifier takes more than two
minutes for three functions of each other (a logarithm of an arc tangent of a softmax's scores) that are 15 KB of text."""


@dataclass(slots=True)
class Value:
    """Where a name lives: in a buffer whose dimensions run along ``axes``, or nowhere (``expr`` is evaluated where it is
    read, in ``length`` operations)."""

    axes: tuple[str, ...]
    dtype: str
    buffer: str = ""
    expr: Expr | None = None
    length: int = 0


@dataclass(frozen=True, slots=True)
class Operand:
    """pieces: tiles of one type that a matrix unit takes, whose sum is the operand. finite: the first of them with 0 for NaN
    and infinities; itself where that is not told apart."""

    pieces: tuple[Value, ...]
    finite: Value

    @property
    def dtype(self) -> str:
        return self.pieces[0].dtype


@dataclass(frozen=True, slots=True)
class Depth:
    """The part of a contraction's own axis that one operand tile holds: ``size`` elements from ``origin``, a step of a loop
    where ``chunked``."""

    axis: str
    size: int
    origin: Expr
    chunked: bool = False


@dataclass(slots=True)
class Scope:
    """A statement list under construction, and the loads it holds as tiles: staged, by tensor, indices and part of a
    contraction; slices, by rectangle; split, by tile its pieces. ``segment``: first r-axis element. ``product``: the only step
    of a walk, a product in a loop of its own: what follows has the tile of its sums, and threads read and write as it lies."""

    stmts: list[TileStmt] = field(default_factory=list)
    staged: dict[tuple[str, tuple[Expr, ...], str], Value] = field(default_factory=dict)
    slices: dict[tuple[Slice, bool], str] = field(default_factory=dict)
    split: dict[str, Operand] = field(default_factory=dict)
    segment: Expr | None = None
    product: bool = False


@dataclass(frozen=True, slots=True)
class Builder:
    """What the lowering of a kernel is passed. at: what is decided. prologue: statements before the walk. scope: where
    statements go. before: statements in front of the loop that ``scope`` is the body of. depth: of the contraction being
    lowered. values: where each name lives. roundings: casts that were added. corrections: what joins the addition of a
    segment's part. after: what an accumulator takes once the walk is over."""

    at: Geometry
    prologue: Scope
    scope: Scope
    before: list[TileStmt]
    depth: Depth | None = None
    values: dict[str, Value] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    roundings: list[str] = field(default_factory=list)
    corrections: dict[str, Expr] = field(default_factory=dict)
    after: dict[str, TileStmt] = field(default_factory=dict)

    def into(self, scope: Scope) -> Builder:
        """The same kernel, whose statements go elsewhere."""
        return replace(self, scope=scope)

    def contracting(self, depth: Depth) -> Builder:
        """The same kernel, while a contraction is lowered."""
        return replace(self, depth=depth)

    def deep(self, axis: str) -> bool:
        """Is it the axis of the contraction being lowered?"""
        return self.depth is not None and axis == self.depth.axis

    def ordered(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Those of ``axes`` that tiles run along, in tile order; the axis of a contraction comes last."""
        wanted = set(axes)
        return tuple(a for a in (*self.at.roles.tiled, *((self.depth.axis,) if self.depth else ())) if a in wanted)

    def home(self, axes: tuple[str, ...]) -> Scope:
        """Where a tile along ``axes`` is loaded: before the walk unless it moves with the segment or the contraction."""
        moves = self.at.roles.segment in axes or (self.depth is not None and self.depth.chunked)
        return self.scope if moves else self.prologue

    def origin(self, axis: str) -> Expr:
        """The first element of the current tile along an axis."""
        if self.depth is not None and axis == self.depth.axis:
            return self.depth.origin
        if axis == self.at.roles.segment:
            return self.scope.segment if self.scope.segment is not None else i64(0)
        return self.at.first(axis).expr()

    def position(self, axis: str) -> Expr:
        """The value of an axis at the current point."""
        if axis in self.at.roles.tiled or self.deep(axis):
            return iadd(self.origin(axis), Index(self.at.point[axis]))
        return self.at.scalar(axis)

    def axes_of(self, e: Expr) -> tuple[str, ...]:
        """The tile axes a value varies along, in tile order."""
        found: set[str] = set()
        for x in walk(e):
            if isinstance(x, Index):
                found.add(x.axis)
            elif isinstance(x, Ref):
                found.update(self.value(x.name).axes)
        return self.ordered(found)

    def inline(self, axes: tuple[str, ...], dtype: str, e: Expr) -> Value:
        """A value that is evaluated where it is read."""
        return Value(axes, dtype, expr=e, length=self.length(e))

    def length(self, e: Expr) -> int:
        """Operations of ``e``, those of what is evaluated in it included."""
        return sum(1 if isinstance(x, Op) else self.value(x.name).length if isinstance(x, Ref) else 0 for x in walk(e))

    def repeated(self, b: Block, e: Expr) -> bool:
        """Would ``e``, the value of a block, be written out at length again and again by the blocks of this walk that read it?
        Of what another walk reads, a tile would hold the last segment."""
        kernel, whole = self.at.kernel, self.at.resident or self.at.kernel.spread
        body, tail = (_readers(blocks)[b.name] for blocks in (kernel.body, kernel.tail))
        return (whole or (b in kernel.body and not tail)) and (body + tail) * self.length(e) > LONG

    def value(self, name: str) -> Value:
        """Where a name lives. Raises LoweringError RF487 before it has a tile."""
        if name not in self.values:
            raise LoweringError("RF487", f"{self.at.kernel.name}: {name} is read before it has a tile")
        return self.values[name]

    def form(self, p: Affine) -> Expr:
        """An affine index at the current point."""
        return p.expr({a: self.position(a) for a in p.axes})

    def buffer(self, stem: str, scope: str, dtype: str, shape: tuple[int, ...], comment: str = "") -> str:
        """Declare a buffer; its name is ``stem``, numbered until it is free."""
        at = self.at
        name = fresh(stem.replace("@", "_"), {*self.buffers, *(p.name for p in at.params.values()), *at.roles.grid,
                                              *at.point.values(), f"{at.roles.rows}_block", *at.blocks, at.counter, "T"})
        self.buffers[name] = Buffer(name, scope, dtype, shape, comment)  # type: ignore[arg-type]
        return name

    def shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The extents of a tile along ``axes``."""
        return tuple(self.depth.size if self.depth is not None and a == self.depth.axis else self.at.sizes[a] for a in axes)

    def tile(self, name: str, axes: tuple[str, ...], dtype: str) -> Value:
        """A fragment for a name, of the current tile sizes."""
        return Value(axes, dtype, self.buffer(self.at.called.get(name, name), "fragment", dtype, self.shape(axes)))

    def here(self, v: Value) -> Expr:
        """The element of a tile at the current point."""
        return Load(v.buffer, self.points(v.axes), v.dtype)

    def points(self, axes: tuple[str, ...]) -> tuple[Expr, ...]:
        """The loop variables of some axes."""
        return tuple(Index(self.at.point[a]) for a in axes)

    def parallel(self, axes: tuple[str, ...], body: tuple[Assign, ...], comment: str = "") -> Parallel:
        """A parallel loop over a tile."""
        return Parallel(tuple(self.at.point[a] for a in axes), self.shape(axes), body, comment)

    def store(self, v: Value, e: Expr, comment: str = "") -> None:
        """``v := e`` at every point of v's tile."""
        self.emit(self.parallel(v.axes, (Assign(v.buffer, self.points(v.axes), e),), comment))

    def emit(self, stmt: TileStmt) -> None:
        """Append to the current scope."""
        self.scope.stmts.append(stmt)


@lru_cache(maxsize=16)
def _readers(blocks: tuple[Block, ...]) -> Counter[str]:
    """Places at which a walk reads each value."""
    return Counter(x.name for b in blocks for e in b.exprs for x in walk(e) if isinstance(x, Ref))
