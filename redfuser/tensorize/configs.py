"""Tile configurations: what a tuner may choose, kept apart from what the mathematics fixes, and which come first.

What is legal is listed here; the model of resources puts it in order. Of products there are dozens of tilings: the model says
of each from extents alone what it would take, and of the best again from their tile programs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import ceil, log, prod

from redfuser.acrf.expr import BYTES, Index, Load, Op, indices_of, walk
from redfuser.errors import LoweringError
from redfuser.outline import HELD, generated, library, on_cores, passes
from redfuser.strategies.program import Kernel, Program
from redfuser.strategies.select import FEW, LINE, LONG, STEP
from redfuser.target import Target
from redfuser.tensorize.algebra import factors
from redfuser.tensorize.arguments import static_extent
from redfuser.tensorize.axes import Roles, choose, neighbours, strip_casts
from redfuser.tensorize.by_thread import possible
from redfuser.tensorize.config import Schedule, TileConfig
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import TileKernel
from redfuser.tensorize.ir.tangents import near
from redfuser.tensorize.map_configs import map_configs
from redfuser.tensorize.model import Sketch, operations, predicted, sketched, uneven
from redfuser.tensorize.precision import kept, unit_roundoff
from redfuser.tensorize.products import DEEP, product_space, tile_width
from redfuser.tensorize.rewrite import arrange
from redfuser.tensorize.sizes import round_up
from redfuser.tensorize.tiles import tensorize

SIX = 6.0
"""Products of halves that one of float32 operands in pieces is."""
MANY = 256
"""Threads that share the work of taking operands apart: with half as many, 64 rows of attention take 2.6 times as long on an
H200 (docs/results/h200-2026-11-22-products)."""
SPLIT = 12
"""Bytes on chip of an element of a float32 operand: itself, its three pieces, and the first of them without infinities."""
LOOKED = 4
"""Tilings of products with roles, and as many without, whose tile programs are looked at."""
AHEAD = 2
"""Configurations with roles in front of those without, at most: the compiler may refuse them."""
LARGE = 100
"""Statements of a program that is lowered once: what is listed first is the first."""
FEWEST, USUAL, MOST = 8, 28, 64
"""Elements of a row on chip that a thread has."""
IN_TURN = 16
"""As many, at most, where it adds them in turn to a float32 result. Each addition of equal terms errs to the same side, so that
the errors of ties add up: of a variance of .5 on an H200, 64 of five values make .24e-6 where the rule allows .17e-6 over 128
rows, and 32 make .15e-6 where it allows .13e-6 for a row alone."""
THREADS, EACH = (256, 128), (32, 16, 8)
"""Splits of a row that are threads of a block, and elements that each asks for at once."""
TIE, ROWS_TIE = 1.009, 1.06
"""Predictions that differ by less say nothing: the one listed first is the first. Of rows that memory bounds they say less."""
NOT_FOR_IT = ("RF499", "RF410")
"""A schedule that a kernel has no roles for, and one that has no room."""
SINGLES = ((64, 32, 256), (64, 32, 128), (64, 64, 256), (32, 32, 128), (32, 64, 128), (16, 64, 64), (16, 32, 64))
"""Rows, segments and threads of products of float32 operands that matrix units take as they are."""
THREE = 192
"""Rows of three warp groups."""
_WAYS: tuple[Schedule, ...] = ("persistent", "overlap", "persistent-lanes", "overlap-lanes")
ASKED = 1024
"""Keys from which a few rows are worth roles: one group that computes, and copies that run ahead of it. Most of its 64 rows are
nobody's, which costs nothing where memory is what bounds. One H200, in graphs, 32 heads on 8 of 128, beside a read of the same
bytes: 64 x 4096 keys .239 ms for .286 (.236), 8 x 32768 in four .242 for .259 (.235), 1 x 32768 in 33 .0443 for .0452."""
_COSTLY = ("exp", "tanh", "sigmoid", "erf", "log", "sqrt", "rsqrt", "div", "sin", "cos", "pow", "lt", "le", "gt", "ge")
NARROW = 64 << 10
"""Bytes of shared memory in which 64 rows of 512 columns leave no room for keys."""
WHOLE = 256
"""Columns of an accumulated product above which blocks share them, where nothing but the rows' statistics is repeated."""


def configs(program: Program, target: Target) -> list[TileConfig]:
    """Configurations for ``program`` on ``target``, best first by the resource model; never empty.

    Contractions: rows is a multiple of 16, of 64 for warp-group instructions; a tile of few rows (decode) is 16 rows
    with its weights in shared memory. Row programs: 24 to 32 elements per thread, threads a power of two."""
    kernel = program.kernels[0]
    extents = {a.name: static_extent(a.extent, a.name) for a in program.axes}
    arranged = arrange(kernel, extents)
    kernel, extents = arranged.kernel, arranged.extents
    roles = choose(kernel, extents)
    extents = roles.extents
    contracts = any(b.role == "producer" and b.reducer is not None for b in kernel.body) or (
        bool(roles.columns) and not roles.lists)
    rows = extents[roles.rows]
    n = extents[roles.segment] if roles.segment else 1
    if kernel.spread:
        return map_configs(kernel, roles, target)
    if not contracts and roles.lists:  # a warp per row
        padded = 1 << max(5, (n - 1).bit_length())
        return ranked(program, [TileConfig(r, padded, 32 * r, 0, "registers", False) for r in (4, 2, 8, 1)], target)
    if not contracts:
        space = _row_space(kernel.kind == "resident", rows, n, neighbours(kernel, roles.rows))
        if target.kind == "cuda" and program.splits in THREADS:
            few = IN_TURN if _summed_singly(program) else EACH[0]
            space = [*(TileConfig(program.splits, s, program.splits, 0, "registers", False) for s in EACH
                       if s <= few and possible(program, s)), *space]
        if kernel.kind == "resident" and _summed_singly(program):
            few = max(IN_TURN, min(c.rows * c.segment // c.threads for c in space))
            space = [c for c in space if c.rows * c.segment <= few * c.threads]
        return ranked(program, space, target)
    depth = max((extents[b.over] for b in kernel.body if b.role == "producer" and b.over in extents), default=0)
    if roles.lists:
        return ranked(program, _selection_space(n, depth, target), target)
    widths = [extents[a] for a in roles.columns]
    columns = sum(widths)
    dtype = _element(kernel, roles)
    size = BYTES[dtype]
    if (width := tile_width(kernel, roles, extents, depth)) and size == 2:
        space = product_space(Sketch(rows, n, depth, 1, 0, size, size, dtype), target)
        if made := [replace(c, segment=width, chunk=c.segment, columns=0) for c in space if c.columns == width]:
            return ranked(program, made, target)
    singles = _takes_singles(kernel, roles)
    pieces, singles = singles and not target.singles, singles and target.singles
    inner = any(b.role == "producer" and b.over for b in kernel.body)
    alone = bool(roles.columns) and all(a in kernel.grid for a in roles.columns)
    if not alone:
        _veto(kernel, roles.grid, extents, rows, n, columns=columns, depth=depth, target=target, pieces=pieces, singles=singles)
    outer = prod(extents[a] for a in roles.grid)
    sketch = Sketch(rows, columns, n, outer, max(depth, 1) if inner else 0, size, size, dtype, *_between(kernel, roles, target),
                    once=_reads_once(kernel), narrowed=_narrows(kernel), held=SPLIT if pieces else size)
    along = {n for b in kernel.init for n in b.names if roles.column_of(b.axes)}
    fine = not inner and any(kept(program.fused, arranged.origin.get(n, n), alone) < unit_roundoff("f16") for n in along)
    if not inner and (alone or columns * (1 + (fine or pieces)) > WHOLE):
        left, right = (SPLIT, SPLIT) if pieces else _operand_bytes(kernel, roles)
        sketch = replace(sketch, left=left, right=right, mapped=not alone, apart=fine or pieces or min(left, right) == 1,
                         several=len(along), narrowed=False, dtype=sketch.dtype if min(left, right) > 1 else "e4m3")
        return ranked(program, [replace(c, pieces=pieces, tf32=singles) for c in product_space(sketch, target)], target, sketch)
    space = [replace(c, columns=t) for t in _column_tiles(widths) for c in _gemm_space(target, rows, n, _held(widths, t))]
    if not target.wgmma and not inner:  # rows of loads are reduced among powers of two of threads
        space = [c for c in space if c.segment & (c.segment - 1) == 0]
    if singles:  # a product lays its sums out otherwise than it takes float32 operands
        space = [TileConfig(m, s, t, 0, "shared", False, tf32=True, columns=c) for c in _column_tiles(widths)
                 for m, s, t in SINGLES if s <= max(32, n) and m <= max(16, rows)]
    if pieces:
        space = [replace(c, pieces=True) for c in space if not c.warp_specialized and c.segment <= 64 and c.threads >= MANY]
    if sketch.narrowed and rows > 16:  # an unknown number of steps: see lower.py
        space = [c for c in space if (c.stages <= 1 or c.warp_specialized) and not c.persistent]
    if sketch.narrowed or not _light(kernel, roles):
        space = [c for c in space if c.rows != THREE]
    if depth > 2 * DEEP:  # too deep to hold: the contraction in chunks
        space = [replace(c, chunk=64) for c in space if c.stages == 2]
    if (pieces or singles) and not any(sketched(sketch, c, target) for c in space):
        raise LoweringError("RF490", f"{kernel.name}: contractions of f32 operands, {max([depth, *widths])} deep",
                            why=f"{'their pieces' if pieces else 'they'} do not fit on chip beside the rows that would make "
                            "them worth it", help="use f16 or bf16 operands")
    return ranked(program, space or [TileConfig(64, 32, 128, 1, "registers", False)], target, sketch)


def _summed_singly(program: Program) -> bool:
    """Is a result float32, and a sum that it is made of kept in that?"""
    written = {t.name: t.dtype for k in program.kernels for t in k.writes}
    return any(written[o] == "f32" for o in program.fused.cascade.outputs) and any(
        a.reducer.kind == "sum" and kept(program.fused, n) < unit_roundoff("f16")
        for a in program.fused.state.accumulators for n in a.names)


def ranked(program: Program, space: list[TileConfig], target: Target, sketch: Sketch | None = None) -> list[TileConfig]:
    """``space`` by what the model predicts of each tile program; those that a sketch leaves behind come last, and are looked at
    while nothing else is left. Left out are such as the kernel has no roles for or no room, as there is no layout for, or that
    come to the same; what else is wrong with one is said where it is tried. Raises LoweringError where none is left: RF452
    where some lack a layout alone, else RF410 where some lack room."""
    ahead, rest = space, []  # type: list[TileConfig], list[TileConfig]
    if sketch is not None:
        times = {c: t.total for c in space if (t := sketched(sketch, c, target)) is not None}
        order = sorted(times, key=times.__getitem__) or space
        plain = [c for c in order if c.schedule == "auto"]
        ahead, rest = [*[c for c in order if c.schedule != "auto"][:LOOKED], *plain[:LOOKED]], plain[LOOKED:]
    made: list[tuple[TileKernel, ...]] = []
    found: dict[TileConfig, float] = {}
    lacking: dict[str, LoweringError] = {}
    looked = deque(sorted(ahead, key=space.index))
    while looked or (rest and not found):
        c = looked.popleft() if looked else rest.pop(0)
        try:
            tiles = tensorize(program, c, target)
        except LoweringError as error:
            if error.code not in NOT_FOR_IT:
                found[c] = float("inf")
                continue
            lacking.setdefault(error.code, error)
            if error.code == "RF410" and c.columns and c.stages > 2:  # results that are staged need room as well
                looked.append(replace(c, stages=c.stages - 1))
            continue
        if len(list(every(tiles.kernels[0].body))) > LARGE:
            return space
        if why := next(filter(None, (uneven(k, target) for k in tiles.kernels)), ""):
            lacking["RF452"] = LoweringError("RF452", f"{tiles.name}: no tiles for {target.arch}", why=f"TileLang lacks {why}")
            looked += [rest.pop(0)] if rest else []
            continue
        if tiles.kernels not in made:
            made.append(tiles.kernels)
            found[c] = predicted(tiles, target) or float("inf")
    if not found:
        raise next(lacking[code] for code in ("RF452", *NOT_FOR_IT[::-1]) if code in lacking)
    best, tie = min(found.values()), log(TIE if sketch is not None else ROWS_TIE)
    near = sorted(found, key=lambda c: int(log(found[c] / best) / tie) if found[c] < float("inf") else 1 << 30)
    roles = [c for c in near if c.schedule != "auto"][:AHEAD]
    return [*(c for c in near if c.schedule == "auto" or c in roles), *rest]


def _between(kernel: Kernel, roles: Roles, target: Target) -> tuple[float, float]:
    """Operations for an element of the r-axis between two products, of the CUDA cores and of the special function units: what
    is computed of it, its part in the statistics of the row, and its cast."""
    hardware = target.kind == "cuda" and near(False, {t.dtype for t in kernel.writes})
    found = [operations(e, False, hardware) for b in kernel.body if b.role == "producer" and b.reducer is None
             and roles.segment in b.axes for e in b.exprs]
    reduces = sum(b.reducer is not None and b.role == "reduce" and not roles.column_of(b.axes) for b in kernel.body)
    return sum(c for c, _ in found) + reduces + 0.5, sum(f for _, f in found)


def _element(kernel: Kernel, roles: Roles) -> str:
    """The widest dtype of what a block brings as tiles. A vector along rows or segment (a document's number, a slope of each
    head) is none."""
    inner = {b.over for b in kernel.body if b.role == "producer" and b.over}
    sides = {roles.rows, roles.segment, *roles.columns, *inner}
    loads = [x for b in kernel.body for e in b.exprs for x in walk(e) if isinstance(x, Load)]
    tiles = [x.dtype for x in loads if len(indices_of(x) & sides) > 1]
    return max(tiles or [x.dtype for x in loads], key=BYTES.__getitem__, default="f16")


def _operand_bytes(kernel: Kernel, roles: Roles) -> tuple[int, int]:
    """Bytes of an element that varies along the rows, and of one that varies along the columns."""
    loads = [x for b in kernel.body for e in b.exprs for x in walk(e) if isinstance(x, Load)]
    own = [BYTES[x.dtype] for x in loads if indices_of(x) & set(roles.columns)]
    return max((BYTES[x.dtype] for x in loads if not indices_of(x) & set(roles.columns)), default=2), max(own, default=2)


def _takes_singles(kernel: Kernel, roles: Roles) -> bool:
    """Does a contraction read float32 operands, which matrix units take as they are or as sums of pieces?"""
    products = (b for b in kernel.body if b.reducer is not None and b.reducer.kind == "sum" and (
        b.role == "producer" or (b.role == "reduce" and roles.column_of(b.axes) and not roles.lists)))
    bare = [strip_casts(p) for b in products for p in factors(b.exprs[0])]
    return any(isinstance(x, Load) and x.dtype == "f32" for x in bare)


def _narrows(kernel: Kernel) -> bool:
    return any(isinstance(x, Op) and x.name in ("le", "lt", "ge", "gt") and
               any(isinstance(y, Index) and y.axis == kernel.raxis for y in walk(x))
               for b in kernel.body for e in b.exprs for x in walk(e))


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


def _light(kernel: Kernel, roles: Roles) -> bool:
    """One exponential is all that a block computes of an element between its products, and nothing is loaded for it: three warp
    groups have the registers for that, 160 a thread. With a soft cap between they are a tenth slower than two (one H200,
    2x16x2048x64)."""
    between = [x for b in kernel.body if b.role == "producer" and b.reducer is None and roles.segment in b.axes
               for e in b.exprs for x in walk(e)]
    return sum(isinstance(x, Op) and x.name in _COSTLY for x in between) <= 1 and not any(isinstance(x, Load) for x in between)


def _reads_once(kernel: Kernel) -> bool:
    """Both contractions read one tensor along the segment."""
    read = [{x.tensor for e in b.exprs for x in walk(e) if isinstance(x, Load)} for b in kernel.body
            if b.reducer is not None and b.reducer.kind == "sum" and (b.role == "producer" or len(b.axes) > len(kernel.grid))]
    return len(read) > 1 and bool(set.intersection(*read))


def _column_tiles(widths: list[int]) -> list[int]:
    """Tiles of the column axes: 0, all of each, or less where they are more than a block holds."""
    if sum(widths) <= HELD:
        return [0]
    tiles = dict.fromkeys(round_up(ceil(max(widths) / k), 64) for k in range(2, 17))
    return [t for t in tiles if _held(widths, t) <= HELD] or [64]


def _held(widths: list[int], tile: int) -> int:
    """Columns of a block."""
    return sum(min(e, tile or e) for e in widths)


def _gemm_space(target: Target, rows: int, n: int, columns: int) -> list[TileConfig]:
    out: list[TileConfig] = []
    if rows <= 16:
        threads = 128 if round_up(columns, 16) % 32 == 0 else 64  # each warp takes eight columns, or some of these
        out += [TileConfig(16, s, threads, stages, "shared", False) for s in (64, 128) for stages in (2, 3)]
        if target.tma and target.wgmma and n >= ASKED and columns <= 128:
            out += [TileConfig(64, s, 128, 2, "registers", True, schedule="overlap") for s in (128, 64)]
    for m in (64, 128):
        for s in (64, 128, 80, 32):
            for stages in (2, 1):
                if s > max(32, n):
                    continue
                out += [TileConfig(m, s, t * m, stages, "registers", False) for t in ((2, 4) if target.warp > 32 else (2,))]
                if target.tma and m >= 128:
                    out.append(TileConfig(m, s, 2 * m, stages, "registers", True))
    if target.tma and target.wgmma and n >= 128:
        out = [TileConfig(m, 128 if columns <= 128 else 64, 2 * m, 2, "registers", True, schedule=way) for m in (128, THREE)
                if rows >= m and columns <= (64 if m == THREE else 256) for way in _WAYS] + out
    if columns > 256:  # an accumulator this wide is shared by two warp groups, column by column
        out = [TileConfig(64, s, 256, stages, "shared", ws) for s in (64, 32) for stages in (2, 1)
               for ws in ((True, False) if target.tma else (False,))]
        if target.tma and target.wgmma and n > 64:
            out = [TileConfig(64, 64, 256, 2, "shared", True, schedule="relay"), *out]
    if columns > 256 and target.shared_bytes <= NARROW:  # rows and keys as they are wide, a few of each
        out += [TileConfig(m, s, t, 1, "shared", False) for m, s, t in ((32, 32, 256), (16, 32, 128), (16, 16, 64))]
    if target.kind == "hip":  # nothing is pipelined
        out = list(dict.fromkeys(replace(c, stages=0) for c in out))
    return out


def _selection_space(n: int, depth: int, target: Target) -> list[TileConfig]:
    """A row of scores held whole in registers while its best are picked."""
    width = max(16, -(-n // 16) * 16)
    out = []
    for m, threads, weights in ((16, 128, "shared"), (32, 64, "registers"), (64, 128, "registers")):
        if weights == "shared" and width < 64:
            continue
        for stages in (3, 2):
            shared = 2 * stages * 64 * (m + width)
            if m * width / threads <= 128 and shared <= target.shared_bytes and threads >= target.warp:
                out.append(TileConfig(m, width, threads, stages, weights, False, chunk=64 if depth > 64 else 0))  # type: ignore[arg-type]
    return out or [TileConfig(16, width, target.warp, 2, "registers", False, chunk=64)]


def _row_space(resident: bool, rows: int, n: int, neighbours: bool) -> list[TileConfig]:
    """Rows held on chip, or walked, the usual first. neighbours: a block takes whole lines of memory, 32 rows or more where it
    has room for them, and few elements of each at once. A row on chip that is no power of two long is shared evenly by a
    block's threads, four elements at a time, or alone; TileLang has no layout for others, or gives each thread whole rows."""
    if neighbours and not resident and FEW <= rows < 16:
        together = 1 << (rows - 1).bit_length()
        return [TileConfig(together, s // together, 128, 0, "registers", False) for s in (LINE * STEP, LINE * STEP // 2)]
    if neighbours and rows >= 16 and not resident:
        return [TileConfig(32, max(8, min(n, 64)), 128, 0, "registers", False), TileConfig(64, 32, 128, 0, "registers", False),
                TileConfig(32, 32, 128, 0, "registers", False)]
    padded = 1 << max(5, (n - 1).bit_length())
    if neighbours and rows >= 16:  # every thread has as many: a reduction among some of a block's threads waits for the others
        for width in dict.fromkeys((n, padded)):
            held = [TileConfig(r, width, t, 0, "registers", False) for r, t in (
                (32, 128), (32, 256), (32, 512), (16, 128), (16, 256), (8, 256))
                if r * width % t == 0 and 4 <= r * width / t <= 64]
            if held:
                return [c for c in held if c.rows == held[0].rows]
    if not resident:
        wide = min(LONG, 1 << max(5, (n - 1).bit_length()))
        return [TileConfig(r, s, t, 0, "registers", False) for r, s, t in (
            (1, min(wide, LONG // 2), 128), (1, wide, 256), (1, min(wide, 1024), 128), (4, min(wide, 256), 128))]
    out = []
    for width in dict.fromkeys((n, padded)):
        even = [(r, t) for t in (64, 128, 256, 512) for r in (1, 2, 4) if width == padded or width % (4 * t) == 0]
        alone = [(r, t) for t in (32, 64, 128, 256, 512) for r in (1, 2, 4) if width % (4 * t if r > 1 else t) == 0]
        for shapes in (even, alone):
            out = [TileConfig(r, width, t, 0, "registers", False) for r, t in shapes
                   if FEWEST <= r * width / t <= MOST and r <= max(1, rows)]
            if out:
                break
        if out:
            break
    out.sort(key=lambda c: abs(log(c.rows * c.segment / c.threads / USUAL)))
    return [*out, TileConfig(1, padded, min(1024, max(32, padded // 32)), 0, "registers", False)]
