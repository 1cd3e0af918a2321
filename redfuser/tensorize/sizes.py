"""The extents of tiles: rows, elements of a segment, columns."""

from __future__ import annotations

from collections.abc import Mapping

from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.axes import Roles
from redfuser.tensorize.config import TileConfig


def tile_sizes(roles: Roles, config: TileConfig, resident: bool, has_gemm: bool) -> dict[str, int]:
    """Extent of a tile per axis."""
    rows = config.rows if has_gemm else min(config.rows, _power_at_least(roles.extents[roles.rows]))
    n = roles.extents[roles.segment] if roles.segment else 1
    segment = config.segment
    if resident and segment < n:
        segment = beside_product(n, config) if has_gemm else n
    sizes = {roles.rows: rows, **({roles.segment: segment} if roles.segment else {})}
    for a in roles.columns:
        e = roles.extents[a]
        whole = _power_at_least(e) if roles.lists else padded(e, config) if has_gemm else e
        sizes[a] = min(whole, config.columns or whole)
    return sizes


def beside_product(n: int, config: TileConfig) -> int:
    """Columns of the tile of a row of ``n`` elements that a product makes or takes, and a block holds: a multiple of 16, as the
    instructions take them, and of what warps have side by side, each with 16 rows and a quarter as many columns as it has
    lanes. What is beyond the row's end is masked, as it is in a ragged segment."""
    return round_up(n, max(16, 4 * config.threads // config.rows))


def padded(extent: int, config: TileConfig) -> int:
    """Columns of a matrix operand's tile that has room for ``extent`` of them: a multiple of 16, as the instructions take them.
    With roles, where rows begin in the middle of a sector of 32 bytes (heads of 72 in half precision), a multiple of 32: the
    copy engine brings a tile in panels as wide as divide it, and in panels of 32 bytes each row of each would be two sectors.
    What is beyond the extent is no read, and 0."""
    return round_up(extent, 32 if extent % 16 and config.schedule != "auto" else 16)


def one_segment(kernel: Kernel, roles: Roles, config: TileConfig) -> bool:
    """A walk of one segment that selects from its row is a row held on chip."""
    n = roles.segment
    return n is not None and roles.extents[n] <= config.segment and (
        roles.lists or any(b.reducer and b.reducer.kind in ("argmax", "argmin") for b in kernel.body))


def is_gemm(roles: Roles, b: Block) -> bool:
    """A sum that the matrix units take."""
    if b.reducer is None or b.reducer.kind != "sum":
        return False
    if b.role == "producer":
        return roles.segment in b.axes
    return b.role == "reduce" and not roles.lists and roles.column_of(b.axes) is not None


def walked(kernel: Kernel, extents: Mapping[str, int], sizes: Mapping[str, int], n: str) -> int:
    """Elements that all segments of all splits cover: at least the extent, more where the last are ragged."""
    extent, size = extents[n], sizes[n]
    if kernel.split and kernel.kind in ("split", "map"):
        splits = extents[kernel.split]
        chunk = -(-extent // splits)
        return splits * -(-chunk // size) * size
    return -(-extent // size) * size


def round_up(n: int, k: int) -> int:
    return -(-n // k) * k


def _power_at_least(n: int) -> int:
    return 1 << max(0, (n - 1).bit_length())
