"""When does a contraction belong inside a cascade? There is no tile program yet: a roofline over bytes and flops only.

The unfused program gets a library's product and pays for writing and reading the tensor in between; the fused one keeps that
tensor on chip but gets a product that is slower and repeats work that several readers share.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from redfuser.acrf.affine import axes_of
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import BYTES, FLOATS, NARROW, Cast, Expr, Load, Op, walk
from redfuser.dtypes import widens
from redfuser.outline import FEW, HELD, MAKING, generated, library, on_cores, passes
from redfuser.partition.drafted import Draft, R
from redfuser.partition.epilogue import absorbed, convolves, launches
from redfuser.partition.graph import Node
from redfuser.partition.positions import axes_in, slides
from redfuser.partition.values import Instance
from redfuser.target import Target

HOST = "cpu"
"""The target that is no device: :mod:`redfuser.partition.host` says what its products take."""
MAX_DEPTH = 1024
"""Inner axis of a per-step contraction whose row operand (64 rows of it) stays in shared memory."""
TILE = 256
"""Columns of each block where several share what is more than one holds: each makes the row again."""
BLOCK, SEVERAL = 128, 2
"""Rows of a block of a product, of whose columns it has twice as many; products that share their left operand in one kernel:
there are no registers for the sums of three."""
MAX_ROW = 512
"""Row length that stays in registers whole, so that the inner contraction is evaluated once, in any order."""
ROWS = 64
"""Rows that a warp group multiplies at once."""
BUSY = 0.5
"""The part of the multiprocessors that memory needs: of two products of few rows, 64 tiles on the 132 of an H200 take 19.1 us
for a library's 24.1; of one, with which a library is done in 8.5, they take 10.4."""
PIECES = 6
"""Products of halves that one of float32 numbers is made of (docs/decisions/0009)."""
SMALL = 1 << 20
"""Bytes of a matrix below which a product with a vector is left to the library."""


def elements(d: Draft, axes: tuple[str, ...] | frozenset[str]) -> int:
    return prod(d.extents[a] for a in set(axes))


def operand_bytes(d: Draft, inst: Instance) -> int:
    """Bytes of the tensors that a contraction reads from memory, each once: of one layer's slice of all caches, the slice."""
    nodes: dict[Node, int] = {}
    for n, at in inst.body.sites:
        if n in d.external:
            each = prod(min(extent, elements(d, axes_of(e))) for e, extent in zip(at, n.shape, strict=True))
            nodes[n] = min(each, elements(d, frozenset(a for e in at for a in axes_of(e)))) * BYTES[n.dtype]
    return sum(nodes.values())


def share_of_device(d: Draft, inst: Instance) -> float:
    """The part of the device that the cascade keeps busy: instances that share no matrix operand, tiles of 16 rows of those
    that do, segments of 128 elements of the row. A mask, a position or a bias that instances share keeps none together."""
    read = [frozenset(a for e in at for a in axes_of(e)) for n, at in inst.body.sites if n in d.external]
    matrices = [axes for axes in read if axes - frozenset(d.p_axes) - {R}]
    own = [axes & frozenset(d.p_axes) for axes in matrices or read]
    apart = frozenset.intersection(*own) if own else frozenset(d.p_axes)
    tiles = elements(d, apart) * ceil(elements(d, frozenset(d.p_axes) - apart) / 16) * ceil(d.extents[R] / 128)
    return min(1.0, tiles / d.machine.sms)


def shares(columns: int) -> int:
    """Blocks that share the columns of a row."""
    return ceil(columns / TILE) if columns > HELD else 1


def inner_pays(d: Draft, inst: Instance) -> bool:
    """Evaluate a contraction per step of the cascade rather than before it?

    Its row operand must stay on chip while the row goes by, or the row itself: a projection with a long inner axis and
    a long row would read its operand again for every tile of the row. A window that slides over its operand (a convolution) is
    no matrix: a library has ways for it that a step of a cascade has not.
    """
    if any(slides(d.ev.ix, e, inst.over) for _, at in inst.body.sites for e in at):
        return False
    if d.extents[inst.over] > MAX_DEPTH and d.extents[R] > MAX_ROW:
        return reduced_as_made(d, inst)
    points = elements(d, inst.axes)
    flops = 2 * points * d.extents[inst.over]
    held = points * BYTES[inst.node.dtype]
    rows = elements(d, d.p_axes)
    columns = max((elements(d, i.axes) // rows for i in d.rows if rows), default=1)
    moved = operand_bytes(d, inst)
    outside = library(d.machine, flops, moved + held)
    inside = generated(d.machine, flops * shares(columns), moved) / share_of_device(d, inst)
    if d.extents[R] <= MAX_ROW:
        walked = ceil(d.extents[inst.over] / d.machine.step) * d.machine.waits * d.machine.latency
        inside, outside = max(inside, walked), max(outside, walked / d.machine.ahead)
    return inside < outside + passes(d.machine, held, 1)


def deep(d: Draft) -> bool:
    """Is the row made by a contraction that no block holds an operand of?"""
    return any(i.contraction and d.extents[i.over] > MAX_DEPTH and d.extents[R] > MAX_ROW for i in d.inner)


def reduced_as_made(d: Draft, inst: Instance, again: bool = False) -> bool:
    """A long row of a deep product, of which numbers are kept, and the row where it is written in any case: blocks take a tile
    of the product each, as those of a library do, and reduce it; partial results of a row are merged behind. With roles the
    product is as fast as theirs (4096 rows of 32000, 4096 deep, and their cross-entropy: 1.617 ms on an H200, where a library's
    product and a kernel take 1.760). Of fewer rows than a warp group has, a library does better than whole tiles of them.
    again: a map of the row and its numbers is left, which reads the row once more."""
    shared = [axes for n, at in inst.body.sites if R in (axes := {a for e in at for a in axes_of(e)}) and n in d.external]
    own = prod(d.extents[a] for a in d.p_axes if not any(a in axes for axes in shared))
    kinds = {i.node.stmt.reducer.kind for i in d.rows if isinstance(i.node.stmt, Reduce)}
    if own < ROWS or kinds - {"sum", "max", "min"} or any(i.contraction for i in d.rows):
        return False
    points = elements(d, inst.axes)
    flops, held, moved = 2.0 * points * d.extents[inst.over], points * BYTES[inst.node.dtype], operand_bytes(d, inst)
    written = [s.node.bytes for s in d.sinks if R in axes_in(s.at)]
    held = min([held, *written])
    beside = sum(written) + sum(n.bytes for n in d.external if written and all(n is not m for m, _ in inst.body.sites))
    tiles = points // own // d.extents[R] * ceil(own / BLOCK) * ceil(d.extents[R] / TILE)
    whole = 2.0 * d.extents[inst.over] * _in_turns(d, points // own // d.extents[R] * ceil(own / BLOCK), d.extents[R])[1]
    lead = (d.machine.kept if written else d.machine.alone) if d.machine.wgmma and d.machine.tma else d.machine.lead
    inside = max(whole * (1 + lead) / d.machine.flops, (moved + beside) / d.machine.bandwidth)
    inside += passes(d.machine, 2 * tiles * BLOCK * len(d.rows) * 4, 1) + (passes(d.machine, sum(written), 1) if again else 0)
    return inside < library(d.machine, flops, moved + held) + passes(d.machine, held + beside, 1)


def columns_shared(d: Draft, inst: Instance) -> bool:
    """Do several blocks share the columns of a contraction?"""
    return shares(elements(d, inst.axes) // max(elements(d, d.p_axes), 1)) > 1


def consumer_pays(d: Draft, inst: Instance, settled: bool = False) -> bool:
    """Let a contraction over the r-axis consume the row as it is produced, rather than after it is written? settled: nothing
    joins any more; before, a row that several blocks would make may still be a contraction's, which saves most."""
    if deep(d):
        return False
    rows = elements(d, d.p_axes)
    row = rows * d.extents[R]
    columns = elements(d, inst.axes) // max(rows, 1)
    flops, written = 2 * row * columns, row * 2
    moved, more = operand_bytes(d, inst), shares(columns) - 1
    outside = library(d.machine, flops, moved + written)
    if not more:
        outside += passes(d.machine, written, 1)
        return generated(d.machine, flops, moved) / share_of_device(d, inst) < outside
    inner = [i for i in d.inner if i.contraction]  # every block of columns makes the row anew, or reads it anew
    first, read = sum(2 * elements(d, i.axes) * d.extents[i.over] for i in inner), sum(operand_bytes(d, i) for i in inner)
    outside += passes(d.machine, written, 0) if settled and not inner else passes(d.machine, 3 * written, 2)
    outside += library(d.machine, first, read)
    inside = generated(d.machine, flops + (1 + more) * first + more * MAKING * row, moved + (1 + more) * (read or written))
    inside /= share_of_device(d, inst)
    return inside < outside


def weights_stay(d: Draft, inst: Instance) -> bool:
    """Is a product of float32 numbers faster by matrix units, in pieces, where its weights are made and added up on the way,
    than by a library's on the cores, for which a map writes them and which a sum reads once more?"""
    read = [(n, axes) for n, at in inst.body.sites if n in d.external and R in (axes := {a for e in at for a in axes_of(e)})]
    made = [n for n, axes in read if n.unit is not None and n.unit.pointwise and launches(n.unit) and axes >= set(d.p_axes)]
    if len(made) != 1 or any(n.dtype != "f32" for n, _ in read) or not (d.machine.wgmma and d.machine.tma):
        return False
    flops, moved = 2.0 * elements(d, inst.axes) * d.extents[R], operand_bytes(d, inst)
    inside = generated(d.machine, PIECES * flops, moved) / share_of_device(d, inst)
    return inside < on_cores(d.machine, flops, moved) + passes(d.machine, 2 * made[0].bytes, 1)


def scaling_pays(machine: Target, rows: int, matrices: Sequence[int]) -> bool:
    """Let products with roles take the scale of a norm's rows out of their sums? rows: the bytes of the norm's result, which is
    then not written and read. matrices: the bytes of those that its weight goes into at each call."""
    into = passes(machine, 2.0 * sum(matrices), len(matrices))
    return machine.wgmma and machine.tma and into < passes(machine, 2.0 * rows, 1)


def product_alone(d: Draft) -> bool:
    """Are its reductions products over the r-axis, and nothing else?"""
    return not d.inner and all(i.contraction for i in d.rows)


def pays_alone(d: Draft) -> bool:
    """Are products, and the maps behind them, faster as one kernel than as a library's and one more for the maps?"""
    return product_pays(d) or vector_pays(d)


def vector_pays(d: Draft) -> bool:
    """Products with one vector each, of matrices whose rows lie in memory as they are summed: a walk of rows, which reads the
    matrix once as a library's does and is not made for more. Of a small matrix either is a launch."""
    if not (d.machine.vector and product_alone(d)):
        return False
    matrices: dict[Node, int] = {}
    for i in d.rows:
        read = [(n, tuple(axes_of(e) for e in at)) for n, at in i.body.sites if n in d.external]
        wide = [(n, axes) for n, axes in read if set(i.axes) <= set().union(*axes)]
        if len(read) != 2 or len(wide) != 1 or wide[0][1][-1] != {R} or wide[0][0].dtype not in (*NARROW, "f32"):
            return False
        matrices[wide[0][0]] = wide[0][0].bytes
    return sum(matrices.values()) >= SMALL


def product_pays(d: Draft) -> bool:
    """Is a product, or are two of one left operand, with the maps behind and scales in front faster as one kernel with roles
    than as a library's and one more kernel for the maps? What a library does to its own product at no cost is no map."""
    if not (d.machine.wgmma and d.machine.tma and product_alone(d)):
        return False
    sides = [s for i in d.rows if (s := _sides(d, i)) is not None]
    if len(sides) < len(d.rows) or len(sides) > SEVERAL or len({left for (left, _), _ in sides}) > 1:
        return False
    scaled = {n for i in d.rows if i.node.unit is not None for n in i.node.unit.args
              if n.unit is not None and n.unit in d.units and launches(n.unit)}
    front = {u for u in d.units for n in scaled if n.unit is u or (n.unit is not None and n.unit.ancestors >> u.index & 1)}
    behind = any(launches(u) and not absorbed(u) for u in d.units - front)
    if len(d.sinks) > 1 or not (behind or scaled):
        return False  # a second result is a map that others read besides, with the product
    _, (shared, rows, columns) = sides[0]
    along, across = (elements(d, axes) for axes in (rows, columns))
    few, many = sorted((along, across))
    if few <= FEW < many:  # as columns, behind all of which a tile reads its rows once
        tiles = elements(d, shared) * ceil(many / BLOCK)
        whole, stretched = tiles * BLOCK * FEW, _stretched(tiles, d.machine.sms)
        least = BUSY * d.machine.sms * (len(sides) == 1)
    else:
        tiles, whole = _in_turns(d, elements(d, shared) * ceil(along / BLOCK), across, len(sides))
        least, stretched = d.machine.sms, 1.0
    if tiles < least:
        return False  # a library shares the inner axis out
    operands = {n for (left, right), _ in sides for n in (left, right)}
    flops = sum(2 * elements(d, i.axes) * d.extents[R] for i in d.rows)
    padded = flops * whole / (elements(d, shared) * along * across)
    read = sum(n.bytes for n in operands)
    made = sum(elements(d, i.axes) * BYTES[left.dtype] for i, ((left, _), _) in zip(d.rows, sides, strict=True))
    beside = sum(n.bytes for n in d.external if n not in operands) + sum(s.node.bytes for s in d.sinks)
    inside = max(padded * (1 + (d.machine.alone if behind else 0)) / d.machine.flops,
                 (read * stretched + beside) / d.machine.bandwidth)
    outside = library(d.machine, flops, read + made) + (passes(d.machine, made + beside, 1) if behind else 0)
    return inside < outside + passes(d.machine, sum(n.bytes for n in scaled), 0)


def _stretched(tiles: int, sms: int) -> float:
    """By what reading takes longer where the last turn has tiles for fewer multiprocessors than memory needs."""
    whole, last = divmod(tiles, sms)
    return (whole * sms + max(last, BUSY * sms if last else 0)) / tiles


def _in_turns(d: Draft, tall: int, across: int, several: int = 1) -> tuple[int, int]:
    """Of a product of ``across`` columns and rows in ``tall`` blocks: its narrower tiles, and the elements of a result that the
    machine makes in as many turns as the better of two widths takes. several: products of a block."""
    wide, narrow = (tall * ceil(across / (k * BLOCK // several)) for k in (2, 1))
    turns = min(ceil(wide / d.machine.sms) * 2, ceil(narrow / d.machine.sms))
    return narrow, turns * d.machine.sms * BLOCK * (BLOCK // several)


def _sides(d: Draft, i: Instance) -> tuple[tuple[Node, Node], tuple[frozenset[str], frozenset[str], frozenset[str]]] | None:
    """Of a product of two tensors in memory that matrix units take as they are, but for scales that are the same along the sum:
    both, that whose rows come first in the result first, and the axes that both have, those of the rows and those of the
    columns. None for any other contraction."""
    named = {n.name: n for n in d.external}
    loads = _operands(i.body.expr)
    if loads is None or len(loads) != 2 or i.node.unit is None or convolves(i.node.unit):
        return None
    read = [(named[x.tensor], frozenset(a for e in x.indices for a in axes_of(e)) - {R}) for x in loads]
    if any(not axes & set(i.axes) or n.dtype not in NARROW for n, axes in read):
        return None
    (left, rows), (right, columns) = sorted(read, key=lambda x: min(i.axes.index(a) for a in x[1] if a in i.axes))
    shared = rows & columns
    return ((left, right), (shared, rows - shared, columns - shared)) if rows - shared and columns - shared else None


def _operands(e: Expr) -> list[Load] | None:
    """What a product along the r-axis reads, without what scales it; None for what is no product."""
    match e:
        case Load():
            return [e]
        case Cast(arg=x) if e.dtype in ("f16", "bf16", "f32") and x.dtype in FLOATS:
            found = _operands(x)  # what the scale leaves must fit the type that it was rounded to
            return found if found and all(v.dtype == e.dtype or widens(v.dtype, e.dtype) for v in found) else None
        case Op(name="mul" | "div", args=(x, y)):
            along = [k for k in (x, y) if any(isinstance(v, Load) and any(R in axes_of(j) for j in v.indices) for v in walk(k))]
            sides = [_operands(k) for k in along]
            if (e.name == "div" and along != [x]) or None in sides:
                return None
            return list(dict.fromkeys(v for f in sides if f is not None for v in f))
    return None
