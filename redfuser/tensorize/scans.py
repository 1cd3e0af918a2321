"""Running reductions: a tile of a row is scanned in shared memory, and what it comes to is carried to the next.

The walk is the one that a row is visited again by; what it carries is filled with the neutral element in front of it. A row of
one segment carries nothing. What lies past the end of a ragged row comes after everything that is stored, so it is not masked.
"""

from __future__ import annotations

from math import prod

from redfuser.acrf.expr import BYTES, FLOATS, Ref
from redfuser.acrf.facts.algebra import neutral
from redfuser.acrf.index import i64
from redfuser.errors import LoweringError
from redfuser.strategies.program import Block, Kernel
from redfuser.target import Target
from redfuser.tensorize.axes import Roles, neighbours
from redfuser.tensorize.builder import HALF, Builder, Value
from redfuser.tensorize.config import TileConfig
from redfuser.tensorize.ir.nodes import Copy, Fill, ScanTile
from redfuser.tensorize.ir.parts import SCANS, Dim, Slice
from redfuser.tensorize.maps import as_tile
from redfuser.tensorize.stores import lower_output

EACH = (16, 8)
"""Elements of float32 that a thread holds of a tile, the usual first; of 8 bytes half as many."""
THREADS = (256, 512, 128)
"""Threads of a block."""
LEAST = 32
"""Elements of a tile's row, at least: shorter rows are padded."""
WIDTH = 16
"""Bytes of an access."""


def scan_configs(kernel: Kernel, roles: Roles, target: Target) -> list[TileConfig]:
    """Configurations of a kernel that scans its rows, best first: as many rows as a block's threads hold, or a part of one, in
    powers of two."""
    n, rows = roles.extents[roles.segment or ""], roles.extents[roles.rows]
    together = target.warp if neighbours(kernel, roles.rows) else 1  # rows that are read side by side
    blocks = prod(roles.extents[a] for a in roles.grid)
    size = max(BYTES[b.dtype] for b in kernel.tail if b.running)
    whole = max(LEAST, 1 << (n - 1).bit_length())
    found: list[TileConfig] = []
    for each in EACH:
        for threads in THREADS:
            tile = threads * max(1, each * 4 // max(4, size))
            segment = min(whole, tile // together)
            down = min(tile // segment, 1 << (rows - 1).bit_length(), threads)
            while down > together and blocks * -(-rows // down) < 2 * target.sms:  # rather more blocks than fewer, fuller ones
                down //= 2
            used = max(32, min(threads, down * segment // 4))
            if down <= used and segment % (used // down) == 0:
                found.append(TileConfig(down, segment, used, 0, "registers", False))
    return list(dict.fromkeys(found))


def lower_scan(work: Builder, b: Block) -> None:
    """``b[.., l] = op[..l] e`` along the segment."""
    assert b.reducer is not None
    at, kind, dtype = work.at, b.reducer.kind, "f32" if b.dtype in HALF else b.dtype
    segment = at.roles.segment
    if segment is None or kind not in SCANS or b.over != segment or dtype not in ("f32", "i64", "i32") or (dtype in FLOATS) != (
            b.exprs[0].dtype in FLOATS):
        raise LoweringError("RF489", f"{at.kernel.name}: no tile form of the running {b.reducer} of {b.dtype} along {b.over}")
    rows, n = work.shape(at.across)
    if at.config.threads % rows or n % (at.config.threads // rows):
        raise LoweringError("RF489", f"{at.kernel.name}: {at.config.threads} threads cannot share {rows} rows of {n}")
    src = as_tile(work, b.exprs[0], at.across, f"{b.name}_term")
    spare = WIDTH // BYTES[dtype] if at.neighbours else 0  # rows that are written side by side begin in other banks
    held = work.buffer(f"{b.name}_row", "shared", dtype, (rows, n + spare))
    work.emit(Copy(Slice(src.buffer), Slice(held, (Dim(i64(0), rows), Dim(i64(0), n)) if spare else ())))
    carry = ""
    if n < at.extents[segment]:
        carry = work.buffer(f"{b.name}_carry", "shared", dtype, (rows,))
        work.before.append(Fill(carry, neutral(b.reducer, dtype)[0]))
    work.emit(ScanTile(kind, held, held, carry, n if spare else 0, at.source(b)))
    v = Value(at.across, dtype, held)
    if not spare:
        v = work.tile(b.name, at.across, dtype)
        work.emit(Copy(Slice(held), Slice(v.buffer)))
    if b.name in at.stores:
        work.values[f"{b.name} scanned"] = v
        lower_output(work, b, Ref(f"{b.name} scanned", dtype), at.across)
    else:
        work.values[b.name] = v
