"""Results that leave through the room of an operand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.tensorize.ir.effects import every, reads, renamed, writes
from redfuser.tensorize.ir.nodes import Copy, For, TileKernel, TileStmt


@dataclass(frozen=True, slots=True)
class StageInPlace:
    """A tile that is brought once and read for the last time in the loop gives its room to a result of its shape and type::

        copy q[...] -> q_shared                        copy q[...] -> q_shared
        for k: gemm q_shared, ...                      for k: gemm q_shared, ...
        copy o_acc -> y_shared                  -->    copy o_acc -> q_shared
        copy y_shared -> out[...]                      copy q_shared -> out[...]

    TileLang shares room so by itself, but not under roles, where it sees no order. Not in a loop over tiles, whose next operand
    comes while results leave. Changes no value."""

    def __call__(self, kernel: TileKernel) -> TileKernel:
        loops = [i for i, s in enumerate(kernel.body) if isinstance(s, For)]
        if not loops:
            return kernel
        shared = {b.name: b for b in kernel.buffers if b.scope == "shared"}
        first, last = loops[0], loops[-1] + 1
        after = kernel.body[last:]
        free = [n for n in map(_filled, kernel.body[:first]) if n in shared and _touched(n, after) == 0 and sum(
            n in writes(k) for k in every(kernel.body) if not isinstance(k, For)) == 1]
        for name in (n for n in map(_filled, after) if n in shared and _touched(n, kernel.body[:last]) == 0):
            of = shared[name].shape, shared[name].dtype
            room = next((n for n in free if (shared[n].shape, shared[n].dtype) == of), None)
            if room is not None:
                return self(replace(kernel, buffers=tuple(b for b in kernel.buffers if b.name != name),
                                    body=(*kernel.body[:last], *(renamed(k, name, room) for k in after))))
        return kernel


def _filled(s: TileStmt) -> str:
    """The buffer that a copy fills whole."""
    return s.dst.buffer if isinstance(s, Copy) and not s.dst.dims else ""


def _touched(name: str, body: tuple[TileStmt, ...]) -> int:
    return sum(name in reads(k) | writes(k) for k in every(body))
