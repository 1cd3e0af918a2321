"""Whole numbers that a kernel reads from memory and lets steer it: what they may be, and what holds of whoever writes and
reads them.

A parameter with a ``span`` (``steps: i32[2, 4, 4] in 0 .. 3``) has whole numbers of that span wherever it was written. The
kernel that writes it must show so in what it assigns (a loop's variable, a minimum, a maximum); a kernel that reads it may
count on it: a tile that begins at such a number begins inside of its tensor, a loop that ends at one ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, walk
from redfuser.dtypes import INTS
from redfuser.tensorize.ir.effects import every, slices, writes
from redfuser.tensorize.ir.flight import Fetch, Let, Send
from redfuser.tensorize.ir.nodes import Copy, For, If, Parallel, Roles, TileKernel, TileProgram, TileStmt
from redfuser.tensorize.ir.parts import Slice

Bounds = tuple[float, float]
"""The least and the greatest number that a whole number may be."""
UNKNOWN: Bounds = (-inf, inf)


def spans(kernel: TileKernel) -> dict[str, tuple[int, int]]:
    """Of the parameters that have one."""
    return {p.name: p.span for p in kernel.params if p.span is not None}


def bounds(e: Expr, known: Mapping[str, Bounds], spans: Mapping[str, tuple[int, int]]) -> Bounds:
    """Of an index, where its variables and what is read from memory are as known."""
    match e:
        case Const(value=v) if e.dtype in INTS:
            return int(v), int(v)
        case Index(axis=a):
            return known.get(a, (-inf, inf))
        case Load(tensor=n) if n in spans:
            return spans[n]
        case Cast(arg=x, dtype=d) if d in ("i32", "i64") and x.dtype in INTS:
            return bounds(x, known, spans)
        case Op(name="neg", args=(x,)):
            low, high = bounds(x, known, spans)
            return -high, -low
        case Op(name="select", args=(_, x, y)):
            (a, b), (c, d) = bounds(x, known, spans), bounds(y, known, spans)
            return min(a, c), max(b, d)
        case Op(name="add" | "sub" | "min" | "max" | "mul" | "floordiv" | "mod" as n, args=(x, y)):
            return _combined(n, bounds(x, known, spans), bounds(y, known, spans))
    return UNKNOWN


def _combined(name: str, x: Bounds, y: Bounds) -> Bounds:
    """Of a whole number that an operator makes of two."""
    (a, b), (c, d) = x, y
    match name:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
        case "mul" if max(map(abs, (a, b, c, d))) < inf:
            ends = [p * q for p in (a, b) for q in (c, d)]
            return min(ends), max(ends)
        case "mul" if c == d and abs(c) < inf:
            return (0, 0) if c == 0 else (a * c, b * c) if c > 0 else (b * c, a * c)
        case "floordiv" if 0 < c == d < inf:
            return a // c if a > -inf else a, b // c if b < inf else b
        case "mod" if 0 < c == d < inf:
            return 0, c - 1
    return UNKNOWN


def broken(program: TileProgram) -> Iterator[str]:
    """What is wrong with the numbers that steer a program's kernels, as sentences."""
    written: dict[str, tuple[int, int]] = {}
    scratch = {a.name for a in program.args if a.role == "workspace"}
    for k in program.kernels:
        for p in k.params:
            if p.span is None:
                continue
            if p.dtype not in INTS or p.span[0] > p.span[1]:
                yield f"{k.name}: {p} has no such span"
            if p.out and p.name in scratch:
                written[p.name] = p.span
            elif written.get(p.name) != p.span:
                yield f"{k.name}: nothing written before keeps {p}"
        yield from (f"{k.name}: {what}" for what in unproved(k))
        loose = scratch - set(spans(k))
        yield from (f"{k.name}: {x.tensor} steers it and has no span" for s in (every(k.body) if loose else ())
                    for e in _steering(s) for x in walk(e) if isinstance(x, Load) and x.tensor in loose)


def unproved(kernel: TileKernel) -> Iterator[str]:
    """Assignments of numbers that are not shown to be of the span, and tiles and loops that what is read from memory might take
    out of their tensor."""
    kept, shapes = spans(kernel), {p.name: p.shape for p in kernel.params}
    for s, known in _places(kernel) if kept else ():
        where = str(s).splitlines()[0]
        if isinstance(s, Parallel):
            inside = {**known, **{v: (0, n - 1) for v, n in zip(s.vars, s.extents, strict=True)}}
            for a in s.body:
                if a.target in kept and not _within(bounds(a.expr, inside, kept), kept[a.target]):
                    yield f"{a} is not shown to be in {kept[a.target][0]} .. {kept[a.target][1]}"
            for part in slices(s):
                yield from (f"{where} begins before {part.buffer}" for d in part.dims
                            if _reads(d.start, kept) and bounds(d.start, inside, kept)[0] < 0)
            continue
        if not isinstance(s, (For, If, Roles)) and writes(s) & set(kept):
            yield f"{where} writes numbers of a span that it does not show"
        for part in _parts(s):
            for d, extent in zip(part.dims, shapes.get(part.buffer, ()), strict=False):
                if _reads(d.start, kept) and not _within(bounds(d.start, known, kept), (0, extent - 1)):
                    yield f"{where} is not shown to begin in {part.buffer}"
        if isinstance(s, For) and any(_reads(e, kept) and inf in map(abs, bounds(e, known, kept)) for e in (s.start, s.stop)):
            yield f"{where} is not shown to end"


def _within(x: Bounds, y: Bounds) -> bool:
    return y[0] <= x[0] and x[1] <= y[1]


def _reads(e: Expr, names: Iterable[str]) -> bool:
    wanted = set(names)
    return any(isinstance(x, Load) and x.tensor in wanted for x in walk(e))


def _parts(s: TileStmt) -> tuple[Slice, ...]:
    return (s.src, s.dst) if isinstance(s, (Copy, Fetch, Send)) else ()


def _steering(s: TileStmt) -> Iterator[Expr]:
    """Where a statement begins and ends."""
    if isinstance(s, For):
        yield from (s.start, s.stop)
    for part in _parts(s):
        yield from (d.start for d in part.dims)


def _places(kernel: TileKernel) -> Iterator[tuple[TileStmt, Mapping[str, Bounds]]]:
    """Every statement, with what the variables around it may be."""
    kept = spans(kernel)
    known: dict[str, Bounds] = {v: (0, int(n) - 1) for v, n in kernel.grid}
    for n, e in kernel.lets:
        known[n] = bounds(e, known, kept)

    def inside(body: Iterable[TileStmt], known: dict[str, Bounds]) -> Iterator[tuple[TileStmt, Mapping[str, Bounds]]]:
        known = dict(known)
        for s in body:
            yield s, known
            match s:
                case Let(var, e):
                    known[var] = bounds(e, known, kept)
                case For(var, start, stop, inner):
                    yield from inside(inner, {**known, var: (bounds(start, known, kept)[0], bounds(stop, known, kept)[1] - 1)})
                case If(body=inner):
                    yield from inside(inner, known)
                case Roles(roles):
                    for role in roles:
                        yield from inside(role.body, known)

    return inside(kernel.body, known)
