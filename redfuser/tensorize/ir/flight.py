"""Statements of a block whose warp groups have roles: what is started and not waited for, and how to wait for it.

A fetch or a product is under way from the statement that starts it to the one that waits for it. Until then nobody may touch
what a fetch fills, write what a product reads, or read what it adds to. The interpreter (:mod:`redfuser.tensorize.ir.crew`)
reports whoever does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from redfuser.acrf.expr import Expr
from redfuser.tensorize.ir.parts import At, Slice, index_text


@dataclass(frozen=True, slots=True)
class Fetch:
    """Start to copy a tile from global to shared memory; when it is there it arrives at ``at``. ``all``: the first block of a
    cluster starts it for all of them, at the same place of each; every block says that it expects its own."""

    src: Slice
    dst: Slice
    at: At
    all: bool = False
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"fetch {self.src} -> {self.dst} signals {self.at}{' of all' * self.all}"


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until the phase of a barrier is over. The hardware knows a phase by its parity alone: one that is two behind or
    two ahead is taken for it. Phase -1 is over from the start."""

    at: At
    phase: Expr
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"await {self.at} phase {index_text(self.phase)}"


@dataclass(frozen=True, slots=True)
class Arrive:
    """One arrival of this warp group at a barrier: of one thread for all of them, as fits products, or (``each``) of every
    thread for itself, as fits what single threads read and write. A barrier has one kind or the other. ``all``: at this barrier
    of every block of the cluster."""

    at: At
    each: bool = False
    all: bool = False
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"arrive {self.at}{' each' * self.each}{' of all' * self.all}"


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait until at most ``left`` products of this warp group are under way; ``done`` may be read from here on."""

    left: int
    done: tuple[str, ...] = ()
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"drain {self.left}" + f" for {', '.join(self.done)}" * bool(self.done)


@dataclass(frozen=True, slots=True)
class Turn:
    """The groups of a role start products one after another: wait for the turn (``take``), or give it to the next group. The
    first group has it at the start."""

    take: bool

    def __str__(self) -> str:
        return "take turn" if self.take else "pass turn"


@dataclass(frozen=True, slots=True)
class Meet:
    """All groups of the role (``alone``: the threads of each by themselves) wait for each other; what they wrote to shared
    memory is there for the copy engine too."""

    alone: bool = False

    def __str__(self) -> str:
        return "meet" + " alone" * self.alone


@dataclass(frozen=True, slots=True)
class Send:
    """The first group of the role starts to copy a tile from shared to global memory, or (``alone``) each group its rows."""

    src: Slice
    dst: Slice
    alone: bool = False
    comment: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"send {self.src} -> {self.dst}" + " alone" * self.alone


@dataclass(frozen=True, slots=True)
class Sent:
    """Wait until shared memory that this group sent from has been read, but for its last ``left`` sends."""

    left: int = 0

    def __str__(self) -> str:
        return "await sent" + f" but {self.left}" * bool(self.left)


@dataclass(frozen=True, slots=True)
class Let:
    """A scalar, from here to the end of the enclosing statements."""

    var: str
    value: Expr

    def __str__(self) -> str:
        return f"let {self.var} = {index_text(self.value)}"


Flight = Fetch | Await | Arrive | Drain | Turn | Meet | Send | Sent | Let
