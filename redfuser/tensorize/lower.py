"""One kernel of a segment program as tile operations.

The walk follows the blocks in their order; each becomes the tile operation its shape says:

    a contraction of loads, per element of the segment       copy, copy, gemm        (scores)
    a map over rows x segment or rows x columns              parallel
    a reduction along the segment                            reduce                  (row maximum, row sum)
    a reduction along the segment with a column axis         gemm                    (accumulator += weights @ values)
    a map over rows                                          parallel over rows

Loads of whole tiles are copies, of which those that do not move with the segment are made once, before the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from redfuser.acrf.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Op,
    Ref,
    Tensor,
    f32,
    indices_of,
    map_children,
    op,
    print_expr,
    substitute,
    walk,
)
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block, Kernel, Program
from redfuser.target import Target
from redfuser.tensorize import rewrite
from redfuser.tensorize.axes import UNIT, Roles, choose, split_groups, strip_casts
from redfuser.tensorize.configs import TileConfig
from redfuser.tensorize.indexing import Affine, View, affine, make, minus, view
from redfuser.tensorize.masks import TRUE, Analysis, Rows, both, conjuncts, positional, separate
from redfuser.tensorize.prepare import LEAST, Prepared, prepare
from redfuser.tensorize.storage import tidy
from redfuser.tensorize.tile_ir import (
    Assign,
    Buffer,
    Copy,
    Dim,
    Fill,
    For,
    Gemm,
    If,
    Parallel,
    Param,
    Policy,
    ReduceTile,
    Slice,
    TileKernel,
    TileStmt,
    at,
    i64,
    iadd,
    ifloordiv,
    imax,
    imin,
    imul,
)

HALF = ("f16", "bf16")
ORDER = "mnec"


@dataclass(slots=True)
class Value:
    """Where a name lives: in a buffer whose dimensions are ``letters`` (m rows, n segment, e columns), or nowhere
    (``expr`` is evaluated where it is read)."""

    letters: str
    dtype: str
    buffer: str = ""
    expr: Expr | None = None


@dataclass(slots=True)
class Scope:
    """A statement list under construction, and the loads it holds as tiles. ``segment``: first r-axis element."""

    stmts: list[TileStmt] = field(default_factory=list)
    staged: dict[tuple[str, tuple[Expr, ...], str], Value] = field(default_factory=dict)
    slices: dict[tuple[Slice, bool], str] = field(default_factory=dict)
    segment: Expr | None = None


class KernelLowering:
    """State of one kernel's lowering. ``run`` gives the kernel; ``roundings`` the casts that were added."""

    def __init__(self, program: Program, kernel: Kernel, config: TileConfig, target: Target) -> None:
        self.program, self.config, self.target = program, config, target
        extents = {a.name: _static(a.extent, a.name) for a in program.axes}
        self.original = kernel
        self.kernel, extents, self.groups = split_groups(kernel, extents)
        self.roles = choose(self.kernel, extents)
        self.extents = self.roles.extents
        self.resident = kernel.kind == "resident" or (kernel.kind == "single" and self._one_segment())
        self.has_gemm = any(self._is_gemm(b) for b in self.kernel.body)
        self.sizes = self._tile_sizes()
        n = self.roles.segment
        ragged = n is not None and self._walked(n) != self.extents[n]
        self.prepared: Prepared = prepare(self.kernel, self.roles, ragged, self.resident)
        self.values: dict[str, Value] = {}
        self.buffers: dict[str, Buffer] = {}
        self.params: dict[str, Param] = {}
        self.views: dict[str, View | None] = {}
        self.roundings: list[str] = []
        self.written = {t.name: t for t in self.kernel.writes}
        self.declared = {t.name: t for t in (*self.kernel.reads, *self.kernel.writes)}
        self.stores = self._store_indices()
        self._declare_params()
        self.corrections: dict[str, Expr] = {}
        self.prologue = Scope()
        self.scope = self.prologue
        self._name_points()

    def _walked(self, n: str) -> int:
        """Elements that all segments of all splits cover: at least the extent, more where the last are ragged."""
        extent, size = self.extents[n], self.sizes["n"]
        if self.kernel.split and self.kernel.kind in ("split", "map"):
            splits = self.extents[self.kernel.split]
            chunk = -(-extent // splits)
            return splits * -(-chunk // size) * size
        return -(-extent // size) * size

    def _one_segment(self) -> bool:
        """A walk of one segment that selects from its row is a row held on chip."""
        n = self.roles.segment
        return n is not None and self.extents[n] <= self.config.segment and (
            self.roles.lists or any(b.reducer and b.reducer.kind in ("argmax", "argmin") for b in self.kernel.body))

    # -- shapes --------------------------------------------------------------------------------------------------------

    def _is_gemm(self, b: Block) -> bool:
        if b.reducer is None or b.reducer.kind != "sum":
            return False
        if b.role == "producer":
            return self.roles.segment in b.axes
        return b.role == "reduce" and not self.roles.lists and self.roles.columns in b.axes

    def _tile_sizes(self) -> dict[str, int]:
        roles, config = self.roles, self.config
        rows = config.rows if self.has_gemm else min(config.rows, _power_at_least(self.extents[roles.rows]))
        n = self.extents[roles.segment] if roles.segment else 1
        segment = (config.segment if config.segment >= n else n) if self.resident else config.segment
        e = self.extents[roles.columns] if roles.columns else 1
        columns = _power_at_least(e) if roles.lists else _round_up(e, 16) if self.has_gemm else e
        return {"m": rows, "n": segment, "e": columns}

    def _name_points(self) -> None:
        taken = {*self.roles.grid, self.roles.rows, *(self.declared), "T"}
        self.point = {}
        for letter, names in {"m": ("i", "r", "i_"), "n": ("j", "l", "j_"), "e": ("d", "e", "d_"),
                              "c": ("c", "c_", "cc")}.items():
            self.point[letter] = next(n for n in names if n not in taken or n == self.roles.rows)
        self.counter = next(n for n in ("k", "step", "k_") if n not in taken)
        rows, m = self.extents[self.roles.rows], self.sizes["m"]
        self.row_blocks = -(-rows // m)
        self.block_var = f"{self.roles.rows}_block"
        self.block_extents = {**self.extents, self.block_var: self.row_blocks}
        self.row_origin = make({self.block_var: m}, 0) if self.row_blocks > 1 else Affine(())

    # -- parameters and views ------------------------------------------------------------------------------------------

    def _index_extents(self) -> dict[str, int]:
        """Extents for index analysis: the row axis keeps its dimension even when it has one point."""
        rows = self.roles.rows
        return {**self.extents, rows: max(2, self.extents[rows])}

    def _store_indices(self) -> dict[str, tuple[Expr, ...]]:
        out: dict[str, tuple[Expr, ...]] = {}
        for b in (*self.original.body, *self.original.tail):
            for n in b.names:
                if n in self.written and b.role != "init":
                    out[n] = tuple(self.groups.get(a, Index(a)) for a in b.axes)
        return out

    def _declare_params(self) -> None:
        loads: dict[str, list[tuple[Expr, ...]]] = {}
        for b in (*self.prepared.body, *self.prepared.tail):
            for e in b.exprs:
                for x in walk(e):
                    if isinstance(x, Load):
                        loads.setdefault(x.tensor, []).append(x.indices)
        for name, indices in self.stores.items():
            loads.setdefault(name, []).append(indices)
        for name, uses in loads.items():
            tensor = self.declared[name]
            shape = tuple(_static(s, name) for s in tensor.shape)
            forms = [tuple(affine(i, self._index_extents()) for i in use) for use in uses]
            if any(p is None for form in forms for p in form):
                self.views[name] = None
                self.params[name] = Param(self._arg(name), tensor.dtype, shape, name in self.written)
                continue
            v = view(shape, forms, self._index_extents())  # type: ignore[arg-type]
            self.views[name] = v
            self.params[name] = Param(self._arg(name), tensor.dtype, v.shape, name in self.written)

    def _arg(self, name: str) -> str:
        return argument_name(self.program, name)

    def _indices(self, name: str, indices: tuple[Expr, ...]) -> tuple[Affine, ...] | None:
        """Indices into the parameter's view, or None when they are not affine."""
        v = self.views[name]
        if v is None:
            return None
        forms = tuple(affine(i, self._index_extents()) for i in indices)
        return v.index(forms, self._index_extents())  # type: ignore[arg-type]

    # -- positions -----------------------------------------------------------------------------------------------------

    def _origin(self, letter: str) -> Expr:
        if letter == "m":
            return self.row_origin.expr()
        if letter == "n":
            return self.scope.segment if self.scope.segment is not None else i64(0)
        return self.chunk_origin if letter == "c" else i64(0)

    def _axis_of(self, letter: str) -> str | None:
        return {"m": self.roles.rows, "n": self.roles.segment, "e": self.roles.columns}.get(letter)

    def _scalar(self, axis: str) -> Expr:
        if axis == self.roles.fold:
            return Index(self.counter)
        return i64(0) if self.extents.get(axis) == 1 else Index(axis)

    def _position(self, axis: str) -> Expr:
        """The value of an axis at the current point."""
        letter = self.roles.letter(axis)
        if letter:
            return iadd(self._origin(letter), Index(self.point[letter]))
        if axis in self.contracted:
            return iadd(self.chunk_origin, Index(self.point["c"]))
        return self._scalar(axis)

    contracted: frozenset[str] = frozenset()
    chunk_origin: Expr = i64(0)

    def _letters_of(self, e: Expr) -> str:
        found: set[str] = set()
        for x in walk(e):
            if isinstance(x, Index):
                letter = "c" if x.axis in self.contracted else self.roles.letter(x.axis)
                found |= {letter} if letter else set()
            elif isinstance(x, Ref):
                found |= set(self._value(x.name).letters)
        return "".join(c for c in ORDER if c in found)

    def _value(self, name: str) -> Value:
        if name not in self.values:
            raise LoweringError("RF487", f"{self.kernel.name}: {name} is read before it has a tile")
        return self.values[name]

    # -- expressions ---------------------------------------------------------------------------------------------------

    def expr(self, e: Expr) -> Expr:
        """``e`` at a point of the enclosing parallel loop: names become elements of buffers, axes positions."""
        match e:
            case Ref(name=name, indices=()):
                v = self._value(name)
                if v.expr is not None:
                    return self.expr(v.expr)
                return at(v.buffer, v.dtype, *(self.point[c] for c in v.letters))
            case Ref():
                raise LoweringError("RF488", f"{self.kernel.name}: {print_expr(e)} is a gather of a computed value")
            case Load(tensor=name, indices=indices, dtype=dtype):
                return self._element(name, indices, dtype)
            case Index(axis=a):
                return self._position(a)
        return map_children(e, self.expr)

    def _element(self, name: str, indices: tuple[Expr, ...], dtype: str) -> Expr:
        letters = self._letters_of(Load(name, indices, dtype))
        staged = self._staged(name, indices)
        if staged is not None:
            return at(staged.buffer, dtype, *(self.point[c] for c in staged.letters))
        if set(letters) == {"m", "n"} and not self.contracted:
            tile = self._stage(name, indices, dtype)
            return at(tile.buffer, dtype, *(self.point[c] for c in tile.letters))
        forms = self._indices(name, indices)
        if forms is None:
            return Load(self._arg(name), tuple(map_children(Op("add", (i, i64(0)), "i64"), self.expr).args[0]  # type: ignore[union-attr]
                                               for i in indices), dtype)
        return Load(self._arg(name), tuple(self._form(p) for p in forms), dtype)

    def _form(self, p: Affine) -> Expr:
        return p.expr({a: self._position(a) for a in p.axes})

    # -- tiles of tensors ----------------------------------------------------------------------------------------------

    def _staged(self, name: str, indices: tuple[Expr, ...]) -> Value | None:
        for scope in (self.scope, self.prologue):
            for (n, ix, part), value in scope.staged.items():
                if n == name and ix == indices and part == self._part(value.letters):
                    return value
        return None

    def _part(self, letters: str) -> str:
        """Which part of a contraction's own axis a tile holds; empty for a tile without that axis."""
        return f"{self.chunk_origin} +: {self.contract_size}" if "c" in letters else ""

    def _slice(self, name: str, indices: tuple[Expr, ...], sizes: dict[str, int]) -> tuple[Slice, str] | None:
        """The rectangle of a parameter that one tile covers, with the letters of its dimensions in memory order; None
        when the index map is not a rectangle."""
        forms = self._indices(name, indices)
        if forms is None:
            return None
        dims, letters = [], ""
        for p in forms:
            tiled = [(a, k) for a, k in p.terms if self.roles.letter(a) or a in self.contracted]
            if not tiled:
                dims.append(Dim(p.expr({a: self._scalar(a) for a in p.axes})))
                continue
            (axis, k), *more = tiled
            if more or k != 1:
                return None
            letter = "c" if axis in self.contracted else self.roles.letter(axis)
            rest = p.without(axis)
            start = iadd(self._origin(letter), rest.expr({a: self._scalar(a) for a in rest.axes}))
            dims.append(Dim(start, sizes[letter]))
            letters += letter
        if len(set(letters)) != len(letters):
            return None
        return Slice(self._arg(name), tuple(dims)), letters

    def _stage(self, name: str, indices: tuple[Expr, ...], dtype: str, *, want: str = "", shared: bool | None = None) -> Value:
        """A tile of a tensor on chip. ``want``: letters it must have (a missing one is broadcast by element loads)."""
        shared = self.has_gemm if shared is None else shared
        found = self._staged(name, indices)
        if found is not None and (not shared or self.buffers[found.buffer].scope == "shared"):
            return found
        sizes = {**self.sizes, "c": self.contract_size}
        rect = self._slice(name, indices, sizes)
        home = self.scope if self.chunked or "n" in self._letters_of(Load(name, indices, dtype)) else self.prologue
        if rect is not None and set(rect[1]) >= set(want):
            source, letters = rect
            if (source, shared) in home.slices:  # read twice, loaded once
                buffer = home.slices[source, shared]
            else:
                buffer = self._buffer(f"{name}_shared" if shared else f"{name}_tile", "shared" if shared else "fragment",
                                      dtype, tuple(sizes[c] for c in letters))
                home.stmts.append(Copy(source, Slice(buffer)))
                home.slices[source, shared] = buffer
        else:
            letters = "".join(c for c in "mnce" if c in self._letters_of(Load(name, indices, dtype)) or c in want)
            buffer = self._buffer(f"{name}_shared" if shared else f"{name}_tile", "shared" if shared else "fragment",
                                  dtype, tuple(sizes[c] for c in letters))
            saved, self.scope = self.scope, home
            forms = self._indices(name, indices)
            value: Expr = Load(self._arg(name), tuple(self._form(p) for p in forms) if forms is not None else
                               tuple(self.expr(i) for i in indices), dtype)
            self.scope = saved
            if "m" in want and "m" not in self._letters_of(Load(name, indices, dtype)):
                value = Op("select", (op("lt", Index(self.point["m"]), i64(1)), value, Const(0.0, dtype)), dtype)
            home.stmts.append(self._parallel(letters, (Assign(buffer, self._at(letters), value),), sizes=sizes))
        staged = Value(letters, dtype, buffer)
        home.staged[(name, indices, self._part(letters))] = staged
        return staged

    contract_size: int = 0
    chunked: bool = False

    # -- buffers -------------------------------------------------------------------------------------------------------

    def _buffer(self, stem: str, scope: str, dtype: str, shape: tuple[int, ...], comment: str = "") -> str:
        stem = stem.replace("@", "_")
        name, k = stem, 2
        taken = {*self.buffers, *(p.name for p in self.params.values()), *self.roles.grid, *self.point.values(),
                 self.block_var, self.counter, "T"}
        while name in taken:
            name, k = f"{stem}{k}", k + 1
        self.buffers[name] = Buffer(name, scope, dtype, shape, comment)  # type: ignore[arg-type]
        return name

    def _tile(self, name: str, letters: str, dtype: str) -> Value:
        shape = tuple(self.sizes[c] for c in letters)
        return Value(letters, dtype, self._buffer(self._pretty(name), "fragment", dtype, shape))

    def _pretty(self, name: str) -> str:
        return self.pretty.get(name, name)

    pretty: dict[str, str]

    def _at(self, letters: str) -> tuple[Expr, ...]:
        return tuple(Index(self.point[c]) for c in letters)

    def _parallel(self, letters: str, body: tuple[Assign, ...], comment: str = "",
                  sizes: dict[str, int] | None = None) -> Parallel:
        sizes = sizes or self.sizes
        return Parallel(tuple(self.point[c] for c in letters), tuple(sizes[c] for c in letters), body, comment)

    def emit(self, stmt: TileStmt) -> None:
        self.scope.stmts.append(stmt)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _choose_names(self) -> None:
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

    # -- the kernel ----------------------------------------------------------------------------------------------------

    def run(self) -> TileKernel:
        self._choose_names()
        self._init()
        body: list[TileStmt] = []
        if self.prepared.body:
            loop = self._body()
            body += loop
        tail = Scope(segment=i64(0) if self.resident else None)
        if self.resident:
            tail.staged = self.last_staged
        self.scope = tail
        self._tail(tail)
        stmts = [*self.prologue.stmts, *body, *tail.stmts]
        tidied, used = tidy(stmts)
        buffers = tuple(b for n, b in self.buffers.items() if n in used)
        cascade = self.program.fused.cascade
        order = [argument_name(self.program, t.name) for t in (*cascade.inputs, *self.kernel.reads, *self.kernel.writes)]
        params = tuple(sorted(self.params.values(), key=lambda p: order.index(p.name)))
        grid, lets = self._grid()
        return TileKernel(self.kernel.name, params, grid, self.config.threads, lets, buffers, tuple(tidied),
                          self.config.warp_specialized and self.target.tma, self.config.raster, self._notes())

    def _notes(self) -> tuple[str, ...]:
        return tuple(str(self.original).splitlines())

    def _grid(self) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, Expr], ...]]:
        """Grid variables, fastest first; more than three are folded into the last and unfolded as lets."""
        axes = [(a, self.extents[a]) for a in reversed(self.roles.grid) if self.extents[a] > 1]
        if self.row_blocks > 1:
            axes.insert(0, (self.block_var, self.row_blocks))
        lets: list[tuple[str, Expr]] = []
        if self.row_blocks > 1 and self.config.reverse and self.narrowed:
            axes[0] = (f"{self.block_var}_from_end", self.row_blocks)
            lets.append((self.block_var, Op("sub", (i64(self.row_blocks - 1), Index(axes[0][0])), "i64")))
        if not axes:
            axes = [("one", 1)]
        if len(axes) > 3:
            folded, total = axes[2:], 1
            name = "_".join(a for a, _ in folded)
            for k, (a, extent) in enumerate(folded):
                e = ifloordiv(Index(name), total)
                lets.append((a, e if k == len(folded) - 1 else Op("mod", (e, i64(extent)), "i64")))
                total *= extent
            axes = [*axes[:2], (name, total)]
        return tuple(axes), tuple(lets)

    narrowed: bool = False

    def _init(self) -> None:
        for b in self.kernel.init:
            if len(b.names) > 1 and not self.resident:
                raise LoweringError("RF489", f"{self.kernel.name}: {', '.join(b.names)} carries a payload",
                                    why="the tile form of this reducer needs the row on chip")
            for n, neutral in zip(b.names, b.exprs, strict=True):
                dtype = {"i64": "i32", "f64": "f32"}.get(neutral.dtype, neutral.dtype)
                v = self._tile(n, "me" if self.roles.columns in b.axes else "m", dtype)
                self.values[n] = v
                assert isinstance(neutral, Const)
                if not self.resident:
                    low = n in self.prepared.lifted
                    note = "below every finite score: no step has to look for -inf" if low else ""
                    self.prologue.stmts.append(Fill(v.buffer, LEAST if low else neutral, note))

    def _segments(self, blocks: tuple[Block, ...], alive: Expr) -> tuple[Expr, Expr, Expr]:
        """(first step, last step + 1, first element of step ``counter``) of the walk along the r-axis."""
        n, size = self.roles.segment, self.sizes["n"]
        assert n is not None
        extent = self.extents[n]
        first: Expr = i64(0)
        last: Expr = i64(-(-extent // size))
        if self.kernel.split and self.kernel.kind in ("split", "map"):
            chunk = -(-extent // self.extents[self.kernel.split])
            per = -(-chunk // size)
            first = imul(self._scalar(self.kernel.split), per)
            last = iadd(first, i64(per))
        whole = (first, last)
        found = self.analysis.range(alive)
        if found.low is not None:
            low = self.analysis.segment_of(self.analysis.larger(found.low, i64(0)), size, up=False)  # type: ignore[arg-type]
            first = self._at_least(first, low)
        if found.high is not None:
            high = self.analysis.segment_of(self.analysis.smaller(found.high, i64(extent)), size, up=True)  # type: ignore[arg-type]
            last = self._at_most(last, high)
        if self.kernel.split and not self._constant_trip(first, last):
            first, last = whole  # every split walks the same number of steps; masks take care of the rest
        self.narrowed = self.narrowed or any(isinstance(x, Index) and x.axis == self.block_var
                                             for e in (first, last) for x in walk(e))
        return first, last, imul(Index(self.counter), size)

    def _constant_trip(self, first: Expr, last: Expr) -> bool:
        a, b = affine(first, self.block_extents), affine(last, self.block_extents)
        return a is not None and b is not None and not minus(b, a).terms

    def _at_least(self, a: Expr, b: Expr) -> Expr:
        return self.analysis.larger(a, b)  # type: ignore[return-value]

    def _at_most(self, a: Expr, b: Expr) -> Expr:
        return self.analysis.smaller(a, b)  # type: ignore[return-value]

    @property
    def analysis(self) -> Analysis:
        rows = Rows(self.roles.rows, self.row_origin, self.sizes["m"])
        return Analysis(self.roles.segment or "", rows, self.block_extents)

    def _alive(self) -> Expr:
        """Positions outside which no accumulator changes: the conditions that all contributions share."""
        common = [c for c in (conjuncts(self.prepared.alive[0]) if self.prepared.alive else ()) if positional(c)
                  and all(c in conjuncts(other) for other in self.prepared.alive)]
        total = TRUE
        for c in common:
            total = both(total, c)
        return total

    last_staged: dict[tuple[str, tuple[Expr, ...], str], Value]

    def _body(self) -> list[TileStmt]:
        scope = Scope()
        self.scope = scope
        self.last_staged = {}
        if self.roles.fold is not None:
            for b in self.prepared.body:
                self._block(b)
            return [For(self.counter, i64(0), i64(self.extents[self.roles.fold]), tuple(scope.stmts),
                        comment="fold the partial states of the splits")]
        if self.resident:
            scope.segment = i64(0)
            for b in self.prepared.body:
                self._block(b)
            self.last_staged = scope.staged
            return scope.stmts
        first, last, start = self._segments(self.prepared.body, self._alive())
        scope.segment = start
        for b in self.prepared.body:
            self._block(b)
        nested = any(isinstance(x, For) for x in scope.stmts)
        stages = self.config.stages if self.has_gemm and not nested else 0
        asynchronous = self.config.warp_specialized and self.target.tma
        if stages > 1 and not asynchronous and not self._constant_trip(first, last):
            stages = 1  # TileLang 0.1.15 cannot drain a deeper cp.async pipeline after an unknown number of steps
        return [For(self.counter, first, last, tuple(scope.stmts), stages)]

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _block(self, b: Block) -> None:
        if b.role == "producer" and b.reducer is not None:
            self._contraction(b)
        elif b.role == "store" and "@" in b.name:
            self._keep(b)
        elif b.role == "correct":
            self._correct(b)
        elif b.role == "reduce":
            self._reduce(b)
        elif b.role == "merge":
            self._merge(b)
        elif b.reducer is not None:
            self._late_reduce(b)
        else:
            self._let(b)

    def _operand(self, e: Expr, letters: str) -> tuple[Value, str]:
        """A matrix operand in shared memory, and its element type."""
        bare = strip_casts(e)
        if isinstance(bare, Load):
            self._check_operand(bare.dtype, bare)
            return self._stage(bare.tensor, bare.indices, bare.dtype, want=letters, shared=True), bare.dtype
        dtype = bare.dtype
        self._check_operand(dtype, bare)
        sizes = {**self.sizes, "c": self.contract_size}
        home = self.scope if self.chunked or "n" in letters else self.prologue
        name = next((x.tensor for x in walk(bare) if isinstance(x, Load)), "operand")
        buffer = self._buffer(f"{name}_operand", "shared", dtype, tuple(sizes[c] for c in letters))
        home.stmts.append(self._parallel(letters, (Assign(buffer, self._at(letters), self.expr(bare)),), sizes=sizes))
        return Value(letters, dtype, buffer), dtype

    def _check_operand(self, dtype: str, e: Expr) -> None:
        if dtype == "f32" and not self.config.tf32:
            raise LoweringError("RF490", f"{self.kernel.name}: a contraction of f32 operands ({print_expr(e)[:60]})",
                                why="the matrix units would round them to TF32",
                                help="use f16 or bf16 operands, or allow TF32")
        if dtype not in (*HALF, "f32", "e4m3", "e5m2"):
            raise LoweringError("RF490", f"{self.kernel.name}: no matrix unit takes {dtype} operands")

    def _contraction(self, b: Block) -> None:
        """``s[rows, segment] = sum[c] A[rows, c] * B[segment, c]``."""
        assert b.over is not None and self.roles.segment is not None
        parts = rewrite.factors(b.exprs[0])
        self.contracted = frozenset({b.over})
        self.contract_size = _round_up(self.extents[b.over], 16)
        right = tuple(p for p in parts if "n" in self._letters_of(p))
        left = tuple(p for p in parts if p not in right)
        if len(left) != 1 or len(right) != 1 or "m" in self._letters_of(right[0]):
            raise LoweringError("RF491", f"{self.kernel.name}: {print_expr(b.exprs[0])[:80]} is not a matrix product",
                                why="a contraction needs one operand per row and one per segment element")
        v = self._tile(b.name, "mn", "f32")
        self.values[b.name] = v
        chunk = self.config.chunk
        if chunk and chunk < self.contract_size:
            self._chunks(b, left[0], right[0], v, chunk)
        else:
            whole = self.contract_size
            cut = self._common_columns(right[0]) or whole
            self.contract_size = cut
            self._product(b, left[0], right[0], v, True)
            if cut < whole:
                self.contract_size, self.chunk_origin = whole - cut, i64(cut)
                self._product(b, left[0], right[0], v, False)
                self.chunk_origin = i64(0)
        self.contracted = frozenset()

    def _common_columns(self, right: Expr) -> int:
        """Where a later contraction reads the first columns of the same rows of the same tensor: how many."""
        k = strip_casts(right)
        columns = self.roles.columns
        if not isinstance(k, Load) or columns is None or self.roles.lists:
            return 0
        (over,) = self.contracted
        for b in self.prepared.body:
            for p in rewrite.factors(b.exprs[0]) if b.role == "reduce" and columns in b.axes else ():
                v = strip_casts(p)
                if isinstance(v, Load) and v.tensor == k.tensor and self.sizes["e"] < self.contract_size and \
                        tuple(substitute(i, indices={columns: Index(over)}) for i in v.indices) == k.indices:
                    return self.sizes["e"]
        return 0

    def _product(self, b: Block, left: Expr, right: Expr, v: Value, clear: bool) -> None:
        a, da = self._operand(left, "mc")
        w, dw = self._operand(right, "nc")
        if da != dw:
            raise LoweringError("RF490", f"{self.kernel.name}: a product of {da} and {dw} operands")
        self.emit(Gemm(Slice(a.buffer), Slice(w.buffer), v.buffer, a.letters == "cm", w.letters == "nc", clear,
                       self._policy(), self._source(b)))

    def _chunks(self, b: Block, left: Expr, right: Expr, v: Value, chunk: int) -> None:
        """A contraction too deep to hold: its own axis in steps, accumulated in the scores."""
        outer, count = self.scope, -(-self.contract_size // chunk)
        inner = Scope(segment=outer.segment)
        part = next(n for n in ("part", "depth", "part_") if n not in {*self.roles.grid, *self.declared})
        self.scope, self.chunked, self.contract_size = inner, True, chunk
        self.chunk_origin = imul(Index(part), chunk)
        self._product(b, left, right, v, False)
        self.scope, self.chunked, self.chunk_origin = outer, False, i64(0)
        self.emit(Fill(v.buffer, Const(0.0, "f32")))
        self.emit(For(part, i64(0), i64(count), tuple(inner.stmts), self.config.stages))

    def _policy(self) -> Policy:
        return "rows" if self.config.weights == "registers" else "cols"

    def _source(self, b: Block) -> str:
        """The block as the segment program has it: the comment a reader sees."""
        for o in (*self.original.body, *self.original.tail):
            if o.names == b.names and o.role == b.role:
                return f"{o.role}: {str(o).removeprefix(o.role).strip()}"
        return ""

    def _keep(self, b: Block) -> None:
        base = self._value(b.name.partition("@")[0])
        v = self._tile(b.name, base.letters, base.dtype)
        self.values[b.name] = v
        self.emit(Copy(Slice(base.buffer), Slice(v.buffer)))

    def _correct(self, b: Block) -> None:
        v = self._value(b.name)
        if v.letters == "m":  # joins the addition of the segment's part
            self.corrections[b.name] = self.expr(b.exprs[0])
            return
        self.emit(self._parallel(v.letters, (Assign(v.buffer, self._at(v.letters), self.expr(b.exprs[0])),),
                                 self._source(b)))

    def _merge(self, b: Block) -> None:
        if len(b.names) > 1 or b.reducer is None:
            raise LoweringError("RF489", f"{self.kernel.name}: {', '.join(b.names)} carries a payload")
        v = self._value(b.name)
        a, c = b.exprs
        total = op({"sum": "add", "max": "max", "min": "min", "prod": "mul", "any": "or", "all": "and"}[b.reducer.kind],
                   a, c)
        self.emit(self._parallel(v.letters, (Assign(v.buffer, self._at(v.letters), self.expr(total)),), self._source(b)))

    def _reduce(self, b: Block) -> None:
        assert b.reducer is not None
        kind = b.reducer.kind
        if kind in ("topk", "argmax", "argmin"):
            self._select_best(b)
            return
        if kind not in ("sum", "max", "min"):
            raise LoweringError("RF489", f"{self.kernel.name}: no tile form of the reducer {kind}")
        v = self._value(b.name)
        if "e" in v.letters and not self.roles.lists:
            self._accumulate(b, v)
            return
        if kind == "sum" and "n" not in self._letters_of(b.exprs[0]):
            self._count(b, v, self.corrections.pop(b.name, None))
            return
        corrected = self.corrections.pop(b.name, None)
        src = self._as_tile(b.exprs[0], "mn", f"{b.name}_term")
        self._fold(kind, src, v, fresh=self.resident, comment=self._source(b), corrected=corrected)

    def _count(self, b: Block, v: Value, corrected: Expr | None) -> None:
        """A sum of a value that the segment does not change: times the elements of this segment."""
        n, size = self.roles.segment, self.sizes["n"]
        assert n is not None and self.scope.segment is not None
        extent = self.extents[n]
        count: Expr = Const(float(size), "f32")
        if self._walked(n) != extent:
            left = Op("sub", (i64(extent), self.scope.segment), "i64")
            count = Cast(imax(i64(0), imin(i64(size), left)), "f32")
        total = op("add", corrected or at(v.buffer, v.dtype, self.point["m"]), op("mul", count, self.expr(b.exprs[0])))
        self.emit(self._parallel("m", (Assign(v.buffer, self._at("m"), rewrite.simplify(total)),), self._source(b)))

    def _fold(self, kind: str, src: Value, v: Value, fresh: bool, comment: str,
              corrected: Expr | None = None) -> None:
        if fresh:
            self.emit(ReduceTile(kind, src.buffer, v.buffer, True, comment))
        elif kind in ("max", "min"):
            if corrected is not None:
                self.emit(self._parallel("m", (Assign(v.buffer, self._at("m"), corrected),)))
            self.emit(ReduceTile(kind, src.buffer, v.buffer, False, comment))
        else:
            part = self._buffer(f"{v.buffer}_segment", "fragment", v.dtype, (self.sizes["m"],))
            self.emit(ReduceTile(kind, src.buffer, part, True, comment))
            total = op("add", corrected or at(v.buffer, v.dtype, self.point["m"]), at(part, v.dtype, self.point["m"]))
            self.emit(self._parallel("m", (Assign(v.buffer, self._at("m"), total),)))

    def _select_best(self, b: Block) -> None:
        """The k best of a row held on chip, one after another; equal values in the order of their index.

        A taken place becomes -inf; a real -inf is lifted to the least finite value first, so that it is told apart."""
        assert b.reducer is not None
        if not self.resident or b.reducer.kind == "argmin":
            raise LoweringError("RF489", f"{self.kernel.name}: no tile form of {b.reducer} in this strategy",
                                why="it needs the whole row on chip")
        n = self.roles.segment
        assert n is not None
        i, j = self.point["m"], self.point["n"]
        least, extent = f32(-3.4028234663852886e38), self.extents[n]
        left = self._tile(f"{b.name}_left", "mn", "f32")
        self._map(left, Op("max", (b.exprs[0], least), "f32"), self._source(b))
        place = self._tile(f"{b.name}_place", "mn", "i32")
        best, where = self._tile(f"{b.name}_next", "m", "f32"), self._tile(f"{b.names[-1]}_next", "m", "i32")
        body: list[TileStmt] = [
            ReduceTile("max", left.buffer, best.buffer, True),
            self._parallel("mn", (Assign(place.buffer, self._at("mn"), Op("select", (
                op("eq", at(left.buffer, "f32", i, j), at(best.buffer, "f32", i)), Cast(Index(j), "i32"),
                Const(extent - 1, "i32")), "i32")),)),
            ReduceTile("min", place.buffer, where.buffer, True),
            self._parallel("mn", (Assign(left.buffer, self._at("mn"), Op("select", (
                op("eq", Cast(Index(j), "i32"), at(where.buffer, "i32", i)), rewrite.NEG_INF,
                at(left.buffer, "f32", i, j)), "f32")),))]
        value = Op("select", (op("eq", at(best.buffer, "f32", i), least), rewrite.NEG_INF, at(best.buffer, "f32", i)), "f32")
        found = ((b.names[0], value), (b.names[-1], at(where.buffer, "i32", i)))
        if b.reducer.kind == "argmax":
            for stmt in body[:3]:
                self.emit(stmt)
            for name, e in found:
                v = self._value(name)
                self.emit(self._parallel("m", (Assign(v.buffer, self._at("m"), e),)))
            return
        turn = next(x for x in ("turn", "turn_") if x not in {*self.roles.grid, *self.declared})
        here = op("eq", Index(self.point["e"]), Index(turn))
        lists = []
        for name, e in found:
            v = self._value(name)
            old = at(v.buffer, v.dtype, i, self.point["e"])
            lists.append(Assign(v.buffer, self._at("me"), Op("select", (here, e, old), v.dtype)))
            self.emit(Fill(v.buffer, Const(0 if v.dtype == "i32" else 0.0, v.dtype)))
        body.append(self._parallel("me", tuple(lists)))
        self.emit(For(turn, i64(0), i64(b.reducer.k), tuple(body), comment=f"the {b.reducer.k} best, in order"))

    def _as_tile(self, e: Expr, letters: str, stem: str) -> Value:
        """``e`` in a fragment of exactly these letters."""
        if isinstance(e, Ref) and self._value(e.name).letters == letters and self._value(e.name).buffer:
            return self._value(e.name)
        v = self._tile(stem, letters, "f32" if e.dtype in (*HALF, "f32", "f64") else e.dtype)
        self._map(v, e)
        return v

    def _map(self, v: Value, e: Expr, comment: str = "") -> None:
        """``v = e`` over v's tile; a mask that holds for whole segments is applied only where it does not."""
        letters = v.letters
        if letters == "mn" and isinstance(e, Op) and e.name == "select" and isinstance(e.args[2], Const):
            position, data = separate(e.args[0])
            partial = self._partial(position)
            if position != TRUE and partial is not None:
                inner = e.args[1] if data == TRUE else Op("select", (data, e.args[1], e.args[2]), e.dtype)
                self.emit(self._parallel(letters, (Assign(v.buffer, self._at(letters), self.expr(inner)),), comment))
                masked = Op("select", (self.expr(position), at(v.buffer, v.dtype, *(self.point[c] for c in letters)),
                                       e.args[2]), e.dtype)
                mask = self._parallel(letters, (Assign(v.buffer, self._at(letters), masked),))
                why = f"only where {print_expr(position)} is not settled"
                self.emit(mask if partial == TRUE else If(partial, (mask,), why))
                return
        self.emit(self._parallel(letters, (Assign(v.buffer, self._at(letters), self.expr(e)),), comment))

    def _partial(self, position: Expr) -> Expr | None:
        """When the current segment needs the mask: None never to be asked, TRUE always, else a test of the block."""
        if position == TRUE or self.scope.segment is None:
            return None
        found = self.analysis.range(position)
        if not found.exact or isinstance(self.scope.segment, Const):
            return TRUE
        start, size = self.scope.segment, self.sizes["n"]
        tests = []
        if found.core_low is not None:
            tests.append(op("lt", start, found.core_low))
        if found.core_high is not None:
            tests.append(op("gt", iadd(start, i64(size)), found.core_high))
        if not tests:
            return TRUE
        return tests[0] if len(tests) == 1 else op("or", *tests)

    def _accumulate(self, b: Block, v: Value) -> None:
        """``acc[rows, columns] += sum[segment] W[rows, segment] * V[segment, columns]``."""
        parts = rewrite.factors(b.exprs[0])
        right = tuple(p for p in parts if "e" in self._letters_of(p))
        left = tuple(p for p in parts if p not in right)
        if len(right) != 1 or not left or "m" in self._letters_of(right[0]):
            raise LoweringError("RF491", f"{self.kernel.name}: {print_expr(b.exprs[0])[:80]} is not a matrix product",
                                why="a vector-valued sum needs one operand per row and one per column")
        bare = strip_casts(right[0])
        dtype = bare.dtype
        weights = rewrite.product(left)
        plain = strip_casts(weights)
        if isinstance(plain, Load) and plain.dtype == dtype:
            a = self._stage(plain.tensor, plain.indices, dtype, want="mn", shared=True)
        else:
            src = self._as_tile(_unrounded(weights, dtype), "mn", f"{b.name}_weight")
            a = self._cast_weights(src, dtype, weights, b)
        w, _ = self._operand(right[0], "ne")
        self.emit(Gemm(Slice(a.buffer), Slice(w.buffer), v.buffer, a.letters == "nm", w.letters == "en", False,
                       self._policy(), self._source(b)))

    def _cast_weights(self, src: Value, dtype: str, e: Expr, b: Block) -> Value:
        if dtype == "f32":
            return src
        explicit = any(isinstance(x, Cast) and x.dtype == dtype for x in walk(e))
        small = isinstance(e, Ref) and e.name in self.prepared.unit
        if not explicit and not small and dtype != "bf16":
            raise LoweringError("RF492", f"{self.kernel.name}: the weights of {b.name} may leave the range of {dtype}",
                                why="nothing proves that they lie in [0, 1]")
        if not explicit:
            ulp = {"f16": "2^-11", "bf16": "2^-8"}.get(dtype, "")
            self.roundings.append(f"{b.name}: weights {print_expr(e)} rounded to {dtype} for the matrix units "
                                  f"(relative error <= {ulp}, as the unfused program rounds its probabilities)")
        key = (src.buffer, (), dtype)
        if key in self.scope.staged:
            return self.scope.staged[key]
        shared = self.config.weights == "shared"
        buffer = self._buffer("weights_shared" if shared else "weights", "shared" if shared else "fragment", dtype,
                              (self.sizes["m"], self.sizes["n"]))
        self.emit(Copy(Slice(src.buffer), Slice(buffer)))
        value = Value("mn", dtype, buffer)
        self.scope.staged[key] = value
        return value

    # -- maps ----------------------------------------------------------------------------------------------------------

    def _let(self, b: Block) -> None:
        (e,) = b.exprs
        name = b.name
        letters = "".join(c for c in "mne" if c in self.prepared.levels.get(name, frozenset()))
        if name in self.written:
            self._output(b, e, letters)
            return
        if letters in ("", "n", "e") or (letters == "m" and not self._worth_a_buffer(e)):
            self.values[name] = Value(letters, b.dtype, expr=e)
            return
        if letters not in ("m", "mn", "me"):
            raise LoweringError("RF493", f"{self.kernel.name}: {name} spans rows, segment and columns at once")
        if letters == "mn" and isinstance(strip_casts(e), Load):
            self.values[name] = Value(letters, b.dtype, expr=e)
            return
        v = self._tile(name, letters, b.dtype if b.dtype not in ("f64", *HALF) or isinstance(e, Cast) else "f32")
        self._map(v, e, self._source(b))
        self.values[name] = v

    def _worth_a_buffer(self, e: Expr) -> bool:
        return isinstance(e, Op) or (isinstance(e, Cast) and isinstance(e.arg, Op)) or isinstance(strip_casts(e), Load)

    def _late_reduce(self, b: Block) -> None:
        """A reduction after the accumulators: along the row once more, or over columns."""
        assert b.reducer is not None
        if self.roles.lists and b.over == self.roles.columns and b.reducer.kind in ("sum", "max", "min"):
            self._reduce_list(b)
            return
        if b.over != self.roles.segment or b.reducer.kind not in ("sum", "max", "min"):
            raise LoweringError("RF489", f"{self.kernel.name}: no tile form of {b.reducer} over {b.over} after the row")
        v = self._tile(b.name, "m", "f32")
        self.values[b.name] = v
        neutral = {"sum": 0.0, "max": -float("inf"), "min": float("inf")}[b.reducer.kind]
        e = b.exprs[0]
        n = self.roles.segment
        assert n is not None
        if self._walked(n) != self.extents[n]:
            e = Op("select", (op("lt", Index(n), i64(self.extents[n])), e, Const(neutral, "f32")), e.dtype)
        if not self.resident:
            self.phase_init.append(Fill(v.buffer, Const(neutral, "f32")))
        self._fold(b.reducer.kind, self._as_tile(e, "mn", f"{b.name}_term"), v, self.resident, self._source(b))

    def _reduce_list(self, b: Block) -> None:
        """Along the places of a top-k list, padded to a power of two."""
        assert b.reducer is not None and self.roles.columns is not None
        neutral = {"sum": 0.0, "max": -float("inf"), "min": float("inf")}[b.reducer.kind]
        e, k = b.exprs[0], self.extents[self.roles.columns]
        if k != self.sizes["e"]:
            e = Op("select", (op("lt", Index(self.roles.columns), i64(k)), e, Const(neutral, "f32")), e.dtype)
        v = self._tile(b.name, "m", "f32")
        self.values[b.name] = v
        self._fold(b.reducer.kind, self._as_tile(e, "me", f"{b.name}_term"), v, True, self._source(b))

    phase_init: list[TileStmt]

    def _tail(self, tail: Scope) -> None:
        """Finalize and epilogue run once; blocks along the segment run in a second walk unless the row is on chip."""
        self.phase_init = []
        walk_again: list[Block] = []

        def flush() -> None:
            if not walk_again:
                return
            blocks, self.phase_init = tuple(walk_again), []
            walk_again.clear()
            inner = Scope()
            self.scope = inner
            first, last, inner.segment = self._segments(blocks, TRUE)
            for b in blocks:
                self._block(b)
            self.scope = tail
            tail.stmts += self.phase_init
            tail.stmts.append(For(self.counter, first, last, tuple(inner.stmts), comment="visit the row again"))

        pending: set[str] = set()
        for b in self.prepared.tail:
            along = self._along_segment(b)
            if along and not self.resident:
                if pending & {x.name for e in b.exprs for x in walk(e) if isinstance(x, Ref)}:
                    flush()
                    pending = set()
                walk_again.append(b)
                if b.reducer is not None and b.over == self.roles.segment:
                    pending |= set(b.names)
                continue
            if not along and walk_again and {x.name for e in b.exprs for x in walk(e) if isinstance(x, Ref)} & {
                    n for w in walk_again for n in w.names}:
                flush()
                pending = set()
            self.scope = tail
            self._store(b) if b.role == "store" else self._block(b)
        flush()

    def _along_segment(self, b: Block) -> bool:
        n = self.roles.segment
        return n is not None and (b.over == n or any("n" in self.prepared.levels.get(x, ()) for x in b.names)
                                  or n in b.axes)

    # -- stores --------------------------------------------------------------------------------------------------------

    def _store(self, b: Block) -> None:
        for name, e in zip(b.names, b.exprs, strict=True):
            letters = "".join(c for c in "mne" if c in self._letters_of(e))
            self._write(name, e, letters, self._source(b))

    def _output(self, b: Block, e: Expr, letters: str) -> None:
        self._write(b.name, e, letters, self._source(b))
        self.values.setdefault(b.name, Value(letters, b.dtype, expr=e))

    def _write(self, name: str, e: Expr, letters: str, comment: str) -> None:
        """A result to global memory: whole tiles as copies (matrix results through shared memory), rows by element."""
        tensor = self.written[name]
        rect = self._slice(name, self.stores[name], self.sizes)
        wide = "".join(c for c in "mne" if c in set(letters) | set(rect[1] if rect else ""))
        if wide == "" and letters == "":
            wide = "m"
        if len(wide) == 2 and rect is not None and rect[1] == wide:
            bare = strip_casts(e) if not (isinstance(e, Cast) and e.dtype in HALF) else e.arg if isinstance(e, Cast) else e
            if isinstance(e, Cast) and e.dtype == tensor.dtype:
                bare = e.arg
            if wide == "me" and self.has_gemm and not self.roles.lists:
                src = self._as_tile(bare, wide, f"{name}_tile")
                if tensor.dtype == src.dtype:
                    self.emit(Copy(Slice(src.buffer), rect[0], comment))
                    return
                out = self._buffer(f"{name}_shared", "shared", tensor.dtype, tuple(self.sizes[c] for c in wide))
                self.emit(Copy(Slice(src.buffer), Slice(out), comment))
                self.emit(Copy(Slice(out), rect[0]))
                return
            v = Value(wide, tensor.dtype, self._buffer(f"{name}_tile", "fragment", tensor.dtype,
                                                       tuple(self.sizes[c] for c in wide)))
            self._map(v, e, comment)
            self.emit(Copy(Slice(v.buffer), rect[0]))
            return
        forms = self._indices(name, self.stores[name])
        if forms is None:
            raise LoweringError("RF494", f"{self.kernel.name}: {name} is not stored along its axes")
        wide = wide or "m"
        param = self.params[name].name
        value = self.expr(e)
        target = tuple(self._form(p) for p in forms)
        if wide == "me" and rect is not None and rect[1] == "e" and self.has_gemm:  # no row axis: the first row, staged
            bare = e.arg if isinstance(e, Cast) and e.dtype == tensor.dtype else e
            src = self._as_tile(bare, wide, f"{name}_tile")
            out = self._buffer(f"{name}_shared", "shared", tensor.dtype, tuple(self.sizes[c] for c in wide))
            self.emit(Copy(Slice(src.buffer), Slice(out), comment))
            self.emit(Copy(Slice(out, (Dim(Const(0, "i64")), Dim(Const(0, "i64"), self.sizes["e"]))), rect[0]))
            return
        if "m" in wide and "m" not in (rect[1] if rect else "m"):  # a result without a row axis: one row stores it
            self.emit(self._parallel(wide, (Assign(param, target, value),), comment, {**self.sizes, "m": 1}))
            return
        self.emit(self._parallel(wide, (Assign(param, target, value),), comment))


def _unrounded(e: Expr, dtype: str) -> Expr:
    """The weights before the cast that the matrix operand makes anyway."""
    match e:
        case Cast(arg=Cast(arg=x, dtype=d), dtype="f32") if d == dtype:
            return x
    return e


def _static(extent: int | str, what: str) -> int:
    if not isinstance(extent, int):
        raise LoweringError("RF485", f"{what} has the symbolic extent {extent}",
                            why="tile programs have static shapes", help="compile once per shape")
    return extent


def _round_up(n: int, k: int) -> int:
    return -(-n // k) * k


def _power_at_least(n: int) -> int:
    return 1 << max(0, (n - 1).bit_length())


def argument_name(program: Program, name: str) -> str:
    """The parameter that holds a buffer: inputs by their own name, outputs as ``out_NAME``, workspaces as they are."""
    outputs = program.fused.cascade.outputs
    return f"out_{name}" if name in outputs else name


def tensors(program: Program) -> list[tuple[Tensor, str]]:
    """Every tensor argument with its role, inputs first."""
    out = [(t, "in") for t in program.fused.cascade.inputs]
    written = {t.name: t for k in program.kernels for t in k.writes}
    out += [(written[n], "out") for n in program.fused.cascade.outputs]
    return out + [(t, "workspace") for t in program.workspaces]


__all__ = [
    "UNIT",
    "KernelLowering",
    "Roles",
    "argument_name",
    "both",
    "imax",
    "indices_of",
    "positional",
    "replace",
    "tensors",
]
