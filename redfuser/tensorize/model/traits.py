"""What decides how many registers a compiler gives a thread, besides the fragments: counted, not guessed at."""

from __future__ import annotations

from math import prod

from redfuser.acrf.expr import BYTES, Expr, Index, Load, Op, walk
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, Parallel, ReduceTile, ScanTile, TileKernel
from redfuser.tensorize.model.layout import layouts, turned, warp_group, warps_meet
from redfuser.tensorize.model.pressure import fragments, pressure
from redfuser.tensorize.model.steps import trips, unrolled

AT_ONCE = 4
"""Turns of a loop that the compiler does at once, their loads first."""


def kind(kernel: TileKernel, target: Target) -> str:
    """``group``, ``product`` and ``warp``: products, of warp groups with reductions or without, or of single warps. ``row``
    and ``walk``: reductions of a row at once, or step by step. ``scan``: of a row so far. ``map``: none of these."""
    shapes = {b.name: b.shape for b in kernel.buffers}
    products = [s for s in every(kernel.body) if isinstance(s, Gemm)]
    reduces = any(isinstance(s, ReduceTile) for s in every(kernel.body))
    if products and not any(warp_group(s, shapes[s.c][0], kernel.threads, target) for s in products):
        return "warp"
    if products:
        return "group" if reduces else "product"
    if not reduces:
        return "scan" if any(isinstance(s, ScanTile) for s in every(kernel.body)) else "map"
    return "walk" if any(isinstance(s, For) for s in kernel.body) else "row"


def traits(kernel: TileKernel, target: Target) -> dict[str, float]:
    """Figures of one thread by name.

    held, most: registers of fragments (:func:`pressure`); tiles: of all, did they hold something at once. flight, ahead:
    accesses of 16 bytes by copies inside and outside of loops; streams: copies inside. single: elements that are copied one by
    one, since rows are not aligned; lone: since a thread has rows of its own, which lie across memory. loads: what is read from
    global memory element by element; late: the most such elements of one statement outside of loops; tail: the same after a
    pipelined loop with as many turns as stages or more, when addresses wait for it. steady: a pipelined loop has turns between
    its first and its last. long: another has more turns than are done at once. elements: what one statement computes in the
    turns that are; temps: values on the way to elements that are unrolled; work: operations on one value, times such elements;
    outs: registers of what is computed straight into tensors; quotients: whether it divides for every element. scanned:
    registers of a row's part in a scan; meets: do several warps share the row. given: tensors. products: of matrices, beside a
    first and a second."""
    held, most = pressure(kernel, target)
    size, across = fragments(kernel, target), turned(kernel, layouts(kernel, target))
    looped = {id(k): s for s in kernel.body if isinstance(s, For) and trips(s) != 1 for k in every(s.body)}
    found = dict.fromkeys(("flight", "ahead", "streams", "single", "lone", "loads", "late", "tail", "steady", "long",
                           "elements", "temps", "work", "outs", "quotients", "scanned"), 0.0)
    shapes = {b.name: (*b.shape, BYTES[b.dtype]) for b in kernel.buffers}
    found |= {"base": 1.0, "held": held, "most": most, "tiles": sum(size.values()), "grid": len(kernel.grid),
              "given": len(kernel.params), "meets": float(warps_meet(kernel, target)),
              "products": max(0, sum(isinstance(s, Gemm) for s in every(kernel.body)) - 2)}
    for s in every(kernel.body):
        loop = looped.get(id(s))
        if isinstance(s, Copy):
            _copy(kernel, s, loop, across, found)
        elif isinstance(s, Parallel):
            _points(kernel, s, loop, found)
        elif isinstance(s, ScanTile):
            found["scanned"] = max(found["scanned"], prod(shapes[s.src]) / (4 * kernel.threads))
    for s in kernel.body:
        if isinstance(s, For):
            _loop(s, found)
    return found


def _at_once(kernel: TileKernel, loop: For | None) -> int:
    """Turns of a loop that a compiler does at once."""
    if loop is None or loop.stages:
        return 1
    return max(unrolled(kernel, loop), min(AT_ONCE, AT_ONCE if (n := trips(loop)) is None else max(1, n)))


def _copy(kernel: TileKernel, s: Copy, loop: For | None, across: set[str], found: dict[str, float]) -> None:
    params = {p.name: p for p in kernel.params}
    buffers = {b.name: b for b in kernel.buffers}
    inner, outer = (s.dst, s.src) if s.src.buffer in params else (s.src, s.dst)
    if outer.buffer not in params:
        return
    tile, tensor = buffers[inner.buffer], params[outer.buffer]
    elements = prod(inner.sizes or tile.shape) / kernel.threads
    found["ahead" if loop is None else "flight"] += elements * BYTES[tile.dtype] / 16
    found["streams"] += loop is not None
    if outer is s.src and tile.name in across:
        found["lone"] = max(found["lone"], elements * _at_once(kernel, loop))
    if tile.scope != "shared" and len(tensor.shape) > 1 and tensor.shape[-1] % (16 // BYTES[tensor.dtype]) and outer is s.src:
        found["single"] = max(found["single"], elements * (2 if BYTES[tensor.dtype] < 4 else 1))


def _points(kernel: TileKernel, s: Parallel, loop: For | None, found: dict[str, float]) -> None:
    params, elements = {p.name: BYTES[p.dtype] for p in kernel.params}, max(1.0, prod(s.extents) / kernel.threads)
    if len(s.vars) > 1 and all(isinstance(a.expr, Load) and a.expr.tensor in params for a in s.body):  # a copy, spelled out
        found["ahead" if loop is None else "flight"] += sum(elements * BYTES[a.expr.dtype] / 16 for a in s.body)
        return
    read = {x for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.tensor in params}
    along = sum(len(s.vars) > 1 and any(s.vars[-1] in _names(i) for i in x.indices) for x in read)
    found["late"] = max(found["late"], 0.0 if loop else min(elements, 32.0) * along)
    found["loads"] += len(read)
    found["elements"] = max(found["elements"], min(elements, 32.0) * _at_once(kernel, loop))
    for a in s.body:
        done = {x for x in walk(a.expr) if isinstance(x, Op)}  # what is written twice is computed once
        found["work"] = max(found["work"], min(elements, 8.0) * max(0, len(done) - 2))
        found["temps"] = max(found["temps"], min(elements, 8.0) * min(len(done), 4))
        found["outs"] += elements * params.get(a.target, 0) / 4
        divides = len(s.vars) > 1 and any(x.name in ("div", "sqrt", "rsqrt") for x in done)
        found["quotients"] = max(found["quotients"], float(divides))


def _loop(s: For, found: dict[str, float]) -> None:
    turns = trips(s)
    if s.stages:
        found["steady"] = max(found["steady"], float(turns is None or turns - s.stages > 1))
        found["tail"] = found["late"] if turns is None or turns >= s.stages else found["tail"]
    else:
        found["long"] = max(found["long"], float(turns is None or turns > AT_ONCE))


def _names(e: Expr) -> set[str]:
    return {x.axis for x in walk(e) if isinstance(x, Index)}
