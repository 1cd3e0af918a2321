"""The extents of tiles: rows, elements of a segment, columns; and how far all segments together walk."""

from __future__ import annotations

from redfuser.strategies.program import Block
from redfuser.tensorize.state import KernelState


def tile_sizes(work: KernelState) -> dict[str, int]:
    """Extent of a tile per axis."""
    roles, config = work.roles, work.config
    rows = config.rows if work.has_gemm else min(config.rows, _power_at_least(work.extents[roles.rows]))
    n = work.extents[roles.segment] if roles.segment else 1
    segment = (config.segment if config.segment >= n else n) if work.resident else config.segment
    sizes = {roles.rows: rows, **({roles.segment: segment} if roles.segment else {})}
    for a in roles.columns:
        e = work.extents[a]
        whole = _power_at_least(e) if roles.lists else round_up(e, 16) if work.has_gemm else e
        sizes[a] = min(whole, config.columns or whole)
    return sizes


def walked(work: KernelState, n: str) -> int:
    """Elements that all segments of all splits cover: at least the extent, more where the last are ragged."""
    extent, size = work.extents[n], work.sizes[n]
    if work.kernel.split and work.kernel.kind in ("split", "map"):
        splits = work.extents[work.kernel.split]
        chunk = -(-extent // splits)
        return splits * -(-chunk // size) * size
    return -(-extent // size) * size


def one_segment(work: KernelState) -> bool:
    """A walk of one segment that selects from its row is a row held on chip."""
    n = work.roles.segment
    return n is not None and work.extents[n] <= work.config.segment and (
        work.roles.lists or any(b.reducer and b.reducer.kind in ("argmax", "argmin") for b in work.kernel.body))


def is_gemm(work: KernelState, b: Block) -> bool:
    """A sum that the matrix units take."""
    if b.reducer is None or b.reducer.kind != "sum":
        return False
    if b.role == "producer":
        return work.roles.segment in b.axes
    return b.role == "reduce" and not work.roles.lists and work.roles.column_of(b.axes) is not None


def round_up(n: int, k: int) -> int:
    return -(-n // k) * k


def _power_at_least(n: int) -> int:
    return 1 << max(0, (n - 1).bit_length())
