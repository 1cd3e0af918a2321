"""A kernel's axes as tiles want them: short ones taken apart, those that tensors read in groups split in two.

``B[.., h // 4, ..]`` depends on h only through the group, so h is split into (group, member) and members can be rows as well:
heads that share a key-value head pack into one tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import NARROW, Expr, Index, Load, map_children, substitute, walk
from redfuser.acrf.index import iadd, imul
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.algebra import factors
from redfuser.tensorize.axes import strip_casts
from redfuser.tensorize.indexing import group_size
from redfuser.tensorize.short import SHORT, taken_apart

MOST = 64
"""Names that one name becomes, at most, when its short axes are taken apart."""


@dataclass(frozen=True, slots=True)
class Rearranged:
    """extents: of all axes, split ones included. stores: by block name, the tensor it writes and where. origin: what a name
    was called before its short axes went."""

    kernel: Kernel
    extents: dict[str, int]
    stores: dict[str, tuple[str, tuple[Expr, ...]]]
    origin: dict[str, str]


def rearrange(kernel: Kernel, extents: dict[str, int]) -> Rearranged:
    """``kernel`` without short axes, and with every grid axis that loads read through ``axis // g`` split into ``axis_group``
    and ``axis_member``."""
    apart = taken_apart(kernel, _short_axes(kernel, extents), extents)
    kernel, extents = apart.kernel, dict(extents)
    loads = [x for b in (*kernel.body, *kernel.tail) for e in b.exprs for x in walk(e) if isinstance(x, Load)]
    table: dict[str, Expr] = {}
    names: dict[str, tuple[str, str]] = {}
    for axis in kernel.grid:
        g = group_size((i for x in loads for i in x.indices), axis, extents[axis])
        if g > 1:
            group, member = f"{axis}_group", f"{axis}_member"
            extents[group], extents[member] = extents[axis] // g, g
            table[axis] = iadd(imul(Index(group), g), Index(member))
            names[axis] = (group, member)

    def axes(old: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for a in old for n in names.get(a, (a,)))

    def block(b: Block) -> Block:
        return replace(b, axes=axes(b.axes), exprs=tuple(_simple(substitute(e, indices=table), extents) for e in b.exprs))

    init, body, tail = (tuple(map(block, part)) for part in (kernel.init, kernel.body, kernel.tail))
    stores = {n: (t, tuple(substitute(i, indices=table) for i in at)) for n, (t, at) in apart.stores.items()}
    return Rearranged(replace(kernel, grid=axes(kernel.grid), init=init, body=body, tail=tail), extents, stores, apart.origin)


def _short_axes(kernel: Kernel, extents: dict[str, int]) -> tuple[str, ...]:
    """The axes that are neither of the grid nor the one that is walked, shorter than a matrix unit's: not the places of a list,
    nor columns of products that a matrix unit takes, which are padded, nor what whole products have one of at each point."""
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


def _simple(e: Expr, extents: dict[str, int]) -> Expr:
    """Load indices in affine form where they have one: ``(4*g + r) // 4`` depends on g alone."""
    ix = Indices({a: max(2, n) for a, n in extents.items()})

    def index(i: Expr) -> Expr:
        p = ix.of_axes(i)
        return i if p is None else p.expr()

    def go(x: Expr) -> Expr:
        if isinstance(x, Load):
            return replace(x, indices=tuple(map(index, x.indices)))
        return map_children(x, go)

    return go(e)


__all__ = ["Rearranged", "rearrange"]
