"""Rows side by side: the CPU's schedule of products, where points of the grid read the same elements along the r-axis.

The queries of a head share its keys and values: sixteen of them are sixteen lanes. What is computed at a point is then computed
element by element of a vector; what they share is read once and broadcast; and a contraction or a sum holds the sums
of some neighbours in registers, so that what is read of the lanes serves all of them::

    for tile of 16 rows i:
        rows_0[c, lane] = q[i, c]                                  once, where nothing of the row is in it
        for each segment:
            for l in steps of 4:
                sum_0[lane], ..., sum_3[lane] = 0
                for c:  sum_r[lane] += rows_0[c, lane] * k[l + r, c]
                s[l + r, lane] = sum_r[lane]

A grid that no whole tiles cover has a last one that begins earlier: points that two tiles have in common get the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import Expr, Load, Op, Ref, indices_of, loads_of, map_children, walk
from redfuser.strategies.program import Block, Kernel, Program

TILE = 4
"""Neighbours whose sums are held at once: two vectors each, as many multiply-adds as two units have on the way."""
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


def possible(c: Expr, box: Mapping[str, tuple[str, int]], extents: Mapping[str, int]) -> str:
    """Text of a test that is false only where a condition on positions holds nowhere in a box: by axis, the text of its first
    point and how many there are. Empty where nothing can be said."""
    match c:
        case Op(name="and", args=(x, y)):
            parts = [t for t in (possible(x, box, extents), possible(y, box, extents)) if t]
            return f"T.And({', '.join(parts)})" if len(parts) == 2 else "".join(parts)
        case Op(name="or", args=(x, y)):
            parts = [possible(x, box, extents), possible(y, box, extents)]
            return f"T.Or({', '.join(parts)})" if all(parts) else ""
        case Op(name="le" | "lt" | "ge" | "gt" as name, args=(x, y)):
            p, q = (Indices(extents).of_axes(e) for e in ((y, x) if name in ("le", "lt") else (x, y)))
            d = p - q - (name in ("lt", "gt")) if p is not None and q is not None else None
            if d is not None and set(d.axes) <= set(box):  # the greatest value of what must not be negative
                most = d.constant + sum(k * (box[a][1] - 1) for a, k in ((a, d.coefficient(a)) for a in d.axes) if k > 0)
                return f"({' + '.join(f'{d.coefficient(a)} * ({box[a][0]})' for a in d.axes)} + {most} >= 0)" if d.axes else ""
    return ""


def replaced(e: Expr, by: dict[Load, Ref]) -> Expr:
    """``e`` with loads replaced by values that are held."""
    return by.get(e, e) if isinstance(e, Load) and e in by else map_children(e, lambda x: replaced(x, by))


def again(b: Block, across: str) -> list[Load]:
    """What a contraction or a sum reads of the lanes: of each as often as there are neighbours to sum for. Positions that data
    decide are left where they are."""
    return [x for x in loads_of(b.exprs[0]) if across in indices_of(x)
            and not any(isinstance(k, (Load, Ref)) for i in x.indices for k in walk(i))]
