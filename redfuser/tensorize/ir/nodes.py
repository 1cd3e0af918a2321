"""Tile IR: what one thread block does with tiles, free of any code generator's spelling.

The grammar, on one screen (``str()`` of every node prints this text, :mod:`redfuser.tensorize.ir.parse` reads it)::

    program   ::= "tile program" NAME {arg} {"output" NAME "=" NAME} {"rounding" TEXT} {kernel}
    arg       ::= "in" | "out" | "workspace"  NAME ":" DTYPE shape
    kernel    ::= "kernel" NAME "(" param {"," param} ")" "grid" "(" {VAR "<" size} ")" "threads" INT ["specialized"]
                  ["raster" INT] ["exact" ["small"]] ["cluster" INT] {"symbol" VAR "in" INT ".." INT}
                  {"let" VAR "=" expr} {buffer} {barrier} {stmt}
    size      ::= INT | a sum of products of quotients of symbols, as in a parameter's or an argument's shape
    param     ::= NAME ":" DTYPE shape ["out"] ["in" INT ".." INT]  a view of a contiguous tensor; what its elements are
    buffer    ::= NAME ":" ("shared" | "fragment" | "local") DTYPE shape
    barrier   ::= NAME ":" "barrier" "[" INT "]" "of" INT           slots, arrivals that end a phase
    stmt      ::= "copy" slice "->" slice                          loads past an edge give 0, stores past it are dropped
                | "gemm" slice ["^T"] "," slice ["^T"] "->" NAME ["clear"] POLICY
                | "reduce" OP NAME "->" NAME ["by" "lane"] ["clear"] ["keeping" "nan"] [N "at" "once"]   over the last dimension
                | "scan" OP NAME "->" NAME ["carry" NAME]              along the last dimension
                | "parallel" VAR "<" INT {"," VAR "<" INT} ":" {NAME "[" index "]" "=" expr}
                | "fill" NAME expr
                | "for" VAR "in" expr ".." expr ["pipelined" INT] ":" {stmt}
                | "if" expr ":" {stmt}
                | "stop if" expr                                first of a kernel: such a block does nothing
                | "roles:" {"role" NAME "of" INT ["registers" INT] ":" {stmt}}
                | "fetch" slice "->" slice "signals" at ["of all"] | "await" at "phase" expr
                | "arrive" at ["each"] ["of all"]
                | "drain" INT ["for" NAME {"," NAME}] | "take turn" | "pass turn" | "meet" ["alone"]
                | "send" slice "->" slice ["alone"] | "await sent" ["but" INT] | "let" VAR "=" expr
    at        ::= NAME "[" expr "]"
    slice     ::= NAME ["[" (expr | expr "+:" INT) {"," ...} "]"]    a point drops its dimension

Expressions are those of :mod:`redfuser.acrf.expr`: ``Load`` reads a buffer or a parameter by element, ``Index`` a loop
variable, a grid variable or a ``let``. Comments are part of no node's equality. A ``select`` evaluates only the branch
it takes. All index arithmetic is i64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Union

from redfuser.acrf.expr import Const, Expr, print_expr
from redfuser.sizes import Symbol, shape_text
from redfuser.tensorize.ir.flight import Flight
from redfuser.tensorize.ir.parts import Barrier, Buffer, Param, Policy, Slice, index_text


@dataclass(frozen=True, slots=True)
class Copy:
    """Move a tile, converting the element type.."""

    src: Slice
    dst: Slice
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"copy {self.src} -> {self.dst}"


@dataclass(frozen=True, slots=True)
class Gemm:
    """``c += a @ b`` (``c = a @ b`` with ``clear``), accumulated in ``c``'s dtype. ``flies``: it is only started, and a
    ``drain`` waits for it."""

    a: Slice
    b: Slice
    c: str
    transpose_a: bool = False
    transpose_b: bool = False
    clear: bool = False
    policy: Policy = "rows"
    comment: str = field(default="", compare=False)
    flies: bool = False

    def __str__(self) -> str:
        ta, tb = "^T" * self.transpose_a, "^T" * self.transpose_b
        return f"gemm {self.a}{ta}, {self.b}{tb} -> {self.c}{' clear' * self.clear}{' async' * self.flies} {self.policy}"


@dataclass(frozen=True, slots=True)
class ReduceTile:
    """``dst[i] = op over j of src[i, j]`` (with the old ``dst`` unless ``clear``); op is ``sum``, ``max`` or ``min``.
    max and min drop NaN, as the GPU's do; a row of nothing else gives the neutral element. ``lanes``: as far as single
    threads have it. Four of them hold a row of what a product accumulates, two neighbours of every eight each; ``dst[i, c]``
    takes the elements of the c-th. ``nan``: max and min keep NaN, for which CUDA has an instruction for halves. ``at_once``: of
    a thread's rows, those whose warps meet together."""

    op: str
    src: str
    dst: str
    clear: bool = True
    comment: str = field(default="", compare=False)
    lanes: bool = False
    nan: bool = False
    at_once: int = 1

    def __str__(self) -> str:
        how = " by lane" * self.lanes + " clear" * self.clear + " keeping nan" * self.nan
        how += f" {self.at_once} at once" * (self.at_once > 1)
        return f"reduce {self.op} {self.src} -> {self.dst}{how}"


@dataclass(frozen=True, slots=True)
class ScanTile:
    """``dst[i, j] = op over k <= j of src[i, k]``, joined to what is carried; what a row comes to is carried then
    (``carry[i] = dst[i, last]``). op is ``sum``, ``prod``, ``max`` or ``min`` (which keep NaN); all are shared tiles, src and
    dst may be one. n: of the first elements of each row, behind which there is room that nobody reads; 0: of all."""

    op: str
    src: str
    dst: str
    carry: str = ""
    n: int = 0
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        of, carry = f" of {self.n}" * bool(self.n), f" carry {self.carry}" * bool(self.carry)
        return f"scan {self.op} {self.src} -> {self.dst}{of}{carry}"


@dataclass(frozen=True, slots=True)
class Assign:
    """``target[indices] = expr`` at a point of the enclosing ``parallel``."""

    target: str
    indices: tuple[Expr, ...]
    expr: Expr

    def __str__(self) -> str:
        return f"{self.target}[{', '.join(map(index_text, self.indices))}] = {print_expr(self.expr)}"


@dataclass(frozen=True, slots=True)
class Parallel:
    """Independent points: every assignment runs at each point of ``vars`` x ``extents``, statement by statement."""

    vars: tuple[str, ...]
    extents: tuple[int, ...]
    body: tuple[Assign, ...]
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        head = ", ".join(f"{v} < {e}" for v, e in zip(self.vars, self.extents, strict=True))
        return f"parallel {head}:\n" + "\n".join(f"  {a}" for a in self.body)


@dataclass(frozen=True, slots=True)
class Fill:
    """Set every element of a buffer."""

    buffer: str
    value: Const
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"fill {self.buffer} {self.value}"


@dataclass(frozen=True, slots=True)
class For:
    """``stages`` 0: a serial loop. Otherwise the copies from global memory in the body may run that many iterations
    ahead. Bounds may depend on grid variables."""

    var: str
    start: Expr
    stop: Expr
    body: tuple[TileStmt, ...]
    stages: int = 0
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        tail = f" pipelined {self.stages}" if self.stages else ""
        return f"for {self.var} in {index_text(self.start)} .. {index_text(self.stop)}{tail}:\n" + _block(self.body)


@dataclass(frozen=True, slots=True)
class If:
    """A condition that is the same for the whole block."""

    cond: Expr
    body: tuple[TileStmt, ...]
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"if {print_expr(self.cond)}:\n" + _block(self.body)


@dataclass(frozen=True, slots=True)
class Stop:
    """A block of which this holds ends here, before it has done anything. What it asks lies in tensors that kernels before this
    one have written."""

    cond: Expr
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"stop if {print_expr(self.cond)}"


@dataclass(frozen=True, slots=True)
class Role:
    """What ``groups`` warp groups (of four warps) of a block do: each its part of the rows of every fragment, or of the columns
    (where products go by columns). ``registers`` of a thread once it runs, 0: those of the launch."""

    name: str
    groups: int
    registers: int
    body: tuple[TileStmt, ...]

    def __str__(self) -> str:
        tail = f" registers {self.registers}" if self.registers else ""
        return f"role {self.name} of {self.groups}{tail}:\n" + _block(self.body)


@dataclass(frozen=True, slots=True)
class Roles:
    """The rest of a kernel, done by warp groups side by side; those of the first role are the first threads."""

    roles: tuple[Role, ...]

    def __str__(self) -> str:
        return "roles:\n" + _block(self.roles)


Exact = Literal["", "all", "small"]
EXACT: dict[Exact, str] = {"": "", "all": " exact", "small": " exact small"}

TileStmt = Union[Copy, Gemm, ReduceTile, ScanTile, Parallel, Fill, For, If, Stop, Roles, Flight]


@dataclass(frozen=True, slots=True)
class TileKernel:
    """One launch. ``grid``: variables with extents, fastest first, at most three. ``lets``: scalars derived from them.
    ``notes``: the mathematics, as comment lines for a reader. ``warp_specialized``: allow a producer warp group.
    ``raster``: blocks of this many columns share L2 (0: launch order). ``exact``: nothing is computed
    by an approximate instruction, since the result is rounded to few values (``all``), or by none that knows no numbers below
    2^-126, since the result may be one (``small``). ``cluster``: so many neighbours along the first grid variable start and end
    together, and reach each other's shared memory. ``symbols``: variables of its expressions that are numbers when it is
    called. Where there are some, extents of parameters and of the grid may be sizes of them (:mod:`redfuser.sizes`); passes
    never see such a kernel, and tiles are numbers in any."""

    name: str
    params: tuple[Param, ...]
    grid: tuple[tuple[str, int], ...]
    threads: int
    lets: tuple[tuple[str, Expr], ...]
    buffers: tuple[Buffer, ...]
    body: tuple[TileStmt, ...]
    warp_specialized: bool = True
    raster: int = 0
    exact: Exact = ""
    notes: tuple[str, ...] = field(default=(), compare=False)
    barriers: tuple[Barrier, ...] = ()
    cluster: int = 1
    symbols: tuple[Symbol, ...] = ()

    @property
    def homes(self) -> dict[str, Param | Buffer]:
        """Parameters and buffers by name."""
        found: dict[str, Param | Buffer] = {p.name: p for p in self.params}
        found.update({b.name: b for b in self.buffers})
        return found

    @property
    def dtypes(self) -> dict[str, str]:
        """The element types of parameters and buffers."""
        return {name: home.dtype for name, home in self.homes.items()}

    def __str__(self) -> str:
        grid = ", ".join(f"{v} < {e}" for v, e in self.grid)
        raster = f" raster {self.raster}" if self.raster else ""
        how = f"{' specialized' * self.warp_specialized}{raster}{EXACT[self.exact]}"
        how += f" cluster {self.cluster}" * (self.cluster > 1)
        lines = [f"kernel {self.name}({', '.join(map(str, self.params))}) grid ({grid}) threads {self.threads}{how}"]
        lines += [f"  symbol {s}" for s in self.symbols]
        lines += [f"  let {n} = {index_text(e)}" for n, e in self.lets]
        lines += [f"  {b}" for b in (*self.buffers, *self.barriers)]
        return "\n".join(lines) + "\n" + _block(self.body)


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor the launcher passes: its declared shape (the caller's), dtype and role."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Literal["in", "out", "workspace"]

    def __str__(self) -> str:
        return f"{self.role} {self.name}: {self.dtype}{shape_text(self.shape)}"


@dataclass(frozen=True, slots=True)
class TileProgram:
    """A fused cascade as tile kernels, run in order. ``args``: the tensors, inputs, outputs, workspaces. ``outputs``
    maps the cascade's output names to arguments. ``roundings``: casts that tensorisation added, with why they are
    allowed. ``config``: the choices made, as plain data."""

    name: str
    args: tuple[TensorArg, ...]
    kernels: tuple[TileKernel, ...]
    outputs: tuple[tuple[str, str], ...]
    roundings: tuple[str, ...] = ()
    config: tuple[tuple[str, object], ...] = field(default=(), compare=False)

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """What its kernels know when they are called."""
        return tuple(dict.fromkeys(s for k in self.kernels for s in k.symbols))

    def __str__(self) -> str:
        head = [*map(str, self.args), *(f"output {n} = {arg}" for n, arg in self.outputs),
                *(f"rounding {r}" for r in self.roundings)]
        return "\n".join([f"tile program {self.name}", *("  " + line for line in head), *map(str, self.kernels)])


def _block(body: tuple[TileStmt | Role, ...]) -> str:
    return "\n".join("  " + line for s in body for line in str(s).splitlines())
