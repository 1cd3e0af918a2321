"""Rows side by side: the CPU's schedule of products, where points of the grid read the same elements along the r-axis.

The queries of a head share its keys and values: sixteen of them are sixteen lanes. What is computed at a point is then computed
element by element of a vector, in the order in which it would be for one point; what they share is read once and broadcast; and a
contraction or a sum holds the sums of some neighbours in registers, so that what is read of the lanes serves all of them::

    for tile of 16 rows i:
        rows_0[c, lane] = q[i, c]                                  once, where nothing of the row is in it
        for each segment:
            for l in steps of 4:
                sum_0[lane], ..., sum_3[lane] = 0
                for c:  sum_r[lane] += rows_0[c, lane] * k[l + r, c]
                s[l + r, lane] = sum_r[lane]

A grid that no whole tiles cover has a last one that begins earlier: the points that two tiles have in common get the same values.
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import Expr, Load, Ref, indices_of, loads_of, map_children, walk
from redfuser.strategies.program import Block, Kernel, Program

TILE = 4
"""Neighbours whose sums are held at once: with two vectors each as many as a multiply-add takes to come back, times two units."""
FEW = 4
"""Rows that fill enough of a vector."""
ROOM = 1 << 19
"""Bytes of what the rows of a tile hold between them."""


def side_by_side(program: Program, kernel: Kernel, width: int) -> str | None:
    """The axis of the grid whose points are lanes: the longest that some product's operand along the r-axis does without. None
    where there is no such product, where something is picked rather than summed, or where there is too much to hold."""
    blocks = (*kernel.body, *kernel.tail)
    outer = {*kernel.grid, *((kernel.split,) if kernel.split else ())}
    if kernel.kind not in ("single", "split") or any(
            b.reducer is not None and b.reducer.kind not in ("sum", "prod", "max", "min") for b in blocks):
        return None
    extents = {a.name: a.extent for a in program.axes}
    found = []
    for b in kernel.body:
        if b.reducer is None or not ((b.role == "producer") or set(b.axes) - outer):
            continue
        shared = [indices_of(x) for x in loads_of(b.exprs[0]) if kernel.raxis in indices_of(x)]
        found += [a for a in kernel.grid if a in b.axes and any(a not in x for x in shared)]
    rows = [(n, a) for a in dict.fromkeys(found) if isinstance(n := extents[a], int) and n >= FEW]
    held = 4 * width * sum(prod(int(program.segment or 1) if a == kernel.raxis else int(extents[a])
                                for a in b.axes if a not in outer) for b in (*kernel.init, *kernel.body))
    return max(rows, key=lambda x: x[0])[1] if rows and held <= ROOM else None


def replaced(e: Expr, by: dict[Load, Ref]) -> Expr:
    """``e`` with loads replaced by values that are held."""
    return by.get(e, e) if isinstance(e, Load) and e in by else map_children(e, lambda x: replaced(x, by))


def again(b: Block, across: str) -> list[Load]:
    """What a contraction or a sum reads of the lanes: of each as often as there are neighbours to sum for. Positions that data
    decide are left where they are."""
    return [x for x in loads_of(b.exprs[0]) if across in indices_of(x)
            and not any(isinstance(k, (Load, Ref)) for i in x.indices for k in walk(i))]


__all__ = ["TILE", "again", "replaced", "side_by_side"]
