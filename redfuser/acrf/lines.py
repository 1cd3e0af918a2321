"""Lines of a printed program: where each stands, how deep, and errors that say so. For the readers of segment programs and
tile programs, whose expressions :func:`redfuser.acrf.text.parse_expr` reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from redfuser.errors import InputError


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text: its number, its depth in steps of two spaces, and what it says."""

    number: int
    depth: int
    text: str

    def fail(self, wanted: str) -> NoReturn:
        """Raises InputError RF180."""
        raise InputError("RF180", f"line {self.number}: expected {wanted}, found {self.text[:80]!r}")

    def match(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        """The match of ``pattern`` at the line's beginning. Raises InputError RF180."""
        return pattern.match(self.text) or self.fail(wanted)


def lines_of(text: str) -> list[Line]:
    """The lines of ``text`` that say something."""
    return [Line(n, (len(t) - len(t.lstrip(" "))) // 2, t.strip()) for n, t in enumerate(text.splitlines(), 1) if t.strip()]


def commas(text: str) -> list[str]:
    """``text`` at its commas outside brackets."""
    out, depth, start = [], 0, 0
    for k, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and not depth:
            out.append(text[start:k].strip())
            start = k + 1
    return [*out, text[start:].strip()] if text.strip() else []
