"""What a block of a kernel does, counted: bytes it asks for, and operations of the matrix units, the CUDA cores and the
special function units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from redfuser.acrf.expr import BYTES, Cast, Const, Expr, Index, Load, Op, walk
from redfuser.tensorize.ir.nodes import (
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Parallel,
    ReduceTile,
    Roles,
    Slice,
    TileKernel,
    TileStmt,
)

SAMPLES = 4
"""Blocks along a grid axis, and turns of a loop, at which bounds and conditions are looked at."""

COST = {"div": (8, 1), "sqrt": (8, 1), "rsqrt": (4, 1), "exp2": (1, 1), "exp": (3, 1), "log": (3, 1), "log2": (2, 1),
        "tanh": (10, 2), "sigmoid": (10, 2), "erf": (20, 1), "sin": (20, 0), "cos": (20, 0), "pow": (20, 2)}
"""Instructions of the CUDA cores and of the special function units for one value; any other operation is one of the former."""


@dataclass(slots=True)
class Work:
    """Of one block, or the mean of some. moved: bytes by parameter. matrix: operations by the operands' type. turns: of
    pipelined loops; steps: of others, which wait for what they read."""

    moved: dict[str, float] = field(default_factory=dict)
    matrix: dict[str, float] = field(default_factory=dict)
    core: float = 0.0
    special: float = 0.0
    turns: float = 0.0
    steps: float = 0.0

    def add(self, other: Work, times: float) -> None:
        for mine, theirs in ((self.moved, other.moved), (self.matrix, other.matrix)):
            for n, v in theirs.items():
                mine[n] = mine.get(n, 0.0) + v * times
        self.core += other.core * times
        self.special += other.special * times
        self.turns += other.turns * times
        self.steps += other.steps * times


def work(kernel: TileKernel) -> Work:
    """The mean over some blocks, spread evenly over the grid."""
    found, blocks = Work(), list(product(*(_some(0, extent) for _, extent in kernel.grid)))
    counted: dict[int, Work] = {}
    for block in blocks:
        at: dict[str, int | None] = {v: i for (v, _), i in zip(kernel.grid, block, strict=True)}
        for name, e in kernel.lets:
            at[name] = value(e, at)
        found.add(_of(kernel, kernel.body, at, counted), 1 / len(blocks))
    return found


def _some(start: int, stop: int) -> list[int]:
    """A few numbers of a range, its ends among them."""
    n = stop - start
    return list(range(start, stop)) if n <= SAMPLES else [start + i * (n - 1) // (SAMPLES - 1) for i in range(SAMPLES)]


def _of(kernel: TileKernel, body: tuple[TileStmt, ...], at: Mapping[str, int | None], counted: dict[int, Work]) -> Work:
    """counted: what a statement without others in it does, by its identity; no block and no turn changes that."""
    found = Work()
    for s in body:
        match s:
            case For(var, start, stop, inner, stages):
                first, last = value(start, at), value(stop, at)
                turns, often = _some(first or 0, last if last is not None else 1), max(0, (last or 0) - (first or 0))
                found.add(Work(turns=often) if stages else Work(steps=often), 1.0)
                for k in turns:
                    found.add(_of(kernel, inner, {**at, var: k}, counted), often / len(turns))
            case Roles(roles):
                for role in roles:
                    found.add(_of(kernel, role.body, at, counted), 1.0)
            case If(cond, inner):
                if value(cond, at) != 0:
                    found.add(_of(kernel, inner, at, counted), 1.0)
            case _:
                if id(s) not in counted:
                    counted[id(s)] = _statement(kernel, s)
                found.add(counted[id(s)], 1.0)
    return found


def _statement(kernel: TileKernel, s: TileStmt) -> Work:
    done, homes = Work(), kernel.homes
    params = {p.name for p in kernel.params}

    def elements(x: Slice) -> int:
        return prod(x.sizes) if x.dims else prod(homes[x.buffer].shape)

    match s:
        case Copy(src, dst):
            for x in (src, dst):
                if x.buffer in params:
                    done.moved[x.buffer] = elements(x) * BYTES[homes[x.buffer].dtype]
            if not {src.buffer, dst.buffer} & params:
                done.core += elements(src)
        case Gemm(a, _, c):
            dtype = homes[a.buffer].dtype
            done.matrix[dtype] = 2.0 * elements(a) * homes[c].shape[-1]
        case ReduceTile(src=name):
            done.core += prod(homes[name].shape)
        case Fill(buffer=name):
            done.core += prod(homes[name].shape)
        case Parallel(extents=extents, body=body):
            for a in body:
                core, special = _cost(a.expr)
                done.core += prod(extents) * core
                done.special += prod(extents) * special
                for name, dtype in {(x.tensor, x.dtype) for x in walk(a.expr) if isinstance(x, Load)} | {(a.target, "")}:
                    if name in params:
                        points = min(prod(extents), prod(homes[name].shape))
                        done.moved[name] = done.moved.get(name, 0.0) + points * BYTES[dtype or homes[name].dtype]
    return done


def _cost(e: Expr) -> tuple[float, float]:
    """Instructions for one value; those of indices count for nothing."""
    core, special = 1.0, 0.0
    for x in _values(e):
        if isinstance(x, Op):
            c, f = COST.get(x.name, (1, 0))
            core, special = core + c, special + f
        elif isinstance(x, Cast):
            core += 1
    return core, special


def _values(e: Expr) -> Iterator[Expr]:
    yield e
    for k in e.args if isinstance(e, Op) else (e.arg,) if isinstance(e, Cast) else ():
        yield from _values(k)


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
