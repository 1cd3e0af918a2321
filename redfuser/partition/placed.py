"""A scatter to few places of each row as a map: every element asks whether its place is among them.

    y[t, g] = w[t, 0] if i[t, 0] == g else w[t, 1] if i[t, 1] == g else .. x[t, g]

So is the mask of the groups that a router keeps. Where nothing joins it, it is torch's call again."""

from __future__ import annotations

from typing import Any

from redfuser.acrf.cascade import Let, Tensor
from redfuser.acrf.expr import Cast, Expr, Index, Load, op
from redfuser.acrf.index import i64
from redfuser.acrf.lift import Lifted
from redfuser.acrf.lift_expr import Unliftable
from redfuser.partition.meanings import Positions, result_axes

FEW = 8
"""Places of a row, at most, that are compared with every element of it."""


def scatter(call: Any, params: list[Tensor], where: Positions) -> Lifted:
    """``scatter_elements``; of places that are named twice the last counts, as torch does on a CPU."""
    x, index, update = (params[where[a]] for a in call.args)
    names, axes, shape = result_axes(call)
    axis = int(call.attrs.axis) % len(shape)
    others = [n for a, n in enumerate(index.shape) if a != axis] == [n for a, n in enumerate(shape) if a != axis]
    if str(call.attrs.reduction) != "update" or not others or not 0 < int(index.shape[axis]) <= FEW:
        raise Unliftable("scatter_elements")
    out: Expr = Load(x.name, tuple(map(Index, names)), x.dtype)
    for k in range(int(index.shape[axis])):
        at = tuple(i64(k) if a == axis else Index(n) for a, n in enumerate(names))
        place: Expr = Load(index.name, at, index.dtype)
        place = place if place.dtype == "i64" else Cast(place, "i64")
        value: Expr = Load(update.name, at, update.dtype)
        out = op("select", op("eq", place, Index(names[axis])), value if update.dtype == x.dtype else Cast(value, x.dtype), out)
    return Lifted(tuple(params), axes, (Let("out", tuple(names), out),), ("out",))


SCATTERS = {"relax.scatter_elements": scatter}
