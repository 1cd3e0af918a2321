"""Tile configurations: what a tuner may choose, kept apart from what the mathematics fixes, and which come first.

What is legal is listed (:mod:`redfuser.tensorize.spaces`); the model of resources puts it in order."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from redfuser.acrf.expr import BYTES
from redfuser.errors import LoweringError
from redfuser.outline import generated, library, on_cores, passes
from redfuser.strategies.program import Kernel, Program
from redfuser.strategies.select import ABREAST, IN_TURN, OWN, columns
from redfuser.target import Target
from redfuser.tensorize.asked import (
    between,
    element,
    light,
    narrows,
    operand_bytes,
    reads_once,
    summed_singly,
    takes_singles,
)
from redfuser.tensorize.axes import Roles, choose, neighbours, weighed
from redfuser.tensorize.by_thread import possible
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.contraction import AT_ONCE
from redfuser.tensorize.geometry import static_extent
from redfuser.tensorize.map_configs import branches, map_configs, spread_out
from redfuser.tensorize.model import Sketch, sketched
from redfuser.tensorize.precision import SUMMED, kept, kept_whole, unit_roundoff
from redfuser.tensorize.products import DEEP, product_space, tile_width
from redfuser.tensorize.ranked import ranked
from redfuser.tensorize.rewrite import Arranged, arrange
from redfuser.tensorize.scans import scan_configs
from redfuser.tensorize.spaces import (
    THREE,
    WIDE,
    column_tiles,
    held,
    row_space,
    selection_space,
    walk_space,
    wide_space,
)

SIX = 6.0
"""Products of halves that one of float32 operands in pieces is."""
MANY = 256
"""Threads that share the work of taking operands apart: with half as many, 64 rows of attention take 2.6 times as long on an
H200 (docs/results/h200-2026-11-22-products)."""
SPLIT = 12
"""Bytes on chip of an element of a float32 operand: itself, its three pieces, and the first of them without infinities."""
THREADS, EACH = (512, 256, 128), (32, 16, 8)
"""Splits of a row that are threads of a block, and elements that each asks for at once."""
ALL = 1024
"""Splits of a row that is visited again: threads of the only block that a multiprocessor holds."""
SINGLES = ((64, 32, 256), (64, 32, 128), (64, 64, 256), (32, 32, 128), (32, 64, 128), (16, 64, 64), (16, 32, 64))
"""Rows, segments and threads of products of float32 operands that matrix units take as they are."""
PART = 128
"""Columns of a block where an accumulator that two warp groups would share is shared by blocks, each of which weighs the row by
itself: four times as many blocks, each with a quarter to add up and to write, where there are too few."""
FINE = 64
"""Products of float16 numbers that are added up in one go, at most, where the sum is kept in float32. A matrix unit cuts off
what lies 2^-24 below the largest term or sum, and such a product has 22 bits: positive ones err by 1.7e-7 of 64, 4.5e-7 of 128
(bfloat16: 1.1e-7), always to the same side, and by 3e-5 of 4096 added up in one go, on one H200."""
WHOLE = 256
"""Columns of an accumulated product above which blocks share them, where nothing but the rows' statistics is repeated."""


def configs(program: Program, target: Target) -> list[TileConfig]:
    """Configurations for ``program`` on ``target``, best first by the resource model; never empty.

    Contractions: rows is a multiple of 16, of 64 for warp-group instructions; a tile of few rows (decode) is 16 rows
    with its weights in shared memory. Row programs: 24 to 32 elements per thread, threads a power of two."""
    kernel = program.kernels[0]
    extents = {a.name: static_extent(a.extent, a.name) for a in program.axes}
    arranged = arrange(kernel, extents)
    kernel = arranged.kernel
    roles = choose(kernel, arranged.extents)
    n = roles.extents[roles.segment] if roles.segment else 1
    if kernel.spread:
        return ranked(program, map_configs(kernel, roles, target), target)
    if kernel.scans:
        return ranked(program, scan_configs(kernel, roles, target), target)
    if any(b.role == "producer" and b.reducer is not None for b in kernel.body) or (roles.columns and not roles.lists):
        return _products(program, arranged, roles, n, target)
    if roles.lists:
        return ranked(program, _warps(n), target)
    own = _own(program, kernel, roles, n, target)
    if own and not columns(program.fused):
        return own  # what a rebase moves, as it was measured
    return ranked(program, own or _rows(program, kernel, roles, n, target), target)


def _warps(n: int) -> list[TileConfig]:
    """A warp for each row of ``n`` elements, of which lists are kept."""
    padded = 1 << max(5, (n - 1).bit_length())
    return [TileConfig(r, padded, 32 * r, 0, "registers", False) for r in (4, 2, 8, 1)]


def _own(program: Program, kernel: Kernel, roles: Roles, n: int, target: Target) -> list[TileConfig]:
    """Rows that are walked side by side, each a thread's or a few threads' own; none where they are too few or lie apart."""
    many = roles.extents[roles.rows] >= OWN or (roles.extents[roles.rows] > OWN // 2 and columns(program.fused))
    if not (many and kernel.kind != "resident" and target.kind == "cuda" and neighbours(kernel, roles.rows)):
        return []
    each = EACH[1:] if summed_singly(program) else EACH
    ways = (1, ABREAST) if columns(program.fused) else (1,)
    if 2 * prod(roles.extents[a] for a in (roles.rows, *roles.grid)) < target.sms * target.max_threads:
        ways = ways[::-1]
    return [TileConfig(OWN, s * k, OWN * k, 0, "registers", False) for k in ways for s in each if k == 1 or s * k <= n]


def _rows(program: Program, kernel: Kernel, roles: Roles, n: int, target: Target) -> list[TileConfig]:
    """Rows of ``n`` elements that no product is part of."""
    beside = neighbours(kernel, roles.rows)
    turned = beside and any(b.role == "post" and b.axes[-1:] == (roles.segment,) for b in kernel.tail)
    all_rows = prod(roles.extents[a] for a in (roles.rows, *roles.grid))
    space = row_space(kernel.kind == "resident", roles.extents[roles.rows], n, beside, all_rows,
                      target.sms * target.max_blocks, target.warp, any(roles.segment in b.axes for b in kernel.tail),
                      any(len(a.names) > 1 for a in program.fused.state.accumulators), summed_singly(program), turned,
                      weighed(kernel, roles.rows))
    if target.kind == "cuda" and program.splits in ((ALL,) if program.kernels[2:] else THREADS):
        few = IN_TURN if summed_singly(program) else EACH[0]
        each = [s for s in EACH if s <= few and possible(program, s)]
        each = each[:1] if program.kernels[2:] else each  # one block has nothing but what it asks for at once to hide behind
        space = [*(TileConfig(program.splits, s, program.splits, stages, "registers", False)
                   for s in each for stages in ((0,) if program.kernels[2:] else (2, 0) if s == EACH[0] else (0, 2))), *space]
    if branches(kernel):
        by_threads, walked = program.splits > 1, kernel.kind != "resident"
        space = [c if by_threads and c.rows == program.splits else spread_out(c, walked) for c in space]
    if kernel.kind == "resident" and summed_singly(program):
        few = max(IN_TURN, min(c.rows * c.segment // c.threads for c in space))
        space = [c for c in space if c.rows * c.segment <= few * c.threads]
    return space


def _products(program: Program, arranged: Arranged, roles: Roles, n: int, target: Target) -> list[TileConfig]:
    """Contractions: alone, with statistics of their rows beside them, or a row walked between two."""
    kernel, extents = arranged.kernel, roles.extents
    rows = extents[roles.rows]
    depth = max((extents[b.over] for b in kernel.body if b.role == "producer" and b.over in extents), default=0)
    if roles.lists:
        return ranked(program, selection_space(n, depth, target), target)
    widths = [extents[a] for a in roles.columns]
    columns = sum(widths)
    dtype = element(kernel, roles)
    size = BYTES[dtype]
    whole = any(kept_whole(program.fused, arranged.origin.get(b.name, b.name))
                for b in kernel.body if b.role == "producer" and b.over)
    if (width := tile_width(kernel, roles, extents, depth)) and size == 2:
        space = _fine(product_space(Sketch(rows, n, depth, 1, 0, size, size, dtype, apart=whole), target), dtype, whole)
        if made := [replace(c, segment=width, chunk=c.segment, columns=0) for c in space if c.columns == width]:
            return ranked(program, made, target)
    singles = takes_singles(kernel, roles)
    pieces, singles = singles and not target.singles, singles and target.singles
    inner = any(b.role == "producer" and b.over for b in kernel.body)
    alone = bool(roles.columns) and all(a in kernel.grid for a in roles.columns)
    if not alone:
        _veto(kernel, roles.grid, extents, rows, n, columns=columns, depth=depth, target=target, pieces=pieces, singles=singles)
    outer = prod(extents[a] for a in roles.grid)
    sketch = Sketch(rows, columns, n, outer, max(depth, 1) if inner else 0, size, size, dtype, *between(kernel, roles, target),
                    once=reads_once(kernel), narrowed=narrows(kernel), held=SPLIT if pieces else size)
    along = {n for b in kernel.init for n in b.names if roles.column_of(b.axes)}
    enough = SUMMED if inner else unit_roundoff("f16")
    fine = any(kept(program.fused, arranged.origin.get(n, n), alone) < enough for n in along)
    if not inner and (alone or columns * (1 + (fine or pieces)) > WHOLE):
        left, right = (SPLIT, SPLIT) if pieces else operand_bytes(kernel, roles)
        sketch = replace(sketch, left=left, right=right, mapped=not alone, apart=fine or pieces or min(left, right) == 1,
                         several=len(along), narrowed=False, dtype=sketch.dtype if min(left, right) > 1 else "e4m3")
        space = [replace(c, pieces=pieces, tf32=singles) for c in _fine(product_space(sketch, target), dtype, fine)
                 if not (pieces and c.warp_specialized)]  # the pieces' writes race: softmax(s) @ v of 100 x 100 and 192 columns
        return ranked(program, space, target, sketch)
    sketch = replace(sketch, apart=fine or pieces)
    space = _fine(_walked(kernel, roles, n, sketch, target, pieces=pieces, singles=singles, inner=inner), dtype, fine)
    if depth > (AT_ONCE if whole else 2 * DEEP):  # too deep to hold, or to add up in one go: the contraction in chunks
        space = [replace(c, chunk=64) for c in space if c.stages == 2]
    if kernel.kind == "resident" and not columns and n > WIDE and not singles:  # more than tall tiles have registers for
        more = [replace(c, pieces=pieces) for c in wide_space(n, target) if not pieces or c.threads >= MANY]
        return ranked(program, [*space, *more], target)
    if (pieces or singles) and not any(sketched(sketch, c, target) for c in space):
        raise LoweringError("RF490", f"{kernel.name}: contractions of f32 operands, {max([depth, *widths])} deep",
                            why=f"{'their pieces' if pieces else 'they'} do not fit on chip beside the rows that would make "
                            "them worth it", help="use f16 or bf16 operands")
    return ranked(program, space or [TileConfig(64, 32, 128, 1, "registers", False)], target, sketch)


def _fine(space: list[TileConfig], dtype: str, fine: bool) -> list[TileConfig]:
    """``space`` with segments of as few products as may be added up in one go."""
    return list(dict.fromkeys(replace(c, segment=min(c.segment, FINE)) for c in space)) if fine and dtype == "f16" else space


def _walked(kernel: Kernel, roles: Roles, n: int, sketch: Sketch, target: Target, *,
            pieces: bool, singles: bool, inner: bool) -> list[TileConfig]:
    """A row of ``n`` elements that is walked in segments, with a product for each. inner: of which the row is made; pieces,
    singles: as in :func:`_veto`."""
    rows, widths = sketch.rows, [roles.extents[a] for a in roles.columns]
    summed = [roles.extents[a] for b in kernel.init for _ in b.names if (a := roles.column_of(b.axes))]
    if singles:  # a product lays its sums out otherwise than it takes float32 operands
        space = [TileConfig(m, s, t, 0, "shared", False, tf32=True, columns=c) for c in column_tiles(widths)
                 for m, s, t in SINGLES if s <= max(32, n) and m <= max(16, rows)]
    else:
        space = [replace(c, columns=t) for t in column_tiles(widths)
                 for c in walk_space(target, rows, n, held(summed, t), len(summed) > len(widths), sketch.outer)]
        if not target.wgmma and not inner:  # rows of loads are reduced among powers of two of threads
            space = [c for c in space if c.segment & (c.segment - 1) == 0]
    if sum(widths) * (1 + sketch.apart) > WHOLE and target.tma and target.wgmma and not singles:
        space += [TileConfig(64, s, 128, stages, "registers", True, columns=PART)
                  for s in (64, 32) for stages in (2, 1) if s <= n and max(widths) > PART]
    if pieces:
        space = [replace(c, pieces=True) for c in space if not c.warp_specialized and c.segment <= 64 and c.threads >= MANY]
    if sketch.narrowed and rows > 16:  # an unknown number of steps: see lower.py
        space = [c for c in space if (c.stages <= 1 or c.warp_specialized) and not c.persistent]
    if not light(kernel, roles):
        space = [c for c in space if c.rows != THREE]
    return space


def _veto(kernel: Kernel, grid: tuple[str, ...], extents: dict[str, int], rows: int, n: int, *,
          columns: int, depth: int, target: Target, pieces: bool, singles: bool) -> None:
    """Refuse a cascade around a large matrix product that a row walk would run on a few multiprocessors, and a product of
    normalised rows that a library runs better. pieces: its operands are float32, which the library takes on other units;
    singles: which both give to the matrix units as they are.

    The products on as many blocks as there are row tiles, each with operands of its own from the last cache, against a
    library's on all of the machine and the traffic of what is between. Raises LoweringError RF497."""
    if 0 < depth <= 2 * DEEP:
        return
    outer = prod(extents[a] for a in grid)
    flops, read = 2.0 * outer * rows * n * (depth + columns), 2.0 * n * (depth + columns)
    blocks = outer * -(-rows // 64)
    busy = min(1.0, blocks / target.sms)
    own = flops * (target.rates["f16"] / target.rates["f32"] if singles else 1.0)
    fused = generated(target, SIX * flops if pieces else own, read)
    fused = max(fused, blocks * read / (target.port * target.clock * target.sms)) / busy
    unfused = on_cores(target, flops, read) if pieces else library(target, own, read)
    unfused += passes(target, 6.0 * 2 * outer * rows * n, 2)
    if fused > unfused:
        raise LoweringError("RF497", f"{kernel.name}: {blocks} blocks of a contraction {depth} deep",
                            why=f"modelled {fused * 1e6:.0f} us fused, {unfused * 1e6:.0f} us unfused on {target.part}",
                            help="the region runs unfused")
