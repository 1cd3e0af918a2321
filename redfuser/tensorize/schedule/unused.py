"""What nobody reads left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.tensorize.ir.effects import bodies, every, loads, reads, steers, writes
from redfuser.tensorize.ir.nodes import Fill, For, If, Parallel, TileKernel, TileStmt


@dataclass(frozen=True, slots=True)
class DropUnused:
    """Tiles that are computed and not read, as a term is whose extremum is taken in half precision, and buffers that no
    statement touches. A tile that only its own updates read is not read, as where the end of a row is padded::

        parallel i < 64, j < 64: x_tile[i, j] = abs(f32(y[i, j]))
        if k == 5:
          parallel i < 64, j < 64: x_tile[i, j] = select(j < 13, x_tile[i, j], -inf)
        parallel i < 64, j < 64: z_tile[i, j] = abs(y[i, j])         -->    parallel i < 64, j < 64: z_tile[i, j] = abs(y[i, j])
        reduce max z_tile -> m clear                                        reduce max z_tile -> m clear
    """

    def __call__(self, kernel: TileKernel) -> TileKernel:
        single = [s for s in every(kernel.body) if not bodies(s)]
        own = {b.name for b in kernel.buffers}
        read, known = {n for e in steers(kernel) for n in loads(e)}, -1
        while known != len(read):
            known = len(read)
            read.update(n for s in single if not _idle(s, own - read) for n in reads(s))
        body = _kept(kernel.body, own - read)
        used = {n for s in body for n in (*reads(s), *writes(s))}
        return replace(kernel, body=body, buffers=tuple(b for b in kernel.buffers if b.name in used))


def _idle(s: TileStmt, unread: set[str]) -> bool:
    return isinstance(s, (Parallel, Fill)) and writes(s) <= unread


def _kept(stmts: tuple[TileStmt, ...], unread: set[str]) -> tuple[TileStmt, ...]:
    """The statements without what fills tiles that nobody reads, and without what then has nothing in it."""
    inner = (replace(s, body=_kept(s.body, unread)) if isinstance(s, (For, If)) else s for s in stmts if not _idle(s, unread))
    return tuple(s for s in inner if not isinstance(s, (For, If)) or s.body)
