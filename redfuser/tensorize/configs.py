"""Tile configurations: what a tuner may choose, kept apart from what the mathematics fixes, and a first ranking.

The ranking is a resource model (shared memory, warps per row tile, registers of the accumulators, blocks per
multiprocessor) with its few constants fitted to measurements on one H200; it names no workload.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from redfuser.acrf.expr import BYTES, Index, Load, Op, indices_of, walk
from redfuser.errors import LoweringError
from redfuser.outline import generated, library, passes
from redfuser.strategies.program import Kernel, Program
from redfuser.strategies.select import LONG
from redfuser.target import Target
from redfuser.tensorize.algebra import factors
from redfuser.tensorize.arguments import static_extent
from redfuser.tensorize.axes import Roles, choose, strip_casts
from redfuser.tensorize.config import Schedule, TileConfig
from redfuser.tensorize.ir.nodes import TileKernel
from redfuser.tensorize.map_configs import map_configs
from redfuser.tensorize.precision import kept, unit_roundoff
from redfuser.tensorize.products import Product, product_configs
from redfuser.tensorize.rearrange import rearrange
from redfuser.tensorize.tiles import tensorize

SIX, SINGLE = 6.0, 16.0
"""Work of a float32 product in matrix operations of half precision: as six of them, and as a library's on its own units."""
MANY = 256
"""Threads that share the work of taking operands apart: with half as many, 64 rows of attention take 2.6 times as long on an
H200 (docs/results/h200-2026-11-22-products)."""
SPLIT = 12
"""Bytes on chip of an element of a float32 operand: itself, its three pieces, and the first of them without infinities."""
DEEP = 320
"""Elements of a contraction's own axis above which its operands do not stay on chip whole."""
BUSY = 0.9
"""Share of the multiprocessors that large tiles with roles have to keep busy; with fewer, small tiles win (one H200,
1x8x1024x64: 64 blocks of roles .0156 ms, 128 of TileLang's pipeline .0124)."""
NOT_FOR_IT = ("RF499", "RF410")
"""A schedule that a kernel has no roles for, and one that has no room."""
THREE = 192
"""Rows of three warp groups."""
_WAYS: tuple[Schedule, ...] = ("overlap", "persistent", "overlap-lanes", "persistent-lanes")
ASKED = 1024
"""Keys from which a few rows are worth roles: one group that computes, and copies that run ahead of it. Most of its 64 rows are
nobody's, which costs nothing where memory is what bounds. One H200, in graphs, 32 heads on 8 of 128, beside a read of the same
bytes: 64 x 4096 keys .239 ms for .286 (.236), 8 x 32768 in four .242 for .259 (.235), 1 x 32768 in 33 .0443 for .0452."""
_COSTLY = ("exp", "tanh", "sigmoid", "erf", "log", "sqrt", "rsqrt", "div", "sin", "cos", "pow", "lt", "le", "gt", "ge")
WHOLE = 256
"""Columns of an accumulated product above which blocks share them, where nothing but the rows' statistics is repeated."""


def configs(program: Program, target: Target) -> list[TileConfig]:
    """Configurations for ``program`` on ``target``, best first by the resource model; never empty.

    Contractions: rows is a multiple of 16, of 64 for warp-group instructions; a tile of few rows (decode) is 16 rows
    with its weights in shared memory. Row programs: 24 to 32 elements per thread, threads a power of two."""
    kernel = program.kernels[0]
    extents = {a.name: static_extent(a.extent, a.name) for a in program.axes}
    arranged = rearrange(kernel, extents)
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
        return [TileConfig(r, padded, 32 * r, 0, "registers", False) for r in (4, 2, 8, 1)]
    if not contracts:
        blocks = rows * prod(extents[a] for a in roles.grid)
        few = n // program.splits >= LONG and -(-blocks // target.sms) * LONG // 2 * _asked(kernel, roles) < target.flight
        return _row_configs(kernel.kind == "resident", rows, n, _neighbours(kernel, roles), few)
    if roles.lists:
        depth = max((extents[b.over] for b in kernel.body if b.role == "producer" and b.over in extents), default=0)
        return _selection_configs(rows, n, depth, target)
    widths = sorted({extents[b.over] for b in kernel.body if b.role == "producer" and b.over in extents}
                    | {extents[a] for a in roles.columns})
    width, columns = max(widths), sum(extents[a] for a in roles.columns)
    size = _element(kernel, roles)
    blocks = prod(extents[a] for a in roles.grid)
    pieces = _takes_apart(kernel, roles)
    inner = any(b.role == "producer" and b.over for b in kernel.body)
    alone = bool(roles.columns) and all(a in kernel.grid for a in roles.columns)
    if not alone:
        _veto(kernel, roles.grid, extents, rows, n, columns=columns, target=target, pieces=pieces)
    if not inner and (alone or columns > WHOLE):
        along = {n for b in kernel.init for n in b.names if roles.column_of(b.axes)}
        fine = any(kept(program.fused, arranged.origin.get(n, n)) < unit_roundoff("f16") for n in along)
        left, right = (SPLIT, SPLIT) if pieces else _operand_bytes(kernel, roles)
        product = Product(rows, columns, n, blocks, left, right, not alone, fine or pieces or min(left, right) == 1, len(along))
        return _with_roles(program, [replace(c, pieces=pieces) for c in product_configs(product, target)], target)
    size = SPLIT if pieces else size
    causal, once = _narrows(kernel), _reads_once(kernel)
    space = _gemm_space(target, rows, n, columns)
    if pieces:
        space = [replace(c, pieces=True) for c in space if not c.warp_specialized and c.segment <= 64 and c.threads >= MANY]
    if causal and rows > 16:  # an unknown number of steps: see lower.py
        space = [c for c in space if (c.stages == 1 or c.warp_specialized) and not c.persistent]
    if causal or not _light(kernel, roles):
        space = [c for c in space if c.rows != THREE]
    if width > 2 * DEEP:  # too deep to hold: the contraction in chunks
        space = [replace(c, chunk=64) for c in space if c.stages == 2]
    count = blocks * (program.splits if rows <= 16 else 1)
    ranked = [(_cost(c, target, rows, n, min(width, c.chunk or width), columns, size, count, causal, once), c) for c in space]
    fitting = [(cost, i, c) for i, (cost, c) in enumerate(ranked) if cost is not None]
    if pieces and not fitting:
        raise LoweringError("RF490", f"{kernel.name}: contractions of f32 operands, {width} deep",
                            why="their pieces do not fit on chip beside the rows that would make them worth it",
                            help="use f16 or bf16 operands")
    best = [c for _, _, c in sorted(fitting, key=lambda t: (t[0], t[1]))] or [TileConfig(64, 32, 128, 1, "registers", False)]
    return _with_roles(program, best, target)


def _with_roles(program: Program, best: list[TileConfig], target: Target) -> list[TileConfig]:
    """At most two configurations with roles, where they come first, then those without. Left out are such as the kernel has no
    roles for or no room, or that come to the same; what else is wrong with one is said where it is tried."""
    plain = [c for c in best if c.schedule == "auto"]
    ahead = best[:best.index(plain[0])] if plain else best
    found: list[TileConfig] = []
    made: list[tuple[TileKernel, ...]] = []
    for c in ahead:
        try:
            kernels = tensorize(program, c, target).kernels
        except LoweringError as error:
            if error.code in NOT_FOR_IT:
                continue
        else:
            if kernels in made:
                continue
            made.append(kernels)
        found.append(c)
        if len(found) == 2:
            break
    return [*found, *plain]


def _element(kernel: Kernel, roles: Roles) -> int:
    """Bytes of an element of what a block brings as tiles. A vector along rows or segment (a document's number, a slope of each
    head) is none."""
    inner = {b.over for b in kernel.body if b.role == "producer" and b.over}
    sides = {roles.rows, roles.segment, *roles.columns, *inner}
    loads = [x for b in kernel.body for e in b.exprs for x in walk(e) if isinstance(x, Load)]
    return max((BYTES[x.dtype] for x in loads if len(indices_of(x) & sides) > 1), default=max(
        (BYTES[x.dtype] for x in loads), default=2))


def _operand_bytes(kernel: Kernel, roles: Roles) -> tuple[int, int]:
    """Bytes of an element that varies along the rows, and of one that varies along the columns."""
    loads = [x for b in kernel.body for e in b.exprs for x in walk(e) if isinstance(x, Load)]
    own = [BYTES[x.dtype] for x in loads if indices_of(x) & set(roles.columns)]
    return max((BYTES[x.dtype] for x in loads if not indices_of(x) & set(roles.columns)), default=2), max(own, default=2)


def _takes_apart(kernel: Kernel, roles: Roles) -> bool:
    """Does a contraction read float32 operands, which the matrix units take as sums of pieces?"""
    products = (b for b in kernel.body if b.reducer is not None and b.reducer.kind == "sum" and (
        b.role == "producer" or (b.role == "reduce" and roles.column_of(b.axes) and not roles.lists)))
    bare = [strip_casts(p) for b in products for p in factors(b.exprs[0])]
    return any(isinstance(x, Load) and x.dtype == "f32" for x in bare)


def _narrows(kernel: Kernel) -> bool:
    return any(isinstance(x, Op) and x.name in ("le", "lt", "ge", "gt") and
               any(isinstance(y, Index) and y.axis == kernel.raxis for y in walk(x))
               for b in kernel.body for e in b.exprs for x in walk(e))


def _veto(kernel: Kernel, grid: tuple[str, ...], extents: dict[str, int], rows: int, n: int, *,
          columns: int, target: Target, pieces: bool) -> None:
    """Refuse a cascade around a large matrix product that a row walk would run on a few multiprocessors, and a product of
    normalised rows that a library runs better. pieces: its operands are float32, which the library takes on other units.

    The products on as many blocks as there are row tiles, each with operands of its own from the last cache, against a
    library's on all of the machine and the traffic of what is between. Raises LoweringError RF497."""
    depth = max((extents[b.over] for b in kernel.body if b.role == "producer" and b.over in extents), default=0)
    if 0 < depth <= 2 * DEEP:
        return
    outer = prod(extents[a] for a in grid)
    flops, read = 2.0 * outer * rows * n * (depth + columns), 2.0 * n * (depth + columns)
    blocks = outer * -(-rows // 64)
    busy = min(1.0, blocks / target.sms)
    ours, theirs = (SIX * flops, SINGLE * flops) if pieces else (flops, flops)
    fused = max(generated(target, ours, read), blocks * read / (target.port * target.clock * target.sms)) / busy
    unfused = library(target, theirs, read) + passes(target, 6.0 * 2 * outer * rows * n, 2)
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


def _gemm_space(target: Target, rows: int, n: int, columns: int) -> list[TileConfig]:
    out: list[TileConfig] = []
    if rows <= 16:
        out += [TileConfig(16, s, 128, stages, "shared", False) for s in (64, 128) for stages in (2, 3)]
        if target.tma and target.wgmma and n >= ASKED and columns <= 128:
            out += [TileConfig(64, s, 128, 2, "registers", True, schedule="overlap") for s in (128, 64)]
    for m in (64, 128, 256):
        for s in (32, 64, 80, 128):
            for stages in (1, 2, 3):
                if s > max(32, n):
                    continue
                out.append(TileConfig(m, s, 2 * m, stages, "registers", False))
                if target.tma and m >= 128:
                    out.append(TileConfig(m, s, 2 * m, stages, "registers", True))
    if target.tma and target.wgmma and n >= 128:
        out += [TileConfig(m, 128 if columns <= 128 else 64, 2 * m, 2, "registers", True, schedule=way) for m in (128, THREE)
                if rows >= m and columns <= (64 if m == THREE else 256) for way in _WAYS]
    if columns > 256:  # an accumulator this wide is shared by two warp groups, column by column
        out = [TileConfig(64, s, 256, stages, "shared", ws) for s in (64, 32) for stages in (2, 1)
               for ws in ((True, False) if target.tma else (False,))]
        if target.tma and target.wgmma and n > 64:
            out = [TileConfig(64, 64, 256, 2, "shared", True, schedule="relay"), *out]
    if target.kind == "hip":
        out = [replace(c, stages=0) for c in out if c.stages == 1]
    return out


def _cost(c: TileConfig, target: Target, rows: int, n: int, width: int, columns: int, size: int, blocks: int,
          causal: bool, once: bool) -> float | None:
    """Modelled time in arbitrary units, or None when the configuration does not fit the target."""
    columns = columns or width
    both = max(width, columns) if once else width + columns
    operands = size * (c.rows * width + max(1, c.stages) * c.segment * both)
    if c.weights == "shared":
        operands += size * c.rows * c.segment
    out = 0 if c.pieces else size * c.rows * columns  # a float32 result leaves from registers
    shared = max(operands, out) + (0 if columns > 256 else out)
    if c.schedule.startswith("overlap") and width == columns:  # results leave through the room of the rows' operand
        shared = operands
    elif c.persistent:
        shared = operands + size * c.rows * width + out
    if shared > target.shared_bytes:
        return None
    threads = c.threads + (128 if c.warp_specialized else 0)
    registers = 40 + (c.rows * (c.segment * 1.5 + columns)) / c.threads
    if c.weights == "shared" and rows > 16:
        return None if registers > 230 else (1.0 + 0.1 * (c.stages == 1) + 0.1 * (not c.warp_specialized)) * 64 / c.segment
    if registers > 250:
        return None
    per_sm = max(1, min(target.shared_sm_bytes // (shared + 1024), target.max_threads // threads,
                        int(target.registers // (min(255, registers) * threads))))
    tiles = -(-rows // c.rows) * blocks
    if c.schedule != "auto" and tiles < BUSY * target.sms:
        return None
    waves = -(-tiles // (target.sms * per_sm))
    fill = tiles / (waves * target.sms * per_sm)
    steps = -(-n // c.segment)
    used = min(1.0, rows / (-(-rows // c.rows) * c.rows)) * (n / (steps * c.segment))
    if rows <= 16:  # bound by memory: bytes in flight decide
        flight = min(1.0, per_sm * max(1, c.stages) * c.segment * width * size / 49152)
        depth = 1.0 + 0.02 * abs(c.stages - 2) + 0.01 * (c.segment > 64)  # more blocks beat deeper pipelines
        way = 1.0 if c.weights == "shared" else 0.9 if c.schedule != "auto" else 1.6
        return way * depth / flight / (n / (steps * c.segment))
    # Instruction efficiency of the two matrix products and the maps between them, fitted on one H200 (design notes).
    if c.schedule != "auto":
        efficiency = _overlapped(c, steps, columns)
    elif c.warp_specialized:
        efficiency = {64: 0.5, 128: 1.0, 256: 0.9}[c.rows] * (1.0 if c.segment == 128 else 0.96 if c.segment >= 64 else 0.7)
        efficiency *= min(1.0, 0.55 + 0.45 * steps / 6) if width <= 64 else 1.0
    else:
        efficiency = {64: 1.0, 128: 0.92, 256: 0.9}[c.rows] * {32: 0.75, 64: 1.0, 80: 0.9, 128: 0.93}[c.segment]
        if width > 64 and target.tma:
            efficiency *= 0.8
        if steps <= 2 and c.segment == 128:
            efficiency *= 1.15
    if c.stages == 1:
        efficiency *= 0.85
    if c.stages == 3:
        efficiency *= 0.97 if c.warp_specialized else 0.88
    diagonal = 1.0 + (0.5 * c.segment / max(1, n) if causal else 0.0)
    return diagonal / (efficiency * used * max(0.5, fill))


def _overlapped(c: TileConfig, steps: int, columns: int) -> float:
    """Products that overlap with what lies between, against TileLang's own pipeline: a block that takes several tiles starts
    once, and is the better the shorter a tile is.

    Totals by lane: a fiftieth faster where a row has four steps or more and the products are narrow (graphs on one H200:
    32x8x512x64 .0428 against .0444 ms, 4x16x4096x64 .590 against .603, 8x16x1024x96 .102 against .106, 4x8x1024x1024 with an
    additive mask .0451 against .0463); level at 128 columns (2x16x8192x128 1.89 and 1.87) and at two steps (32x12x256x64)."""
    kept = 1.02 if steps >= 4 and columns < 128 else 0.99
    way = 1.22 + 0.13 * min(1.0, 12 / steps) if c.persistent else 1.2
    return way * (1.1 if c.rows == THREE else 1.0) * (kept if c.lanes else 1.0)


def _selection_configs(rows: int, n: int, depth: int, target: Target) -> list[TileConfig]:
    """A row of scores held whole in registers while its best are picked: few rows per block, to fill the machine."""
    width = max(16, -(-n // 16) * 16)
    out = []
    for m, threads, weights in ((16, 128, "shared"), (32, 64, "registers"), (64, 128, "registers")):
        if weights == "shared" and width < 64:
            continue
        for stages in (3, 2):
            shared = 2 * stages * 64 * (m + width)
            if m * width / threads <= 128 and shared <= target.shared_bytes:
                out.append(TileConfig(m, width, threads, stages, weights, False, chunk=64 if depth > 64 else 0))  # type: ignore[arg-type]

    def cost(c: TileConfig) -> float:
        blocks = -(-rows // c.rows)
        return -(-blocks // target.sms) * (0.5 + c.rows / 64) * (1.0 if c.stages == 3 else 1.05)

    return sorted(out, key=cost) or [TileConfig(16, width, 32, 2, "registers", False, chunk=64)]


def _asked(kernel: Kernel, roles: Roles) -> int:
    """Bytes that a block reads for an element of a row."""
    loads = {x for b in kernel.body for e in b.exprs for x in walk(e) if isinstance(x, Load) and roles.segment in indices_of(x)}
    return sum(BYTES[x.dtype] for x in loads)


def _neighbours(kernel: Kernel, roles: Roles) -> bool:
    """Do neighbouring rows lie next to each other in memory, and the elements of a row apart?"""
    loads = (x for b in (*kernel.body, *kernel.tail) for e in b.exprs for x in walk(e) if isinstance(x, Load) and x.indices)
    return any(roles.segment in indices_of(x) and Index(roles.rows) == x.indices[-1] for x in loads)


def _row_configs(resident: bool, rows: int, n: int, neighbours: bool, few: bool) -> list[TileConfig]:
    """Rows held on chip, or walked: a block of 64 to 128 threads with 24 to 32 elements per thread. neighbours: a block takes
    whole lines of memory, 32 rows or more, and few elements of each at once. few: blocks that ask for too little at once to
    keep memory busy, so that each asks for more."""
    if neighbours and rows >= 16 and not resident:
        return [TileConfig(32, max(8, min(n, 64)), 128, 0, "registers", False), TileConfig(64, 32, 128, 0, "registers", False),
                TileConfig(32, 32, 128, 0, "registers", False)]
    if neighbours and rows >= 16 and (held := [TileConfig(r, n, t, 0, "registers", False) for r, t in (
            (32, 128), (32, 256), (16, 128), (32, 512), (16, 256), (8, 256)) if 4 <= r * n / t <= 64]):
        return held
    if not resident:
        wide = min(LONG, 1 << max(5, (n - 1).bit_length()))
        first = [(1, min(wide, LONG // 2), 128), (1, min(wide, LONG), 256)]
        return [TileConfig(r, s, t, 0, "registers", False) for r, s, t in
                (*(first[::-1] if few else first), (1, min(wide, 1024), 128), (4, min(wide, 256), 128))]
    out: list[TileConfig] = []
    padded = 1 << max(5, (n - 1).bit_length())
    for width in dict.fromkeys((n, padded)):
        for threads in (64, 128, 256, 512):
            whole = width == padded or width % (4 * threads) == 0 or (width % 32 == 0 and threads == 64)
            if not whole:
                continue
            for r in (1, 2, 4, 8):
                per_thread = r * width / threads
                if 4 <= per_thread <= 128 and r <= max(1, rows):
                    out.append(TileConfig(r, width, threads, 0, "registers", False))

    def cost(c: TileConfig) -> tuple[float, int]:
        per_thread = c.rows * c.segment / c.threads
        off = max(per_thread / 32, 24 / per_thread, 1.0)
        return (off * (c.segment / n) ** 0.5 * {64: 1.0, 128: 1.0, 256: 1.1, 512: 1.25}[c.threads], c.threads)

    fallback = TileConfig(1, padded, min(1024, max(32, padded // 32)), 0, "registers", False)
    return [*sorted(out, key=cost), fallback]
