"""The corpus: small cascade files, with their directives (``# casts: elide``, ``# expect: RF201``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from redfuser.acrf.cascade import Cascade
from redfuser.acrf.text import parse_cascade

FOLDER = Path(__file__).parents[2] / "corpus"


@dataclass(frozen=True)
class Case:
    name: str
    text: str

    def directive(self, key: str, default: str = "") -> str:
        found = re.search(rf"^# {key}: (\S+)", self.text, re.M)
        return found.group(1) if found else default

    @property
    def cascade(self) -> Cascade:
        return parse_cascade(self.text, f"{self.name}.txt")

    @property
    def casts(self) -> str:
        return self.directive("casts", "preserve")


def cases(kind: str) -> list[Case]:
    return [Case(p.stem, p.read_text()) for p in sorted((FOLDER / kind).glob("*.txt"))]


ACCEPT, REFUSE = cases("accept"), cases("refuse")
