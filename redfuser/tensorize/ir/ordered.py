"""Who touched what in shared memory, and whether that was ordered: vector clocks, and the last accesses of each place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Clock:
    """What a member knows to have happened: for each member, how many of its steps."""

    steps: dict[str, int] = field(default_factory=dict)

    def tick(self, name: str) -> Clock:
        """One more step of its own."""
        return Clock({**self.steps, name: self.steps.get(name, 0) + 1})

    def join(self, other: Clock) -> Clock:
        """What both know."""
        found = dict(self.steps)
        for name, n in other.steps.items():
            found[name] = max(found.get(name, 0), n)
        return Clock(found)

    def covers(self, other: Clock) -> bool:
        return all(self.knows(*at) for at in other.steps.items())

    def knows(self, name: str, step: int) -> bool:
        return self.steps.get(name, 0) >= step


@dataclass(frozen=True, slots=True)
class _Access:
    name: str
    step: int
    open: bool
    part: str = ""


@dataclass
class _Cell:
    """The last write of a place (by parts, where each member writes its own), and the reads since."""

    written: dict[str, _Access] = field(default_factory=dict)
    read: dict[str, _Access] = field(default_factory=dict)


class Memory:
    """Shared memory as places, a buffer's name and the slot of it. fail: makes the error of a hazard."""

    def __init__(self, fail: Callable[[str], Exception]) -> None:
        self.fail = fail
        self.cells: dict[tuple[str, tuple[int, ...]], _Cell] = {}

    def read(self, place: tuple[str, tuple[int, ...]], name: str, clock: Clock, open: bool, part: str = "") -> None:
        """A read that is over, or (``open``) under way until :meth:`read_done`. part: the member whose rows alone are read."""
        for cell in self._meeting(place):
            for w in cell.written.values():
                if not (part and w.part and w.part != part) and (w.open or not clock.knows(w.name, w.step)):
                    raise self.fail(f"{name} reads {_spell(place)} before {w.name} has filled it")
        self._cell(place).read[name] = _Access(name, clock.steps[name], open, part)

    def read_done(self, place: tuple[str, tuple[int, ...]], name: str, clock: Clock) -> None:
        """The end of a read that was under way."""
        read = self._cell(place).read
        read[name] = _Access(name, clock.steps[name], False, read[name].part)

    def write_done(self, place: tuple[str, tuple[int, ...]], name: str, clock: Clock) -> None:
        """The end of writes that were under way."""
        written = self._cell(place).written
        for part, w in written.items():
            if w.name == name:
                written[part] = _Access(name, clock.steps[name], False, part)

    def write(self, place: tuple[str, tuple[int, ...]], name: str, clock: Clock, what: str, open: bool, part: str = "") -> None:
        """A write that is over, or under way. part: the member whose rows alone are written."""
        for cell in self._meeting(place):
            for r in cell.read.values():
                if part and r.part and r.part != part:
                    continue
                if r.name != name and (r.open or not clock.knows(r.name, r.step)):
                    raise self.fail(f"{what} overwrites {_spell(place)} while {r.name} may read it")
                if r.name == name and r.open:
                    raise self.fail(f"{what} overwrites {_spell(place)} under a product or copy of its own")
            for w in cell.written.values():
                apart = part and w.part and w.part != part
                if w.name != name and not apart and (w.open or not clock.knows(w.name, w.step)):
                    raise self.fail(f"{what} overwrites {_spell(place)} while {w.name} may write it")
        cell = self._cell(place)
        if not part:
            cell.written = {}
        cell.read = {n: r for n, r in cell.read.items() if r.open or (part and r.part != part)}
        cell.written[part] = _Access(name, clock.steps[name], open, part)

    def _cell(self, place: tuple[str, tuple[int, ...]]) -> _Cell:
        return self.cells.setdefault(place, _Cell())

    def _meeting(self, place: tuple[str, tuple[int, ...]]) -> list[_Cell]:
        """Cells of this place: those in it, and those that it is in."""
        name, slot = place
        return [c for (n, s), c in self.cells.items() if n == name and s[:len(slot)] == slot[:len(s)]]


def _spell(place: tuple[str, tuple[int, ...]]) -> str:
    return place[0] + (f"[{', '.join(map(str, place[1]))}]" if place[1] else "")
