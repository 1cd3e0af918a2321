"""Whether a kernel's block can be parted into warp groups that copy and warp groups that compute, and what moves between."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from redfuser.acrf.expr import BYTES, Const
from redfuser.target import Target
from redfuser.tensorize.ir.effects import Names, every, reads, writes
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, If, Parallel, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import Slice
from redfuser.tensorize.model.layout import layouts

GROUP = 128
"""Threads of a warp group."""
ROWS = 64
"""Rows of a product that a warp group computes at once."""
BOX = 256
"""Elements of one side of what the copy engine moves at once."""
SIDES = 5
"""Dimensions of a tensor that it knows."""
PANEL = 128
"""Bytes of a row of a swizzled tile whose rows can be sent by themselves."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The slots of a tile from global memory: who signals that one is full and that it is empty. inner: the loop brings it
    anew in every step. again: it is brought more than once."""

    buffer: str
    full: str
    empty: str
    slots: int
    inner: bool
    again: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """outer: the loop over tiles of a block that computes several. loop: the one around the products, of ``steps`` steps where
    there is an outer one. apart: each group sends its own rows."""

    kernel: TileKernel
    outer: For | None
    loop: For
    steps: int
    groups: int
    rings: dict[str, Ring]
    apart: bool

    @property
    def body(self) -> tuple[TileStmt, ...]:
        return self.outer.body if self.outer is not None else self.kernel.body

    def brings(self, s: TileStmt) -> bool:
        """Is it the copy that fills a ring?"""
        return isinstance(s, Copy) and s.dst.buffer in self.rings and s.src.buffer in {p.name for p in self.kernel.params}

    def slotted(self, name: str) -> bool:
        return name in self.rings and self.rings[name].again

    def shared(self, name: str) -> bool:
        return any(b.name == name and b.scope == "shared" for b in self.kernel.buffers)


def plan(kernel: TileKernel, target: Target, handed: frozenset[str] = frozenset()) -> Plan | None:
    """How a kernel's block takes roles; None where it cannot: products are those of warp groups that share their rows alone,
    every tile in shared memory is brought by the copy engine or sent by it at the end, no reduction goes across groups.
    handed: tiles that one role hands to another; then the groups share the columns of what they accumulate, and nobody asks
    here who reduces what."""
    outer = kernel.body[0] if len(kernel.body) == 1 and isinstance(kernel.body[0], For) and not kernel.body[0].stages else None
    body = outer.body if outer is not None else kernel.body
    loops = [s for s in body if isinstance(s, For)]
    if len(loops) != 1 or loops[0].stages < 2 or not (target.wgmma and target.tma) or kernel.threads % GROUP:
        return None
    loop, groups = loops[0], kernel.threads // GROUP
    if not (_products(kernel, loop, groups, target) if not handed else all(
            s in loop.body for s in every(kernel.body) if isinstance(s, Gemm))):
        return None
    brought = _brought(kernel, body, loop, handed)
    if brought is None:
        return None
    steps = int(loop.stop.value) - int(loop.start.value) if isinstance(loop.start, Const) and isinstance(
        loop.stop, Const) else 0
    if outer is not None and not steps:
        return None
    names, rings = Names(kernel), {}
    for b, s in brought.items():
        inner = s in loop.body
        stem = b.removesuffix("_shared")
        rings[b] = Ring(b, names.fresh(f"{stem}_full"), names.fresh(f"{stem}_empty"),
                        loop.stages if inner else 2 if outer is not None else 1, inner, inner or outer is not None)
    return Plan(kernel, outer, loop, steps, groups, rings, not handed and _rows_apart(kernel, groups))


def _products(kernel: TileKernel, loop: For, groups: int, target: Target) -> bool:
    """All products are in the loop, and warp groups share the rows of everything."""
    shapes = {b.name: b.shape for b in kernel.buffers}
    products = [s for s in every(kernel.body) if isinstance(s, Gemm)]
    rows = {b.shape[0] for b in kernel.buffers if b.scope == "fragment"}
    inside = [k for s in loop.body if isinstance(s, (For, If)) for k in s.body]
    return bool(products) and len(rows) == 1 and not min(rows) % (ROWS * groups) and all(
        s in loop.body and s.policy == "rows" and len(shapes[s.c]) == 2 for s in products) and all(
        isinstance(k, Parallel) for k in inside) and all(
        at.fixed and not at.far for at in layouts(kernel, target).values())


def _brought(kernel: TileKernel, body: tuple[TileStmt, ...], loop: For, handed: frozenset[str]) -> dict[str, Copy] | None:
    """The copies that bring tiles from global memory, by buffer; None where shared memory is used in another way, but to hand
    it over and to send results from after the loop."""
    shared = {b.name for b in kernel.buffers if b.scope == "shared"} - handed
    params = {p.name for p in kernel.params}
    after = body[body.index(loop) + 1:]
    found: dict[str, Copy] = {}
    for s in (s for s in every(body) if not isinstance(s, (For, If))):
        if isinstance(s, Copy) and s.dst.buffer in shared and s.src.buffer in params:
            if s.dst.buffer in found or s.dst.dims or s in after or s not in (*body, *loop.body) or not engine(kernel, s.src):
                return None
            found[s.dst.buffer] = s
        elif not _sends(s, kernel, s in after, shared):
            return None
    staged = {n for s in after for n in writes(s)} & shared
    again = {b for b, s in found.items() if s in loop.body or body is not kernel.body}
    sent = {s.src.buffer for s in after if isinstance(s, Copy)}
    return None if (staged | sent) & again or any(reads(s) & staged for s in after if not isinstance(s, Copy)) else found


def _sends(s: TileStmt, kernel: TileKernel, late: bool, shared: set[str]) -> bool:
    """A statement without shared memory, or (``late``, behind the loop) a copy of a whole tile into it or by the engine out."""
    whole = isinstance(s, Copy) and late and not s.dst.dims
    if writes(s) & shared and not whole:
        return False
    if isinstance(s, Copy) and s.src.buffer in shared:
        return late and any(p.name == s.dst.buffer for p in kernel.params) and engine(kernel, s.dst)
    return True


def _rows_apart(kernel: TileKernel, groups: int) -> bool:
    """Every tile that is sent has rows of one swizzled panel, so that a group sends its own as soon as it has them."""
    shapes, dtypes = {b.name: b.shape for b in kernel.buffers}, kernel.dtypes
    params = {p.name for p in kernel.params}
    sent = [(s.src.buffer, s.dst.sizes) for s in every(kernel.body) if isinstance(s, Copy) and s.dst.buffer in params and
            any(b.name == s.src.buffer and b.scope == "shared" for b in kernel.buffers)]
    return groups > 1 and all(len(shapes[n]) == 2 and sizes == shapes[n] and shapes[n][1] * BYTES[dtypes[n]] == PANEL
                              for n, sizes in sent)


def engine(kernel: TileKernel, s: Slice) -> bool:
    """Can the copy engine move this part of a tensor? It has few dimensions, and its rows, with whatever else is stepped over,
    are multiples of 16 bytes."""
    p = next(p for p in kernel.params if p.name == s.buffer)
    size, sizes = BYTES[p.dtype], s.sizes or p.shape
    rows = all(prod(p.shape[i:]) * size % 16 == 0 for i in range(1, len(p.shape)))
    return (len(p.shape) <= SIDES and rows and sizes[-1] * size % 16 == 0
            and (not s.dims or bool(s.dims[-1].size)) and all(n <= BOX for n in sizes))
