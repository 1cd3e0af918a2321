"""Axes too short for a tile of their own, taken apart: every name along one becomes a name per element.

    reduce   c[i, e] = (c) sum sum[l] w[i, l] * x[i, l, e]          e < 3
    epilogue r[i] = sum[e] c * c
    -->
    reduce   c_0[i] = (c_0) sum sum[l] w[i, l] * x[i, l, 0]         c_1, c_2 likewise
    epilogue r[i] = c_0 * c_0 + c_1 * c_1 + c_2 * c_2

The three components of a position, a product of depth 4, the columns of a small matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from redfuser.acrf.expr import Expr, Index, Op, Ref, map_children
from redfuser.acrf.index import i64
from redfuser.strategies.names import fresh
from redfuser.strategies.program import Block, Kernel

SHORT = 16
"""Elements below which an axis is none of a matrix unit's."""
_JOINED = {"sum": "add", "max": "max", "min": "min", "prod": "mul", "any": "or", "all": "and"}


@dataclass(slots=True)
class Apart:
    """A kernel without its short axes. stores: by name, the tensor that a block writes and where, in axes of the kernel.
    origin: what a name was called before."""

    kernel: Kernel
    stores: dict[str, tuple[str, tuple[Expr, ...]]]
    origin: dict[str, str] = field(default_factory=dict)


def taken_apart(kernel: Kernel, axes: tuple[str, ...], extents: dict[str, int]) -> Apart:
    """``kernel`` with ``axes`` unrolled, in turn."""
    named = {n: b for b in (*kernel.body, *kernel.tail) for n in b.names}
    done = Apart(kernel, {t.name: (t.name, tuple(map(Index, named[t.name].axes))) for t in kernel.writes if t.name in named})
    for axis in axes:
        _unroll(done, axis, extents[axis])
    return done


def _unroll(done: Apart, axis: str, extent: int) -> None:
    kernel = done.kernel
    blocks = (*kernel.init, *kernel.body, *kernel.tail)
    taken = {n.partition("@")[0] for b in blocks for n in b.names} | {t.name for t in (*kernel.reads, *kernel.writes)}
    names: dict[str, list[str]] = {}
    for n in dict.fromkeys(n.partition("@")[0] for b in blocks if axis in b.axes for n in b.names):
        stems = [f"{n}_{k}" for k in range(extent)]
        names[n] = [fresh(f"{stem}_" if stem in taken else stem, taken) for stem in stems]  # x_12 would be the twelfth
        for k, new in enumerate(names[n]):
            done.origin[new] = done.origin.get(n, n)
            if n in done.stores:
                tensor, indices = done.stores[n]
                done.stores[new] = tensor, tuple(i64(k) if i == Index(axis) else i for i in indices)
        done.stores.pop(n, None)

    def at(e: Expr, k: int) -> Expr:
        if e == Index(axis):
            return i64(k)
        if isinstance(e, Ref) and (parts := e.name.partition("@"))[0] in names:
            return replace(e, name=f"{names[parts[0]][k]}{parts[1]}{parts[2]}")
        return map_children(e, lambda x: at(x, k))

    def one(b: Block, k: int) -> Block:
        def called(n: str) -> str:
            base, mark, version = n.partition("@")
            return f"{names[base][k]}{mark}{version}"

        return replace(b, names=tuple(map(called, b.names)), axes=tuple(a for a in b.axes if a != axis),
                       exprs=tuple(at(e, k) for e in b.exprs))

    def unrolled(b: Block) -> Iterator[Block]:
        if axis in b.axes:
            yield from (one(b, k) for k in range(extent))
        elif b.over == axis and b.reducer is not None:
            total = at(b.exprs[0], 0)
            for k in range(1, extent):
                total = Op(_JOINED[b.reducer.kind], (total, at(b.exprs[0], k)), b.dtype)
            yield replace(b, exprs=(total,), reducer=None, over=None)
        else:
            yield b

    init, body, tail = (tuple(x for b in part for x in unrolled(b)) for part in (kernel.init, kernel.body, kernel.tail))
    done.kernel = replace(kernel, init=init, body=body, tail=tail)


__all__ = ["SHORT", "Apart", "taken_apart"]
