"""Tiles in the type of the values they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from redfuser.acrf.expr import Cast, Expr
from redfuser.tensorize.ir.effects import every, with_exprs
from redfuser.tensorize.ir.nodes import Assign, Copy, Fill, For, Gemm, If, Parallel, ReduceTile, TileKernel, TileStmt
from redfuser.tensorize.ir.typed import typed

NARROW = {"f32": ("f16", "bf16"), "i64": ("i32",)}


@dataclass(frozen=True, slots=True)
class NarrowTiles:
    """A tile all of whose values are of one narrower type is kept in that type::

        y: fragment f32;  y[i, j] = f32(x0[i, j] + x1[i, j])    -->    y: fragment f16;  y[i, j] = x0[i, j] + x1[i, j]

    Not row values, nor the operands and results of products and reductions, which have types of their own. Adds no
    rounding."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        homes = kernel.dtypes
        kinds: dict[str, set[str]] = {}
        for s in every(kernel.body):
            for name, kind in _written(s, homes):
                kinds.setdefault(name, set()).add(kind)
        held = {n for s in every(kernel.body) for n in _fixed(s)}
        narrow = {b.name: kind for b in kernel.buffers if b.scope == "fragment" and len(b.shape) > 1 and b.name not in held
                  and len(found := kinds.get(b.name, set())) == 1 and (kind := next(iter(found))) in NARROW.get(b.dtype, ())}
        if not narrow:
            return kernel
        buffers = tuple(replace(b, dtype=narrow.get(b.name, b.dtype)) for b in kernel.buffers)
        homes |= narrow
        return replace(kernel, buffers=buffers,
                       body=tuple(with_exprs(_bare(s, narrow), lambda e: typed(e, homes)) for s in kernel.body))


def _written(s: TileStmt, homes: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Buffers that a statement writes, and the type of what it writes."""
    match s:
        case Copy(src, dst):
            yield dst.buffer, homes[src.buffer]
        case Fill(buffer=b, value=v):
            yield b, v.dtype
        case Parallel(body=body):
            yield from ((a.target, _own(a.expr).dtype) for a in body)


def _own(e: Expr) -> Expr:
    """The value under a cast that widens it."""
    return e.arg if isinstance(e, Cast) and e.arg.dtype in NARROW.get(e.dtype, ()) else e


def _fixed(s: TileStmt) -> tuple[str, ...]:
    match s:
        case Gemm(a, b, c):
            return a.buffer, b.buffer, c
        case ReduceTile(_, src, dst):
            return src, dst
    return ()


def _bare(s: TileStmt, narrow: dict[str, str]) -> TileStmt:
    match s:
        case Parallel(body=assigns):
            return replace(s, body=tuple(_assign(a, narrow) for a in assigns))
        case For(body=body) | If(body=body):
            return replace(s, body=tuple(_bare(k, narrow) for k in body))
    return s


def _assign(a: Assign, narrow: dict[str, str]) -> Assign:
    return replace(a, expr=_own(a.expr)) if a.target in narrow else a
