"""What is decided of a kernel before it has tiles: its axes' roles, the sizes of its tiles, its mathematics rewritten, its
parameters, the names of points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redfuser.acrf.affine import Affine, Indices, atom
from redfuser.acrf.cascade import Tensor
from redfuser.acrf.expr import Expr, Index, Load, indices_of, walk
from redfuser.acrf.index import i64
from redfuser.errors import LoweringError
from redfuser.strategies.alive import TRUE, alive_where
from redfuser.strategies.program import Block, Kernel, Program
from redfuser.target import Target
from redfuser.tensorize.axes import UNIT, Roles, choose, neighbours
from redfuser.tensorize.by_thread import by_thread, interleaved
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.indexing import View, view
from redfuser.tensorize.ir.nodes import Exact
from redfuser.tensorize.ir.parts import Param, Policy
from redfuser.tensorize.masks import Analysis, Rows
from redfuser.tensorize.precision import chooses_among_few, divides_by_hidden, stores_exponentials, stores_single
from redfuser.tensorize.rewrite import Setting, Watcher, arrange, rewritten
from redfuser.tensorize.rewrite.facts import Facts, before_end, learn
from redfuser.tensorize.rewrite.scales import told
from redfuser.tensorize.rewrite.unit_interval import unit_values
from redfuser.tensorize.sizes import is_gemm, one_segment, tile_sizes, walked


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


def static_extent(extent: int | str, what: str) -> int:
    """The extent, or LoweringError RF485 where it is symbolic."""
    if not isinstance(extent, int):
        raise LoweringError("RF485", f"{what} has the symbolic extent {extent}",
                            why="tile programs have static shapes", help="compile once per shape")
    return extent


def alive(kernel: Kernel, facts: Facts) -> tuple[Expr, ...]:
    """Per reduction along the segment, a condition without which its contribution is neutral."""
    return tuple(TRUE if facts.counted(b) else alive_where(facts.lets, b.reducer, b.exprs[0])
                 for b in kernel.body if b.role == "reduce")


Stores = Mapping[str, tuple[str, tuple[Expr, ...]]]
"""By block name, the tensor that it writes and where."""


def declare_params(program: Program, kernel: Kernel, declared: Mapping[str, Tensor], stores: Stores,
                   extents: Mapping[str, int], one_row: bool) -> tuple[dict[str, Param], dict[str, View | None]]:
    """Of every tensor that is read or written its parameter, viewed so that its indices are simplest, and that view: None where
    some index has no affine form. extents: for index analysis. one_row: of products of a single row, whose operand needs a
    dimension for it."""
    loads: dict[str, list[tuple[Expr, ...]]] = {}
    for b in (*kernel.body, *kernel.tail):
        for e in b.exprs:
            for x in walk(e):
                if isinstance(x, Load):
                    loads.setdefault(x.tensor, []).append(x.indices)
    results = {t for t, _ in stores.values()}
    for name, indices in stores.values():
        loads.setdefault(name, []).append(indices)
    ix = Indices(extents)
    params: dict[str, Param] = {}
    views: dict[str, View | None] = {}
    for name, uses in loads.items():
        tensor = declared[name]
        shape = tuple(static_extent(s, name) for s in tensor.shape)
        forms = [tuple(map(ix.of_axes, use)) for use in uses]
        plain = any(p is None for form in forms for p in form)
        v = None if plain else view(shape, forms, extents)  # type: ignore[arg-type]
        own = {a for use in uses for i in use for a in indices_of(i)}
        if one_row and v is not None and name not in results and 1 not in v.shape[:-1] and kernel.raxis not in own and own & {
                b.over for b in kernel.body}:
            v = v.with_row
        views[name] = v
        seen = shape if v is None else v.shape
        params[name] = Param(argument_name(program, name), tensor.dtype, seen or (1,), name in results)
    return params, views


@dataclass(frozen=True, slots=True)
class Geometry:
    """original: the kernel as the segment program has it; kernel: rewritten. exact: exponentials are the program's own. alive:
    per reduction, where along the segment it matters. unit: names of values in [0, 1]. stores: by block name, the tensor that
    it writes and where. origin: what a name was called before its short axes went. point: loop variables of tiles; counter:
    that of the walk. blocks: tiles of rows and columns that the grid has, and of the segment where no row is walked. called:
    names of buffers for what they hold."""

    program: Program
    original: Kernel
    config: TileConfig
    target: Target
    kernel: Kernel
    roles: Roles
    resident: bool
    has_gemm: bool
    exact: Exact
    sizes: Mapping[str, int]
    facts: Facts
    alive: tuple[Expr, ...]
    unit: frozenset[str]
    declared: Mapping[str, Tensor]
    stores: Stores
    origin: Mapping[str, str]
    params: Mapping[str, Param]
    views: Mapping[str, View | None]
    point: Mapping[str, str]
    counter: str
    blocks: Mapping[str, int]
    called: Mapping[str, str]

    @property
    def extents(self) -> dict[str, int]:
        return self.roles.extents

    @property
    def block_extents(self) -> dict[str, int]:
        return {**self.extents, **self.blocks}

    @property
    def neighbours(self) -> bool:
        """Do rows lie side by side in memory, and the elements of a row apart?"""
        return neighbours(self.kernel, self.roles.rows)

    @property
    def row(self) -> tuple[str, ...]:
        """The axes of a value per row."""
        return (self.roles.rows,)

    @property
    def across(self) -> tuple[str, ...]:
        """The axes of a value per row and element of the segment."""
        return (self.roles.rows, self.roles.segment or "")

    @property
    def analysis(self) -> Analysis:
        rows = Rows(self.roles.rows, self.first(self.roles.rows), self.sizes[self.roles.rows])
        return Analysis(self.roles.segment or "", rows, self.block_extents)

    @property
    def policy(self) -> Policy:
        """How the warps share a product: by rows where the weights stay in registers."""
        return "rows" if self.config.weights == "registers" else "cols"

    def arg(self, name: str) -> str:
        """The parameter that holds a tensor."""
        return argument_name(self.program, name)

    def walked(self, n: str) -> int:
        """Elements that all segments of all splits cover."""
        return walked(self.kernel, self.extents, self.sizes, n)

    def first(self, axis: str) -> Affine:
        """The first element of the block's tile along an axis of the grid's tiles."""
        block = f"{axis}_block"
        return self.sizes[axis] * atom(Index(block)) if block in self.blocks else Affine()

    def scalar(self, axis: str) -> Expr:
        """The value of an axis that no tile runs along."""
        if axis == self.roles.fold:
            return Index(self.counter)
        return i64(0) if self.extents.get(axis) == 1 else Index(axis)

    def was(self, name: str) -> str:
        """What a name is called in the cascade."""
        return self.origin.get(name, name)

    def view_indices(self, name: str, indices: tuple[Expr, ...]) -> tuple[Affine, ...] | None:
        """Indices into a parameter's view, or None when they are not affine."""
        v = self.views[name]
        if v is None:
            return None
        if not indices:  # a single number: its parameter has one element
            return (Affine(),)
        extents = _index_extents(self.roles)
        return v.index(tuple(map(Indices(extents).linear, indices)), extents)

    def source(self, b: Block) -> str:
        """The block as the segment program has it: the comment a reader sees."""
        for o in (*self.original.body, *self.original.tail):
            if o.names == b.names and o.role == b.role:
                return f"{o.role}: {str(o).removeprefix(o.role).strip()}"
        return ""


def begin(program: Program, kernel: Kernel, config: TileConfig, target: Target, watch: Watcher | None = None) -> Geometry:
    """What the lowering of one kernel starts from. Raises LoweringError RF485 to RF488 for a kernel without tiles."""
    arranged = arrange(kernel, {a.name: static_extent(a.extent, a.name) for a in program.axes}, watch)
    if kernel.kind == "split" and by_thread(program, config):
        arranged = interleaved(arranged, config.segment)
    roles = choose(arranged.kernel, arranged.extents)
    resident = kernel.kind in ("resident", "merge") or (kernel.kind == "single" and one_segment(arranged.kernel, roles, config))
    has_gemm = any(is_gemm(roles, b) for b in arranged.kernel.body)
    sizes = tile_sizes(roles, config, resident, has_gemm)
    n = roles.segment
    inside = arranged.inside
    if inside is None and n is not None and walked(arranged.kernel, roles.extents, sizes, n) != roles.extents[n]:
        inside = before_end(n, roles.extents[n])
    cascade = program.fused.cascade
    hidden = divides_by_hidden(cascade)
    as_written, natural = chooses_among_few(cascade) or hidden, hidden and stores_single(cascade)
    exact: Exact = "all" if as_written else "small" if stores_exponentials(cascade) else ""
    reduced = frozenset(t.name for t in program.workspaces)
    whole = told(program.fused)
    at = Setting(roles, frozenset(arranged.stores), inside, resident, as_written, natural, reduced,
                 whole | {n for n, was in arranged.origin.items() if was in whole})
    done = rewritten(arranged.kernel, at, watch)
    facts = learn(done, at)
    declared = {t.name: t for t in (*done.reads, *done.writes)}
    params, views = declare_params(program, done, declared, arranged.stores, _index_extents(roles),
                                   has_gemm and roles.rows == UNIT)
    taken = {*roles.grid, roles.rows, *declared, "T"}
    spread = (*((n,) if n and kernel.spread else ()), roles.rows, *roles.columns)
    return Geometry(
        program, kernel, config, target, done, roles, resident, has_gemm, exact, sizes,
        facts, alive(done, facts), unit_values(done, facts), declared, arranged.stores, arranged.origin, params, views,
        _points(done, roles, taken), next(x for x in ("k", "step", "k_") if x not in taken),
        {f"{a}_block": count for a in spread if (count := -(-roles.extents[a] // sizes[a])) > 1},
        _called(done, roles))


def _index_extents(roles: Roles) -> dict[str, int]:
    """Extents for index analysis: the row axis keeps its dimension even when it has one point."""
    return {**roles.extents, roles.rows: max(2, roles.extents[roles.rows])}


def _points(kernel: Kernel, roles: Roles, taken: set[str]) -> dict[str, str]:
    """The loop variables of tiles."""
    point: dict[str, str] = {}
    used: set[str] = set()
    contracted = sorted({b.over for b in kernel.body if b.role == "producer" and b.over} - set(roles.tiled))
    for axes, names in (((roles.rows,), ("i", "r", "i_")), ((roles.segment,), ("j", "l", "j_")),
                        (roles.columns, ("d", "e", "d_", "e_")), (contracted, ("c", "c_", "cc"))):
        for axis in filter(None, axes):
            found = (n for n in names if n not in used and (n not in taken or n == roles.rows))
            point[axis] = next(found, f"{axis}_")
            used |= {point[axis]} if axis not in contracted else set()  # one contraction at a time
    return point


def _called(kernel: Kernel, roles: Roles) -> dict[str, str]:
    """Buffers are called for what they hold: scores, row_max, row_sum, the accumulator's own name."""
    called: dict[str, str] = {}
    scores = [b.name for b in kernel.body if b.role == "producer" and b.reducer is not None]
    if len(scores) == 1:
        called[scores[0]] = "scores"
    for kind in ("max", "min", "sum"):
        rows = [b.name for b in kernel.body if b.role == "reduce" and b.reducer and b.reducer.kind == kind
                and not roles.column_of(b.axes)]
        if len(rows) == 1:
            called[rows[0]] = f"row_{kind}"
            for suffix in ("shift", "finite", "inverse", "row"):
                called[f"{rows[0]}_{suffix}"] = f"row_{kind}_{suffix}"
            called[f"{rows[0]}@old"] = f"row_{kind}_old"
    return called
