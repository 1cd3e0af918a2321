"""What statements touch, which names a kernel has taken, and statements with something in them replaced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from redfuser.acrf.expr import Expr, Index, Load, walk
from redfuser.acrf.index import placed
from redfuser.strategies.names import fresh
from redfuser.tensorize.indexing import rename_loads
from redfuser.tensorize.ir.flight import Arrive, Await, Fetch, Let, Send
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
from redfuser.tensorize.ir.parts import Dim, Slice


def every(stmts: Iterable[TileStmt]) -> Iterator[TileStmt]:
    """Each statement, then those in it."""
    for s in stmts:
        yield s
        for body in bodies(s):
            yield from every(body)


def bodies(s: TileStmt) -> tuple[tuple[TileStmt, ...], ...]:
    """The statement lists in a statement."""
    match s:
        case For(body=body) | If(body=body):
            return (body,)
        case Roles(roles):
            return tuple(r.body for r in roles)
    return ()


def steers(kernel: TileKernel) -> Iterator[Expr]:
    """What steps a block takes: bounds, conditions, scalars, slots and phases."""
    for s in every(kernel.body):
        match s:
            case For(start=start, stop=stop):
                yield from (start, stop)
            case If(cond=cond) | Stop(cond=cond):
                yield cond
            case Let(value=value):
                yield value
            case Await(at, phase):
                yield from (at.slot, phase)
            case Arrive(at):
                yield at.slot


def alike(kernel: TileKernel) -> frozenset[str]:
    """Grid variables that steer nothing: blocks that differ in these alone take the same steps, unless something that they
    have computed steers them (:func:`steers`)."""
    steering = {x.axis for e in steers(kernel) for x in walk(e) if isinstance(x, Index)}
    for name, expr in reversed(kernel.lets):
        if name in steering:
            steering.update(x.axis for x in walk(expr) if isinstance(x, Index))
    return frozenset(v for v, extent in kernel.grid if extent > 1 and v not in steering)


@lru_cache(1 << 14)
def loads(e: Expr) -> tuple[str, ...]:
    """The buffers and parameters an expression reads, each where it does."""
    return tuple(x.tensor for x in walk(e) if type(x) is Load)


def with_bodies(s: TileStmt, f: Callable[[tuple[TileStmt, ...]], tuple[TileStmt, ...]]) -> TileStmt:
    """The statement with ``f`` of the statement list in it."""
    return replace(s, body=f(s.body)) if isinstance(s, (For, If)) else s


def in_first_role(kernel: TileKernel, f: Callable[[tuple[TileStmt, ...]], tuple[TileStmt, ...]]) -> TileKernel:
    """The kernel with ``f`` of the statements of its first role, which computes; itself where it has no roles."""
    if not isinstance(kernel.body[-1], Roles):
        return kernel
    first, *others = kernel.body[-1].roles
    return replace(kernel, body=(*kernel.body[:-1], Roles((replace(first, body=f(first.body)), *others))))


def at_value(s: TileStmt, var: str, value: Expr) -> TileStmt:
    """The statement where a variable around it has a value."""

    def put(e: Expr) -> Expr:
        return placed(e, var, value)

    def part(x: Slice) -> Slice:
        return replace(x, dims=tuple(replace(d, start=put(d.start)) for d in x.dims))

    match s:
        case Copy(src, dst) | Send(src, dst):
            return replace(s, src=part(src), dst=part(dst))
        case Fetch(src, dst, at):
            return replace(s, src=part(src), dst=part(dst), at=replace(at, slot=put(at.slot)))
        case Gemm(a, b):
            return replace(s, a=part(a), b=part(b))
        case Parallel(body=body):
            return replace(s, body=tuple(Assign(a.target, tuple(map(put, a.indices)), put(a.expr)) for a in body))
        case For(start=start, stop=stop, body=body):
            return replace(s, start=put(start), stop=put(stop), body=tuple(at_value(k, var, value) for k in body))
        case If(cond=cond, body=body):
            return replace(s, cond=put(cond), body=tuple(at_value(k, var, value) for k in body))
        case Stop(cond=cond):
            return replace(s, cond=put(cond))
        case Await(at, phase):
            return replace(s, at=replace(at, slot=put(at.slot)), phase=put(phase))
        case Arrive(at):
            return replace(s, at=replace(at, slot=put(at.slot)))
        case Let(value=e):
            return replace(s, value=put(e))
    return s


def reads(s: TileStmt) -> set[str]:
    """Buffers and parameters whose content a statement depends on."""
    match s:
        case Copy(src=src) | Fetch(src=src) | Send(src=src):
            return {src.buffer}
        case Gemm(a, b, c, clear=clear):
            return {a.buffer, b.buffer} | (set() if clear else {c})
        case ReduceTile(_, src, dst, clear):
            return {src} | (set() if clear else {dst})
        case ScanTile(_, src, _, carry):
            return {src, carry} - {""}
        case Parallel(body=body):
            return {n for a in body for n in loads(a.expr)} | {n for a in body for i in a.indices for n in loads(i)}
        case For(start=start, stop=stop, body=body):
            return {n for k in body for n in reads(k)} | {*loads(start), *loads(stop)}
        case If(cond=cond, body=body):
            return {n for k in body for n in (*reads(k), *writes(k))} | set(loads(cond))
        case Stop(cond=cond):
            return set(loads(cond))
        case Roles(roles):
            return {n for r in roles for k in r.body for n in reads(k)}
    return set()


def writes(s: TileStmt) -> set[str]:
    """Buffers and parameters a statement stores into."""
    match s:
        case Copy(dst=dst) | Fetch(dst=dst) | Send(dst=dst):
            return {dst.buffer}
        case Gemm(c=c):
            return {c}
        case ReduceTile(dst=dst):
            return {dst}
        case ScanTile(dst=dst, carry=carry):
            return {dst, carry} - {""}
        case Parallel(body=body):
            return {a.target for a in body}
        case Fill(buffer=b):
            return {b}
        case For(body=body) | If(body=body):
            return {n for k in body for n in writes(k)}
        case Roles(roles):
            return {n for r in roles for k in r.body for n in writes(k)}
    return set()


def with_exprs(s: TileStmt, f: Callable[[Expr], Expr]) -> TileStmt:
    """The statement with ``f`` of every value it computes; indices and bounds stay."""
    match s:
        case Parallel(body=body):
            return replace(s, body=tuple(replace(a, expr=f(a.expr)) for a in body))
        case If(cond=cond, body=body):
            return replace(s, cond=f(cond), body=tuple(with_exprs(k, f) for k in body))
        case Stop(cond=cond):
            return replace(s, cond=f(cond))
        case For(body=body):
            return replace(s, body=tuple(with_exprs(k, f) for k in body))
    return s


def renamed(s: TileStmt, old: str, new: str) -> TileStmt:
    """The statement with a buffer in another's place."""

    def part(x: Slice) -> Slice:
        return replace(x, buffer=new) if x.buffer == old else x

    def name(x: str) -> str:
        return new if x == old else x

    def value(e: Expr) -> Expr:
        return rename_loads(e, {old: new})

    match s:
        case Copy(src, dst):
            return replace(s, src=part(src), dst=part(dst))
        case Gemm(a, b, c):
            return replace(s, a=part(a), b=part(b), c=name(c))
        case ReduceTile(_, src, dst):
            return replace(s, src=name(src), dst=name(dst))
        case ScanTile(_, src, dst, carry):
            return replace(s, src=name(src), dst=name(dst), carry=name(carry))
        case Parallel(body=body):
            return replace(s, body=tuple(Assign(name(a.target), tuple(map(value, a.indices)), value(a.expr)) for a in body))
        case Fill(buffer=b):
            return replace(s, buffer=name(b))
        case For(body=body):
            return replace(s, body=tuple(renamed(k, old, new) for k in body))
        case If(cond=cond, body=body):
            return replace(s, cond=value(cond), body=tuple(renamed(k, old, new) for k in body))
        case Stop(cond=cond):
            return replace(s, cond=value(cond))
    return s


def slices(s: TileStmt) -> tuple[Slice, ...]:
    """The parts of buffers and parameters that a statement touches, but for what a product adds to."""
    match s:
        case Copy(src, dst):
            return src, dst
        case Gemm(a, b):
            return a, b
        case ReduceTile(_, src, dst):
            return Slice(src), Slice(dst)
        case ScanTile(_, src, dst, carry):
            return (Slice(src), Slice(dst), *((Slice(carry),) if carry else ()))
        case Fill(buffer):
            return (Slice(buffer),)
        case Parallel(vars=vars, body=body):
            loads = {x for a in body for e in (a.expr, *a.indices) for x in walk(e) if isinstance(x, Load)}
            return (*(leading(x.tensor, x.indices, vars) for x in sorted(loads, key=str)),
                    *(leading(a.target, a.indices, vars) for a in body))
    return ()


def leading(name: str, indices: tuple[Expr, ...], vars: tuple[str, ...]) -> Slice:
    """What a loop touches: its leading indices that stay the same in it are points."""
    fixed = itertools.takewhile(lambda e: not any(
        isinstance(x, Load) or (isinstance(x, Index) and x.axis in vars) for x in walk(e)), indices)
    return Slice(name, tuple(Dim(e) for e in fixed))


class Names:
    """The names taken in a kernel."""

    def __init__(self, kernel: TileKernel) -> None:
        self.taken = {"T", *(p.name for p in kernel.params), *(b.name for b in kernel.buffers),
                      *(v for v, _ in kernel.grid), *(n for n, _ in kernel.lets)}
        for s in every(kernel.body):
            if isinstance(s, For):
                self.taken.add(s.var)
            elif isinstance(s, Parallel):
                self.taken |= set(s.vars)

    def fresh(self, stem: str) -> str:
        """``stem``, numbered until it is free; taken from now on."""
        return fresh(stem, self.taken)
