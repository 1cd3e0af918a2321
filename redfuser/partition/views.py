"""Input tensors viewed with another shape, so that quotients and remainders in the positions they are read at vanish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import Expr, Index, Load, Op, children
from redfuser.acrf.index import i64
from redfuser.partition.positions import parts

Shape = tuple[int, ...]


def choose(ix: Indices, shapes: Mapping[str, Shape], roots: Iterable[Expr]) -> dict[str, Shape]:
    """The new shape of each tensor where one view serves every load of it."""
    found: dict[str, list[Load]] = {}
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        e = todo.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        if isinstance(e, Load):
            found.setdefault(e.tensor, []).append(e)
        todo += children(e)
    views: dict[str, Shape] = {}
    for tensor, loads in found.items():
        if not any(isinstance(a, Op) for x in loads for i in x.indices for a in parts(ix, i)):
            continue
        fitting = {_view(ix, x, shapes[tensor]) for x in loads}
        if len(fitting) == 1 and (shape := fitting.pop()) is not None:
            views[tensor] = shape
    return views


def through(ix: Indices, e: Load, shape: Shape, view: Shape) -> tuple[Expr, ...]:
    """The indices of a load of a tensor of ``shape`` in its ``view``."""
    terms = _offset(ix, e, shape) or []
    return tuple([Index(a) for a, _ in terms] + [i64(0)] * (len(view) - len(terms)))


def _view(ix: Indices, e: Load, shape: Shape) -> Shape | None:
    terms = _offset(ix, e, shape)
    if not terms:
        return None
    total, out = prod(shape), []
    for axis, stride in terms:
        if total % stride or ix.extents[axis] * stride > total:
            return None
        out.append(total // stride)
        total = stride
    return tuple([*out, total]) if total > 1 else tuple(out)


def _offset(ix: Indices, e: Load, shape: Shape) -> list[tuple[str, int]] | None:
    """Row-major offset of a load as (axis, stride) pairs, slowest first; None when it is not affine."""
    offset: Expr = i64(0)
    for i, n in zip(e.indices, shape, strict=True):
        offset = Op("add", (Op("mul", (offset, i64(n)), "i64"), i), "i64")
    lin = ix.linear(offset)
    if lin.constant or len(lin.axes) < len(lin.terms) or any(k <= 0 for _, k in lin.terms):
        return None
    return [(a, lin.coefficient(a)) for a in lin.axes]
