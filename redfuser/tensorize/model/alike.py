"""Fragments that share one layout, since a loop uses them at one point or a copy takes them whole; and how wide the accesses to
memory are that bring their elements."""

from __future__ import annotations

from collections.abc import Callable, Container

from redfuser.acrf.expr import BYTES, Index, Load, Op, walk
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Copy, Gemm, Parallel, ReduceTile, TileKernel
from redfuser.tensorize.ir.parts import Param, Slice


def alike(kernel: TileKernel) -> tuple[dict[str, tuple[int, ...]], Callable[[str], str]]:
    """Fragments of two dimensions, and which of those that share a layout stands for them."""
    shapes: dict[str, tuple[int, ...]] = {
        b.name: b.shape for b in kernel.buffers if b.scope == "fragment" and len(b.shape) == 2}
    home = {n: n for n in shapes}

    def root(n: str) -> str:
        while home[n] != n:
            n = home[n]
        return n

    for group in together(kernel, shapes):
        for n in group[1:]:
            home[root(n)] = root(group[0])
    return shapes, root


def of_products(kernel: TileKernel) -> set[str]:
    """Fragments of two dimensions that lie as a product's operand or sum does."""
    shapes, root = alike(kernel)
    fixed = {root(n) for s in every(kernel.body) if isinstance(s, Gemm) for n in (s.c, s.a.buffer) if n in shapes}
    return {n for n in shapes if root(n) in fixed}


def together(kernel: TileKernel, shapes: dict[str, tuple[int, ...]]) -> list[list[str]]:
    """Fragments used at one point of a loop, or copied whole."""
    found = []
    for s in every(kernel.body):
        if isinstance(s, Copy) and {s.src.buffer, s.dst.buffer} <= set(shapes) and whole(s.src) and whole(s.dst):
            found.append([s.src.buffer, s.dst.buffer])
        elif isinstance(s, Parallel):
            at = tuple(Index(v) for v in s.vars)
            group = [a.target for a in s.body if a.indices == at]
            group += [x.tensor for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.indices == at]
            found.append([n for n in dict.fromkeys(group) if n in shapes])
    return [g for g in found if g]


def met(kernel: TileKernel, fragments: Container[str]) -> list[list[str]]:
    """Fragments that the threads which have a row must all have it of: a reduction's tile and its rows' values, and what a
    loop uses of one row."""
    found = []
    for s in every(kernel.body):
        if isinstance(s, ReduceTile):
            found.append([s.src, s.dst])
        elif isinstance(s, Parallel):
            group = [a.target for a in s.body]
            group += [x.tensor for a in s.body for x in walk(a.expr) if isinstance(x, Load)]
            found.append([n for n in dict.fromkeys(group) if n in fragments])
    return [g for g in found if g]


def whole(s: Slice) -> bool:
    return not s.dims


Access = tuple[set[str], list[int]]


def run(kernel: TileKernel, group: list[str], touched: list[Access]) -> int:
    """Elements of the widest vector that an access to memory allows for fragments of one layout. touched: every access."""
    dtypes, mine = kernel.dtypes, set(group)
    most = 16 // max(BYTES[dtypes[n]] for n in group)  # where rows are not aligned, what the fragments allow
    return max((wide or most for found, widths in touched if found & mine for wide in widths), default=4)


def accesses(kernel: TileKernel) -> list[Access]:
    """The fragments that a statement brings from global memory or computes, and the elements of each access to memory for them;
    0: as many as the fragments allow."""
    params, found = {p.name: p for p in kernel.params}, []
    for s in every(kernel.body):
        if isinstance(s, Copy):
            names = {s.src.buffer, s.dst.buffer}
            found.append((names, [wide if (wide := 16 // BYTES[params[n].dtype]) == vector_of(params[n]) else 0
                                  for n in names & set(params)]))
        elif isinstance(s, Parallel) and len(s.vars) == 2:
            widths = []
            for a in s.body:
                guarded = any(isinstance(x, Op) and x.name == "select" and s.vars[1] in along(x.args[0]) and
                              any(isinstance(y, Load) and y.tensor in params for y in walk(x)) for x in walk(a.expr))
                widths += [1 if guarded else vector_of(params[x.tensor]) for x in walk(a.expr)
                           if isinstance(x, Load) and x.tensor in params and any(s.vars[1] in along(i) for i in x.indices)]
            found.append(({a.target for a in s.body}, widths))
    return found


def vector_of(p: Param) -> int:
    """The most elements in 16 bytes at once that every row of a tensor can be read by."""
    vector = 16 // BYTES[p.dtype]
    while vector > 1 and len(p.shape) > 1 and p.shape[-1] % vector:
        vector //= 2
    return vector


def along(e: object) -> set[str]:
    return {x.axis for x in walk(e) if isinstance(x, Index)}  # type: ignore[arg-type]


