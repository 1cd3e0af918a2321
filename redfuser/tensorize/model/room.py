"""What a kernel needs of a multiprocessor, whether it has it, and how many blocks it holds."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.errors import LoweringError
from redfuser.target import Target
from redfuser.tensorize.ir.nodes import Roles, TileKernel
from redfuser.tensorize.model.pressure import of_products
from redfuser.tensorize.model.registers import block_threads, carried, limit, registers
from redfuser.tensorize.model.shared import shared_bytes

RESERVED = 1024
"""Bytes of shared memory that the system takes for every block (CUDA, sm_80 and later)."""
THREADS = 1024
"""Threads a block can have."""
GROUP = 128
"""Threads of a warp group."""
TIGHT, SPARE, FEW = 64, 24, 4
"""Registers that ptxas needs beside a product's of warp groups, or it gives up (C7600): 24 where a thread has no more than 64,
else 4. Tried: of 64, with 24 it allocates and with 16 not; of 96, with 4 and not with none."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one block: shared memory in bytes, threads, registers a thread (an estimate)."""

    shared: int
    threads: int
    registers: int

    def __str__(self) -> str:
        return f"{self.shared} bytes of shared memory, {self.threads} threads of about {self.registers} registers"


def needs(kernel: TileKernel, target: Target) -> Needs:
    return Needs(shared_bytes(kernel, target), block_threads(kernel, target), registers(kernel, target))


def lacks(kernel: TileKernel, target: Target, shared: int | None = None) -> str:
    """What a block of the kernel cannot have on the target; empty when it fits. shared: its bytes, where they are known."""
    if (shared := shared_bytes(kernel, target) if shared is None else shared) > target.shared_bytes:
        return f"{shared} bytes of shared memory, of {target.shared_bytes}"
    if (threads := block_threads(kernel, target)) > THREADS:
        return f"{threads} threads, of {THREADS}"
    if (taken := _taken(kernel)) > (own := limit(kernel, target) * threads):
        return f"{taken} registers once its roles have shared them out, of {own}: it would wait for ever"
    if (held := carried(kernel)) > (most := limit(kernel, target)):
        return f"{held} registers a thread at least, of {most}"
    if (product := of_products(kernel, target)) + (spare := SPARE if most <= TIGHT else FEW) > most:
        return f"{product} registers a thread for a product and {spare} beside them, of {most}"
    return ""


def _taken(kernel: TileKernel) -> int:
    """Registers of a block's threads once each role has as many as it asks for; 0 where they keep those of the launch."""
    roles = [r for s in kernel.body if isinstance(s, Roles) for r in s.roles]
    return sum(GROUP * r.groups * r.registers for r in roles) if all(r.registers for r in roles) else 0


def fits(kernel: TileKernel, target: Target) -> bool:
    """A block has room: what fits is never refused for space when it is built, and what does not fit could not run."""
    return not lacks(kernel, target)


def require_room(kernel: TileKernel, target: Target) -> None:
    """Raises LoweringError RF410 when a block of the kernel does not fit."""
    if why := lacks(kernel, target):
        raise LoweringError("RF410", f"{kernel.name} needs {why}", help="a smaller tile may fit")


def resident(n: Needs, target: Target) -> int:
    """Blocks with these needs that a multiprocessor holds at once. Registers are dealt out by eight to the threads of a
    warp."""
    reserved = RESERVED if target.kind == "cuda" else 0
    warps = -(-n.threads // target.warp)
    by_registers = target.registers // (-(-n.registers // 8) * 8 * target.warp) // warps
    by_shared = target.shared_sm_bytes // max(1, n.shared + reserved)
    return max(0, min(target.max_blocks, target.max_threads // (warps * target.warp), by_registers, by_shared))
