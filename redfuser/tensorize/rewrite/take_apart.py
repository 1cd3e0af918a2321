"""Axes too short for a tile of their own: the three components of a position, a product of depth 4, the columns of a small
matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from redfuser.acrf.expr import NARROW, Expr, Index, Load, Op, Ref, map_children, walk
from redfuser.acrf.index import i64
from redfuser.strategies.names import fresh
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.algebra import factors
from redfuser.tensorize.axes import SHORT, strip_casts
from redfuser.tensorize.rewrite.arranged import Arranged

MOST = 64
"""Names that one name becomes, at most."""
_JOINED = {"sum": "add", "max": "max", "min": "min", "prod": "mul", "any": "or", "all": "and"}


@dataclass(frozen=True, slots=True)
class TakeApart:
    """Every name along an axis that is neither of the grid nor walked, and shorter than a matrix unit's, becomes a name per
    element::

        reduce   c[i, e] = (c) sum sum[l] w[i, l] * x[i, l, e]          e < 3
        epilogue r[i] = sum[e] c * c
        -->
        reduce   c_0[i] = (c_0) sum sum[l] w[i, l] * x[i, l, 0]         c_1, c_2 likewise
        epilogue r[i] = c_0 * c_0 + c_1 * c_1 + c_2 * c_2

    Not the places of a list, nor columns of products that a matrix unit takes, which are padded, nor what whole products have
    one of at each point. Adds no rounding; a sum along such an axis is added in its order."""

    def __call__(self, at: Arranged) -> Arranged:
        for axis in _short_axes(at.kernel, at.extents):
            at = _unrolled(at, axis)
        return at


def _short_axes(kernel: Kernel, extents: Mapping[str, int]) -> tuple[str, ...]:
    outer = {*kernel.grid, kernel.raxis, kernel.split}
    blocks = (*kernel.init, *kernel.body, *kernel.tail)
    lists = {b.axes[-1] for b in blocks if b.reducer is not None and b.reducer.kind == "topk"}
    short = dict.fromkeys(a for b in blocks for a in (*b.axes, *((b.over,) if b.over else ()))
                          if a not in outer and a not in lists and extents[a] < SHORT)
    inner = {a for b in kernel.body if b.role == "producer" and b.reducer is not None for a in b.axes}
    wide = {a for b in kernel.init for a in b.axes if a in short and (a in inner or {*b.axes} - outer - {*short})}
    chosen, copies = [], 1
    for a in short:
        if a not in wide and not _padded(kernel, a) and copies * extents[a] <= MOST:
            chosen.append(a)
            copies *= extents[a]
    return tuple(chosen)


def _padded(kernel: Kernel, axis: str) -> bool:
    """Is the axis one of columns that nothing reduces: of products with a narrow operand that has it alone, or of partials?"""
    if any(b.over == axis for b in (*kernel.body, *kernel.tail)):
        return False
    products = [b for b in kernel.body if b.role == "reduce" and axis in b.axes]
    for b in products:
        along = [p for p in factors(b.exprs[0]) if any(isinstance(x, Index) and x.axis == axis for x in walk(p))]
        bare = strip_casts(along[0]) if len(along) == 1 else None
        if b.reducer is None or b.reducer.kind != "sum" or not isinstance(bare, Load) or bare.dtype not in NARROW:
            return False
    return bool(products) or any(b.role == "merge" and axis in b.axes for b in kernel.body)


def _unrolled(whole: Arranged, axis: str) -> Arranged:
    kernel, extent, stores, origin = whole.kernel, whole.extents[axis], dict(whole.stores), dict(whole.origin)
    blocks = (*kernel.init, *kernel.body, *kernel.tail)
    taken = {n.partition("@")[0] for b in blocks for n in b.names} | {t.name for t in (*kernel.reads, *kernel.writes)}
    names: dict[str, list[str]] = {}
    for n in dict.fromkeys(n.partition("@")[0] for b in blocks if axis in b.axes for n in b.names):
        stems = [f"{n}_{k}" for k in range(extent)]
        names[n] = [fresh(f"{stem}_" if stem in taken else stem, taken) for stem in stems]  # x_12 would be the twelfth
        for k, new in enumerate(names[n]):
            origin[new] = origin.get(n, n)
            if n in stores:
                tensor, indices = stores[n]
                stores[new] = tensor, tuple(i64(k) if i == Index(axis) else i for i in indices)
        stores.pop(n, None)

    def called(n: str, k: int) -> str:
        base, mark, version = n.partition("@")
        return f"{names[base][k]}{mark}{version}"

    def at(e: Expr, k: int) -> Expr:
        if e == Index(axis):
            return i64(k)
        if isinstance(e, Ref) and e.name.partition("@")[0] in names:
            return replace(e, name=called(e.name, k))
        return map_children(e, lambda x: at(x, k))

    def unrolled(b: Block) -> Iterator[Block]:
        if axis in b.axes:
            for k in range(extent):
                yield replace(b, names=tuple(called(n, k) for n in b.names), axes=tuple(a for a in b.axes if a != axis),
                              exprs=tuple(at(e, k) for e in b.exprs))
        elif b.over == axis and b.reducer is not None:
            total = at(b.exprs[0], 0)
            for k in range(1, extent):
                total = Op(_JOINED[b.reducer.kind], (total, at(b.exprs[0], k)), b.dtype)
            yield replace(b, exprs=(total,), reducer=None, over=None)
        else:
            yield b

    init, body, tail = (tuple(x for b in part for x in unrolled(b)) for part in (kernel.init, kernel.body, kernel.tail))
    return Arranged(replace(kernel, init=init, body=body, tail=tail), whole.extents, stores, origin)
