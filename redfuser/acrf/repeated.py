"""What an expression computes at several of its places, named once: sharing is by named statements, never by nesting."""

from __future__ import annotations

from redfuser.acrf.cascade import Let
from redfuser.acrf.expr import FLOATS, Expr, Op, children, map_children
from redfuser.acrf.index import at


def repeated(e: Expr) -> list[Expr]:
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


def in_steps(name: str, axes: tuple[str, ...], e: Expr) -> tuple[Let, ...]:
    """``name[axes] = e``, behind a statement for each operation of operations in it that is repeated, and loads of these."""
    known: dict[Expr, Expr] = {}

    def use(x: Expr) -> Expr:
        return known[x] if x in known else map_children(x, use)

    steps = []
    for k, x in enumerate(x for x in repeated(e) if any(isinstance(y, Op) for y in children(x))):
        steps.append(Let(f"{name}_{k}", axes, use(x)))
        known[x] = at(steps[-1].name, x.dtype, *axes)
    return (*steps, Let(name, axes, use(e)))
