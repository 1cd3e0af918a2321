"""One warp group of a role, as the interpreter of roles sees it: its clock, its turns, and what it has under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from redfuser.tensorize.ir.block import Block
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.nodes import Gemm, Role
from redfuser.tensorize.ir.ordered import Clock

Place = tuple[str, tuple[int, ...]]
"""A buffer in shared memory, and the part of it that leading points of a slice say; in a cluster, whose it is before them."""


@dataclass
class Flying:
    """A product under way: what it adds to, registers that it reads, and its part of shared memory."""

    result: str
    registers: frozenset[str]
    places: tuple[Place, ...]


class Member:
    """One warp group. rank: of its block in the cluster."""

    def __init__(self, name: str, role: Role, first: bool, block: Block, rank: int) -> None:
        self.name, self.role, self.first, self.vars = name, role, first, dict(block.vars)
        self.block, self.rank = block, rank
        self.clock = Clock().tick(name)
        self.flying: deque[Flying] = deque()
        self.sending: list[Place] = []
        self.by_rows = not any(isinstance(s, Gemm) and s.policy == "cols" for s in every(role.body))
        """Have the groups of its role rows of their own? Otherwise each has columns, and rows are of all of them."""
        self.undrained: set[str] = set()
        self.reading: list[Place] = []
        """Shared memory that single threads of the group have read since they met: one that arrives speaks for itself alone."""
        self.writing: list[Place] = []
        """What they have written since."""
        self.unmet: dict[str, str] = {}
        """Shared buffers that single threads of the group have written, or one of them has seen sent, since they met."""
        self.ready: Callable[[], bool] = lambda: True
        self.waits_for = ""
        self.turns = 0
