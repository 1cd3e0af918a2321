"""Repeated parts of a long row expression become row values of their own.

    v[i] = select(select(m[i] == -inf, 0, m[i]) - n[i] == 0, 1, select(m[i] == -inf, 0, m[i]) - n[i]) ...
    -->
    common[i] = select(m[i] == -inf, 0, m[i])
    common2[i] = common[i] - n[i]
    v[i] = select(common2[i] == 0, 1, common2[i]) ...

A compiler's simplifier walks an expression as a tree, again at every level of nested choices: what a proof writes in a few
hundred nodes takes minutes there. The values are the same; a row value costs a register. Short expressions stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from redfuser.acrf.expr import FLOATS, Expr, Index, Load, Op, children, map_children, walk
from redfuser.tensorize.tile_ir import Assign, For, If, Parallel, TileStmt, at

LONG = 40
"""Nodes of an expression above which its repeated parts are named."""

Declare = Callable[[str, str, int], str]
"""(stem, dtype, rows) to the name of a new fragment over rows."""


def name_repeats(stmts: Sequence[TileStmt], buffers: Container[str], declare: Declare) -> list[TileStmt]:
    """``stmts`` with the repeated parts of long row expressions in fragments that ``declare`` gives. buffers: what is on
    chip; a part that reads anything else stays where its select guards it."""
    out: list[TileStmt] = []
    for s in stmts:
        match s:
            case For(body=body) | If(body=body):
                out.append(replace(s, body=tuple(name_repeats(body, buffers, declare))))
            case Parallel(vars=(_,), body=body) if any(_long(a.expr) for a in body):
                out.append(replace(s, body=tuple(_shared(s, buffers, declare))))
            case _:
                out.append(s)
    return out


def _long(e: Expr) -> bool:
    return sum(1 for _ in walk(e)) > LONG


def _shared(s: Parallel, buffers: Container[str], declare: Declare) -> list[Assign]:
    """The assignments of a row loop. A part serves later assignments too, until something it reads is written."""
    out: list[Assign] = []
    known: dict[Expr, Expr] = {}

    def use(e: Expr) -> Expr:
        return known[e] if e in known else map_children(e, use)

    for a in s.body:
        for part in _repeated(a.expr) if _long(a.expr) else ():
            if part in known or not _on_chip(part, s.vars[0], buffers):
                continue
            name = declare(f"{a.target}_common", part.dtype, s.extents[0])
            out.append(Assign(name, (Index(s.vars[0]),), use(part)))
            known[part] = at(name, part.dtype, s.vars[0])
        out.append(replace(a, expr=use(a.expr)))
        known = {e: v for e, v in known.items() if all(x.tensor != a.target for x in walk(e) if isinstance(x, Load))}
    return out


def _repeated(e: Expr) -> list[Expr]:
    """Operations that two different places of ``e`` read, operands first."""
    readers: dict[Expr, int] = {}
    order: list[Expr] = []

    def visit(x: Expr) -> None:
        for y in children(x):
            readers[y] = readers.get(y, 0) + 1
            if readers[y] == 1:
                visit(y)
        order.append(x)

    visit(e)
    return [x for x in order if isinstance(x, Op) and x.dtype in FLOATS and readers.get(x, 0) > 1]


def _on_chip(e: Expr, row: str, buffers: Container[str]) -> bool:
    return all(x.tensor in buffers and x.indices == (Index(row),) for x in walk(e) if isinstance(x, Load))
