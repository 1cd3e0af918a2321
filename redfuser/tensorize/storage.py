"""Tidying a kernel's statements: storage reused in place, neighbouring row loops joined, idle statements dropped.

    weights[i, j] = exp2(scores[i, j] * c - shift[i])    -->   scores[i, j] = exp2(scores[i, j] * c - shift[i])

when ``scores`` is not read afterwards and is written afresh on every iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from redfuser.acrf.expr import Expr, Load, walk
from redfuser.tensorize.indexing import rename_loads
from redfuser.tensorize.tile_ir import (
    Assign,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Parallel,
    ReduceTile,
    Slice,
    TileStmt,
)


def tidy(stmts: list[TileStmt]) -> tuple[list[TileStmt], frozenset[str]]:
    """The tidied statements, and the buffers and parameters they use."""
    out = _clean(_reuse(stmts))
    used = frozenset(n for s in out for n in (*reads(s), *writes(s)))
    return out, used


# -- what a statement touches ------------------------------------------------------------------------------------------


def _loads(e: Expr) -> Iterator[str]:
    return (x.tensor for x in walk(e) if isinstance(x, Load))


def reads(s: TileStmt) -> set[str]:
    match s:
        case Copy(src, dst):
            return {src.buffer}
        case Gemm(a, b, c, clear=clear):
            return {a.buffer, b.buffer} | (set() if clear else {c})
        case ReduceTile(_, src, dst, clear):
            return {src} | (set() if clear else {dst})
        case Parallel(body=body):
            return {n for a in body for n in _loads(a.expr)} | {n for a in body for i in a.indices for n in _loads(i)}
        case For(start=start, stop=stop, body=body):
            return {n for k in body for n in reads(k)} | {*_loads(start), *_loads(stop)}
        case If(cond=cond, body=body):
            return {n for k in body for n in (*reads(k), *writes(k))} | set(_loads(cond))
    return set()


def writes(s: TileStmt) -> set[str]:
    match s:
        case Copy(dst=dst):
            return {dst.buffer}
        case Gemm(c=c):
            return {c}
        case ReduceTile(dst=dst):
            return {dst}
        case Parallel(body=body):
            return {a.target for a in body}
        case Fill(buffer=b):
            return {b}
        case For(body=body) | If(body=body):
            return {n for k in body for n in writes(k)}
    return set()


def _rename(s: TileStmt, old: str, new: str) -> TileStmt:
    def sl(x: Slice) -> Slice:
        return replace(x, buffer=new) if x.buffer == old else x

    def name(x: str) -> str:
        return new if x == old else x

    def ex(e: Expr) -> Expr:
        return rename_loads(e, {old: new})

    match s:
        case Copy(src, dst):
            return replace(s, src=sl(src), dst=sl(dst))
        case Gemm(a, b, c):
            return replace(s, a=sl(a), b=sl(b), c=name(c))
        case ReduceTile(_, src, dst):
            return replace(s, src=name(src), dst=name(dst))
        case Parallel(body=body):
            return replace(s, body=tuple(Assign(name(a.target), tuple(map(ex, a.indices)), ex(a.expr)) for a in body))
        case Fill(buffer=b):
            return replace(s, buffer=name(b))
        case For(body=body) | If(body=body):
            return replace(s, body=tuple(_rename(k, old, new) for k in body))
    return s


# -- in place ----------------------------------------------------------------------------------------------------------


def _reuse(stmts: list[TileStmt]) -> list[TileStmt]:
    """Rename the target of a pointwise map to its operand where that operand dies with it."""
    stmts = list(stmts)
    done = False
    while not done:
        done = True
        for path, pipelined in _lists(stmts):
            pair = _candidate(path, stmts, _arriving(path) if pipelined else frozenset())
            if pair is not None:
                stmts = [_rename(s, pair[0], pair[1]) for s in stmts]
                done = False
                break
    return stmts


def _lists(stmts: list[TileStmt] | tuple[TileStmt, ...], pipelined: bool = False) -> Iterator[tuple[list[TileStmt], bool]]:
    """Every statement list, and whether it is the body of a pipelined loop."""
    yield list(stmts), pipelined
    for s in stmts:
        if isinstance(s, For):
            yield from _lists(s.body, s.stages > 0)


def _arriving(block: list[TileStmt]) -> frozenset[str]:
    """What a pipelined loop copies in while earlier iterations run: nobody else may write there."""
    return frozenset(s.dst.buffer for s in block if isinstance(s, Copy) and s.src.dims)


def _candidate(block: list[TileStmt], everything: list[TileStmt], arriving: frozenset[str]) -> tuple[str, str] | None:
    for position, s in enumerate(block):
        if not (isinstance(s, Parallel) and len(s.body) == 1 and len(s.vars) == 2):
            continue
        (a,) = s.body
        for x in walk(a.expr):
            if isinstance(x, Load) and x.tensor not in (a.target, *arriving) and x.indices == a.indices \
                    and x.dtype == _dtype(a) \
                    and _fresh_target(a.target, block, position, everything) \
                    and _dies(x.tensor, block, position, everything, a.target):
                return a.target, x.tensor
    return None


def _dtype(a: Assign) -> str:
    return a.expr.dtype


def _fresh_target(target: str, block: list[TileStmt], position: int, everything: list[TileStmt]) -> bool:
    """Defined by this statement first, and used in this list only."""
    if any(target in reads(s) | writes(s) for s in block[:position]):
        return False
    return _uses(target, everything) == sum(_count(target, s) for s in block)


def _dies(name: str, block: list[TileStmt], position: int, everything: list[TileStmt], target: str) -> bool:
    """A local of this list, written whole before this statement, untouched after it."""
    if any(name in reads(s) | writes(s) for s in block[position + 1:]):
        return False
    for s in block[:position]:
        touched = name in reads(s) | writes(s)
        if touched:
            if name in reads(s) or isinstance(s, (For, If)):
                inside = isinstance(s, For) and block_is_top(block, everything)
                if not inside:
                    return False
            break
    else:
        return False
    if block_is_top(block, everything):
        return not _is_parameter(name, everything)
    return _uses(name, everything) == sum(_count(name, s) for s in block)


def block_is_top(block: list[TileStmt], everything: list[TileStmt]) -> bool:
    return block == everything


def _is_parameter(name: str, everything: list[TileStmt]) -> bool:
    """Slices with dimensions are of parameters here: buffers are copied whole."""
    for s in everything:
        if isinstance(s, Copy) and any(x.buffer == name and x.dims for x in (s.src, s.dst)):
            return True
        if isinstance(s, For) and _is_parameter(name, list(s.body)):
            return True
    return name not in {n for s in everything for n in writes(s)}


def _count(name: str, s: TileStmt) -> int:
    if isinstance(s, (For, If)):
        return sum(_count(name, k) for k in s.body)
    return int(name in reads(s) | writes(s))


def _uses(name: str, everything: list[TileStmt]) -> int:
    return sum(_count(name, s) for s in everything)


# -- tidying -----------------------------------------------------------------------------------------------------------


def _clean(stmts: list[TileStmt] | tuple[TileStmt, ...]) -> list[TileStmt]:
    out: list[TileStmt] = []
    for s in stmts:
        if isinstance(s, (For, If)):
            s = replace(s, body=tuple(_clean(s.body)))
            if not s.body:
                continue
        if isinstance(s, Parallel):
            s = replace(s, body=tuple(a for a in s.body if not _identity(a)))
            if not s.body:
                continue
            last = out[-1] if out else None
            if isinstance(last, Parallel) and (last.vars, last.extents) == (s.vars, s.extents) and len(s.vars) == 1:
                comment = "\n".join(c for c in (last.comment, s.comment) if c)
                out[-1] = replace(last, body=last.body + s.body, comment=comment)
                continue
        out.append(s)
    return out


def _identity(a: Assign) -> bool:
    return isinstance(a.expr, Load) and a.expr.tensor == a.target and a.expr.indices == a.indices
