"""What a kernel certainly needs of a multiprocessor: lower bounds, so that what exceeds them cannot run."""

from __future__ import annotations

from math import prod

from redfuser.errors import LoweringError
from redfuser.target import Target
from redfuser.tensorize.configs import BYTES
from redfuser.tensorize.ir.effects import reads, writes
from redfuser.tensorize.ir.nodes import Copy, For, If, TileKernel, TileStmt

REGISTERS = 255
"""Most 32-bit registers a thread can have."""


def require_room(kernel: TileKernel, target: Target) -> None:
    """Raises LoweringError RF410 when the tiles of one loop do not fit, however their storage is arranged."""
    loops = [s for s in kernel.body if isinstance(s, For)]
    for loop in loops:
        shared, registers = _loop(kernel, loop)
        if shared > target.shared_bytes or registers > REGISTERS:
            raise LoweringError("RF410", f"{kernel.name}: {shared} bytes of shared memory and {registers} registers a thread "
                                f"at least, of {target.shared_bytes} and {REGISTERS}", help="a smaller tile may fit")


def _loop(kernel: TileKernel, loop: For) -> tuple[int, int]:
    """Bytes of shared memory that a loop holds at once, and the registers a thread holds across its steps."""
    used = reads(loop) | writes(loop)
    outside = {n for s in kernel.body if s is not loop for n in reads(s) | writes(s)}
    arriving = _arriving(loop.body) if loop.stages > 1 else set()
    shared = bits = 0
    for b in kernel.buffers:
        if b.name not in used:
            continue
        size = prod(b.shape) * BYTES[b.dtype]
        if b.scope == "shared":
            shared += size * (loop.stages if b.name in arriving else 1)
        elif b.name in outside and len(b.shape) > 1 and b.name in writes(loop):
            bits += size
    return shared, -(-bits // (4 * kernel.threads))


def _arriving(body: tuple[TileStmt, ...]) -> set[str]:
    found: set[str] = set()
    for s in body:
        if isinstance(s, Copy) and s.src.dims:
            found.add(s.dst.buffer)
        elif isinstance(s, If):
            found |= _arriving(s.body)
    return found
