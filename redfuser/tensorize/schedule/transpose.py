"""Tiles that are read as memory has them, and used with rows and columns the other way round."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from redfuser.acrf.expr import BYTES, Expr, Index, Load, indices_of, map_children, walk
from redfuser.tensorize.ir.effects import Names, every, with_bodies, with_exprs
from redfuser.tensorize.ir.nodes import Assign, Copy, Gemm, Parallel, ReduceTile, Roles, ScanTile, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer

WORD = 4
"""Bytes of a bank of shared memory: rows begin one further in each, so that a column lies in all of them."""


@dataclass(frozen=True, slots=True)
class TransposeTiles:
    """Through shared memory, where a map reads a tile across its rows::

        copy x[b, a] -> x_tile                            copy x[b, a] -> x_tile
        parallel i, j: y_tile[i, j] = f(x_tile[j, i])     parallel j, i: x_turned[i, j] = x_tile[j, i]
        copy y_tile -> y[a, b]                      -->   parallel i, j: y_tile[i, j] = f(x_turned[i, j])
                                                          copy y_tile -> y[a, b]

    or where what it reads of a tensor lies so, be it shifted or guarded (a window that lies across memory)::

        parallel i, j: t[i, j] = f(x[b * 64 + j - 1, a * 64 + i])
        -->
        parallel j, i: t_turned[i, j] = f(x[b * 64 + j - 1, a * 64 + i])
        parallel i, j: t[i, j] = t_turned[i, j]

    Threads then have neighbours of what they read, and neighbours of what they write: without it one of the two would be
    element by element, each in a line of its own. Requires a kernel of maps, and a tile that is read so and in no other way, or
    a loop that reads no other tile and nothing that lies along its rows. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        stmts = list(every(kernel.body))
        if any(isinstance(s, (Gemm, ReduceTile, ScanTile, Roles)) for s in stmts):
            return kernel
        given = {p.name for p in kernel.params}
        kernel = _computed_across(kernel, given)
        stmts = list(every(kernel.body))
        made = [s.dst.buffer for s in stmts if isinstance(s, Copy) and s.src.buffer in given and not s.dst.dims]
        loops = [s for s in stmts if isinstance(s, Parallel)]
        turned: dict[str, Buffer] = {}
        names = Names(kernel)
        for b in kernel.buffers:
            at = [_turned(x, s) for s in loops for a in s.body for x in _loads(a) if x.tensor == b.name]
            if b.scope == "fragment" and len(b.shape) == 2 and made.count(b.name) == 1 and at and all(at):
                down, across = b.shape
                spare = max(1, WORD // BYTES[b.dtype])
                turned[b.name] = Buffer(names.fresh(f"{b.name}_turned"), "shared", b.dtype, (across, down + spare))
        if not turned:
            return kernel

        def go(e: Expr) -> Expr:
            if isinstance(e, Load) and e.tensor in turned:
                return Load(turned[e.tensor].name, e.indices[::-1], e.dtype)
            return map_children(e, go)

        def visit(body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
            out: list[TileStmt] = []
            for s in body:
                out.append(with_exprs(s, go) if isinstance(s, Parallel) else with_bodies(s, visit))
                if isinstance(s, Copy) and s.dst.buffer in turned:
                    out.append(_turn(kernel, s.dst.buffer, turned[s.dst.buffer]))
            return tuple(out)

        body = visit(kernel.body)
        return replace(kernel, body=body, buffers=(*kernel.buffers, *turned.values()))


def _computed_across(kernel: TileKernel, given: set[str]) -> TileKernel:
    """With tiles in shared memory for what is made of elements that lie across a loop's rows."""
    tiles = {b.name: b for b in kernel.buffers if b.scope == "fragment" and len(b.shape) == 2}
    names, made = Names(kernel), list[Buffer]()

    def visit(body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
        out: list[TileStmt] = []
        for s in body:
            if isinstance(s, Parallel) and _across(s, given, tiles):
                (a,), (down, across), b = s.body, s.extents, tiles[s.body[0].target]
                spare = max(1, WORD // BYTES[b.dtype])
                made.append(Buffer(names.fresh(f"{b.name}_turned"), "shared", b.dtype, (down, across + spare)))
                there, back = replace(a, target=made[-1].name), Load(made[-1].name, a.indices, b.dtype)
                out.append(replace(s, vars=s.vars[::-1], extents=s.extents[::-1], body=(there,)))
                out.append(Parallel(s.vars, s.extents, (replace(a, expr=back),), "the other way round"))
            else:
                out.append(with_bodies(s, visit))
        return tuple(out)

    body = visit(kernel.body)
    return replace(kernel, body=body, buffers=(*kernel.buffers, *made)) if made else kernel


def _across(s: Parallel, given: set[str], tiles: Collection[str]) -> bool:
    """Does a loop fill a tile from elements that lie across its rows, and read no other tile or row?"""
    a, here = s.body[0], tuple(map(Index, s.vars))
    if len(s.vars) != 2 or len(s.body) != 1 or a.target not in tiles or a.indices != here:
        return False
    i, j = s.vars
    found = False
    for x in _loads(a):
        last, before = (frozenset().union(*map(indices_of, at)) for at in (x.indices[-1:], x.indices[:-1]))
        if (x.tensor in tiles and not _turned(x, s)) or (x.tensor in given and j in last):
            return False
        found |= x.tensor in given and i in last and j in before
    return found


def _loads(a: Assign) -> list[Load]:
    return [x for e in (*a.indices, a.expr) for x in walk(e) if isinstance(x, Load)]


def _turned(x: Load, s: Parallel) -> bool:
    """Is it the tile's element in the column that the loop's row is?"""
    return len(s.vars) == 2 and x.indices == (Index(s.vars[1]), Index(s.vars[0]))


def _turn(kernel: TileKernel, name: str, to: Buffer) -> TileStmt:
    shape = next(b.shape for b in kernel.buffers if b.name == name)
    down, across = (Index(v) for v in ("j", "i"))
    return Parallel((down.axis, across.axis), shape, (Assign(to.name, (across, down), Load(name, (down, across), to.dtype)),),
                    "the other way round")
