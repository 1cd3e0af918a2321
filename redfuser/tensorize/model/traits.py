"""What decides how many registers a compiler gives a thread, besides the fragments: counted, not guessed at."""

from __future__ import annotations

from math import prod

from redfuser.acrf.expr import BYTES, Expr, Index, Load, Op, walk
from redfuser.target import Target
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Copy, For, Gemm, Parallel, ReduceTile, TileKernel
from redfuser.tensorize.model.layout import warp_group
from redfuser.tensorize.model.pressure import fragments, pressure
from redfuser.tensorize.model.steps import trips

CALLED = frozenset({"tanh", "erf", "sin", "cos", "pow", "log", "log2", "exp", "sigmoid"})
"""Functions that are several instructions, or a call."""


def kind(kernel: TileKernel, target: Target) -> str:
    """``group`` and ``warp``: products, of warp groups or single warps. ``row`` and ``walk``: reductions of a row at once,
    or step by step. ``map``: neither."""
    shapes = {b.name: b.shape for b in kernel.buffers}
    products = [s for s in every(kernel.body) if isinstance(s, Gemm)]
    if products:
        return "group" if any(warp_group(s, shapes[s.c][0], kernel.threads, target) for s in products) else "warp"
    if not any(isinstance(s, ReduceTile) for s in every(kernel.body)):
        return "map"
    return "walk" if any(isinstance(s, For) for s in kernel.body) else "row"


def traits(kernel: TileKernel, target: Target) -> dict[str, float]:
    """Figures of one thread by name.

    held, most: registers of fragments (:func:`pressure`). flight, ahead: accesses of 16 bytes by copies inside and outside
    of loops; staged: the former for every stage; streams: copies inside. single, out: elements that are loaded or stored one
    by one, since rows are not aligned. points: values that one statement takes from global memory element by element; loads,
    inside: such reads in all, and in loops. stores: the same into global memory. work: operations on one value, times the
    elements that are unrolled. calls, quotients, masks: whether there are any for every element; inverses: quotients for
    every row. names: fragments. wide: a 64-bit result."""
    held, most = pressure(kernel, target)
    looped = {id(k): s.stages for s in kernel.body if isinstance(s, For) and trips(s) != 1 for k in every(s.body)}
    found = dict.fromkeys(("flight", "ahead", "staged", "streams", "single", "points", "loads", "inside", "stores", "work",
                           "calls", "quotients", "inverses", "masks", "wide", "reductions", "out"), 0.0)
    found |= {"base": 1.0, "held": held, "most": most, "names": len(fragments(kernel, target)), "grid": len(kernel.grid)}
    for s in every(kernel.body):
        if isinstance(s, Copy):
            _copy(kernel, s, looped.get(id(s)), found)
        elif isinstance(s, ReduceTile):
            found["reductions"] += 1
        elif isinstance(s, Parallel):
            _points(kernel, s, id(s) in looped, found)
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
    found["staged"] += elements * BYTES[tile.dtype] / 16 * (stages or 0)
    found["streams"] += stages is not None
    if tile.scope != "shared" and len(tensor.shape) > 1 and tensor.shape[-1] % (16 // BYTES[tensor.dtype]):
        name = "single" if outer is s.src else "out"
        found[name] = max(found[name], elements * (2 if BYTES[tensor.dtype] < 4 else 1))


def _points(kernel: TileKernel, s: Parallel, looped: bool, found: dict[str, float]) -> None:
    params, elements = {p.name for p in kernel.params}, max(1.0, prod(s.extents) / kernel.threads)
    read = {x for a in s.body for x in walk(a.expr) if isinstance(x, Load) and x.tensor in params}
    along = sum(len(s.vars) > 1 and any(s.vars[-1] in _names(i) for i in x.indices) for x in read)
    found["points"] = max(found["points"], min(elements, 32.0) * along)
    found["loads"] += len(read)
    found["inside"] += len(read) * looped
    for a in s.body:
        done = [x for x in walk(a.expr) if isinstance(x, Op)]
        found["stores"] += a.target in params
        found["wide"] = max(found["wide"], float(kernel.dtypes[a.target] == "i64"))
        found["work"] = max(found["work"], min(elements, 8.0) * max(0, len(done) - 2))
        found["calls"] = max(found["calls"], float(any(x.name in CALLED for x in done)))
        name = "quotients" if len(s.vars) > 1 else "inverses"
        found[name] = max(found[name], float(any(x.name in ("div", "sqrt", "rsqrt") for x in done)))
        found["masks"] = max(found["masks"], float(len(s.vars) > 1 and any(x.name == "select" for x in done)))


def _names(e: Expr) -> set[str]:
    return {x.axis for x in walk(e) if isinstance(x, Index)}

