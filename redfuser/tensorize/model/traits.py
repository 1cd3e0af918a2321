"""What decides how many registers a compiler gives a thread, besides the fragments: counted, not guessed at."""

from __future__ import annotations

from math import prod

from redfuser.acrf.expr import BYTES, Expr, Index, Load, Op, walk
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, Parallel, ReduceTile, ScanTile, TileKernel
from redfuser.tensorize.model.layout import layouts, warp_group, warps_meet
from redfuser.tensorize.model.pressure import fragments, pressure
from redfuser.tensorize.model.steps import trips

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

    held, most: registers of fragments (:func:`pressure`); tiles: of all, did they hold something at once; lines: rows of a
    thread. flight, ahead: accesses of 16 bytes by copies inside and outside of loops; streams: copies inside. single: elements
    that are copied one by one, since rows are not aligned. loads: what is read from global memory element by element; late:
    the most such elements of one statement outside of loops; tail: the same after a pipelined loop with as many turns as
    stages or more, when addresses wait for it. steady: a pipelined loop has turns between its first and its last. long:
    another has more turns than are done at once. work: operations on one value, times the elements that are unrolled;
    quotients: whether it divides for every element. halves: elements computed in 16 bits. scanned: registers of a row's part
    in a scan; meets: do several warps share the row. given: tensors. products: of matrices, beside a first and a second."""
    held, most = pressure(kernel, target)
    size = fragments(kernel, target)
    looped = {id(k): s.stages for s in kernel.body if isinstance(s, For) and trips(s) != 1 for k in every(s.body)}
    found = dict.fromkeys(("flight", "ahead", "streams", "single", "loads", "late", "tail", "steady", "long", "work",
                           "quotients", "halves", "scanned"), 0.0)
    shapes = {b.name: (*b.shape, BYTES[b.dtype]) for b in kernel.buffers}
    found |= {"base": 1.0, "held": held, "most": most, "tiles": sum(size.values()), "grid": len(kernel.grid),
              "lines": max((at.rows for at in layouts(kernel, target).values()), default=0), "given": len(kernel.params),
              "meets": float(warps_meet(kernel, target)),
              "products": max(0, sum(isinstance(s, Gemm) for s in every(kernel.body)) - 2)}
    for s in every(kernel.body):
        if isinstance(s, Copy):
            _copy(kernel, s, looped.get(id(s)), found)
        elif isinstance(s, Parallel):
            _points(kernel, s, id(s) in looped, found)
        elif isinstance(s, ScanTile):
            found["scanned"] = max(found["scanned"], prod(shapes[s.src]) / (4 * kernel.threads))
    for s in kernel.body:
        if isinstance(s, For):
            _loop(s, found)
    return found


def _copy(kernel: TileKernel, s: Copy, stages: int | None, found: dict[str, float]) -> None:
    params = {p.name: p for p in kernel.params}
    buffers = {b.name: b for b in kernel.buffers}
    inner, outer = (s.dst, s.src) if s.src.buffer in params else (s.src, s.dst)
    if outer.buffer not in params:
        return
    tile, tensor = buffers[inner.buffer], params[outer.buffer]
    elements = prod(inner.sizes or tile.shape) / kernel.threads
    found["ahead" if stages is None else "flight"] += elements * BYTES[tile.dtype] / 16
    found["streams"] += stages is not None
    if tile.scope != "shared" and len(tensor.shape) > 1 and tensor.shape[-1] % (16 // BYTES[tensor.dtype]) and outer is s.src:
        found["single"] = max(found["single"], elements * (2 if BYTES[tensor.dtype] < 4 else 1))


def _points(kernel: TileKernel, s: Parallel, looped: bool, found: dict[str, float]) -> None:
    params, elements = {p.name for p in kernel.params}, max(1.0, prod(s.extents) / kernel.threads)
    if len(s.vars) > 1 and all(isinstance(a.expr, Load) and a.expr.tensor in params for a in s.body):  # a copy, spelled out
        found["ahead" if not looped else "flight"] += sum(elements * BYTES[a.expr.dtype] / 16 for a in s.body)
        return
    read = {x for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.tensor in params}
    along = sum(len(s.vars) > 1 and any(s.vars[-1] in _names(i) for i in x.indices) for x in read)
    found["late"] = max(found["late"], 0.0 if looped else min(elements, 32.0) * along)
    found["loads"] += len(read)
    for a in s.body:
        done = [x for x in walk(a.expr) if isinstance(x, Op)]
        found["work"] = max(found["work"], min(elements, 8.0) * max(0, len(done) - 2))
        divides = len(s.vars) > 1 and any(x.name in ("div", "sqrt", "rsqrt") for x in done)
        found["quotients"] = max(found["quotients"], float(divides))
        if len(s.vars) > 1 and any(x.dtype in ("f16", "bf16") for x in done):
            found["halves"] = max(found["halves"], min(elements, 32.0))


def _loop(s: For, found: dict[str, float]) -> None:
    turns = trips(s)
    if s.stages:
        found["steady"] = max(found["steady"], float(turns is None or turns - s.stages > 1))
        found["tail"] = found["late"] if turns is None or turns >= s.stages else found["tail"]
    else:
        found["long"] = max(found["long"], float(turns is None or turns > AT_ONCE))


def _names(e: Expr) -> set[str]:
    return {x.axis for x in walk(e) if isinstance(x, Index)}
