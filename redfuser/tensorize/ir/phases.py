"""Barriers of roles: phases, what whoever waits for one learns, and whether its parity can mislead him."""

from __future__ import annotations

from dataclasses import dataclass, field

from redfuser.errors import InternalError
from redfuser.tensorize.ir.ordered import Clock


def hazard(what: str) -> InternalError:
    return InternalError("RF900", f"roles: {what}")


@dataclass
class Ring:
    """A slot of a barrier: phases over so far, arrivals of the current one, and what whoever waits for a phase learns."""

    needed: int
    over: int = 0
    come: int = 0
    clock: Clock = field(default_factory=Clock)
    known: Clock = field(default_factory=Clock)
    before: Clock = field(default_factory=Clock)
    """What was learnt from the phase before that one."""
    waited: list[tuple[int, str, int]] = field(default_factory=list)
    """Phases that were waited for, by whom, and in which step of his."""

    def passed(self, phase: int) -> bool:
        """What the hardware says of a phase, which it knows by its parity."""
        return (self.over - 1 - phase) % 2 == 0

    def arrive(self, clock: Clock, what: str) -> None:
        self.clock = self.clock.join(clock)
        self.come += 1
        if self.come == self.needed:
            if late := [n for phase, n, step in self.waited if phase == self.over - 1 and not self.clock.knows(n, step)]:
                raise hazard(f"{what} may end the phase after the one that {late[0]} still waits for")
            self.waited = [w for w in self.waited if w[0] >= self.over]
            self.over, self.come, self.before, self.known, self.clock = self.over + 1, 0, self.known, self.clock, Clock()

    def wait(self, phase: int, name: str, clock: Clock, what: str) -> Clock:
        """What a member knows that goes on: only after this very phase, and only where it knew that the one before is over."""
        if phase != self.over - 1 or not clock.covers(self.before):
            raise hazard(f"{name} may take an earlier or a later phase for the one it awaits: {what}")
        clock = clock.join(self.known).tick(name)
        self.waited.append((phase, name, clock.steps[name]))
        return clock
