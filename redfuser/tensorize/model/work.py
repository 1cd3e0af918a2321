"""What a block of a kernel does, counted: bytes it asks for, bytes that shared memory gives and takes, and operations of the
matrix units, the CUDA cores and the special function units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import log2, prod

from redfuser.acrf.expr import BYTES, Cast, Const, Expr, Index, Load, Op, map_children, walk
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.flight import Fetch, Let, Send
from redfuser.tensorize.ir.nodes import (
    Assign,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Parallel,
    ReduceTile,
    Roles,
    ScanTile,
    Stop,
    TileKernel,
    TileStmt,
)
from redfuser.tensorize.ir.parts import LANES, RUN, Slice
from redfuser.tensorize.ir.spans import spans
from redfuser.tensorize.ir.tangents import flat, near
from redfuser.tensorize.model.layout import layouts, matrix_warps, warp_group
from redfuser.tensorize.model.operations import operations
from redfuser.tensorize.model.steps import fetches_ahead, specialised, unrolled

EXCHANGE = 5
"""Instructions for one exchange between the threads of a warp and what is made of it: a quarter as many a clock."""
MET = 5
"""Instructions of a thread around a barrier: a number written, those of all warps read and joined."""
SCANNED = 9.0
"""Instructions for one element of a scan: in its thread, in each doubling of a warp's lanes, in readings, warps and carries."""
ACCESS = 20
"""Instructions for one access to a tensor of a thread by itself: the address, the access, a conversion."""
WORD = 4
"""Bytes that a bank of shared memory has in a row."""
SAMPLES = 4
"""Blocks along a grid axis, and turns of a loop, at which bounds and conditions are looked at."""

UNROLLED, HELD = 4, 32
"""Turns of a loop whose loads a compiler puts before what is made of them, where threads do not wait for one another; numbers
that it asks for at once by so doing (columns of 64 and of 32 elements a turn: 80 and 46 registers, one turn at a time)."""


@dataclass(slots=True)
class Work:
    """Of one block, or the mean of some. moved: bytes by parameter. matrix: operations by the operands' type. shared: bytes
    that shared memory gives and takes. turns: of pipelined loops, once for each product; one that has no more than stages,
    whose threads copy for themselves, goes on until all are filled (one turn of 64 keys in two: 43.0 us for 35.6). steps:
    of others, which wait for what they read; hidden: of such as ask in one for what the next one reads; loose: turns in which
    no warp waits for another; waits: for elements that threads read themselves beside a product; meets: of warps that reduce a
    row. ends: bytes that come before every loop and leave after it."""

    moved: dict[str, float] = field(default_factory=dict)
    matrix: dict[str, float] = field(default_factory=dict)
    shared: float = 0.0
    core: float = 0.0
    special: float = 0.0
    turns: float = 0.0
    steps: float = 0.0
    hidden: float = 0.0
    loose: float = 0.0
    waits: float = 0.0
    meets: float = 0.0
    ends: float = 0.0

    def add(self, other: Work, times: float) -> None:
        for mine, theirs in ((self.moved, other.moved), (self.matrix, other.matrix)):
            for n, v in theirs.items():
                mine[n] = mine.get(n, 0.0) + v * times
        self.shared += other.shared * times
        self.core += other.core * times
        self.special += other.special * times
        self.turns += other.turns * times
        self.steps += other.steps * times
        self.hidden += other.hidden * times
        self.loose += other.loose * times
        self.waits += other.waits * times
        self.meets += other.meets * times
        self.ends += other.ends * times


class _Counting:
    """A kernel and a target, and what statements without others in them do, by their identity: no block and no turn changes
    that."""

    def __init__(self, kernel: TileKernel, target: Target) -> None:
        self.kernel, self.target, self.homes, self.spans = kernel, target, kernel.homes, spans(kernel)
        self.params = {p.name for p in kernel.params}
        self.shared = {b.name for b in kernel.buffers if b.scope == "shared"}
        self.layouts = layouts(kernel, target)
        self.near = target.kind == "cuda" and near(bool(kernel.exact), {p.dtype for p in kernel.params if p.out})
        self.flat = self.near and flat(kernel)
        self.rows = not any(isinstance(s, Gemm) for s in every(kernel.body))
        self.operands = {n for s in every(kernel.body) if isinstance(s, Gemm) for n in (s.a.buffer, s.b.buffer)}
        self.ramp = not specialised(kernel, target)
        self.counted: dict[int, Work] = {}

    def most(self, e: Expr) -> Expr:
        """An index with the greatest number in the place of one that is read from memory: what data decides is counted as if
        nothing of it could be left out."""
        if isinstance(e, Load) and e.tensor in self.spans:
            return Const(self.spans[e.tensor][1], "i64")
        return map_children(e, self.most) if self.spans else e

    def elements(self, x: Slice) -> int:
        return prod(x.sizes) if x.dims else prod(self.homes[x.buffer].shape)

    def together(self, loop: For) -> int:
        """Turns whose loads a compiler puts before what is made of them: of threads with rows of their own, no more than
        ask for :data:`HELD` numbers."""
        if not any(at.apart for at in self.layouts.values()):
            return UNROLLED
        asked = sum(self.elements(s.src) for s in loop.body if isinstance(s, Copy) and s.src.buffer in self.params)
        return max(1, min(UNROLLED, HELD * self.kernel.threads // max(1, asked)))

    def clashes(self, x: Load) -> float:
        """How often an access of a warp to a tile takes its turn, beside as often as its bytes have to: a product's layout
        gives a warp eight rows, of which four threads have neighbours. What a product takes is stored so that none meet."""
        tile = self.homes[x.tensor]
        if len(tile.shape) != 2 or x.tensor in self.operands:
            return 1.0
        size = BYTES[tile.dtype]
        near = LANES * RUN
        words = {(row * tile.shape[1] + column) * size // WORD for row in range(8) for column in range(near)}
        most = max(Counter(w % (self.target.banks // WORD) for w in words).values())
        return most * self.target.banks / (8 * near * size)

    def asked(self, x: Slice) -> int:
        """Bytes of a tensor that come for a part of it: of elements that lie a sector apart or more, whole sectors. (What lies
        closer, such as the coordinates of points, is read with its neighbours.)"""
        run = pitch = BYTES[self.homes[x.buffer].dtype]
        for d, extent in zip(reversed(x.dims), reversed(self.homes[x.buffer].shape), strict=False):
            run, pitch = run * max(1, d.size), pitch * extent
            if d.size != extent and extent > 1:
                break
        sectors = -(-run // self.target.sector) * self.target.sector
        return self.size(x) // run * sectors if pitch >= self.target.sector else self.size(x)

    def size(self, x: Slice) -> int:
        return self.elements(x) * BYTES[self.homes[x.buffer].dtype]


def work(kernel: TileKernel, target: Target) -> Work:
    """The mean over some blocks, spread evenly over the grid. Of blocks that deal tiles out among themselves, that of the
    first, which has as many as any."""
    found, blocks = Work(), list(product(*(_some(0, extent) for _, extent in kernel.grid)))
    if dealt(kernel):
        blocks = blocks[:1]
    counting = _Counting(kernel, target)
    for block in blocks:
        at: dict[str, int | None] = {v: i for (v, _), i in zip(kernel.grid, block, strict=True)}
        for name, e in kernel.lets:
            at[name] = value(e, at)
        found.add(_of(counting, kernel.body, at), 1 / len(blocks))
    return found


def dealt(kernel: TileKernel) -> bool:
    """Does a block compute several tiles, one after the other?"""
    roles = kernel.body[-1].roles if isinstance(kernel.body[-1], Roles) else ()
    return any(isinstance(s, For) and any(isinstance(k, Let) for k in s.body) for r in roles for s in r.body)


def _some(start: int, stop: int) -> list[int]:
    """A few numbers of a range, its ends among them."""
    n = stop - start
    return list(range(start, stop)) if n <= SAMPLES else [start + i * (n - 1) // (SAMPLES - 1) for i in range(SAMPLES)]


def _of(counting: _Counting, body: tuple[TileStmt, ...], at: Mapping[str, int | None]) -> Work:
    found, at = Work(), dict(at)
    for s in body:
        match s:
            case Let(var, e):
                at[var] = value(e, at)
            case For(var, start, stop, inner, stages):
                first, last = value(start, at), value(counting.most(stop), at)
                turns, often = _some(first or 0, last if last is not None else 1), max(0, (last or 0) - (first or 0))
                products = sum(isinstance(k, Gemm) for k in inner)
                asked = [k for k in inner if isinstance(k, If) and fetches_ahead(counting.kernel, replace(s, body=(k,)))]
                one, rest = Work(), tuple(k for k in inner if not any(k is x for x in asked))
                for k in turns:
                    one.add(_of(counting, rest, {**at, var: k}), 1 / len(turns))
                found.add(replace(one, ends=0.0), often)
                for k in asked:  # none in the last turn
                    found.add(replace(_of(counting, k.body, {**at, var: first}), ends=0.0), max(0.0, often - 1))
                each = max(unrolled(counting.kernel, s), counting.together(s) if not (products or one.meets) else 1)
                if stages:
                    found.turns += (often + counting.ramp * max(0, stages - 1) * (often <= stages)) * max(1, products)
                elif asked:
                    found.hidden += often
                else:
                    found.steps += often / each
                found.loose += often * (not products and not one.meets)
            case Roles(roles):
                for role in roles:
                    found.add(replace(_of(counting, role.body, at), steps=0.0), 1.0)
            case Stop():  # it is there since most blocks end here
                break
            case If(cond, inner):
                if value(cond, at) != 0:
                    found.add(_of(counting, inner, at), 1.0)
            case _:
                if id(s) not in counting.counted:
                    counting.counted[id(s)] = _statement(counting, s)
                found.add(counting.counted[id(s)], 1.0)
    return found


def _statement(at: _Counting, s: TileStmt) -> Work:
    done, homes, shared = Work(), at.homes, at.shared
    match s:
        case Copy(src, dst) | Fetch(src, dst) | Send(src, dst):
            for x in (src, dst):
                if x.buffer in at.params:
                    done.moved[x.buffer] = at.asked(x)
                    done.ends += at.asked(x)
                if x.buffer in shared:
                    done.shared += at.size(x)
            if not {src.buffer, dst.buffer} & at.params:
                done.core += at.elements(src) * (0.5 if homes[src.buffer].dtype != homes[dst.buffer].dtype else 1.0)
        case Gemm(a, b, c):
            m, n = homes[c].shape[-2:]
            done.matrix[homes[a.buffer].dtype] = 2.0 * at.elements(a) * n
            rows, columns = matrix_warps(s, m, n, at.kernel.threads, at.target)
            rows //= 4 if warp_group(s, m, at.kernel.threads, at.target) else 1
            done.shared += max(1, rows) * at.size(b) + (columns * at.size(a) if a.buffer in shared else 0)
        case ReduceTile(src=name, lanes=lanes):
            done.core += prod(homes[name].shape)
            if not lanes and (spread := at.layouts.get(name)) is not None:
                across = min(spread.across, at.target.warp)
                done.meets += spread.far
                done.core += spread.far * at.kernel.threads * MET
                done.core += homes[name].shape[0] * across * log2(across) * EXCHANGE
        case ScanTile(src=name, dst=to):
            done.core += SCANNED * prod(homes[name].shape)
            done.shared += 2.0 * prod(homes[to].shape) * BYTES[homes[to].dtype]
            done.meets += 1
        case Fill(buffer=name):
            done.core += prod(homes[name].shape)
        case Parallel(variables, extents, body):
            for a in body:
                _point(at, a, variables, extents, done)
    return done


def _point(at: _Counting, a: Assign, variables: tuple[str, ...], extents: tuple[int, ...], done: Work) -> None:
    points = prod(extents)
    core, special = operations(a.expr, bool(at.kernel.exact), at.near, at.flat, variables[-1] if at.rows else "")
    done.core += points * core
    done.special += points * special
    own = at.layouts.get(a.target)
    for x in {x for x in walk(a.expr) if isinstance(x, Load)} | {Load(a.target, a.indices, at.homes[a.target].dtype)}:
        uses = {k.axis for i in x.indices for k in walk(i) if isinstance(k, Index)}
        touched = min(prod(n for v, n in zip(variables, extents, strict=True) if v in uses), prod(at.homes[x.tensor].shape))
        if x.tensor in at.params:
            done.moved[x.tensor] = done.moved.get(x.tensor, 0.0) + touched * BYTES[x.dtype]
            if own is not None and own.fixed and variables[-1] in uses:  # two neighbours at once, as products have them
                done.core += points * ACCESS / 2 / (1 if variables[0] in uses else own.rows)
                done.waits += variables[0] in uses
        elif x.tensor in at.shared:
            often = at.clashes(x) if own is not None and own.fixed and len(variables) > 1 else 1.0
            done.shared += touched * BYTES[x.dtype] * often


_OPS: dict[str, Callable[[int, int], int | bool]] = {
        "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "min": min, "max": max,
        "floordiv": lambda x, y: x // y, "mod": lambda x, y: x % y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
        "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y, "eq": lambda x, y: x == y, "ne": lambda x, y: x != y,
        "and": lambda x, y: x and y, "or": lambda x, y: x or y}


def value(e: Expr, at: Mapping[str, int | None]) -> int | None:
    """An index at a block and a turn; None where data decides."""
    match e:
        case Const(value=v):
            return int(v)
        case Index(axis=a):
            return at.get(a)
        case Cast(arg=x):
            return value(x, at)
        case Op(name=name, args=(x, y)) if name in _OPS:
            p, q = value(x, at), value(y, at)
            return None if p is None or q is None or (name in ("floordiv", "mod") and q == 0) else int(_OPS[name](p, q))
        case Op(name="select", args=(c, x, y)):
            chosen = value(c, at)
            return None if chosen is None else value(x if chosen else y, at)
        case Op(name="not", args=(x,)):
            p = value(x, at)
            return None if p is None else int(not p)
    return None
