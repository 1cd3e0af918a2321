"""Repeated parts of a long row expression become row values of their own."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from redfuser.acrf.expr import Expr, Index, Load, map_children, walk
from redfuser.acrf.index import at
from redfuser.acrf.repeated import repeated
from redfuser.tensorize.ir.effects import Names
from redfuser.tensorize.ir.nodes import Assign, For, If, Parallel, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Buffer

Declare = Callable[[str, str, int], str]
"""(stem, dtype, rows) to the name of a new fragment over rows."""


@dataclass(frozen=True, slots=True)
class NameRepeats:
    """Names the repeated parts of row expressions of more than ``long`` nodes::

        v[i] = select(select(m[i] == -inf, 0, m[i]) - n[i] == 0, 1, select(m[i] == -inf, 0, m[i]) - n[i]) ...
        -->
        common[i] = select(m[i] == -inf, 0, m[i])
        common2[i] = common[i] - n[i]
        v[i] = select(common2[i] == 0, 1, common2[i]) ...

    A compiler's simplifier walks an expression as a tree, again at every level of nested choices: what a proof writes in a
    few hundred nodes takes minutes there. The values are the same; a row value costs a register. Parts that read anything
    but row values stay where their select guards them. Adds no rounding."""

    long: int = 40

    def __call__(self, kernel: TileKernel) -> TileKernel:
        names, added = Names(kernel), []
        buffers = {b.name for b in kernel.buffers}

        def declare(stem: str, dtype: str, rows: int) -> str:
            added.append(Buffer(names.fresh(stem), "fragment", dtype, (rows,)))
            return added[-1].name

        def block(stmts: tuple[TileStmt, ...]) -> tuple[TileStmt, ...]:
            return tuple(stmt(s) for s in stmts)

        def stmt(s: TileStmt) -> TileStmt:
            match s:
                case For(body=body) | If(body=body):
                    return replace(s, body=block(body))
                case Parallel(vars=(_,), body=body) if any(self.is_long(a.expr) for a in body):
                    return replace(s, body=tuple(self.shared(s, buffers, declare)))
            return s

        body = block(kernel.body)
        return replace(kernel, body=body, buffers=(*kernel.buffers, *added))

    def is_long(self, e: Expr) -> bool:
        return sum(1 for _ in walk(e)) > self.long

    def shared(self, s: Parallel, buffers: Container[str], declare: Declare) -> list[Assign]:
        """The assignments of a row loop. A part serves later assignments too, until something it reads is written."""
        out: list[Assign] = []
        known: dict[Expr, Expr] = {}

        def use(e: Expr) -> Expr:
            return known[e] if e in known else map_children(e, use)

        for a in s.body:
            for part in repeated(a.expr) if self.is_long(a.expr) else ():
                if part in known or not _on_chip(part, s.vars[0], buffers):
                    continue
                name = declare(f"{a.target}_common", part.dtype, s.extents[0])
                out.append(Assign(name, (Index(s.vars[0]),), use(part)))
                known[part] = at(name, part.dtype, s.vars[0])
            out.append(replace(a, expr=use(a.expr)))
            known = {e: v for e, v in known.items() if all(x.tensor != a.target for x in walk(e) if isinstance(x, Load))}
        return out


def _on_chip(e: Expr, row: str, buffers: Container[str]) -> bool:
    return all(x.tensor in buffers and x.indices == (Index(row),) for x in walk(e) if isinstance(x, Load))
