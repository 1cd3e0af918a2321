"""What a map reads and writes of memory in loops of their own, so that it is asked for 16 bytes at a time.

TileLang reads neighbours in memory at once where a loop computes with them in nothing but arithmetic and such functions as it
has for several numbers. Beside a call, a choice or one of the other functions it reads an element at a time: eight loads of
two or four bytes, where two or one would do::

    for j in T.Parallel(2048): y[b * 2048 + j] = max_nan(x[b * 2048 + j], 0.0)
    -->
    for j in T.Parallel(2048): x_here[j] = x[b * 2048 + j]
    for j in T.Parallel(2048): y_here[j] = max_nan(x_here[j], 0.0)
    for j in T.Parallel(2048): y[b * 2048 + j] = y_here[j]

No value changes, so the tile program has one loop: only the text is in parts. Where a loop computes with tiles of its own
shape, which say which thread has which element, what else it reads side by side (a weight of each channel, a bias) is read
before it; loops beside reductions are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from redfuser.acrf.expr import BYTES, Expr, Index, Load, Op, children, indices_of, map_children, walk
from redfuser.tensorize.ir.effects import Names, with_bodies
from redfuser.tensorize.ir.nodes import Assign, Copy, Parallel, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer

SINGLY = ("T.call_extern", "T.if_then_else", "T.erf", "T.rsqrt", "T.ieee_", "T.nearbyint", "T.isnan")
"""Beside these TileLang reads an element at a time."""
MOST = 256
"""Bytes of a thread's registers that may be elements on their way: a quarter of what it has."""
PIECE = 16
"""Bytes of an access."""
KINDS = ("f32", "f16", "bf16", "i32", "i64", "e4m3", "e5m2", "i8", "u8", "bool")


def apart(kernel: TileKernel, singly: Callable[[Parallel], bool]) -> TileKernel:
    """``kernel`` with its maps in parts, where their text is one that TileLang computes element by element."""
    names, made = Names(kernel), []  # type: Names, list[Buffer]

    def visit(body: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
        out: list[TileStmt] = []
        for s in body:
            out += _parts(kernel, s, names, made) if isinstance(s, Parallel) and singly(s) else [with_bodies(s, visit)]
        return tuple(out)

    body = visit(kernel.body)
    return replace(kernel, body=body, buffers=(*kernel.buffers, *made)) if made else kernel


def _parts(kernel: TileKernel, s: Parallel, names: Names, made: list[Buffer]) -> list[TileStmt]:
    """The loop in parts; itself where nothing that is always read lies side by side, or a tile is read elsewhere."""
    params, written = {p.name: p.dtype for p in kernel.params}, {a.target for a in s.body}
    read = [x for a in s.body for e in (*a.indices, a.expr) for x in walk(e) if isinstance(x, Load)]
    sources, point = {x.tensor for x in read}, tuple(map(Index, s.vars))
    tiles = [indices for name, indices in (*((x.tensor, x.indices) for x in read), *((a.target, a.indices) for a in s.body))
             if name not in params]
    if len(written) < len(s.body) or written & sources & params.keys() or any(indices != point for indices in tiles):
        return [s]
    if tiles and not all(isinstance(t, (Copy, Parallel)) for t in kernel.body):
        return [s]
    there = {(kernel.homes[n].shape, at) for n, at in (*((x.tensor, x.indices) for a in s.body for x in _always(a.expr)),
                                                      *((a.target, a.indices) for a in s.body)) if n in params}
    once = dict.fromkeys(x for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.tensor in params
                         and (kernel.homes[x.tensor].shape, x.indices) in there)
    first = [x for x in once if params[x.tensor] in KINDS and _side_by_side(x.indices, s)]
    last = [a for a in s.body if a.target in params and params[a.target] in KINDS and _side_by_side(a.indices, s)]
    if any(not _in_pieces(kernel, n) for n in (*(x.tensor for x in first), *(a.target for a in last))):
        return [s]
    size = sum(BYTES[params[n]] for n in (*(x.tensor for x in first), *(a.target for a in last))) * prod(s.extents)
    if not first or size > MOST * kernel.threads:
        return [s]

    def tile(name: str) -> str:
        made.append(Buffer(names.fresh(f"{name}_here"), "fragment", params[name], s.extents))
        return made[-1].name

    here: dict[Expr, Load] = {x: Load(tile(x.tensor), point, x.dtype) for x in first}

    def go(e: Expr) -> Expr:
        return here[e] if e in here else map_children(e, go)

    ends = {a.target: tile(a.target) for a in last}
    computed = tuple(Assign(ends[a.target], point, go(a.expr)) if a in last else replace(a, expr=go(a.expr)) for a in s.body)
    leave = [Assign(a.target, a.indices, Load(ends[a.target], point, params[a.target])) for a in last]
    return [*(Parallel(s.vars, s.extents, (Assign(h.tensor, point, x),)) for x, h in here.items()), replace(s, body=computed),
            *(Parallel(s.vars, s.extents, (a,)) for a in leave)]


def _in_pieces(kernel: TileKernel, name: str) -> bool:
    """Do all rows of a parameter begin and end with a whole access? Else TileLang asks of every element whether it is there."""
    home = kernel.homes[name]
    row = home.shape[-1] if home.shape else 1
    return isinstance(row, int) and row % (PIECE // BYTES[home.dtype]) == 0


def _always(e: Expr) -> list[Load]:
    """The loads that are made whatever is chosen: a choice may guard those of its branches. (Where one of these is at a place
    that is read or written in any case, of a tensor of that shape, it guards nothing.)"""
    if isinstance(e, Load):
        return [e]
    kids = e.args[:1] if isinstance(e, Op) and e.name in ("select", "and", "or") else children(e)
    return [x for kid in kids for x in _always(kid)]


def _side_by_side(indices: tuple[Expr, ...], s: Parallel) -> bool:
    """Are the elements along the loop's last variable neighbours in memory?"""
    *outer, inner = indices or (Index(""),)
    along = s.vars[-1]
    return _steps(inner, along) == 1 and not any(along in indices_of(e) for e in outer)


def _steps(e: Expr, along: str) -> int | None:
    """How far an index goes with each step; None where that is no number that is seen."""
    if isinstance(e, Index):
        return int(e.axis == along)
    if along not in indices_of(e):
        return 0
    if isinstance(e, Op) and e.name in ("add", "sub") and len(e.args) == 2:
        a, b = (_steps(x, along) for x in e.args)
        return None if a is None or b is None else a + b if e.name == "add" else a - b
    return None
