"""Axes that tensors read in groups: heads that share a key-value head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import Const, Expr, Index, Load, Op, map_children, substitute, walk
from redfuser.acrf.index import iadd, imul
from redfuser.strategies.program import Block
from redfuser.tensorize.rewrite.arranged import Arranged

TILE = 1024
"""Elements of a group of rows below which a kernel of maps takes rows of several: a tile of one would leave a thread no vector.
8 x 64 x 64 x 64 halves repeated twice down and across, with a sum, and joined to twice as many channels: modelled 22.4 and 62.1
us by groups, 12.0 and 23.5 so; 14.9 and 27.5 measured so on an H200 (torch.compile 14.3 and 27.0), by groups not."""


@dataclass(frozen=True, slots=True)
class SplitGroups:
    """A grid axis that loads read through ``axis // g`` becomes (group, member), so that members can be rows as well and pack
    into one tile; indices are as simple as they can be::

        grid h       s[l] = sum[c] q[h, c] * k[h // 4, l, c]
        -->
        grid h_group, h_member       s[l] = sum[c] q[h_group * 4 + h_member, c] * k[h_group, l, c]

    Requires that one g > 1 divides the axis's extent. Adds no rounding. Of maps alone not where a group is small."""

    def __call__(self, at: Arranged) -> Arranged:
        kernel, extents = at.kernel, dict(at.extents)
        loads = [x for b in (*kernel.body, *kernel.tail) for e in b.exprs for x in walk(e) if isinstance(x, Load)]
        table: dict[str, Expr] = {}
        names: dict[str, tuple[str, str]] = {}
        for axis in kernel.grid:
            g = group_size((i for x in loads for i in x.indices), axis, extents[axis])
            if g > 1 and not (kernel.spread and g * extents.get(kernel.raxis, 1) < TILE):
                group, member = names[axis] = f"{axis}_group", f"{axis}_member"
                extents[group], extents[member] = extents[axis] // g, g
                table[axis] = iadd(imul(Index(group), g), Index(member))
        positions = Indices({a: max(2, n) for a, n in extents.items()})

        def axes(old: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(n for a in old for n in names.get(a, (a,)))

        def simple(e: Expr) -> Expr:
            if isinstance(e, Load):
                forms = map(positions.of_axes, e.indices)
                return replace(e, indices=tuple(i if p is None else p.expr() for i, p in zip(e.indices, forms, strict=True)))
            return map_children(e, simple)

        def block(b: Block) -> Block:
            return replace(b, axes=axes(b.axes), exprs=tuple(simple(substitute(e, indices=table)) for e in b.exprs))

        init, body, tail = (tuple(map(block, part)) for part in (kernel.init, kernel.body, kernel.tail))
        stores = {n: (t, tuple(substitute(i, indices=table) for i in where)) for n, (t, where) in at.stores.items()}
        return Arranged(replace(kernel, grid=axes(kernel.grid), init=init, body=body, tail=tail), extents, stores, at.origin)


def group_size(exprs: Iterable[Expr], axis: str, extent: int) -> int:
    """The g > 1 of ``axis // g`` or ``axis % g`` in ``exprs``, when there is exactly one and it divides the extent."""
    sizes = set()
    for root in exprs:
        for e in walk(root):
            match e:
                case Op(name="floordiv" | "mod", args=(x, Const(value=int(g)))) if Index(axis) in set(walk(x)):
                    sizes.add(g)
    return sizes.pop() if len(sizes) == 1 and extent % min(sizes) == 0 and 1 < min(sizes) < extent else 1
