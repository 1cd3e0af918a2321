"""Results that leave through the room of an operand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.tensorize.ir.effects import every, reads, renamed, writes
from redfuser.tensorize.ir.nodes import Copy, For, TileKernel


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
        before, after = kernel.body[:loops[0]], kernel.body[loops[-1] + 1:]
        free = [s.dst.buffer for s in before if isinstance(s, Copy) and s.dst.buffer in shared and not s.dst.dims]
        for s in after:
            if not (isinstance(s, Copy) and s.dst.buffer in shared and not s.dst.dims):
                continue
            result = shared[s.dst.buffer]
            room = next((n for n in free if n != result.name and (shared[n].shape, shared[n].dtype) == (result.shape, result.dtype)
                         and not any(n in reads(k) | writes(k) for k in every(after))
                         and sum(n in writes(k) for k in every(kernel.body) if not isinstance(k, For)) == 1), None)
            if room is None or any(result.name in reads(k) | writes(k) for k in every((*before, *kernel.body[loops[0]:loops[-1] + 1]))):
                continue
            return replace(kernel, buffers=tuple(b for b in kernel.buffers if b is not result),
                           body=tuple(renamed(k, result.name, room) if k in after else k for k in kernel.body))
        return kernel
